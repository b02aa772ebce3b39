"""`sdp`: the backward walk with a ball of l2 at every ReLU beside its box, after SDP-CROWN (Chiu et al., ICML 2025).

Let z be the inputs of a layer of ReLUs phi(z) = max(z, s z), with l <= z <= u, and ||z - z0||_2 <= rho over the units that may
switch. For every g and every lam >= 0, since lam / 2 (||z - z0||^2 - rho^2) <= 0 on the ball,

    c' phi(z) - g' z  >=  -lam / 2 rho^2 + sum_i min over z_i in [l_i, u_i] of  c_i phi(z_i) - g_i z_i + lam / 2 (z_i - z0_i)^2.

Each term is the smaller of two parabolas' minima, one for either side of zero: k (z0 + t) + lam / 2 t^2 with k = c_i - g_i or
s c_i - g_i, least at t = -k / lam or at an end of the piece. So the walk goes on with the functional g and pays the right
side. Without the box and with s = 0 that is SDP-CROWN's bound,

    -1/2 (lam (rho^2 - ||z0||^2) + sum_i min(c_i - g_i - lam z0_i, g_i + lam z0_i, 0)^2 / lam);

with lam = 0 and CROWN's slopes g / c it is CROWN's. Slopes are kept in [s, 1], as CROWN's are. The right side is concave in
lam with the derivative (||t||^2 - rho^2) / 2, whose sign brackets the best one; inside the bracket lam <- lam ||t|| / rho is
the next guess. The slopes climb by Adam. Every lam and every slope give a bound.

Radii rho come from `lipschitz`, max pools keep their lines. For a ball of another norm the radii are those of a ball of l2
around it, and the walk ends over the ball itself: the bound holds for every p, and gains most for p = 2.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.dual_ascent import Schedule, Variables, dual_ascent
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN, AfterCROWN, crown_margins
from relucert.bounding.methods.lipschitz import Deviations, Lipschitz, Parts, deviations, lipschitz_margins
from relucert.bounding.preactivations import BackwardBounds, UnitBounds, tightened
from relucert.bounding.propagation import Relaxations, pull_back
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.rounding import cast_up, relative_rounding
from relucert.networks.graph import Node
from relucert.networks.linear_map import one_hot
from relucert.networks.network import Network
from relucert.networks.patches import Filters
from relucert.networks.switching import MaxPool2d, ReLU

_CARE = 30  # times smaller are the steps of upper slopes
_ROUNDS = 8  # of the search for lam, half as many for inner units
_CLIMB = 40  # tensors of a layer's size that climbing keeps
_TOGETHER = 32  # examples whose patches are made at once
_CACHE = 2**20  # bytes of one tensor of these


@dataclass(frozen=True, kw_only=True)
class SDP(AfterCROWN):
    """`steps` of Adam on the slopes of all walks; never below `crown` and `lipschitz`, and every step's bound is sound.

    `inner`: whether the bounds of inner units, too, are tightened by such a walk, without steps. `rate` is the step size of the
    slopes, which are numbers in [0, 1]; `budget` bytes of memory for the walks. After `seconds`, those of `crown` not counted,
    it ends with what it has. No gradient in the weights.
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
        """Bounds of all units."""
        known = self.start(net, x, ball)
        return self._moved(net, x, ball, known, time.monotonic() + self.seconds)[-1].bounds()

    def proceed(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Tensor]:
        """The bounds of the units by walks with balls, and the margins after all steps."""
        with torch.no_grad():
            best = crown_margins(net, known, x, ball, prop)
            until = time.monotonic() + self.seconds
            moves = self._moved(net, x, ball, known, until)
            for one in moves:
                best = torch.maximum(best, lipschitz_margins(net, one, x, ball, prop))
            moved = moves[-1]
            bounds = moved.bounds()
            best = torch.maximum(best, crown_margins(net, bounds, x, ball, prop))
        inner = sum(math.prod(node.shape) for node in net.switches) + math.prod(net.input_shape)
        rows = max(1, self.budget // (_CLIMB * x.element_size() * inner))
        examples = max(1, rows // prop.rows.shape[1])
        for batch in torch.arange(len(x), device=x.device).split(examples):
            balls, here = ball_relaxations(net, moved, batch, _ROUNDS), ball.restrict(batch)
            for some in torch.arange(prop.rows.shape[1], device=x.device).split(rows):
                part = Property(prop.rows[batch][:, some], prop.offsets[batch][:, some])
                place = (batch[:, None], some[None])
                best[place] = torch.maximum(best[place], self._ascend(net, balls, x[batch], here, part, until))
        return bounds, torch.where(best.isnan(), -math.inf, best)

    @torch.no_grad()
    def _moved(self, net: Network, x: Tensor, ball: Ball, known: UnitBounds, until: float) -> list[Deviations]:
        """How far nodes move by `lipschitz` alone and, last, with inner units tightened by walks."""
        parts = Parts(net)
        found = [deviations(net, x, ball, known, parts=parts)]
        if self.inner:

            def refine(so_far: Deviations, node: Node, within: Interval) -> Interval:
                return self._refined(net, x, ball, so_far, node, within, until)

            found.append(deviations(net, x, ball, found[0].bounds(), refine, parts))
        return found

    def _ascend(
        self, net: Network, balls: Relaxations, x: Tensor, ball: Ball, prop: Property, until: float
    ) -> Float[Tensor, " batch specs"]:
        """The best margins after `steps` on the slopes of all ReLUs."""
        rows, last = prop.rows.shape[1], len(net.graph) - 1
        slopes: dict[int, tuple[Tensor, Tensor]] = {}
        for index, part in balls.items():
            if isinstance(part, BallLines) and bool(part.unstable.any()):
                below, above = (side.unsqueeze(1).repeat(1, rows, *[1] * (side.dim() - 1)) for side in part.slopes)
                slopes[index] = below, above

        def bound() -> tuple[Tensor, Tensor]:
            relaxations = {i: part.with_slopes(*slopes[i]) if i in slopes else part for i, part in balls.items()}  # type: ignore[union-attr]
            objective = pull_back(net.graph, last, prop.rows, relaxations).minimum(x, ball) + prop.offsets
            return objective, objective.detach()

        leaks = [cast(BallLines, balls[index]).slope for index in slopes]
        # Upper slopes start at the chord, which is best for the box alone: their steps are smaller.
        variables = [
            Variables([pair[side] for pair in slopes.values()], leaks, 1.0, rate)
            for side, rate in enumerate((self.rate, self.rate / _CARE))
        ]
        unknown = prop.rows.new_full(prop.rows.shape[:2], -math.inf)
        return dual_ascent(net, bound, variables, unknown, Schedule(steps=self.steps, deadline=until))

    def _refined(
        self, net: Network, x: Tensor, ball: Ball, moved: Deviations, node: Node, within: Interval, until: float
    ) -> Interval:
        """The interval of a node's input after one walk for each end of every unit that may switch."""
        if not moved.before:
            return within
        budget = self.budget // 4  # a walk keeps some four times as many tensors as one without balls
        work, source, shape = BackwardBounds(net.graph, x, ball, budget), node.inputs[0], within.lower.shape[1:]
        if work.patched(source):
            ends = [within.lower.clone(), within.upper.clone()]
            each = 8 * work.taps() * x.element_size()
            for batch in torch.arange(len(x), device=x.device).split(max(1, min(_TOGETHER, budget // each))):
                if time.monotonic() >= until:
                    break
                here = BackwardBounds(net.graph, x[batch], ball.restrict(batch), budget)
                found = here.local(ball_relaxations(net, moved, batch, _ROUNDS // 2))
                ends[0][batch] = torch.fmax(ends[0][batch], found.lower)
                ends[1][batch] = torch.fmin(ends[1][batch], found.upper)
            return Interval(*ends)
        low, high, needed = within.lower.flatten(1), within.upper.flatten(1), within.unstable.flatten(1)
        if isinstance(node.op, MaxPool2d):
            needed = torch.ones_like(needed)
        for batch, units, mine in work.chosen(needed, 2):
            if time.monotonic() >= until:
                break
            lines, here = ball_relaxations(net, moved, batch, _ROUNDS // 2), ball.restrict(batch)
            picked = one_hot(units, shape, x.dtype)
            found = pull_back(net.graph, source, torch.cat([picked, -picked], 1), lines).minimum(x[batch], here)
            below, above = torch.where(found.isnan(), -math.inf, found).split(units.shape[1], 1)
            low, high = tightened((low, high), (batch, units, mine), (below, -above), keep=True)
        return Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))


@dataclass(frozen=True, eq=False)
class BallLines:
    """A layer of ReLUs over box and ball: slopes for positive and for negative functionals, (batch, *shape) or by row.

    `low` and `high` (batch, *shape) are the ends of the box seen from the `centre`, `reach` (batch,) is the radius of the ball;
    `rounds` of the search for lam.
    """

    slope: float
    slopes: tuple[Tensor, Tensor]
    unstable: Tensor
    centre: Tensor
    low: Tensor
    high: Tensor
    reach: Tensor
    rounds: int
    by_row: bool = False
    parallel = False

    @property
    def below(self) -> Tensor:
        """Slopes for positive functionals."""
        return self.slopes[0]

    @property
    def above(self) -> Tensor:
        """Slopes for negative functionals."""
        return self.slopes[1]

    def with_slopes(self, below: Tensor, above: Tensor) -> BallLines:
        """The same with slopes for every row, (batch, rows, *shape); those of units that cannot switch stay."""
        mask = self.unstable.unsqueeze(1)
        low, high = (
            torch.where(mask, new, old.unsqueeze(1)) for new, old in zip((below, above), self.slopes, strict=True)
        )
        return replace(self, slopes=(low, high), by_row=True)

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> tuple[Tensor, Tensor, None]:
        """Functionals behind the node as functionals before it, with what must be added for a lower bound."""
        below, above = self.slopes if self.by_row else (side.unsqueeze(1) for side in self.slopes)
        slopes = torch.where(rows > 0, below, above)
        # Only units that may switch have anything to pay; the others are linear, with their slope.
        unstable = self.unstable.flatten(1)
        mask, units = unstable.to(torch.int8).sort(1, descending=True)
        wide = int(unstable.sum(1).max()) if len(unstable) else 0
        mask, units = mask[:, :wide].to(rows.dtype), units[:, :wide]
        place = units.unsqueeze(1).expand(-1, rows.shape[1], -1)
        paying = rows.flatten(2).gather(2, place) * mask.unsqueeze(1)
        centre, low, high = (side.flatten(1).gather(1, units) for side in (self.centre, self.low, self.high))
        paid = self._paid(paying, slopes.flatten(2).gather(2, place), centre, low, high, self.reach)
        return rows * slopes, paid, None

    def convolved(self, value: Tensor, filters: Filters) -> Interval:
        """What the slopes make of the nodes' values at x, and what is paid, summed up by a convolution behind them."""
        below, above = self.below * value, self.above * value
        up, down = filters.parts()
        low, high = up.apply(below) + down.apply(above), up.apply(above) + down.apply(below)
        mask = self.unstable.to(value.dtype)
        seen = [filters.seen(part) for part in (mask, self.below, self.above, self.centre, self.low, self.high)]
        reach = self.reach.expand(len(seen[0]), -1)
        weights = filters.weight.flatten(1)
        at_once = max(1, _CACHE // (weights.numel() * value.element_size()))
        paid: list[tuple[Tensor, Tensor]] = []
        for parts in zip(*(part.flatten(0, 1).split(at_once) for part in (*seen, reach)), strict=True):
            own, rising, falling, *around = parts
            rising, falling, rows = rising.unsqueeze(1), falling.unsqueeze(1), weights * own.unsqueeze(1)
            least = self._paid(rows, torch.where(weights > 0, rising, falling), *around)
            most = self._paid(-rows, torch.where(weights > 0, falling, rising), *around)
            paid.append((least, most))
        least, most = (
            torch.cat(ends).unflatten(0, reach.shape).permute(1, 2, 0).reshape(low.shape)
            for ends in zip(*paid, strict=True)
        )
        return Interval(low + least, high - most)

    def _paid(
        self,
        rows: Float[Tensor, " batch rows units"],
        slopes: Float[Tensor, " batch rows units"],
        centre: Float[Tensor, " batch units"],
        low: Float[Tensor, " batch units"],
        high: Float[Tensor, " batch units"],
        reach: Float[Tensor, " batch"],
    ) -> Float[Tensor, " batch rows"]:
        """The right side of the inequality for functionals c = `rows` and g = `slopes * rows`, at nearly its best lam."""
        with torch.no_grad():
            up, down = rows * (1 - slopes), rows * (self.slope - slopes)
            centre, low, high, reach = centre.unsqueeze(1), low.unsqueeze(1), high.unsqueeze(1), reach.unsqueeze(1)
            middle = torch.minimum(torch.maximum(-centre, low), high)
            up_here, down_here = up * centre, down * centre
            # Where g is c or s c one piece is flat and ties with the kink: not rounding decides then, but where the centre is.
            slack = 8 * torch.finfo(rows.dtype).eps * (up_here.abs() + down_here.abs())
            bias = torch.where(centre >= 0, slack, -slack)
            limits = torch.finfo(rows.dtype)
            least, most = limits.tiny**0.5, limits.max**0.25
            unit = reach.clamp(min=1 / most)

            def at(lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                """Where the minima are, whether on the upper piece, and what all add up to.

                Where c = 0 both pieces are lam / 2 t^2, and that which holds t = 0 has the minimum.
                """
                half = lam.unsqueeze(2) / 2
                near = -half.mul(2).clamp(min=least)
                right, left = up / near, down / near
                torch.minimum(torch.maximum(right, middle, out=right), high, out=right)
                torch.minimum(torch.maximum(left, low, out=left), middle, out=left)
                over = torch.addcmul(up, half, right).mul_(right).add_(up_here)
                under = torch.addcmul(down, half, left).mul_(left).add_(down_here)
                upper = over <= under + bias
                step = torch.where(upper, right, left)
                value = torch.minimum(over, under, out=over).sum(2) - lam / 2 * reach.square()
                return step, upper, value

            none = torch.zeros_like(reach.expand(rows.shape[:2]))
            lam = (torch.maximum(up.abs(), down.abs()).norm(dim=2) / unit).clamp(least, most)
            lower, higher, kept = none + least, none + most, none
            place, upper, best = at(none)  # with the box alone
            for _ in range(self.rounds):
                step, over, value = at(lam)
                better = value > best
                best, kept = torch.where(better, value, best), torch.where(better, lam, kept)
                place = torch.where(better.unsqueeze(2), step, place)
                upper = torch.where(better.unsqueeze(2), over, upper)
                length = step.norm(dim=2)
                lower = torch.where(length > reach, lam, lower)
                higher = torch.where(length > reach, higher, lam)
                # Right if no unit changes its piece; where that leads out of what is known, half way in logarithms.
                guess = lam * length / unit
                lam = torch.where((guess > lower) & (guess < higher), guess, lower.sqrt() * higher.sqrt())
            # A number beside a number would make float32: a slope must not lose its last digits.
            chosen = torch.where(upper, torch.ones_like(rows), self.slope)
            place, squares = centre + place, place.square().sum(2)
            size = (rows * (chosen - slopes) * place).abs().sum(2) + kept / 2 * (squares + reach.square())
            rest = kept / 2 * (squares - reach.square())
            rest = rest - 4 * relative_rounding(rows.shape[2], rows.dtype) * size - 2 * slack.sum(2)
        # By the envelope theorem the gradient is that of the terms with lam and the places of the minima held fixed.
        return (rows * (chosen - slopes) * place).sum(2) + rest


def ball_relaxations(net: Network, moved: Deviations, batch: Tensor, rounds: int) -> Relaxations:
    """Relaxations of the switching nodes that have been reached, for some examples: balls for ReLUs, lines for max pools."""
    found: dict[int, object] = {}
    for node in net.switches:
        if node.index not in moved.before:
            continue
        within = moved.inputs[node.index].restrict(batch)
        lines = relax(node.op, within, "adaptive")
        if isinstance(node.op, ReLU) and isinstance(lines, ReLURelaxation):
            centre = moved.centres[node.index][batch]
            found[node.index] = BallLines(
                node.op.slope,
                (lines.below, lines.above),
                within.unstable,
                centre,
                (within.lower - centre).clamp(max=0),
                (within.upper - centre).clamp(min=0),
                cast_up(moved.before[node.index][batch], centre.dtype),
                rounds,
            )
        else:
            found[node.index] = lines
    return cast(Relaxations, found)
