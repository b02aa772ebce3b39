"""`moments`: a semidefinite relaxation of the first layer of ReLUs, for networks that no linear bound can prove.

Backward propagation stops behind the ReLUs without a switching node before them: over the ball the margin is at least
g' x + a' phi(z) + c with z affine in x, which `bounding/_moment_relaxation.py` bounds with x = m + r xi.

A linear relaxation charges a unit for the corner of the box where its own weights all agree, ||r w||_1, though no two units can
be there at once; a quadratic one knows what units can do together, which is more like ||r w||_2.
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

from relucert.bounding._moment_relaxation import MomentSearch, QuadraticProblem
from relucert.bounding._spectral import SIDE, affine_part
from relucert.bounding.methods.crown import CROWN, AfterCROWN, Alpha
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import Relaxations, pull_back
from relucert.bounding.reduced_network import Kept
from relucert.bounding.rounding import Magnitudes, Margins
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.rounding import gamma, rounded_down
from relucert.networks.network import Network
from relucert.networks.traversal import affine_ancestors, propagate


@dataclass(frozen=True, kw_only=True)
class Moments(AfterCROWN):
    """`steps` of L-BFGS on vectors of `rank` numbers for every input; never below `alpha`, and any step's bound is sound.

    In deeper networks this is the relaxation of the first layer, and CROWN's that of the others. The matrix of the first layer
    is dense: networks with more than 2048 inputs are left to `alpha`. After `seconds`, those of `alpha` not counted, the best
    bound so far is the answer. Bounds have no gradient in the weights.
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
        """Whether the network has one layer of ReLUs: no switching node is before another, and all are ReLUs."""
        single = all(affine_ancestors(net.graph, node.inputs[0])[1] == [0] for node in net.relus)
        return single and len(net.relus) == len(net.switches) and math.prod(net.input_shape) <= SIDE

    @torch.no_grad()
    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """The known pre-activation bounds, and the margins of `alpha`, improved where these prove nothing."""
        bounds, margins = Alpha(budget=self.budget).prove(net, known, x, ball, prop)
        best = margins.stacked()
        executed = x.dtype if known.rounding is None else known.rounding.executed
        if net.dtype != torch.float64:
            ball = ball.beside(x)
            net, x, prop = copy.deepcopy(net).double(), x.double(), prop.to(torch.float64)
            precise = self.start(net, x, ball, executed)
        else:
            precise = bounds if bounds.rounding is not None else self.start(net, x, ball, executed)
        layer = _Layer.of(net)
        if layer is None or len(x) == 0:
            return bounds, margins
        tail = _tail(net, layer, precise, x, ball, prop)
        open_ = ~(best[..., 1] > 0)  # a margin of alpha that proves something is not improved
        until = time.monotonic() + self.seconds
        for point in open_.any(1).nonzero()[:, 0].tolist():
            if time.monotonic() >= until:
                break
            rows = open_[point].nonzero()[:, 0]
            problem = tail.problem(point, rows)
            if problem is not None:
                search = MomentSearch(steps=self.steps, rank=self.rank, seed=self.seed, until=until)
                found = Margins.charged(problem.proved(problem.moments(search)), tail.cost[point, rows]).stacked()
                best[point, rows] = torch.fmax(best[point, rows], rounded_down(found, best.dtype))
        return bounds, Margins.unstacked(best)


@dataclass(frozen=True, eq=False)
class _Layer:
    """The first layer: indices of ReLU nodes without a switching node before them, and matrices from the input to them."""

    indices: list[int]
    matrices: list[Float[Tensor, " units inputs"]]

    @staticmethod
    def of(net: Network) -> _Layer | None:
        """The first layer; None where there is none, or where its matrix is too large."""
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
    """Backward propagation from the property to the first layer, through CROWN's relaxations."""
    rounding = bounds.rounding
    assert rounding is not None
    first = [node for node in net.relus if node.index in layer.indices]
    kept = {node.index: Kept.of(node, bounds.inputs[node.index], rounding.before[node.index]) for node in first}
    relaxations = cast(Relaxations, {**bounds.relaxed(net, "adaptive"), **kept})
    functional = pull_back(net.graph, len(net.graph) - 1, prop.rows, relaxations, rounding.at_logits())
    assert functional.cost is not None
    cost = functional.cost.clone()
    cost[..., 0] += rounding.lost[:, None]
    low, high = (side.flatten(1) for side in ball.hull(x))
    round_ = ball.p <= 2 and bool(ball.radii(x).isfinite().all())
    middle = x.flatten(1) if round_ else (low + high) / 2
    radius = torch.maximum(high - middle, middle - low)
    if round_:
        radius = ball.radii(x)[:, None].expand_as(middle)
    places = [net.graph[index].inputs[0] for index in layer.indices]
    sizes = propagate(net.graph, Magnitudes(), {0: rounding.largest.reshape(x.shape)}, places)
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
        torch.cat([sizes[place].flatten(1) for place in places], 1),
        functional.rows.flatten(2), functional.low + prop.offsets,
        middle, radius * (1 + gamma(8)), round_,
        torch.cat([rounding.before[index][:, 0] for index in layer.indices], 1), cost,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Tail:
    """Margins as functions of the first layer, `direct x + weights phi(z) + offset`, and bounds of z.

    `values` are those of z at `middle`, `sizes` bound the terms of the sums in z over the ball, `drift` the rounding errors of
    z as computed. `cost` is what rounding costs in all later layers, and in z when the network runs.
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
    drift: Float[Tensor, " batch units"]
    cost: Float[Tensor, " batch rows 2"]

    def problem(self, point: int, rows: Tensor) -> QuadraticProblem | None:
        """Some rows of an example; None where no unit of the layer is unstable."""
        units = self.unstable[point].nonzero()[:, 0]
        if len(units) == 0:
            return None
        direct, middle = self.direct[point, rows], self.middle[point]
        return QuadraticProblem(
            self.matrix[units] * self.radius[point], self.leaks[units], self.weights[point, rows][:, units],
            self.values[point, units], self.sizes[point, units], direct * self.radius[point],
            self.offset[point, rows] + direct @ middle,
            self.offset[point, rows].abs() + direct.abs() @ (middle.abs() + self.radius[point]),
            self.round, self.drift[point, units],
        )  # fmt: skip
