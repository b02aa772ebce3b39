"""Random points of an l_p ball cut with a box, spread so that they test what is said about it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.norms import norm

_CORRECTIONS = 4


def random_offsets(
    below: Float[Tensor, " batch size"],
    above: Float[Tensor, " batch size"],
    radius: Float[Tensor, " batch"],
    p: float | int,
    count: int,
    generator: torch.Generator,
    *,
    alike: bool = False,
) -> Float[Tensor, " batch count size"]:
    """Return random steps of l_p length at most `radius` within the rooms, up to rounding; all arguments are float64.

    Signs are random (towards the room, if the other side has none). The sizes of coordinates are U^k with U uniform and, for
    each point, log10 k uniform in [-2, 2]: near corners of the cube, near vertices of the cross-polytope, and all between.
    Half of the points are scaled to the full radius, the others to a uniform share of it; coordinates are then cut to their
    rooms and the rest lengthened again, a few times. With `alike` all examples have the same draws, so that what one of them
    gets does not depend on the others.
    """
    batch, size = below.shape
    below, above = below.unsqueeze(1), above.unsqueeze(1)

    def uniform(last: int) -> Tensor:
        return torch.rand(
            1 if alike else batch, count, last, generator=generator, dtype=torch.float64, device=below.device
        )

    signs = torch.where((uniform(size) < 0.5) & (below > 0) | (above == 0), -1.0, 1.0)
    step = uniform(size).pow(10.0 ** (4.0 * uniform(1) - 2.0)) * signs
    length = radius[:, None, None] * torch.where(uniform(1) < 0.5, 1.0, uniform(1))
    for _ in range(_CORRECTIONS):
        now = norm(step, p, 2).unsqueeze(-1)
        step = step * torch.where(now > 0, length / now, 0.0)
        step = torch.minimum(torch.maximum(step, -below), above)
    return step
