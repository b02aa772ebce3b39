"""`moments`: a semidefinite relaxation of the first layer of ReLUs, for networks that no linear bound can prove.

A walk stops behind the ReLUs that see no other switch: over the ball the margin is at least g' x + a' phi(z) + c with z affine
in x and phi(z) = max(z, s z). Where a_j > 0 a line lies below, phi(z) >= alpha z for any alpha in [s, 1]. Where a_j < 0 a
parabola lies above, for any t > 0, as |z| <= (z^2 / t + t) / 2:

    phi(z) = ((1 + s) z + (1 - s) |z|) / 2  <=  (1 + s) / 2 z + (1 - s) / 4 (z^2 / t + t).

With x = m + r xi that is a quadratic function k - (1, xi)' G (1, xi) of a box, |xi_i| <= 1, or of a ball, |xi|_2 <= 1. For
every diagonal matrix K >= G it is at least k - sum K over the box; over the ball K has one number for all xi.

Lines and chords charge a unit for the corner of the box where its own weights all agree, ||r w||_1, though no two units can be
there at once; parabolas and K know what they can do together, which is more like ||r w||_2.

The best alpha, t and K come from the dual problem, over the moments of a random xi: with vectors v_i of length 1 for xi_i and
the first basis vector for 1, E z = z(m) + sum r w v and E z^2 are a linear and a quadratic form, and

    g' E x + sum over a_j > 0 of a_j phi(E z_j) + sum over a_j < 0 of a_j ((1 + s) E z_j + (1 - s) sqrt(E z_j^2)) / 2 + c

is to be made small (Burer and Monteiro 2003; L-BFGS, in float32). Where it is least t^2 = E z^2, alpha is the slope of phi, and
K v = G v. Nothing of that is trusted: these are numbers of float64 from there on, and K is multiplied by a proved bound on the
largest eigenvalue of K^-1/2 G K^-1/2.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.bounding.methods.alpha import Alpha
from relucert.bounding.methods.crown import CROWN, AfterCROWN
from relucert.bounding.minimiser import minimised
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import Relaxations, pull_back
from relucert.bounding.reduced_network import Kept
from relucert.bounding.rounding import evaluation_error, largest_inputs
from relucert.bounding.spectral import SIDE, affine_part, top_bounds
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.rounding import gamma
from relucert.networks.network import Network
from relucert.networks.traversal import affine_ancestors

_SMOOTH = 0.05  # of a unit's standard deviation: where the kink of a ReLU is rounded off while moments are looked for
_FLOOR = 1e-9  # the smallest entry of K, as a part of their mean


@dataclass(frozen=True, kw_only=True)
class Moments(AfterCROWN):
    """`steps` of L-BFGS on vectors of `rank` numbers for every input; never below `alpha`, and any step's bound is sound.

    Of deeper networks only the first layer is treated so, and the others by CROWN's lines; its matrix is written out, so
    that networks with more than 2048 inputs are left to `alpha`. After `seconds`, alpha's not counted, it ends with what it
    has. No gradient in the weights.
    """

    name = "moments"
    steps: int = 120
    rank: int = 12
    seconds: float = math.inf
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("steps", 0), ("rank", 2)):
            if getattr(self, name) < least:
                raise InvalidInput(f"{name} of moments must be at least {least}, got {getattr(self, name)}")
        if not self.seconds >= 0:
            raise InvalidInput(f"seconds of moments must be at least 0, got {self.seconds}")

    @property
    def contains(self) -> tuple[CROWN, Alpha]:
        """Cheaper methods that prove no more."""
        return CROWN(budget=self.budget), Alpha(budget=self.budget)

    @staticmethod
    def whole(net: Network) -> bool:
        """Whether the first layer is all that there is: every switch is a ReLU that sees no other one."""
        single = all(affine_ancestors(net.graph, node.inputs[0])[1] == [0] for node in net.relus)
        return single and len(net.relus) == len(net.switches) and math.prod(net.input_shape) <= SIDE

    @torch.no_grad()
    def proceed(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Tensor]:
        """The known bounds of the units, and the margins: alpha's, and better ones where these prove nothing."""
        bounds, best = Alpha(budget=self.budget).proceed(net, known, x, ball, prop)
        best = best.detach().clone()
        if net.dtype != torch.float64:
            ball = ball.beside(x)
            net, x, prop = copy.deepcopy(net).double(), x.double(), prop.to(torch.float64)
            precise = self.start(net, x, ball)
        else:
            precise = bounds
        layer = _Layer.of(net)
        if layer is None or len(x) == 0:
            return bounds, best
        tail = _tail(net, layer, precise, x, ball, prop)
        # What alpha proves by twice as much as a network of float32 asks for needs no more.
        open_ = ~(best > 2 * evaluation_error(net, x, ball, precise.inputs, prop, torch.float32).to(best))
        until = time.monotonic() + self.seconds
        for point in open_.any(1).nonzero()[:, 0].tolist():
            if time.monotonic() >= until:
                break
            rows = open_[point].nonzero()[:, 0]
            problem = tail.problem(point, rows)
            if problem is not None:
                found = problem.proved(problem.moments(self, until))
                best[point, rows] = torch.fmax(best[point, rows], found.to(best))
        return bounds, best


