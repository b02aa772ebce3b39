"""The linear region of a point: the polytope Q(x) on which the network is V z + a (section 2 of the paper).

Q(x) is the intersection of half spaces, each bounded by the hyperplane of a unit: for a ReLU the sign of its pre-activation,
for a max pool the comparison of the largest entry of a window with another entry. A hyperplane is represented by an oriented
linear functional on the value of a node, >= 0 inside the region.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.networks.affine_map import one_hot
from relucert.networks.linear_map import LinearMap, Patterns
from relucert.networks.network import Network
from relucert.networks.nodes import MaxPool2d, ReLU, Switching
from relucert.networks.traversal import Node


@dataclass(frozen=True, eq=False)
class Hyperplanes:
    """The hyperplanes of one ReLU or max pool: `<functional_j, value of the node's input> >= 0` inside the region."""

    node: Node[Switching]

    @staticmethod
    def of(node: Node[Switching]) -> Hyperplanes:
        """The hyperplanes of a ReLU or of a max pool."""
        return UnitHyperplanes(node) if isinstance(node.op, ReLU) else WindowHyperplanes(node)

    @property
    def count(self) -> int:
        """The number of hyperplanes."""
        raise NotImplementedError

    @property
    def source(self) -> int:
        """The index of the node on whose value the functionals act."""
        return self.node.inputs[0]

    def margins(self, value: Float[Tensor, " batch *shape"], pattern: Tensor) -> Float[Tensor, " batch hyperplanes"]:
        """The values of the functionals: >= 0 inside; +inf for comparisons of an entry with itself or with padding."""
        raise NotImplementedError

    def errors(self, error: Float[Tensor, " batch *shape"], pattern: Tensor) -> Float[Tensor, " batch hyperplanes"]:
        """Error bounds of the margins from error bounds of the value: for a comparison the sum of both entries' errors.

        A comparison of an entry with itself or with padding has the error 0.
        """
        raise NotImplementedError

    def left(self, old: Tensor, new: Tensor) -> Bool[Tensor, " batch hyperplanes"]:
        """The hyperplanes that are crossed from pattern `old` to `new`: units that flip, comparisons with the new maximum."""
        raise NotImplementedError

    def functionals(
        self, pattern: Tensor, places: Int[Tensor, " batch rows"], dtype: torch.dtype
    ) -> Float[Tensor, " batch rows *shape"]:
        """The oriented functionals of the hyperplanes `places` of every example."""
        raise NotImplementedError

    def along(
        self, directions: Float[Tensor, " batch n *shape"], pattern: Tensor
    ) -> Float[Tensor, " batch n hyperplanes"]:
        """The functionals of all hyperplanes, with either sign, at changes of the value; 0 where `margins` are +inf."""
        raise NotImplementedError


class UnitHyperplanes(Hyperplanes):
    """The hyperplanes of a ReLU, one for each unit: pre-activation = 0."""

    @property
    def count(self) -> int:
        return math.prod(self.node.shape)

    def margins(self, value: Float[Tensor, " batch *shape"], pattern: Tensor) -> Float[Tensor, " batch hyperplanes"]:
        return torch.where(pattern, value, -value).flatten(1)

    def errors(self, error: Float[Tensor, " batch *shape"], pattern: Tensor) -> Float[Tensor, " batch hyperplanes"]:
        return error.flatten(1)

    def left(self, old: Tensor, new: Tensor) -> Bool[Tensor, " batch hyperplanes"]:
        return (old != new).flatten(1)

    def functionals(
        self, pattern: Tensor, places: Int[Tensor, " batch rows"], dtype: torch.dtype
    ) -> Float[Tensor, " batch rows *shape"]:
        sign = pattern.flatten(1).gather(1, places).to(dtype).mul_(2).sub_(1)
        spread = one_hot(places, self.node.shape, dtype)
        return spread * sign.reshape(*places.shape, *(1,) * len(self.node.shape))

    def along(
        self, directions: Float[Tensor, " batch n *shape"], pattern: Tensor
    ) -> Float[Tensor, " batch n hyperplanes"]:
        return directions.flatten(2)


class WindowHyperplanes(Hyperplanes):
    """The hyperplanes of a max pool, one for each entry of every window: maximum = entry."""

    @cached_property
    def windows(self) -> Tensor:
        """The positions in a channel of the entries of every window, -1 for padding."""
        return cast(MaxPool2d, self.node.op).windows()

    @cached_property
    def padded(self) -> bool:
        """Whether windows reach into the padding."""
        return bool((self.windows < 0).any())

    @cached_property
    def entries(self) -> Tensor | None:
        """The number of each position among the entries of all windows, where every position is in one window."""
        places = self.windows.flatten()
        _, height, width = self.node.op.in_shape
        every = torch.arange(height * width, device=places.device)
        return places.argsort() if places.sort().values.equal(every) else None

    @property
    def count(self) -> int:
        return math.prod(self.node.shape) * self.windows.shape[1]

    def margins(self, value: Float[Tensor, " batch *shape"], pattern: Tensor) -> Float[Tensor, " batch hyperplanes"]:
        own, other, void = self._compared(value, pattern)
        return (own - other).masked_fill(void, math.inf).flatten(1)

    def errors(self, error: Float[Tensor, " batch *shape"], pattern: Tensor) -> Float[Tensor, " batch hyperplanes"]:
        own, other, void = self._compared(error, pattern)
        return (own + other).masked_fill(void, 0.0).flatten(1)

    def _compared(self, value: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The values at the maximum of every window and at its entries, and which comparisons are void."""
        flat, winner = value.flatten(2), pattern.flatten(2)
        windows = self.windows.to(value.device)
        void = (windows < 0) | (windows == winner.unsqueeze(-1))
        return flat.gather(2, winner).unsqueeze(-1), flat[:, :, windows.clamp(min=0)], void

    def left(self, old: Tensor, new: Tensor) -> Bool[Tensor, " batch hyperplanes"]:
        winner, other = old.flatten(2).unsqueeze(-1), new.flatten(2).unsqueeze(-1)
        windows = self.windows.to(old.device)
        return ((winner != other) & (windows == other)).flatten(1)

    def functionals(
        self, pattern: Tensor, places: Int[Tensor, " batch rows"], dtype: torch.dtype
    ) -> Float[Tensor, " batch rows *shape"]:
        channels, height, width = self.node.op.in_shape
        windows = self.windows.to(places.device)
        per_window, size = windows.shape[1], math.prod(self.node.shape[1:])
        window, entry = places // per_window, places % per_window
        channel = window // size
        winner = pattern.flatten(1).gather(1, window)
        other = windows[window % size, entry].clamp(min=0)
        shape = (channels, height, width)
        base = channel * (height * width)
        return one_hot(base + winner, shape, dtype) - one_hot(base + other, shape, dtype)

    def along(
        self, directions: Float[Tensor, " batch n *shape"], pattern: Tensor
    ) -> Float[Tensor, " batch n hyperplanes"]:
        flat = directions.flatten(3)
        windows, lead = self.windows.to(flat.device), flat.shape[:3]
        if self.entries is not None:
            tables = windows.flatten(), self.entries.to(flat.device)
            return cast(Tensor, _Comparisons.apply(flat, pattern.flatten(2), *tables)).flatten(2)
        own = flat.gather(3, pattern.flatten(2)[:, None].expand(*lead, -1)).unsqueeze(4)
        other = flat.gather(3, windows.clamp(min=0).flatten().expand(*lead, -1)).unflatten(3, windows.shape)
        found = own - other
        return (found.masked_fill(windows < 0, 0.0) if self.padded else found).flatten(2)


