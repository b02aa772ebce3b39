"""Networks without max pools: the same function, every maximum made of ReLUs.

    max(a, b) = a + relu(b - a)

The entries of a window meet in a tournament, pair after pair, and the larger ones in the next round: k different entries take
k - 1 ReLUs in ceil(log2 k) rounds. Windows that overlap share the pairs they have in common. What decides about ReLUs, as
branch and bound does by splitting them, then decides about max pools too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.networks.build.rebuilding import describe, rebuild
from relucert.networks.network import Network
from relucert.networks.nodes import MaxPool2d
from relucert.networks.traversal import Node

Windows = list[tuple[int, ...]]


def unpooled(net: Network) -> Network:
    """An equal network of its own weights, as they are now, that has no max pools; the same one if it has none.

    Equal in real arithmetic: rounding differs where the entries of a window do. The network is in eval mode.

    >>> from torch import nn
    >>> net = Network(nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2)), (1, 2, 2))
    >>> [node.kind for node in unpooled(net).switches], unpooled(net).hidden_units
    (['relu', 'relu'], 3)
    """
    if not net.graph.max_pools:
        return net
    description, tensors = describe(net)
    writer = _Writer(tensors)
    waiting, place = iter(net.graph.max_pools), []
    for entry in description["nodes"]:
        inputs = [place[i] for i in entry["inputs"]]
        if entry["kind"] == MaxPool2d.kind:
            place.append(writer.pool(next(waiting), inputs[0]))
        else:
            place.append(writer.add({**entry, "inputs": inputs}))
    return rebuild({**description, "nodes": writer.nodes}, tensors).to(device=net.device, dtype=net.dtype)


@dataclass(frozen=True)
class _Round:
    """One round of a tournament: pairs of entries, those that have nobody to meet, and who is left in every window.

    The larger of the i-th pair has number i in the next round, entries that were alone the numbers behind the pairs'.
    """

    pairs: list[tuple[int, int]]
    alone: list[int]
    left: Windows


def _met(windows: Windows) -> _Round:
    """Neighbours meet, and the last of an odd number waits."""
    pairs: dict[tuple[int, int], int] = {}
    alone: dict[int, int] = {}
    for window in windows:
        for pair in zip(window[::2], window[1::2], strict=False):
            pairs.setdefault(pair, len(pairs))
        if len(window) % 2:
            alone.setdefault(window[-1], len(alone))
    left = []
    for window in windows:
        winners = [pairs[pair] for pair in zip(window[::2], window[1::2], strict=False)]
        left.append((*winners, *(len(pairs) + alone[entry] for entry in window[len(window) // 2 * 2 :])))
    return _Round(list(pairs), list(alone), left)


class _Writer:
    """The description of a network while it is written: its nodes, and tensors that it needs besides."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.nodes: list[dict[str, Any]] = []
        self.tensors = tensors

    def add(self, entry: dict[str, Any]) -> int:
        """Append a node, and say where it stands."""
        self.nodes.append(entry)
        return len(self.nodes) - 1

    def pool(self, node: Node[MaxPool2d], source: int) -> int:
        """The nodes of one max pool's tournaments, those of all channels and windows together."""
        op = node.op
        windows = [tuple(dict.fromkeys(entry for entry in seen if entry >= 0)) for seen in op.windows().tolist()]
        if not all(windows):
            raise InvalidInput(f"{node.name} (max_pool2d) must see an entry in every window, got one of padding alone")
        channels, height, width = op.in_shape
        value = self._step("reshape", [source], (channels * height * width,), out_shape=[channels * height * width])
        # Where an entry stands, by channel and number.
        table = torch.arange(channels * height * width).reshape(channels, height * width)
        while any(len(window) > 1 for window in windows):
            met = _met(windows)
            first, second = (table[:, [pair[side] for pair in met.pairs]].flatten() for side in (0, 1))
            alone, many = table[:, met.alone].flatten(), len(first)
            low, high = self._gather(value, first), self._gather(value, second)
            above = self._step("add", [high, low], (many,), signs=[1, -1])
            above = self._step("relu", [above], (many,), slope=0.0)
            if len(alone):
                low = self._gather(value, torch.cat([first, alone]))
                above = self._step("pad", [above], (many + len(alone),), padding=[0, len(alone)])
            value = self._step("add", [low, above], (many + len(alone),), signs=[1, 1])
            rest = many + torch.arange(len(alone)).reshape(channels, -1)
            table, windows = torch.cat([torch.arange(many).reshape(channels, -1), rest], 1), met.left
        return self._gather(value, table[:, [window[0] for window in windows]].reshape(node.shape))

    def _gather(self, source: int, index: Tensor) -> int:
        name = f"unpooled.{len(self.nodes)}.index"
        self.tensors[name] = index
        return self.add(
            {
                "kind": "gather",
                "inputs": [source],
                "shape": list(index.shape),
                "settings": {},
                "tensors": {"index": name},
            }
        )

    def _step(self, kind: str, inputs: list[int], shape: tuple[int, ...], **settings: Any) -> int:
        return self.add({"kind": kind, "inputs": inputs, "shape": list(shape), "settings": settings, "tensors": {}})