@dataclass(frozen=True, eq=False)
class _Layer:
    """The ReLUs that see no other switch, as indices of nodes, and the matrices from the network's input to theirs."""

    indices: list[int]
    matrices: list[Float[Tensor, " units inputs"]]

    @staticmethod
    def of(net: Network) -> _Layer | None:
        """The first layer; None where there is none, or where it is too large to be written out."""
        if math.prod(net.input_shape) > SIDE:
            return None
        indices, matrices = [], []
        for node in net.relus:
            part = affine_part(net.graph, node.inputs[0])
            if part is not None and list(part.matrices) == [0]:
                indices.append(node.index)
                matrices.append(part.matrices[0])
        return _Layer(indices, matrices) if indices else None


def _tail(net: Network, layer: _Layer, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property) -> _Tail:
    """Walk from the property to the first layer, with CROWN's lines on the way."""
    kept = {node.index: Kept.of(node, bounds.inputs[node.index]) for node in net.relus if node.index in layer.indices}
    lines = cast(Relaxations, {**bounds.relaxed(net, "adaptive"), **kept})
    found = pull_back(net.graph, len(net.graph) - 1, prop.rows, lines)
    low, high = (side.flatten(1) for side in ball.hull(x))
    round_ = ball.p <= 2 and bool(ball.radii(x).isfinite().all())
    middle = x.flatten(1) if round_ else (low + high) / 2
    radius = torch.maximum(high - middle, middle - low)
    if round_:
        radius = ball.radii(x)[:, None].expand_as(middle)
    sizes, unit = largest_inputs(net, x, ball, bounds.inputs)
    places = [net.graph[index].inputs[0] for index in layer.indices]
    values = net.graph.values(middle.reshape(x.shape), places)
    weights, leaks = [], []
    for index in layer.indices:
        seen = kept[index].taken()
        if seen is None:
            seen = x.new_zeros(*prop.rows.shape[:2], *net.graph[index].shape)
        weights.append(seen.flatten(2))
        leaks.append(seen.new_full((math.prod(net.graph[index].shape),), kept[index].leak))
    return _Tail(
        torch.cat(layer.matrices), torch.cat(leaks), torch.cat(weights, 2),
        torch.cat([kept[index].unstable.flatten(1) for index in layer.indices], 1),
        torch.cat([values[place].flatten(1) for place in places], 1),
        torch.cat([sizes[index].flatten(1) for index in layer.indices], 1),
        found.rows.flatten(2), found.low + prop.offsets,
        middle, radius * (1 + gamma(8)), round_, unit,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Tail:
    """Margins as functions of the first layer: `direct x + weights phi(z) + offset`, and what is known of z.

    `values` are those of z at `middle`, `sizes` bound everything that is added up in z over the ball, with `unit` the relative
    error of that.
    """

    matrix: Float[Tensor, " units inputs"]
    leaks: Float[Tensor, " units"]
    weights: Float[Tensor, " batch rows units"]
    unstable: Bool[Tensor, " batch units"]
    values: Float[Tensor, " batch units"]
    sizes: Float[Tensor, " batch units"]
    direct: Float[Tensor, " batch rows inputs"]
    offset: Float[Tensor, " batch rows"]
    middle: Float[Tensor, " batch inputs"]
    radius: Float[Tensor, " batch inputs"]
    round: bool
    unit: Float[Tensor, " batch"]

    def problem(self, point: int, rows: Tensor) -> _Problem | None:
        """Some rows of one example; None where no unit of the layer may switch."""
        units = self.unstable[point].nonzero()[:, 0]
        if len(units) == 0:
            return None
        direct, middle = self.direct[point, rows], self.middle[point]
        return _Problem(
            self.matrix[units] * self.radius[point], self.leaks[units], self.weights[point, rows][:, units],
            self.values[point, units], self.sizes[point, units], direct * self.radius[point],
            self.offset[point, rows] + direct @ middle,
            self.offset[point, rows].abs() + direct.abs() @ (middle.abs() + self.radius[point]),
            self.round, float(self.unit[point]),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Problem:
    """`direct xi + weights phi(values + matrix xi) + offset` of one example, to be bounded below, row by row.

    xi lies in the box [-1, 1] or, if `round`, in the ball of l2 around it. `extent` is the size of what is linear, `sizes` are
    those of the units, both for rounding, with the relative error `unit`.
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
    unit: float

    def moments(self, method: Moments, until: float = math.inf) -> Float[Tensor, " rows inputs rank"]:
        """Vectors for every row: moments where the relaxation is small, in float32 and not to be trusted."""
        count, size = self.direct.shape
        form = _Form.of(self)
        point = form.normal(torch.sign(-form.direct)[..., None])
        every = torch.arange(count, device=point.device)
        for _ in range(10):  # to a corner whose own gradient points to it
            point = form.normal(-form.value(every, point)[1])
        draw = torch.randn(count, size, method.rank, generator=torch.Generator().manual_seed(method.seed))
        start = draw.to(point) * (0.3 / math.sqrt(method.rank))
        if self.round:
            start = start / math.sqrt(size)
        start[..., :1] += point
        return form.normal(minimised(form.lifted, start, method.steps, until=until))

    def proved(self, vectors: Float[Tensor, " rows inputs rank"]) -> Float[Tensor, " rows"]:
        """The bounds that the moments lead to, in float64 and less their rounding."""
        found = [self._bound(row, vectors[row].double()) for row in range(len(vectors))]
        return torch.stack(found)

    def _bound(self, row: int, vectors: Float[Tensor, " inputs rank"]) -> Float[Tensor, ""]:
        """One row: lines, parabolas and K from the moments, then what they prove."""
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
        pulled = form @ whole
        cost = pulled.norm(dim=1)
        if self.round:
            cost[1:] = (pulled[1:] * vectors).sum().clamp(min=0)
        cost = cost.clamp(min=float(_FLOOR * cost.mean()) + 1e-200)
        scale = cost.rsqrt()
        factor = top_bounds((form * scale * scale[:, None])[None])[0]
        paid = factor * (cost[0] + cost[1] if self.round else cost.sum())
        # Everything that has been added up, and the derivatives of parabolas times what rounding may do to a unit.
        reach = self.sizes + matrix.abs().sum(1)
        each = below + above * (1 + reach / (2 * root))
        total = self.extent[row] + (each * reach).sum() + (above * root).sum() + paid + linear.abs().sum()
        error = (4 * gamma(len(values) + size + 64) + 4 * self.unit) * total
        return start - paid - error


@dataclass(frozen=True, eq=False)
class _Form:
    """The function of the moments in float32, with its gradient; kinks of lines are rounded off."""

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
    def of(problem: _Problem) -> _Form:
        """The problem in float32, its slopes in the mean taken into the direct part."""
        middle, half = (1 + problem.leaks) / 2, (1 - problem.leaks) / 2
        tilt = problem.weights * middle
        rounded = (_SMOOTH * problem.matrix.norm(dim=1)).clamp(min=1e-30)
        return _Form(
            problem.matrix.float(), problem.values.float(), (problem.direct + tilt @ problem.matrix).float(),
            (problem.offset + tilt @ problem.values).float(), problem.weights.clamp(max=0).neg().float(),
            problem.weights.clamp(min=0).float(), half.float(), rounded.float(), problem.round,
        )  # fmt: skip

    def normal(self, vectors: Float[Tensor, " rows inputs rank"]) -> Float[Tensor, " rows inputs rank"]:
        """The vectors made feasible: of length 1 each, or all together."""
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
