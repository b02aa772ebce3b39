"""The nearest point of a linear region at which another class wins, by accelerated projected gradient on the dual.

    minimise 1/2 ||z - v||_2^2   subject to   A z + b >= 0,  z in C,

where the rows of A are the region's faces and the decision against one class, each divided by a number near its norm, and C
is a box, or an l_p ball cut with one. For multipliers u >= 0 the minimiser is `z(u) = P_C(v + A'u)` and the dual's gradient
`-(A z(u) + b)`. A and A' are never written out: the one is a pass forward through the region's affine map, the other its
gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import row_norms

POWERS = 12  # iterations for the norm of A
SAFETY = 1.3  # over the norm that they find, which is one from below


class Scales:
    """What a program divides its rows by, and the norm of A after that: found at one region, good enough for its neighbours."""

    def __init__(self, region: LinearRegion):
        faces = row_norms(region, 2.0) if region.count else torch.zeros(len(region), 0, dtype=region.net.dtype)
        # A dead row may be alive next door, with a norm like those of the others.
        usual = faces.mean(1, keepdim=True) if region.count else faces
        self.faces = torch.where(faces > 0, faces, torch.where(usual > 0, usual, torch.ones_like(usual)))
        self.steep: Tensor | None = None

    def restrict(self, index: Int[Tensor, " rows"]) -> Scales:
        """The same for some of the examples."""
        part = object.__new__(Scales)
        part.faces, part.steep = self.faces[index], None if self.steep is None else self.steep[index]
        return part


class LocalProgram:
    """The programs of a batch of regions: stay in the region, and let class `target` win against y."""

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
        """A z + b, or A z alone: the scaled margins of all faces, and last that of the decision."""
        region, last = self.region, len(self.region.net.graph) - 1
        places = [faces.source for faces in region.faces]
        push = region.map.values if offsets else region.map.push
        values = push(z, [*places, last])
        faces = region.margins_of([values[place] for place in places], z)
        # A comparison with oneself or the padding is none.
        faces = torch.where(faces.isinf(), torch.zeros_like(faces), faces) / self.scales.faces
        decision = (values[last] * self.wanted).sum(1) / self.decision
        return torch.cat([faces, decision[:, None]], 1)

    def solve(
        self,
        v: Float[Tensor, " batch *input"],
        project: Callable[[Tensor], Tensor],
        multipliers: Float[Tensor, " batch rows"],
        iterations: int,
        push: Float[Tensor, " batch"],
    ) -> tuple[Float[Tensor, " batch *input"], Float[Tensor, " batch rows"]]:
        """Points and multipliers after some iterations from given multipliers; the decision is to win by `push`."""
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
            # Momentum, which starts again where it leads uphill (O'Donoghue and Candes 2015).
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
        """A'u: the gradient of <u, A z>, from the last pass forward if there was one, as A is the same everywhere."""
        with torch.enable_grad():
            if self._tape is None:
                z = torch.zeros_like(z).requires_grad_()
                self._tape = (z, self.margins(z, offsets=False))
            at, margins = self._tape
            self._tape = None
            (gradient,) = torch.autograd.grad(margins, at, u)
        return gradient

    def _steepness(self) -> Float[Tensor, " batch"]:
        """A bound on the norm of A A', by power iteration with some safety."""
        u = torch.ones(len(self.region), self.region.count + 1, dtype=self.row.dtype, device=self.row.device)
        size = u.new_ones(len(u))
        for _ in range(POWERS):
            u = self.margins(self._transposed(self.row, u), offsets=False)
            size = norm(u, 2.0)
            u = u / size.clamp(min=torch.finfo(u.dtype).tiny)[:, None]
        return SAFETY * size.clamp(min=1.0)
