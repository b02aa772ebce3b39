"""The region on the other side of a face.

Crossing a face flips its unit, together with every other unit whose hyperplane is the same. Units that vanish on the whole
region (a max-pool comparison among dead units, a unit without offset fed by dead ones) have no side there and may get one
beyond. All of this is decided at once by looking along a ray: at a point in the relative interior of the face, in the
direction out of the region, signs and winners are those of the value, and where the value is zero those of its slope.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relucert.networks.affine import Affine
from relucert.networks.graph import Graph
from relucert.networks.linear_map import Patterns
from relucert.networks.switching import MaxPool2d, ReLU

ZERO = 1e-10  # of the size of the terms that add up to it, a value that passes for zero on a face


def patterns_beyond(
    graph: Graph, z: Float[Tensor, " batch *input"], direction: Float[Tensor, " batch *input"], zero: float = ZERO
) -> Patterns:
    """The activation patterns just behind z along a direction, of all units by value first and slope second.

    Values and slopes pass for zero beside the sizes of the terms that add up to them, each beside its own.
    """
    values, slopes = {0: z}, {0: direction}
    sizes, steep = {0: z.abs()}, {0: direction.abs()}
    patterns: Patterns = []
    for node in graph.nodes[1:]:
        value, slope, size, rise = ([part[i] for i in node.inputs] for part in (values, slopes, sizes, steep))
        if isinstance(node.op, Affine):
            values[node.index], slopes[node.index] = node.op.apply(*value), node.op.linear(*slope)
            sizes[node.index], steep[node.index] = node.op.magnitude(*size), node.op.absolute(*rise)
            continue
        if isinstance(node.op, ReLU):
            flat = value[0].abs() <= zero * size[0]
            pattern = torch.where(flat, slope[0] > zero * rise[0], value[0] > 0)
        else:
            assert isinstance(node.op, MaxPool2d)
            pattern = _winners(node.op, value[0], slope[0], zero * size[0])
        patterns.append(pattern)
        values[node.index], slopes[node.index] = node.op.linear(value[0], pattern), node.op.linear(slope[0], pattern)
        sizes[node.index], steep[node.index] = node.op.linear(size[0], pattern), node.op.linear(rise[0], pattern)
    return patterns


def _winners(op: MaxPool2d, value: Tensor, slope: Tensor, zero: Tensor) -> Tensor:
    """Winners by value, ties by slope, remaining ties by place."""
    windows = op.windows().to(value.device)
    inside = windows >= 0
    seen = windows.clamp(min=0)
    values, slopes, zeros = (part.flatten(2)[:, :, seen] for part in (value, slope, zero))
    best = values.masked_fill(~inside, -torch.inf).amax(-1, keepdim=True)
    tied = inside & (values >= best - zeros)
    entry = slopes.masked_fill(~tied, -torch.inf).argmax(-1)
    place = seen.expand(*entry.shape, -1).gather(-1, entry.unsqueeze(-1)).squeeze(-1)
    height, width = F.max_pool2d(value[:1, :1], op.kernel, op.stride, op.padding, op.dilation, op.ceil_mode).shape[2:]
    return place.reshape(*place.shape[:2], height, width)
