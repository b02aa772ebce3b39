"""`sdp`: backward propagation with an l2 ball at every ReLU layer beside its box, after SDP-CROWN (Chiu et al., ICML 2025).

The relaxation of a layer over box and ball is in `bounding/_ball_relaxation.py`; the radii of the balls come from `lipschitz`.
Slopes are optimised by dual ascent, and every slope gives a bound. Max pools keep their linear relaxations. For an input ball
of another norm the radii are those of an l2 ball around it, and the last bound is minimised over the ball itself: the bound
holds for every p, and gains most for p = 2.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding._ball_relaxation import BallRelaxation
from relucert.bounding._dual_ascent import Schedule, Variables, dual_ascent
from relucert.bounding.backward_bounds import BackwardBounds, tightened
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN, AfterCROWN, crown_margins
from relucert.bounding.methods.lipschitz import Deviations, Lipschitz, Parts, deviations, lipschitz_margins
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import Relaxations, pull_back
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.bounding.rounding import Charge, Margins
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.rounding import cast_up
from relucert.networks.affine_map import one_hot
from relucert.networks.network import Network
from relucert.networks.nodes import Switching
from relucert.networks.traversal import Node

_CARE = 30  # the steps of upper slopes are so many times smaller
_ROUNDS = 8  # of the search for lam, half as many for inner units
_KEPT = 40  # tensors of a layer's size that dual ascent keeps
_TOGETHER = 32  # examples whose patches are made at once
_POINTS = 8  # points of branch and bound whose norms are computed at once


@dataclass(frozen=True, kw_only=True)
class SDP(AfterCROWN):
    """`steps` of Adam on all slopes; never below `crown` and `lipschitz`, and every step's bound is sound.

    `inner`: whether the pre-activation bounds, too, are tightened by backward propagation through balls, without steps. `rate`
    is the step size of the slopes, which are numbers in [0, 1]; `budget` is bytes of memory for backward propagation. After
    `seconds`, those of `crown` not counted, the best bound so far is the answer. Bounds have no gradient in the weights.
    """

    name = "sdp"
    steps: int = 20
    rate: float = 0.3
    inner: bool = True
    seconds: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 0:
            raise InvalidInput(f"steps of sdp must be at least 0, got {self.steps}")
        if not 0 < self.rate < 10:
            raise InvalidInput(f"rate of sdp must lie between 0 and 10, got {self.rate}")
        if not self.seconds >= 0:
            raise InvalidInput(f"seconds of sdp must be at least 0, got {self.seconds}")

    @property
    def contains(self) -> tuple[CROWN, Lipschitz]:
        """Cheaper methods that prove no more."""
        return CROWN(budget=self.budget), Lipschitz(budget=self.budget)

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Pre-activation bounds of all units."""
        known = self.start(net, x, ball)
        return self._moved(net, x, ball, known, time.monotonic() + self.seconds)[-1].bounds()

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """Pre-activation bounds by backward propagation through balls, and the margins after all steps."""
        with torch.no_grad():
            best = crown_margins(net, known, x, ball, prop)
            until = time.monotonic() + self.seconds
            moves = self._moved(net, x, ball, known, until)
            for moved in moves:
                best = best.best(lipschitz_margins(net, moved, x, ball, prop))
            moved = moves[-1]
            bounds = moved.bounds()
            best = best.best(crown_margins(net, bounds, x, ball, prop)).stacked()
        inner = sum(math.prod(node.shape) for node in net.switches) + math.prod(net.input_shape)
        rows = max(1, self.budget // (_KEPT * x.element_size() * inner))
        examples = max(1, rows // prop.rows.shape[1])
        for batch in torch.arange(len(x), device=x.device).split(examples):
            balls, own = ball_relaxations(net, moved, batch, _ROUNDS), ball.restrict(batch)
            charge = moved.rounding.at_logits().restrict(batch)
            for some in torch.arange(prop.rows.shape[1], device=x.device).split(rows):
                part = Property(prop.rows[batch][:, some], prop.offsets[batch][:, some])
                place = (batch[:, None], some[None])
                problem = _Problem(net, x[batch], own, part, charge)
                best[place] = torch.fmax(best[place], self._ascend(problem, balls, until).stacked())
        return bounds, Margins.unstacked(best.nan_to_num(-math.inf, math.inf, -math.inf))

    @torch.no_grad()
    def _moved(self, net: Network, x: Tensor, ball: Ball, known: UnitBounds, until: float) -> list[Deviations]:
        """How far nodes move by `lipschitz` alone and, last, with pre-activation bounds tightened by backward propagation."""
        parts = Parts(net)
        moves = [deviations(net, x, ball, known, parts=parts)]
        if self.inner:

            def refine(so_far: Deviations, node: Node, within: Interval, charge: Charge) -> Interval:
                return self._refined(_Units(net, x, ball, node, charge), so_far, within, until)

            moves.append(deviations(net, x, ball, moves[0].bounds(), refine, parts))
        return moves

    def _ascend(self, problem: _Problem, balls: Relaxations, until: float) -> Margins:
        """The best margins after `steps` on the slopes of all ReLUs."""
        net, prop = problem.net, problem.prop
        rows, last = prop.rows.shape[1], len(net.graph) - 1
        slopes: dict[int, tuple[Tensor, Tensor]] = {}
        for index, part in balls.items():
            if isinstance(part, BallRelaxation) and bool(part.unstable.any()):
                below, above = (side.unsqueeze(1).repeat(1, rows, *[1] * (side.dim() - 1)) for side in part.slopes)
                slopes[index] = below, above

        def bound() -> tuple[Tensor, Tensor]:
            relaxations = {i: part.with_slopes(*slopes[i]) if i in slopes else part for i, part in balls.items()}  # type: ignore[union-attr]
            functional = pull_back(net.graph, last, prop.rows, relaxations, problem.charge)
            margins = functional.margins(problem.x, problem.ball)
            return margins.computed, margins.stacked()

        leaks = [cast(BallRelaxation, balls[index]).slope for index in slopes]
        # Upper slopes start at the chord, which is best for the box alone: their steps are smaller.
        variables = [
            Variables([pair[side] for pair in slopes.values()], leaks, 1.0, rate)
            for side, rate in enumerate((self.rate, self.rate / _CARE))
        ]
        unknown = prop.rows.new_full((*prop.rows.shape[:2], 3), -math.inf)
        found = dual_ascent(net, bound, variables, unknown, Schedule(steps=self.steps, deadline=until))
        return Margins.unstacked(found).plus(prop.offsets)

    def _refined(self, problem: _Units, moved: Deviations, within: Interval, until: float) -> Interval:
        """The interval of a node's input after one backward propagation for each end of every unstable unit."""
        if not moved.before:
            return within
        net, x, ball, node, charge = problem
        budget = self.budget // 4  # with balls backward propagation keeps some four times as many tensors
        work, source, shape = BackwardBounds(net.graph, x, ball, budget), node.inputs[0], within.lower.shape[1:]
        if work.patched(source):
            ends = [within.lower.clone(), within.upper.clone()]
            each = 8 * work.taps() * x.element_size()
            for batch in torch.arange(len(x), device=x.device).split(max(1, min(_TOGETHER, budget // each))):
                if time.monotonic() >= until:
                    break
                backward = BackwardBounds(net.graph, x[batch], ball.restrict(batch), budget)
                local = backward.local(ball_relaxations(net, moved, batch, _ROUNDS // 2), charge.restrict(batch))
                ends[0][batch] = torch.fmax(ends[0][batch], local.lower)
                ends[1][batch] = torch.fmin(ends[1][batch], local.upper)
            return Interval(*ends)
        low, high = within.lower.flatten(1), within.upper.flatten(1)
        needed = within.unstable.flatten(1) | (not node.op.decided_by_sign)
        for batch, units, chosen in work.chosen(needed, 2):
            if time.monotonic() >= until:
                break
            balls, own = ball_relaxations(net, moved, batch, _ROUNDS // 2), ball.restrict(batch)
            picked = one_hot(units, shape, x.dtype)
            functional = pull_back(net.graph, source, torch.cat([picked, -picked], 1), balls, charge.restrict(batch))
            ends = functional.lower(x[batch], own)
            below, above = torch.where(ends.isnan(), -math.inf, ends).split(units.shape[1], 1)
            low, high = tightened((low, high), (batch, units, chosen), (below, -above), keep=True)
        return Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))


class _Problem(NamedTuple):
    """A property to be bounded over balls, and what functionals of the logits are charged for rounding."""

    net: Network
    x: Tensor
    ball: Ball
    prop: Property
    charge: Charge


class _Units(NamedTuple):
    """The input of a switching node to be bounded over balls, and what its functionals are charged for rounding."""

    net: Network
    x: Tensor
    ball: Ball
    node: Node[Switching]
    charge: Charge


def ball_relaxations(net: Network, moved: Deviations, batch: Tensor, rounds: int) -> Relaxations:
    """Relaxations of the switching nodes that `moved` knows, for some examples: over box and ball for ReLUs."""
    relaxations: dict[int, object] = {}
    for node in net.switches:
        if node.index not in moved.before:
            continue
        within = moved.inputs[node.index].restrict(batch)
        drift = moved.rounding.before[node.index][batch]
        linear = relax(node.op, within, "adaptive", drift)
        if isinstance(linear, ReLURelaxation) and linear.charge is not None:
            centre = moved.centres[node.index][batch]
            relaxations[node.index] = BallRelaxation(
                node.op.slope,
                (linear.below, linear.above),
                within.unstable,
                centre,
                (within.lower - centre).clamp(max=0),
                (within.upper - centre).clamp(min=0),
                cast_up(moved.before[node.index][batch], centre.dtype),
                rounds,
                charge=torch.where(within.unstable.flatten(1).unsqueeze(1), drift, linear.charge),
            )
        else:
            relaxations[node.index] = linear
    return cast(Relaxations, relaxations)


@dataclass(frozen=True, eq=False)
class UnitBalls:
    """The balls that units lie in, for branch and bound, which bounds subproblems over balls where these gain something.

    `bounds` are those of the units of all points, `moved` says how far units move from their values at x, for some points;
    `place` has the piece of `moved` and the position there, by point.
    """

    bounds: UnitBounds
    moved: list[Deviations]
    place: dict[int, tuple[int, int]]

    @staticmethod
    @torch.no_grad()
    def around(
        net: Network, x: Tensor, ball: Ball, bounds: UnitBounds, points: Int[Tensor, " n"], until: float = math.inf
    ) -> UnitBalls:
        """The balls of some points of a batch, as many as are found `until` a time, and bounds that are no wider than these.

        `bounds` must hold over the ball or over a part of it; in a part that does not hold x units have no balls.
        """
        moved: list[Deviations] = []
        place: dict[int, tuple[int, int]] = {}
        inputs = dict(bounds.inputs)
        for some in points.split(_POINTS) if len(points) else ():
            if time.monotonic() >= until:
                break
            own = deviations(net, x[some], ball.restrict(some), bounds.restrict(some))
            # Moves are measured from the values at x: bounds that x itself violates are those of a part of the ball.
            holds = torch.ones(len(some), dtype=torch.bool)
            for index, value in own.centres.items():
                within = bounds.inputs[index].restrict(some)
                holds &= ((value >= within.lower) & (value <= within.upper)).flatten(1).all(1)
            inside = holds.nonzero()[:, 0]
            place |= {int(some[position]): (len(moved), position) for position in inside.tolist()}
            moved.append(own)
            for index, within in own.inputs.items():
                tighter = within.restrict(inside)
                inputs[index] = Interval(
                    inputs[index].lower.index_copy(0, some[inside], tighter.lower),
                    inputs[index].upper.index_copy(0, some[inside], tighter.upper),
                )
        return UnitBalls(bounds.improved(inputs), moved, place)

    def known(self, point: int) -> bool:
        """Whether the balls of a point are known."""
        return point in self.place

    def of(self, point: int, reduced: ReducedNetwork, count: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Centres (count, units) and radii (count,) of a point's unstable units by node, for `count` problems."""
        piece, position = self.place[point]
        moved = self.moved[piece]
        return {
            index: (
                moved.centres[index][position].flatten()[reduced.units[index]].expand(count, -1),
                moved.before[index][position].expand(count),
            )
            for index in reduced.layers
        }
