"""Reduced networks: one example's network with everything that is linear over its ball multiplied out.

With h_k the outputs of the unstable ReLUs of the k-th layer, every other ReLU being linear over the ball,

    z_k = A_k x + sum over l < k of B_kl h_l + c_k,    margin = a x + sum over k of b_k h_k + c,

so backward propagation is a product with a small matrix for each layer, whatever layers the network has. Subproblems of branch
and bound are solved on it: a convolutional network of 5000 units of which 300 are unstable is a network of 300 units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.propagation import Functional, Relaxations
from relucert.networks.affine_map import one_hot, to_roots
from relucert.networks.network import Network
from relucert.networks.nodes import ReLU
from relucert.networks.traversal import Node

ENTRIES = 2**23  # numbers of all matrices of one example


@dataclass(frozen=True, eq=False)
class Kept:
    """A relaxation that passes functionals on through stable units, and keeps them all for the unstable units."""

    on: Bool[Tensor, " batch *shape"]
    unstable: Bool[Tensor, " batch *shape"]
    leak: float
    seen: list[Tensor]
    parallel = False

    @staticmethod
    def of(node: Node[ReLU], within: Interval) -> Kept:
        """For a node of ReLUs with known intervals."""
        return Kept(within.lower >= 0, within.unstable, node.op.slope, [])

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> tuple[Tensor, Tensor, None]:
        """As for `ReLURelaxation`, without the unstable units."""
        self.seen.append(rows)
        slopes = torch.where(self.on, torch.ones_like(rows[:, 0]), torch.full_like(rows[:, 0], self.leak))
        return rows * torch.where(self.unstable, 0.0, slopes).unsqueeze(1), rows.new_zeros(rows.shape[:2]), None

    def taken(self) -> Tensor | None:
        """The functionals of the last backward propagation, None if it did not reach the node; they are kept once."""
        return self.seen.pop() if self.seen else None


@dataclass(frozen=True, eq=False)
class Part:
    """Functionals as `direct x + sum over nodes of inner[index] h_index + offset`."""

    direct: Float[Tensor, " rows inputs"]
    inner: dict[int, Float[Tensor, " rows units"]]
    offset: Float[Tensor, " rows"]


@dataclass(frozen=True, eq=False)
class ReducedNetwork:
    """The unstable `units` by node, the functionals that are their inputs (`layers`), and the property's rows (`last`)."""

    units: dict[int, Int[Tensor, " units"]]
    layers: dict[int, Part]
    last: Part

    @staticmethod
    @torch.no_grad()
    def of(net: Network, inputs: dict[int, Interval], rows: Float[Tensor, " rows classes"]) -> ReducedNetwork | None:
        """From one example's intervals (1, *shape); None for a network with max pools, or where the matrices are too large."""
        if len(net.relus) < len(net.switches):
            return None
        units = {node.index: inputs[node.index].unstable[0].flatten().nonzero()[:, 0] for node in net.relus}
        slopes = {node.index: _stable_slopes(node, inputs[node.index], rows) for node in net.relus}
        size = math.prod(net.input_shape)
        total, before = 0, size
        for chosen in units.values():
            total, before = total + len(chosen) * before, before + len(chosen)
        if total > ENTRIES:
            return None
        layers = {}
        for node in net.switches:
            shape = net.graph[node.inputs[0]].shape
            if len(units[node.index]):
                picked = one_hot(units[node.index][None], shape, rows.dtype)
                layers[node.index] = _part(net, node.inputs[0], picked, slopes, units)
        return ReducedNetwork(units, layers, _part(net, len(net.graph) - 1, rows[None], slopes, units))

    def pull_back(self, row: Int[Tensor, " problems"], relaxations: Relaxations, shape: tuple[int, ...]) -> Functional:
        """Backward propagation of the property's rows, one for each problem, through relaxations of the unstable units."""
        rows = {index: part[row].unsqueeze(1) for index, part in self.last.inner.items()}
        direct, low = self.last.direct[row].unsqueeze(1), self.last.offset[row].unsqueeze(1)
        for index in reversed(self.layers):
            if index not in rows:
                continue
            back, below, _ = relaxations[index].pull_back(rows.pop(index))
            layer = self.layers[index]
            low = low + below + back @ layer.offset
            direct = direct + back @ layer.direct
            for other, weights in layer.inner.items():
                rows[other] = rows[other] + back @ weights if other in rows else back @ weights
        return Functional(direct.unflatten(2, shape), low, None)

    def restrict(self, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """The numbers (n, units) of the unstable units, from numbers (n, *shape) for all units of each node."""
        return {index: values[index].flatten(1)[:, self.units[index]] for index in self.layers}

    def spread(self, small: dict[int, Tensor], values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Numbers for all units, with those of the unstable units replaced."""
        spread = {index: value.clone() for index, value in values.items()}
        for index, part in small.items():
            spread[index].flatten(1)[:, self.units[index]] = part
        return spread


def _stable_slopes(node: Node[ReLU], within: Interval, like: Tensor) -> Float[Tensor, " 1 *shape"]:
    """The slopes of units on known intervals: 1 or the leak where stable, 0 where unstable."""
    on, leak = torch.ones_like(within.lower, dtype=like.dtype), like.new_tensor(node.op.slope)
    return torch.where(within.unstable, 0.0, torch.where(within.lower >= 0, on, leak))


def _part(net: Network, node: int, rows: Tensor, slopes: dict[int, Tensor], units: dict[int, Tensor]) -> Part:
    """Functionals (1, rows, *shape) of a node in terms of the input and of the unstable units below it."""
    found = to_roots(net.graph, node, rows, slopes)
    inner = {
        index: found.rows[index][0].flatten(1)[:, chosen]
        for index, chosen in units.items()
        if index in found.rows and len(chosen)
    }
    size = math.prod(net.input_shape)
    direct = found.rows[0][0].flatten(1) if 0 in found.rows else rows.new_zeros(rows.shape[1], size)
    return Part(direct, inner, found.offset[0])
