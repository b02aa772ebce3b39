"""The nearest point of a linear region with another class, by accelerated projected gradient on the dual.

    minimise 1/2 ||z - v||_2^2   subject to   A z + b >= 0,  z in C,

where the rows of A are the hyperplanes of the region and the decision hyperplane of one class, each divided by about its norm,
and C is a box, or an l_p ball intersected with a box. For multipliers u >= 0 the minimiser is `z(u) = P_C(v + A'u)` and the
gradient of the dual is `-(A z(u) + b)`. A and A' are not computed as matrices: A is a forward pass through the affine map of
the region, A' its gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import row_norms

POWERS = 12  # power iterations for the norm of A
SAFETY = 1.3  # factor on the norm by power iteration, which is a lower bound


class Scales:
    """Divisors of the rows, and the norm of the scaled A: computed in one region and reused in its neighbours."""

    def __init__(self, region: LinearRegion):
        hyperplanes = row_norms(region, 2.0) if region.count else torch.zeros(len(region), 0, dtype=region.net.dtype)
        # A zero row may be nonzero in a neighbouring region: give it the mean norm.
        usual = hyperplanes.mean(1, keepdim=True) if region.count else hyperplanes
        self.hyperplanes = torch.where(
            hyperplanes > 0, hyperplanes, torch.where(usual > 0, usual, torch.ones_like(usual))
        )
        self.steep: Tensor | None = None

    def restrict(self, index: Int[Tensor, " rows"]) -> Scales:
        """The scales of some of the examples."""
        part = object.__new__(Scales)
        part.hyperplanes, part.steep = self.hyperplanes[index], None if self.steep is None else self.steep[index]
        return part


class LocalProgram:
    """The programs of a batch of regions: z lies in the region and class `target` has the larger logit than y."""

    def __init__(self, region: LinearRegion, y: Int[Tensor, " batch"], target: Int[Tensor, " batch"], scales: Scales):
        self.region, self.scales = region, scales
        eye = torch.eye(region.net.classes, dtype=region.net.dtype, device=y.device)
        self.wanted = eye[target] - eye[y]
        row = region.logits_rows(self.wanted[:, None])[:, 0]
        length = norm(row, 2.0)
        self.row, self.decision = row, torch.where(length > 0, length, torch.ones_like(length))
        if scales.steep is None:
            scales.steep = self._steepness()

    def margins(self, z: Float[Tensor, " batch *input"], offsets: bool = True) -> Float[Tensor, " batch rows"]:
        """A z + b, or A z without offsets: the scaled margins of all hyperplanes of the region, then of the decision."""
        region, last = self.region, len(self.region.net.graph) - 1
        places = [hyperplanes.source for hyperplanes in region.hyperplanes]
        push = region.map.values if offsets else region.map.push
        values = push(z, [*places, last])
        hyperplanes = region.margins_of([values[place] for place in places], z)
        # Comparisons of an entry with itself or with padding are no constraints.
        hyperplanes = (
            torch.where(hyperplanes.isinf(), torch.zeros_like(hyperplanes), hyperplanes) / self.scales.hyperplanes
        )
        decision = (values[last] * self.wanted).sum(1) / self.decision
        return torch.cat([hyperplanes, decision[:, None]], 1)

    def solve(
        self,
        v: Float[Tensor, " batch *input"],
        project: Callable[[Tensor], Tensor],
        multipliers: Float[Tensor, " batch rows"],
        iterations: int,
        push: Float[Tensor, " batch"],
    ) -> tuple[Float[Tensor, " batch *input"], Float[Tensor, " batch rows"]]:
        """Points and multipliers after some iterations from given multipliers; the scaled decision margin must reach `push`."""
        assert self.scales.steep is not None
        u, aimed = multipliers, multipliers
        count = torch.ones_like(push)
        z, step = v, 1 / self.scales.steep[:, None]
        for _ in range(iterations):
            with torch.enable_grad():
                z = project(v + self._transposed(z, aimed)).detach().requires_grad_()
                margins = self.margins(z)
            self._tape = (z, margins)
            values = margins.detach().clone()
            values[:, -1] -= push
            moved = (aimed - step * values).clamp(min=0)
            # Momentum with adaptive restart (O'Donoghue and Candes 2015).
            uphill = ((aimed - moved) * (moved - u)).sum(1) > 0
            count = torch.where(uphill, torch.ones_like(count), count)
            after = (1 + (1 + 4 * count.square()).sqrt()) / 2
            aimed = moved + ((count - 1) / after)[:, None] * (moved - u)
            u, count = moved, after
        z = project(v + self._transposed(z, u)).detach()
        self._tape = None
        return z, u

    _tape: tuple[Tensor, Tensor] | None = None

    def _transposed(self, z: Tensor, u: Float[Tensor, " batch rows"]) -> Float[Tensor, " batch *input"]:
        """A'u, the gradient of <u, A z>; reuses the graph of the last forward pass, because A does not depend on z."""
        with torch.enable_grad():
            if self._tape is None:
                z = torch.zeros_like(z).requires_grad_()
                self._tape = (z, self.margins(z, offsets=False))
            at, margins = self._tape
            self._tape = None
            (gradient,) = torch.autograd.grad(margins, at, u)
        return gradient

    def _steepness(self) -> Float[Tensor, " batch"]:
        """An estimate of the norm of A A' by power iteration, times `SAFETY`."""
        u = torch.ones(len(self.region), self.region.count + 1, dtype=self.row.dtype, device=self.row.device)
        size = u.new_ones(len(u))
        for _ in range(POWERS):
            u = self.margins(self._transposed(self.row, u), offsets=False)
            size = norm(u, 2.0)
            u = u / size.clamp(min=torch.finfo(u.dtype).tiny)[:, None]
        return SAFETY * size.clamp(min=1.0)
