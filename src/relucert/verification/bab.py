"""`bab`: branch and bound over the ReLUs, complete: sub-problems of all open points are bounded in one batch.

A point and one other class make a problem. Its leaves are sub-problems, the ball with some ReLUs split into on and off; a
leaf whose bound is proved is closed, another is split once more, at the unit that raises the worse of the two children most
among some candidates. A problem is proved when it has no leaf, and a point when all its problems are. The minimiser of every
leaf's bound is run through the network: where it changes the decision, it is a witness.

What happens to a problem depends on its own leaves alone, so verdicts do not depend on who shares the batch; only a wall
clock does, and then the verdict is UNKNOWN.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relucert.bounding.alpha import Alpha
from relucert.bounding.contraction import Contraction
from relucert.bounding.intervals import Interval
from relucert.bounding.relaxation import Lines
from relucert.bounding.rounding import bound_error, evaluation_error, largest_inputs
from relucert.bounding.sdp import SDP
from relucert.bounding.splits import Climbed, Numbers, Problems, Signs, climb
from relucert.bounding.units import BUDGET
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method
from relucert.core.properties import Property
from relucert.networks.network import Network
from relucert.networks.switching import ReLU
from relucert.verification.leaf_store import LeafStore
from relucert.verification.leaves import leaf_program
from relucert.verification.outcome import News, Outcome

_CORNERS = 4  # programs of linear regions, one after the other
_EFFORT = 1200  # fewer of them where this many units may switch, all programs of a turn together
_AROUND = 16  # points around their minimisers
_NEAR = 0.25  # of what the bound is below zero: points above it are no place to look for witnesses


@dataclass(frozen=True, kw_only=True)
class BaB(Method):
    """At most `nodes` sub-problems a point; `batch` of them are bounded together, with `steps` of climbing each.

    `candidates` units are tried before each split; from the best minimiser of a problem's leaves `descent` steps go downhill.
    Where open leaves take more than `memory` bytes, the point with most of them is given up. Networks with max pools are split
    at their ReLUs only: what remains there is UNKNOWN.
    """

    name = "bab"
    nodes: int = 20_000
    batch: int = 256
    steps: int = 12
    rate: float = 0.1
    candidates: int = 4
    width: int = 64
    descent: int = 8
    budget: int = BUDGET
    memory: int = 2 * 2**30

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("nodes", "batch", "candidates", "width", "memory"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} of bab must be at least 1; found {getattr(self, name)}")
        for name in ("steps", "descent"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} of bab must be at least 0; found {getattr(self, name)}")


@torch.no_grad()
def branch_and_bound(
    net: Network, double: Network, x: Tensor, ball: Ball, asked: Property, method: BaB, deadline: float = math.inf,
    limit: float = math.inf, news: News | None = None,
) -> Outcome:  # fmt: skip
    """Decide points (float64), whose property holds at the point itself, until `deadline` (of `time.monotonic`).

    `limit`: seconds that one point may cost, its share of the batch's. `news` hears of points as they are decided.
    """
    return _Search(net, double, x, ball, asked, method, deadline, limit).run(news)


@dataclass(eq=False)
class _Problem:
    """One point and one row of its property: its leaves (margin, order of arrival, slot), worst first."""

    point: int
    row: int
    leaves: list[tuple[float, int, int]] = field(default_factory=list)
    rounds: int = 0


class _Search:
    """The leaves of all problems, and what is known of the points."""

    def __init__(
        self, net: Network, double: Network, x: Tensor, ball: Ball, asked: Property, method: BaB, deadline: float,
        limit: float,
    ):  # fmt: skip
        self.net, self.double, self.x, self.ball, self.asked, self.method = net, double, x, ball, asked, method
        self.deadline, self.limit = deadline, limit
        self.found = Outcome.nothing(x)
        self.given_up = torch.zeros(len(x), dtype=torch.bool)
        self.told, self.stuck = self.given_up.clone(), self.given_up.clone()
        self.relus = [node for node in double.switches if isinstance(node.op, ReLU)]
        self.shapes = [node.shape for node in self.relus]
        sizes = [math.prod(shape) for shape in self.shapes]
        self.first = {node.index: sum(sizes[:place]) for place, node in enumerate(self.relus)}
        self.contractions: dict[int, Contraction | None] = {}
        self.aside = 0.0
        self.arrived = 0
        self.problems: list[_Problem] = []

    def run(self, news: News | None = None) -> Outcome:
        """Bound the points as a whole, then round after round of leaves until nothing is open."""
        frozen = [(weight, weight.requires_grad) for weight in self.double.parameters()]
        try:
            for weight, _ in frozen:
                weight.requires_grad_(False)
            started = time.monotonic()
            self._roots()
            self.found.seconds += self._shared(started) / max(1, len(self.x))
            self._tell(news)
            turns = deque(range(len(self.problems)))
            points = sorted({problem.point for problem in self.problems})
            while (started := time.monotonic()) < self.deadline:
                chosen = self._chosen(turns)
                if not chosen:
                    break
                which = torch.tensor([key for key, _ in chosen])
                self._round(which, torch.tensor([slot for _, slot in chosen]))
                share = torch.bincount(self.owner[which], minlength=len(self.x)).to(self.x)
                self.found.seconds += self._shared(started) * share / share.sum()
                self._tell(news)
                if self.store.size() > self.method.memory:
                    self.given_up[max(points, key=self.store.size)] = True
            else:
                self.found.timed |= ~(self.found.proved | self.found.broken | self.given_up)
        finally:
            for weight, before in frozen:
                weight.requires_grad_(before)
        return self.found

    def _shared(self, started: float) -> float:
        """The seconds since then, without what was spent on single points and is theirs already."""
        spent, self.aside = time.monotonic() - started - self.aside, 0.0
        return max(0.0, spent)

    def _tell(self, news: News | None) -> None:
        """Let others hear of the points that are decided, once of each."""
        decided = (self.found.proved | self.found.broken) & ~self.told
        if news is not None and bool(decided.any()):
            news(self.found, decided.nonzero()[:, 0].tolist())
        self.told |= decided

    def _roots(self) -> None:
        """Bound every point as a whole, in l2 by SDP-CROWN; the rows that are not proved are the problems.

        The bounds of the units that are found here serve all sub-problems.
        """
        whole = SDP(budget=self.method.budget) if self.ball.p == 2 else Alpha(budget=self.method.budget)
        self.units, margins = whole.solve(self.double, self.x, self.ball, self.asked)
        inputs = self.units.inputs
        error = bound_error(self.double, self.x, self.ball, inputs, self.asked)
        self.needed = evaluation_error(self.double, self.x, self.ball, inputs, self.asked, self.net.dtype)
        self.reach, self.unit = largest_inputs(self.double, self.x, self.ball, inputs)
        # Walks of small networks multiply in another order, once more for every product that was made before.
        error, self.unit = 2 * error, 2 * self.unit
        goal = error + self.needed
        open_ = ~(margins > goal)
        self.found.margin, self.found.proved = (margins - error).amin(1), ~open_.any(1)
        unstable = {node.index: self.units.inputs[node.index].unstable for node in self.relus}
        self.store = LeafStore(self.relus, unstable, len(self.x), self.x.dtype)
        places = open_.nonzero()
        self.owner, self.row, self.goal = places[:, 0], places[:, 1], goal[open_]
        self.problems = [_Problem(point, row) for point, row in places.tolist()]
        for which in torch.arange(len(places)).split(self.method.batch) if len(places) else ():
            self._bound(which, *self._start(self.owner[which]), steps=2 * self.method.steps)

    def _start(self, owner: Tensor) -> tuple[Signs, Numbers, Numbers]:
        """No splits, the slopes of the points' own bounds, and no multipliers."""
        slopes = {}
        for node in self.relus:
            lines = self.units.relaxations[node.index]
            assert isinstance(lines, Lines)
            slopes[node.index] = lines.below[owner]
        signs = {index: torch.zeros_like(value, dtype=torch.int8) for index, value in slopes.items()}
        return signs, slopes, {index: torch.zeros_like(value) for index, value in slopes.items()}

    def _climb(self, which: Tensor, signs: Signs, slopes: Numbers, betas: Numbers, steps: int) -> Climbed:
        """Bounds of sub-problems of the problems `which`: those of one point after the other's, in its own small network."""
        owner = self.owner[which]
        found = []
        order: list[Tensor] = []
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            mine = [{i: value[places] for i, value in part.items()} for part in (signs, slopes, betas)]
            found.append(self._climb_one(point, which[places], mine[0], mine[1], mine[2], steps))
            order.append(places)
        return Climbed.gathered(found, torch.cat(order))

    def _climb_one(
        self, point: int, which: Tensor, signs: Signs, slopes: Numbers, betas: Numbers, steps: int
    ) -> Climbed:
        """Bounds of sub-problems of one point."""
        owner = self.owner[which]
        if point not in self.contractions:
            inputs = {
                index: Interval(one.lower[point : point + 1], one.upper[point : point + 1])
                for index, one in self.units.inputs.items()
            }
            self.contractions[point] = Contraction.of(self.double, inputs, self.asked.rows[point])
        small = self.contractions[point]
        problems = self._sub_problems(which, signs)
        reach = {index: value[owner] for index, value in self.reach.items()}
        goal, unit = self.goal[which], self.unit[owner]
        options = {"steps": steps, "rate": self.method.rate, "candidates": self.method.candidates}
        if small is None:
            return climb(self.double, problems, slopes, betas, goal=goal, unit=unit, reach=reach, **options)  # type: ignore[arg-type]
        low, high = ({i: getattr(one, side) for i, one in problems.inputs.items()} for side in ("lower", "upper"))
        low, high = small.small(low), small.small(high)
        within = {index: Interval(low[index], high[index]) for index in low}
        problems = Problems(problems.x, problems.ball, problems.asked, within, small.small(signs))
        found = climb(
            self.double, problems, small.small(slopes), small.small(betas), goal=goal, unit=unit,
            reach=small.small(reach), small=(small, self.row[which]), **options,  # type: ignore[arg-type]
        )  # fmt: skip
        numbers = torch.cat([self.first[index] + units for index, units in small.units.items()])
        units = torch.where(found.units < 0, -1, numbers[found.units.clamp(min=0)] if len(numbers) else -1)
        return Climbed(
            found.margin, small.spread(found.slopes, slopes), small.spread(found.betas, betas), found.point, units
        )

    def _sub_problems(self, which: Tensor, signs: Signs) -> Problems:
        owner, row = self.owner[which], self.row[which]
        asked = Property(self.asked.rows[owner, row][:, None], self.asked.offsets[owner, row][:, None])
        inputs = {index: Interval(one.lower[owner], one.upper[owner]) for index, one in self.units.inputs.items()}
        return Problems(self.x[owner], self.ball.restrict(owner), asked, inputs, signs)

    def _bound(self, which: Tensor, signs: Signs, slopes: Numbers, betas: Numbers, *, steps: int) -> None:
        """Bound sub-problems, look for witnesses, and keep what is not proved as leaves."""
        found = self._climb(which, signs, slopes, betas, steps)
        owner = self.owner[which]
        self.found.nodes += torch.bincount(owner, minlength=len(self.x))
        self._try(found.point, owner)
        self._descend(found.point, found.margin, which)
        lost = ~(found.margin > self.goal[which]) & ~self.found.broken[owner]
        places = lost.nonzero()[:, 0]
        kept = [{i: value[places] for i, value in part.items()} for part in (signs, found.slopes, found.betas)]
        slots = self.store.add(owner[places], kept[0], kept[1], kept[2], found.units[places]) if len(places) else []
        for place, slot in zip(places.tolist(), slots, strict=True):
            self.arrived += 1
            leaf = (float(found.margin[place]), self.arrived, slot)
            heapq.heappush(self.problems[int(which[place])].leaves, leaf)

    def _try(self, points: Tensor, owner: Tensor) -> None:
        """Run points through the network as it is used, and keep what changes the decision as witnesses."""
        own = points.to(self.net.dtype)
        logits = self.net(own).double()
        # As in `changed`: what another batch may round away is no witness.
        slack = 32 * torch.finfo(self.net.dtype).eps * logits.abs().amax(1)
        changed = self.asked.restrict(owner).margin(logits) < -slack
        inside = self.ball.restrict(owner).contains(self.x[owner], own)
        for place in (changed & inside & ~self.found.proved[owner]).nonzero()[:, 0].tolist():
            point = int(owner[place])
            if not self.found.broken[point]:
                self.found.broken[point] = True
                self.found.witness[point] = own[place].double()

    def _descend(self, points: Tensor, bounds: Tensor, which: Tensor) -> None:
        """Attack from the best of each problem's minimisers: a few steps downhill, the last ones the shortest."""
        if self.method.descent == 0:
            return
        best = self._best_of(points.to(self.net.dtype), which)
        chosen, z = which[best], self._downhill(points[best], which[best], 0.5)
        self._try(z, self.owner[chosen])
        with torch.no_grad():
            near = self._margins(z.to(self.net.dtype), chosen).double() < -_NEAR * bounds[best]
        for place, key in enumerate(chosen.tolist()):
            problem = self.problems[key]
            problem.rounds += 1
            # The program of a linear region takes longer than a round of leaves: it has its turn after 1, 2, 4, 8 rounds.
            seldom = problem.rounds & (problem.rounds - 1) == 0
            linear = self.ball.p in (1.0, math.inf)
            if seldom and linear and bool(near[place]) and not self.found.broken[problem.point]:
                started = time.monotonic()
                self._corner(z[place : place + 1], chosen[place : place + 1])
                spent = time.monotonic() - started
                self.found.seconds[problem.point] += spent
                self.aside += spent

    def _corner(self, z: Tensor, which: Tensor) -> None:
        """From one point to the best one of its linear region, downhill from around there, and once more."""
        owner = self.owner[which]
        ball, x = self.ball.restrict(owner), self.x[owner]
        generator = torch.Generator().manual_seed(self.problems[int(which)].rounds)
        unstable = sum(int(one.unstable[owner].sum()) for one in self.units.inputs.values())
        for _ in range(max(1, min(_CORNERS, _EFFORT // max(1, unstable)))):
            left = min(self.deadline - time.monotonic(), self.limit - float(self.found.seconds[owner]))
            if left <= 0:
                return
            signs: Signs = {}
            for node, pattern in zip(self.double.switches, self.double.pattern(z), strict=True):
                if not isinstance(node.op, ReLU):
                    return
                side = torch.where(pattern, 1, -1).to(torch.int8)
                signs[node.index] = side * self.units.inputs[node.index].unstable[owner]
            solved = leaf_program(self.double, self._sub_problems(which, signs), left)
            if solved is None:
                return
            around = (torch.rand(_AROUND, *x.shape[1:], generator=generator) - 0.5).to(x)
            eps = ball.radii(x).reshape(-1, *[1] * (x.ndim - 1)).clamp(max=1.0)
            many = which.expand(_AROUND)
            starts = self.ball.restrict(self.owner[many]).project(x.expand_as(around), solved[1] + 0.02 * eps * around)
            points = torch.cat([solved[1], self._downhill(starts, many, 0.05)])
            many = which.expand(len(points))
            self._try(points, self.owner[many])
            z = points[self._best_of(points.to(self.net.dtype), many)]
            if self.found.broken[int(owner)]:
                return

    def _best_of(self, points: Tensor, which: Tensor) -> Tensor:
        """The place of the smallest margin of every problem."""
        with torch.no_grad():
            order = self._margins(points, which).argsort()
        keys, number = torch.unique(which[order], return_inverse=True)
        first = torch.full((len(keys),), len(order))
        return order[first.scatter_reduce(0, number, torch.arange(len(order)), "amin")]

    def _downhill(self, points: Tensor, which: Tensor, share: float) -> Tensor:
        """Points after projected steps against the gradients of their problems' margins, from `share` of eps to nothing."""
        owner = self.owner[which]
        x, ball = self.x[owner].to(self.net.dtype), self.ball.restrict(owner)
        eps = ball.radii(x).reshape(-1, *[1] * (x.ndim - 1)).clamp(max=1e30)
        z = points.to(self.net.dtype)
        for step in range(self.method.descent):
            with torch.enable_grad():
                z = z.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(self._margins(z, which).sum(), z)
            if math.isinf(self.ball.p):
                way = gradient.sign()
            else:
                way = gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-30).reshape(eps.shape)
            z = ball.project(x, z.detach() - share * (1 - step / self.method.descent) * eps * way)
        return z.detach().double()

    def _margins(self, z: Tensor, which: Tensor) -> Tensor:
        """What each of the problems is about, at one point each, by the network as it is used."""
        place = self.owner[which], self.row[which]
        return (self.net(z) * self.asked.rows[place].to(z.dtype)).sum(1) + self.asked.offsets[place].to(z.dtype)

    def _chosen(self, turns: deque[int]) -> list[tuple[int, int]]:
        """The worst leaves of the problems whose turn it is, `width` of each at most, as (problem, slot)."""
        chosen: list[tuple[int, int]] = []
        for _ in range(len(turns)):
            if len(chosen) >= self.method.batch:
                break
            key = turns.popleft()
            problem = self.problems[key]
            point = problem.point
            late = bool(self.found.seconds[point] > self.limit)
            if (late or self.found.nodes[point] >= self.method.nodes) and problem.leaves:
                self.given_up[point], self.found.timed[point] = True, late
            if self.found.broken[point] or self.found.proved[point] or self.given_up[point]:
                self.store.forget(point)
                problem.leaves.clear()
                continue
            if not problem.leaves:
                self._closed(problem)
                continue
            count = min(self.method.width, len(problem.leaves))
            chosen += [(key, heapq.heappop(problem.leaves)[2]) for _ in range(count)]
            turns.append(key)
        return chosen

    def _closed(self, problem: _Problem) -> None:
        """A problem without leaves is proved, and its point if it was the last one."""
        problem.row = -1
        rest = [other for other in self.problems if other.point == problem.point and other.row >= 0]
        if not rest and not self.given_up[problem.point] and not self.stuck[problem.point]:
            self.found.proved[problem.point] = True
            # Every leaf's margin exceeds what rounding asks for, so that much is proved.
            self.found.margin[problem.point] = self.needed[problem.point].amin()

    def _round(self, which: Tensor, slots: Tensor) -> None:
        """Split every chosen leaf in two and bound both."""
        signs, slopes, betas, units = self.store.take(self.owner[which], slots)
        whole = units[:, 0] < 0
        if bool(whole.any()):
            self._finish(
                which[whole], *({i: value[whole] for i, value in part.items()} for part in (signs, slopes, betas))
            )
        which, units = which[~whole], units[~whole]
        signs, slopes, betas = ({i: value[~whole] for i, value in part.items()} for part in (signs, slopes, betas))
        if len(which) == 0:
            return
        unit = self._best(which, signs, slopes, betas, units)
        children = [self._split(signs, unit, sign) for sign in (1, -1)]
        both = {index: torch.cat([child[index] for child in children]) for index in signs}
        twice = [{i: torch.cat([value, value]) for i, value in part.items()} for part in (slopes, betas)]
        self._bound(torch.cat([which, which]), both, *twice, steps=self.method.steps)

    def _finish(self, which: Tensor, signs: Signs, slopes: Numbers, betas: Numbers) -> None:
        """Leaves with nothing left to split: the program decides, or a long climb where there is none."""
        for place in range(len(which)):
            one = which[place : place + 1]
            point = int(self.owner[one])
            if self.found.broken[point] or self.given_up[point]:
                continue
            here, there, own = (
                {i: value[place : place + 1] for i, value in part.items()} for part in (signs, slopes, betas)
            )
            solved = leaf_program(self.double, self._sub_problems(one, here), self.deadline - time.monotonic())
            if solved is None:
                found = self._climb(one, here, there, own, 20 * self.method.steps)
            else:
                self._try(solved[1], self.owner[one])
                found = self._climb(one, here, there, solved[0], 0)
            self._try(found.point, self.owner[one])
            # What is neither proved nor broken here leaves the point without a proof; elsewhere there may be a witness.
            self.stuck[point] |= not bool(found.margin > self.goal[one])

    def _best(self, which: Tensor, signs: Signs, slopes: Numbers, betas: Numbers, units: Tensor) -> Tensor:
        """The candidate whose worse child has the larger margin, by one walk for each child and no climbing."""
        count, tried = units.shape
        if tried == 1:
            return units[:, 0]
        flat = units.clamp(min=0).flatten()
        repeat = torch.arange(count).repeat_interleave(tried)
        many = [{i: value[repeat] for i, value in part.items()} for part in (signs, slopes, betas)]
        ends = []
        for sign in (1, -1):
            found = self._climb(which[repeat], self._split(many[0], flat, sign), many[1], many[2], 0)
            # What is proved anyhow needs no more.
            ends.append(torch.minimum(found.margin, self.goal[which[repeat]]).reshape(count, tried))
        score = torch.minimum(*ends) + 0.1 * torch.maximum(*ends)
        return units.gather(1, score.masked_fill(units < 0, -math.inf).argmax(1, keepdim=True))[:, 0]

    def _split(self, signs: Signs, units: Tensor, sign: int) -> Signs:
        """The signs with one more unit of every sub-problem, numbered over all ReLUs."""
        every = torch.cat([signs[node.index].flatten(1) for node in self.relus], 1)
        every = every.scatter(1, units[:, None], sign)
        sizes = [math.prod(shape) for shape in self.shapes]
        return {
            node.index: part.reshape(-1, *node.shape)
            for node, part in zip(self.relus, every.split(sizes, 1), strict=True)
        }
