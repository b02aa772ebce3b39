"""The activation pattern on the other side of a face.

Crossing a face flips its own unit, or makes another entry win its window, and nothing else that has a side in the region.
That is enough to reach everything. A straight path out of a region changes the units whose hyperplanes it crosses. Where it
crosses several at one point w, they are flipped one after the other, in any order: a unit that is zero at w has the same
value there on both sides, so no flip changes the value of a later unit at w, and the closed regions of all patterns on the way
contain w. Patterns on the way may belong to no inner point at all; they cost time, and soundness nothing.

Units that vanish on the whole region (a max-pool comparison among dead units, a unit without offset fed by dead ones) have no
side there. Behind the crossed hyperplane such a unit is a multiple of the crossed function, by continuity: its side is the
sign of its slope along the way out, at any point of the hyperplane.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.geometry.region import LinearRegion, WindowFaces
from relucert.networks.affine import Affine
from relucert.networks.graph import Node
from relucert.networks.linear_map import Patterns
from relucert.networks.switching import MaxPool2d, ReLU, Switching
from relucert.networks.traversal import ForwardRule, propagate

ZERO = 1e-10  # of the size of the terms that add up to it, a slope that passes for zero


def patterns_behind(
    region: LinearRegion, crossed: Int[Tensor, " batch"], sideless: Bool[Tensor, " batch faces"],
    direction: Float[Tensor, " batch *input"],
) -> Patterns:  # fmt: skip
    """The patterns behind one face of each region; `sideless` faces vanish on the whole region.

    `direction` leads out through the face.
    """
    flipped = torch.nn.functional.one_hot(crossed, sideless.shape[1]).bool()
    rule = _Behind(region, flipped, sideless)
    propagate(region.net.graph, rule, {0: (direction, direction.abs())})
    return [rule.patterns[faces.node.index] for faces in region.faces]


Pair = tuple[Tensor, Tensor]


class _Behind(ForwardRule[Pair]):
    """The slope of every node along a direction behind the face, and the size of the terms that add up to it.

    `patterns` has the pattern of every switching node there, by the node's index.
    """

    def __init__(self, region: LinearRegion, flipped: Tensor, sideless: Tensor):
        counts = [faces.count for faces in region.faces]
        split = zip(region.faces, region.patterns, flipped.split(counts, 1), sideless.split(counts, 1), strict=True)
        self.known = {known[0].node.index: known for known in split}
        self.patterns: dict[int, Tensor] = {}

    def affine(self, node: Node[Affine], inputs: list[Pair]) -> Pair:
        slope, size = zip(*inputs, strict=True)
        return node.op.linear(*slope), node.op.absolute(*size)

    def relu(self, node: Node[ReLU], value: Pair) -> Pair:
        _, old, flipped, sideless = self.known[node.index]
        return self._through(node, value, _sides(old, flipped, sideless, value[0], ZERO * value[1]))

    def max_pool(self, node: Node[MaxPool2d], value: Pair) -> Pair:
        faces, old, flipped, sideless = self.known[node.index]
        assert isinstance(faces, WindowFaces)
        return self._through(node, value, _winners(faces, old, flipped, sideless, value[0], ZERO * value[1]))

    def _through(self, node: Node[Switching], value: Pair, pattern: Tensor) -> Pair:
        self.patterns[node.index] = pattern
        return node.op.linear(value[0], pattern), node.op.linear(value[1], pattern)


def _sides(old: Tensor, flipped: Tensor, sideless: Tensor, slope: Tensor, zero: Tensor) -> Tensor:
    """The sides of ReLUs: the flipped one is on the other, those without a side follow their slopes."""
    flipped, sideless = flipped.reshape(old.shape), sideless.reshape(old.shape)
    free = torch.where(slope > zero, True, torch.where(slope < -zero, False, old))
    return torch.where(flipped, ~old, torch.where(sideless, free, old))


def _winners(faces: WindowFaces, old: Tensor, flipped: Tensor, sideless: Tensor, slope: Tensor, zero: Tensor) -> Tensor:
    """The winners of windows: the entry that is flipped to, or of all entries that tie on the region the steepest."""
    windows = faces.windows.to(old.device)
    winner = old.flatten(2)
    shape = (*winner.shape, windows.shape[1])
    flipped, tied = flipped.reshape(shape), sideless.reshape(shape) & (windows >= 0)
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
