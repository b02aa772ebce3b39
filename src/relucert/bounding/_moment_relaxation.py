"""A semidefinite lower bound of a layer of ReLUs over a box or a ball, by moments (Burer and Monteiro 2003).

To be bounded below over a box, |xi_i| <= 1, or a ball, |xi|_2 <= 1, is g' xi + a' phi(z) + c with z affine in xi and
phi(z) = max(z, s z). Where a_j > 0 a line lies below, phi(z) >= alpha z for any alpha in [s, 1]. Where a_j < 0 a parabola lies
above, for any t > 0, as |z| <= (z^2 / t + t) / 2:

    phi(z) = ((1 + s) z + (1 - s) |z|) / 2  <=  (1 + s) / 2 z + (1 - s) / 4 (z^2 / t + t).

That is a quadratic function k - (1, xi)' G (1, xi). For every diagonal matrix K >= G it is at least k - sum K over the box;
over the ball K has one number for all xi.

The best alpha, t and K come from the dual problem, over the moments of a random xi: with vectors v_i of length 1 for xi_i and
the first basis vector for 1, E z = z(0) + sum w v and E z^2 are a linear and a quadratic form, and

    g' E xi + sum over a_j > 0 of a_j phi(E z_j) + sum over a_j < 0 of a_j ((1 + s) E z_j + (1 - s) sqrt(E z_j^2)) / 2 + c

is minimised, by L-BFGS in float32. At the minimum t^2 = E z^2, alpha is the slope of phi, and K v = G v. The minimiser is
untrusted: alpha, t and K are computed from it in float64, and K is multiplied by a proved bound on the largest eigenvalue of
K^-1/2 G K^-1/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding._minimiser import minimised
from relucert.bounding._spectral import top_bounds
from relucert.core.rounding import gamma

_SMOOTH = (
    0.05  # parts of a unit's standard deviation at which the kink of a ReLU is rounded off in the search for moments
)
_FLOOR = 1e-9  # the smallest entry of K, in parts of the mean entry


@dataclass(frozen=True, kw_only=True)
class MomentSearch:
    """`steps` of L-BFGS on vectors of `rank` numbers for every input, until a time of `time.monotonic`."""

    steps: int
    rank: int
    seed: int = 0
    until: float = math.inf


@dataclass(frozen=True, eq=False)
class QuadraticProblem:
    """Bounds `direct xi + weights phi(values + matrix xi) + offset` of one example from below, row by row.

    xi lies in the box [-1, 1] or, if `round`, in the l2 ball of radius 1. For the rounding error: `extent` bounds the linear
    terms, `sizes` the terms of the units, `drift` the errors of the units themselves.
    """

    matrix: Float[Tensor, " units inputs"]
    leaks: Float[Tensor, " units"]
    weights: Float[Tensor, " rows units"]
    values: Float[Tensor, " units"]
    sizes: Float[Tensor, " units"]
    direct: Float[Tensor, " rows inputs"]
    offset: Float[Tensor, " rows"]
    extent: Float[Tensor, " rows"]
    round: bool
    drift: Float[Tensor, " units"]

    def moments(self, search: MomentSearch) -> Float[Tensor, " rows inputs rank"]:
        """Vectors for every row: moments where the relaxation is small, in float32 and untrusted."""
        count, size = self.direct.shape
        form = _MomentFunction.of(self)
        point = form.normal(torch.sign(-form.direct)[..., None])
        every = torch.arange(count, device=point.device)
        for _ in range(10):  # to a corner that its own gradient points to
            point = form.normal(-form.value(every, point)[1])
        draw = torch.randn(count, size, search.rank, generator=torch.Generator().manual_seed(search.seed))
        start = draw.to(point) * (0.3 / math.sqrt(search.rank))
        if self.round:
            start = start / math.sqrt(size)
        start[..., :1] += point
        return form.normal(minimised(form.lifted, start, search.steps, until=search.until))

    def proved(self, vectors: Float[Tensor, " rows inputs rank"]) -> Float[Tensor, " rows"]:
        """The bounds that moments lead to, in float64 and rounded down."""
        return torch.stack([self._bound(row, vectors[row].double()) for row in range(len(vectors))])

    def _bound(self, row: int, vectors: Float[Tensor, " inputs rank"]) -> Float[Tensor, ""]:
        """The bound of a row: slopes, parabolas and K from the moments, then what they prove."""
        matrix, values, weights, leaks = self.matrix, self.values, self.weights[row], self.leaks
        size = matrix.shape[1]
        lifted = matrix @ vectors
        mean = lifted[:, 0] + values
        root = (mean.square() + lifted[:, 1:].square().sum(1)).sqrt()
        deviation = matrix.norm(dim=1)
        root = torch.maximum(root, 1e-6 * deviation + 1e-200)
        slope = (1 + leaks) / 2 + (1 - leaks) / 2 * mean / (mean.square() + (_SMOOTH * deviation).square()).sqrt()
        above, below = weights.clamp(max=0).neg(), weights.clamp(min=0)
        bend = above * (1 - leaks) / (4 * root)
        tilt = below * torch.minimum(torch.maximum(slope, leaks), torch.ones_like(slope)) - above * (1 + leaks) / 2
        start = self.offset[row] + (tilt * values).sum() - (bend * (values.square() + root.square())).sum()
        linear = self.direct[row] + (tilt - 2 * bend * values) @ matrix
        form = matrix.new_zeros(size + 1, size + 1)
        form[1:, 1:] = (matrix.T * bend) @ matrix
        form[0, 1:] = form[1:, 0] = -linear / 2
        form = form.tril() + form.tril(-1).T
        if not bool(form.isfinite().all()):
            return start.new_tensor(-math.inf)
        whole = torch.cat([torch.eye(1, vectors.shape[1]).to(vectors), vectors])
        product = form @ whole
        cost = product.norm(dim=1)
        if self.round:
            cost[1:] = (product[1:] * vectors).sum().clamp(min=0)
        cost = cost.clamp(min=float(_FLOOR * cost.mean()) + 1e-200)
        scale = cost.rsqrt()
        factor = top_bounds((form * scale * scale[:, None])[None])[0]
        charge = factor * (cost[0] + cost[1] if self.round else cost.sum())
        # All terms of the sums, and the derivatives of parabolas times the rounding error of a unit.
        reach = self.sizes + matrix.abs().sum(1)
        each = below + above * (1 + reach / (2 * root))
        total = self.extent[row] + (each * reach).sum() + (above * root).sum() + charge + linear.abs().sum()
        error = 4 * gamma(len(values) + size + 64) * total + 4 * (each * self.drift).sum()
        return start - charge - error


@dataclass(frozen=True, eq=False)
class _MomentFunction:
    """The function of the moments in float32, with its gradient; the kinks of ReLUs are rounded off."""

    matrix: Float[Tensor, " units inputs"]
    values: Float[Tensor, " units"]
    direct: Float[Tensor, " rows inputs"]
    offset: Float[Tensor, " rows"]
    above: Float[Tensor, " rows units"]
    below: Float[Tensor, " rows units"]
    half: Float[Tensor, " units"]
    rounded: Float[Tensor, " units"]
    round: bool

    @staticmethod
    def of(problem: QuadraticProblem) -> _MomentFunction:
        """The problem in float32, with the mean slopes of the units in the direct part."""
        middle, half = (1 + problem.leaks) / 2, (1 - problem.leaks) / 2
        tilt = problem.weights * middle
        rounded = (_SMOOTH * problem.matrix.norm(dim=1)).clamp(min=1e-30)
        return _MomentFunction(
            problem.matrix.float(), problem.values.float(), (problem.direct + tilt @ problem.matrix).float(),
            (problem.offset + tilt @ problem.values).float(), problem.weights.clamp(max=0).neg().float(),
            problem.weights.clamp(min=0).float(), half.float(), rounded.float(), problem.round,
        )  # fmt: skip

    def normal(self, vectors: Float[Tensor, " rows inputs rank"]) -> Float[Tensor, " rows inputs rank"]:
        """Feasible vectors: of length 1 each, or all together."""
        length = vectors.flatten(1).norm(dim=1)[:, None, None] if self.round else vectors.norm(dim=2, keepdim=True)
        return vectors / length.clamp(min=1e-30)

    def lifted(self, which: Tensor, free: Float[Tensor, " n inputs rank"]) -> tuple[Tensor, Tensor]:
        """Value and gradient at vectors of any length."""
        length = free.flatten(1).norm(dim=1)[:, None, None] if self.round else free.norm(dim=2, keepdim=True)
        length = length.clamp(min=1e-30)
        unit = free / length
        value, gradient = self.value(which, unit)
        along = gradient * unit
        along = along.sum((1, 2), keepdim=True) if self.round else along.sum(2, keepdim=True)
        return value, (gradient - along * unit) / length

    def value(self, which: Tensor, vectors: Float[Tensor, " n inputs rank"]) -> tuple[Tensor, Tensor]:
        """Value and gradient of some rows at feasible vectors."""
        count, size, rank = vectors.shape
        units = len(self.values)
        lifted = (self.matrix @ vectors.permute(1, 0, 2).reshape(size, count * rank)).reshape(units, count, rank)
        lifted[..., 0] += self.values[:, None]
        above, below = self.above[which].T, self.below[which].T
        half = self.half[:, None]
        mean = lifted[..., 0]
        root = lifted.norm(dim=2).clamp(min=1e-30)
        soft = (mean.square() + self.rounded.square()[:, None]).sqrt()
        value = self.offset[which] + (self.direct[which] * vectors[..., 0]).sum(1)
        value = value + (half * (below * soft - above * root)).sum(0)
        flow = lifted * (-half * above / root)[..., None]
        flow[..., 0] += half * below * mean / soft
        gradient = (self.matrix.T @ flow.reshape(units, count * rank)).reshape(size, count, rank).permute(1, 0, 2)
        gradient = gradient.contiguous()
        gradient[..., 0] += self.direct[which]
        return value, gradient
