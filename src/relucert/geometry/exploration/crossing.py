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

from relucert.geometry.region import Faces, LinearRegion
from relucert.networks.affine import Affine
from relucert.networks.linear_map import Patterns
from relucert.networks.switching import ReLU

ZERO = 1e-10  # of the size of the terms that add up to it, a slope that passes for zero


def patterns_behind(
    region: LinearRegion, crossed: Int[Tensor, " batch"], sideless: Bool[Tensor, " batch faces"],
    direction: Float[Tensor, " batch *input"],
) -> Patterns:  # fmt: skip
    """The patterns behind one face of each region; `sideless` faces vanish on the whole region.

    `direction` leads out through the face.
    """
    slopes, sizes = {0: direction}, {0: direction.abs()}
    flipped = torch.nn.functional.one_hot(crossed, sideless.shape[1]).bool()
    place, start, patterns = 0, 0, []
    for node in region.net.graph.nodes[1:]:
        slope, size = [slopes[i] for i in node.inputs], [sizes[i] for i in node.inputs]
        if isinstance(node.op, Affine):
            slopes[node.index], sizes[node.index] = node.op.linear(*slope), node.op.absolute(*size)
            continue
        assert node.op is not None
        faces, old = region.faces[place], region.patterns[place]
        mine = slice(start, start + faces.count)
        if isinstance(node.op, ReLU):
            pattern = _sides(old, flipped[:, mine], sideless[:, mine], slope[0], ZERO * size[0])
        else:
            pattern = _winners(faces, old, flipped[:, mine], sideless[:, mine], slope[0], ZERO * size[0])
        patterns.append(pattern)
        slopes[node.index], sizes[node.index] = node.op.linear(slope[0], pattern), node.op.linear(size[0], pattern)
        place, start = place + 1, start + faces.count
    return patterns


def _sides(old: Tensor, flipped: Tensor, sideless: Tensor, slope: Tensor, zero: Tensor) -> Tensor:
    """The sides of ReLUs: the flipped one is on the other, those without a side follow their slopes."""
    flipped, sideless = flipped.reshape(old.shape), sideless.reshape(old.shape)
    free = torch.where(slope > zero, True, torch.where(slope < -zero, False, old))
    return torch.where(flipped, ~old, torch.where(sideless, free, old))


def _winners(faces: Faces, old: Tensor, flipped: Tensor, sideless: Tensor, slope: Tensor, zero: Tensor) -> Tensor:
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
