"""Random points of an l_p ball intersected with a box, from near the centre to its corners and vertices."""

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
    independent: bool = False,
) -> Float[Tensor, " batch count size"]:
    """Return random steps d with ||d||_p <= `radius` and -below <= d <= above, up to rounding; all arguments are float64.

    Signs are random; a coordinate without slack on one side moves to the other. The sizes of coordinates are U^k with U
    uniform and, for each point, log10 k uniform in [-2, 2]: points near corners of the cube, near vertices of the
    cross-polytope, and in between. Half of the points are scaled to the full radius, the others to a uniform share of it.
    Coordinates are then clipped to [-below, above] and the step is scaled again, a few times. With `independent` all examples
    use the same draws, so that the steps are independent of the batch composition.
    """
    batch, size = below.shape
    below, above = below.unsqueeze(1), above.unsqueeze(1)

    def uniform(last: int) -> Tensor:
        return torch.rand(
            1 if independent else batch, count, last, generator=generator, dtype=torch.float64, device=below.device
        )

    signs = torch.where((uniform(size) < 0.5) & (below > 0) | (above == 0), -1.0, 1.0)
    step = uniform(size).pow(10.0 ** (4.0 * uniform(1) - 2.0)) * signs
    length = radius[:, None, None] * torch.where(uniform(1) < 0.5, 1.0, uniform(1))
    for _ in range(_CORRECTIONS):
        now = norm(step, p, 2).unsqueeze(-1)
        step = step * torch.where(now > 0, length / now, 0.0)
        step = torch.minimum(torch.maximum(step, -below), above)
    return step
