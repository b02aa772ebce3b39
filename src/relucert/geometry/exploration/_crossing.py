"""The activation pattern on the other side of a hyperplane.

Crossing a facet flips only units whose hyperplane contains the facet, and degenerate units. Here a crossing flips one unit, or
changes the maximum of one window, and the degenerate units. That suffices to reach every region. A straight path out of a
region changes the units whose hyperplanes it crosses. If it crosses several hyperplanes at one point w, the units are flipped
one after the other, in any order: a unit that is zero at w has the same value there on both sides, so no flip changes the value
of a later unit at w, and the closed regions of all intermediate patterns contain w. Intermediate regions may have an empty
interior; they take time, but do not affect soundness.

Degenerate units vanish on the whole region (a max-pool comparison among dead units, a unit without offset whose inputs are
dead). By continuity, beyond the crossed hyperplane such a unit is a multiple of the crossed function: its sign there is the
sign of its slope along the direction out of the region, at any point of the hyperplane.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.geometry.region import LinearRegion, WindowHyperplanes
from relucert.networks.linear_map import Patterns
from relucert.networks.nodes import Affine, MaxPool2d, ReLU, Switching
from relucert.networks.traversal import ForwardRule, Node, propagate

ZERO = 1e-10  # a slope counts as zero below this fraction of the absolute sum of its terms


def patterns_behind(
    region: LinearRegion, crossed: Int[Tensor, " batch"], degenerate: Bool[Tensor, " batch hyperplanes"],
    direction: Float[Tensor, " batch *input"],
) -> Patterns:  # fmt: skip
    """The patterns beyond one hyperplane of each region; `degenerate` units vanish on the whole region.

    `direction` points out of the region through the hyperplane.
    """
    flipped = torch.nn.functional.one_hot(crossed, degenerate.shape[1]).bool()
    rule = _Behind(region, flipped, degenerate)
    propagate(region.net.graph, rule, {0: (direction, direction.abs())})
    return [rule.patterns[hyperplanes.node.index] for hyperplanes in region.hyperplanes]


Pair = tuple[Tensor, Tensor]


class _Behind(ForwardRule[Pair]):
    """The slope of every node along a direction beyond the hyperplane, and the absolute sum of its terms.

    `patterns` collects the pattern of every ReLU and max pool there, by the index of the node.
    """

    def __init__(self, region: LinearRegion, flipped: Tensor, degenerate: Tensor):
        counts = [hyperplanes.count for hyperplanes in region.hyperplanes]
        split = zip(
            region.hyperplanes, region.patterns, flipped.split(counts, 1), degenerate.split(counts, 1), strict=True
        )
        self.known = {known[0].node.index: known for known in split}
        self.patterns: dict[int, Tensor] = {}

    def affine(self, node: Node[Affine], inputs: list[Pair]) -> Pair:
        slope, size = zip(*inputs, strict=True)
        return node.op.linear(*slope), node.op.absolute(*size)

    def relu(self, node: Node[ReLU], value: Pair) -> Pair:
        _, old, flipped, degenerate = self.known[node.index]
        return self._through(node, value, _sides(old, flipped, degenerate, value[0], ZERO * value[1]))

    def max_pool(self, node: Node[MaxPool2d], value: Pair) -> Pair:
        hyperplanes, old, flipped, degenerate = self.known[node.index]
        assert isinstance(hyperplanes, WindowHyperplanes)
        return self._through(node, value, _winners(hyperplanes, old, flipped, degenerate, value[0], ZERO * value[1]))

    def _through(self, node: Node[Switching], value: Pair, pattern: Tensor) -> Pair:
        self.patterns[node.index] = pattern
        return node.op.linear(value[0], pattern), node.op.linear(value[1], pattern)


def _sides(old: Tensor, flipped: Tensor, degenerate: Tensor, slope: Tensor, zero: Tensor) -> Tensor:
    """The signs of ReLUs: the crossed unit is flipped, degenerate units have the signs of their slopes."""
    flipped, degenerate = flipped.reshape(old.shape), degenerate.reshape(old.shape)
    free = torch.where(slope > zero, True, torch.where(slope < -zero, False, old))
    return torch.where(flipped, ~old, torch.where(degenerate, free, old))


def _winners(
    hyperplanes: WindowHyperplanes, old: Tensor, flipped: Tensor, degenerate: Tensor, slope: Tensor, zero: Tensor
) -> Tensor:
    """The maxima of windows: the entry of the crossed comparison, or the steepest of the entries that tie on the region."""
    windows = hyperplanes.windows.to(old.device)
    winner = old.flatten(2)
    shape = (*winner.shape, windows.shape[1])
    flipped, tied = flipped.reshape(shape), degenerate.reshape(shape) & (windows >= 0)
    seen = windows.clamp(min=0)
    slopes, zeros = slope.flatten(2)[:, :, seen], zero.flatten(2)[:, :, seen]
    own = slope.flatten(2).gather(2, winner)
    best, entry = slopes.masked_fill(~tied, -torch.inf).max(-1)
    places = seen.expand(shape)
    steepest = places.gather(-1, entry.unsqueeze(-1)).squeeze(-1)
    steeper = best > own + zeros.amax(-1)
    found = torch.where(steeper, steepest, winner)
    other = places.gather(-1, flipped.int().argmax(-1, keepdim=True)).squeeze(-1)
    return torch.where(flipped.any(-1), other, found).reshape(old.shape)