class _Comparisons(torch.autograd.Function):
    """`apply(values, winners, places, entries)`: the entries of all windows minus the winner of their window.

    Values (batch, n, channels, positions), winners (batch, channels, windows); every position is in one window, so the gradient
    goes back by the inverse of `places`: nothing is added up but what the winners have of their windows.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, winners: Tensor, places: Tensor, entries: Tensor) -> Tensor:
        winners = winners[:, None].expand(*values.shape[:3], -1)
        ctx.work = winners, entries
        found = values.index_select(3, places).unflatten(3, (winners.shape[3], -1))
        return found.sub_(values.gather(3, winners)[..., None])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        winners, entries = ctx.work
        found = gradients[0].flatten(3).index_select(3, entries)
        return found.scatter_add_(3, winners, gradients[0].sum(4).neg_()), None, None, None


class LinearRegion:
    """The linear regions of a batch of inputs or of given activation patterns: their hyperplanes and affine maps.

    >>> import relucert as rc
    >>> net, x = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits").x_test[:3]
    >>> region = LinearRegion.at(net, x)
    >>> rows, offsets = region.logits_map()
    >>> torch.allclose(torch.einsum("bkchw,bchw->bk", rows, x) + offsets, net(x), atol=1e-5)
    True
    >>> region.contains(x)
    tensor([True, True, True])
    """

    def __init__(
        self, net: Network, patterns: Patterns, batch: int, hyperplanes: tuple[Hyperplanes, ...] | None = None
    ):
        self.net, self.patterns, self.batch = net, patterns, batch
        self.map = LinearMap(net.graph, patterns)
        self.hyperplanes = tuple(Hyperplanes.of(node) for node in net.switches) if hyperplanes is None else hyperplanes

    @classmethod
    def at(cls, net: Network, x: Float[Tensor, " batch *input"]) -> LinearRegion:
        """The regions of a batch of inputs."""
        return cls(net, net.pattern(x), len(x))

    @classmethod
    def evaluated(
        cls, net: Network, x: Float[Tensor, " batch *input"]
    ) -> tuple[LinearRegion, list[Tensor], Float[Tensor, " batch classes"]]:
        """The regions of inputs, the inputs of all ReLUs and max pools, and the logits, from one differentiable pass."""
        places = [node.inputs[0] for node in net.switches]
        last = len(net.graph) - 1
        values = net.graph.values(x, [*places, last])
        patterns = [node.op.pattern(values[place].detach()) for node, place in zip(net.switches, places, strict=True)]
        return cls(net, patterns, len(x)), [values[place] for place in places], values[last]

    def __len__(self) -> int:
        return self.batch

    def restrict(self, index: Int[Tensor, " rows"]) -> LinearRegion:
        """The regions of some of the examples."""
        return LinearRegion(self.net, [pattern[index] for pattern in self.patterns], len(index), self.hyperplanes)

    @property
    def count(self) -> int:
        """The number of hyperplanes of one region."""
        return sum(hyperplanes.count for hyperplanes in self.hyperplanes)

    def values(self, z: Float[Tensor, " batch *input"]) -> tuple[list[Tensor], Float[Tensor, " batch classes"]]:
        """The pre-activations and logits by the affine map of the region, also for inputs outside the region."""
        places = [hyperplanes.source for hyperplanes in self.hyperplanes]
        last = len(self.net.graph) - 1
        values = self.map.values(z, [*places, last])
        return [values[place] for place in places], values[last]

    def margins(self, z: Float[Tensor, " batch *input"]) -> Float[Tensor, " batch hyperplanes"]:
        """The oriented margins of all hyperplanes at inputs: all are >= 0 if and only if the input lies in the region."""
        values, _ = self.values(z)
        return self.margins_of(values, z)

    def margins_of(self, values: Sequence[Tensor], z: Tensor) -> Float[Tensor, " batch hyperplanes"]:
        """The margins of all hyperplanes from given pre-activations."""
        parts = [f.margins(v, p) for f, v, p in zip(self.hyperplanes, values, self.patterns, strict=True)]
        return torch.cat(parts, 1) if parts else z.new_zeros(len(z), 0)

    def contains(self, z: Float[Tensor, " batch *input"], slack: float = 0.0) -> Bool[Tensor, " batch"]:
        """Whether inputs lie in their regions, with a tolerance of `slack` in the margins."""
        return (self.margins(z) >= -slack).all(1)

    def rows(self, places: Int[Tensor, " batch rows"]) -> Float[Tensor, " batch rows *input"]:
        """The oriented rows of V of the hyperplanes with numbers `places`; differentiable in the weights."""
        out = self._zeros(places.shape)
        start = 0
        for hyperplanes, pattern in zip(self.hyperplanes, self.patterns, strict=True):
            own = (places >= start) & (places < start + hyperplanes.count)
            wide = int(own.sum(1).max()) if own.numel() else 0
            if wide:
                # Gather the hyperplanes of this node to the front, so that only their rows are propagated.
                order = own.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :wide]
                first = own.gather(1, order)
                local = (places.gather(1, order) - start).where(first, torch.zeros_like(order))
                functionals = hyperplanes.functionals(pattern, local, out.dtype)
                rows = self.map.pull_back(hyperplanes.source, functionals)
                keep = first.reshape(*first.shape, *(1,) * (out.dim() - 2))
                index = order.reshape(*order.shape, *(1,) * (out.dim() - 2)).expand(-1, -1, *out.shape[2:])
                out = out.scatter_add(1, index, rows * keep)
            start += hyperplanes.count
        return out

    def logits_rows(self, functionals: Float[Tensor, " batch rows classes"]) -> Float[Tensor, " batch rows *input"]:
        """The rows of V of linear functionals on the logits."""
        return self.map.pull_back(len(self.net.graph) - 1, functionals)

    def decision_rows(self, y: Int[Tensor, " batch"]) -> Float[Tensor, " batch classes *input"]:
        """The rows V_y - V_s of the decision hyperplanes between y and every class s."""
        eye = torch.eye(self.net.classes, dtype=self.net.dtype, device=y.device)
        return self.logits_rows(eye[y][:, None] - eye)

    def logits_map(self) -> tuple[Float[Tensor, " batch classes *input"], Float[Tensor, " batch classes"]]:
        """V (batch, classes, *input) and a (batch, classes) of the logits."""
        classes = self.net.classes
        eye = torch.eye(classes, dtype=self.net.dtype, device=self.net.device).expand(self.batch, classes, classes)
        rows = self.logits_rows(eye)
        zero = rows.new_zeros(self.batch, *self.net.input_shape)
        return rows, self.values(zero)[1]

    def _zeros(self, shape: Sequence[int]) -> Tensor:
        return torch.zeros(*shape, *self.net.input_shape, dtype=self.net.dtype, device=self.net.device)
