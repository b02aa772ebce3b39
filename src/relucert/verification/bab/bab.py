"""`bab`: branch and bound over the ReLUs, complete; subproblems of all open points are bounded in one batch.

A point and one row of its property make a problem. Its subproblems are the ball with some ReLUs split into active and inactive.
A subproblem whose bound is positive is closed; any other is split once more, at the candidate unit with the best branching
score. A problem is proved when it has no open subproblem, a point when all its problems are. Counterexamples are searched from
the minimisers of the bounds (`counterexamples`).

What happens to a problem depends on its own subproblems alone, so verdicts are independent of batch composition; only a clock
changes that, and then the verdict is UNKNOWN. Open subproblems are saved, and a smaller radius goes on from them.

Max pools become ReLUs first (`networks.unpooled`) and are split like all others: in real arithmetic a maximum, executed or not,
is the sum of ReLUs that replaces it. Counterexamples are run through the network as it was given.

Rounding is charged in every bound. A subproblem is closed when its margin is proved, for real arithmetic, or for the executed
network where the query is strict.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from relucert.bounding.backward_bounds import BUDGET
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.methods.sdp import SDP, UnitBalls
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import Margins, rounding_over
from relucert.bounding.split_bounds import AscentResult
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, spec
from relucert.core.verdict import Reason
from relucert.networks.network import Network, frozen_weights
from relucert.networks.unpooled import unpooled
from relucert.verification._device import decide_on_cpu
from relucert.verification._incomplete import better_of_both, started
from relucert.verification.bab._counterexamples import CounterexampleSearch
from relucert.verification.bab._leaves import leaf_program
from relucert.verification.bab._subproblems import Frontier, Leaves, Problem, SubProblems, deep_bounds
from relucert.verification.verifier import Budget, Decision, Outcome, Query, SavedSubproblems

_ROOT_SHARE = 0.4  # of the seconds of a point, for bounds over its whole ball
_AT_ONCE = 8  # points whose SDP-CROWN bounds or inner slopes are computed between two looks at the clock
_FIRST = 16  # subproblems that are bounded between two looks at the clock before the pace is known


@dataclass(frozen=True, kw_only=True)
class BaB(Method):
    """At most `nodes` subproblems a point; `batch` of them are bounded together, with `steps` of dual ascent each.

    `rate` is the step size of the ascent, `candidates` the number of units that are tried before each split, `width` the number
    of subproblems that a problem has in one batch. From the best minimiser of a problem `descent` gradient steps are taken.
    `budget`: bytes of memory of backward propagation. Where open subproblems take more than `memory` bytes, the point with
    most of them is given up.
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
                raise InvalidInput(f"{name} of bab must be at least 1, got {getattr(self, name)}")
        for name in ("steps", "descent"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} of bab must be at least 0, got {getattr(self, name)}")

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """Either verdict for every point, given time, each when it is decided.

        Rows of the property that are proved already are not bounded again; where subproblems of a larger ball are saved, the
        search goes on from them.
        """
        if query.x.device.type != "cpu":
            return decide_on_cpu(query, lambda near: self.decide(near, budget))
        return Search(query, self, budget).run()


def _deep(net: Network) -> bool:
    """Whether slopes of inner bounds are optimised before the first split."""
    return Alpha().inner_steps(net) > 0


class Search:
    """The subproblems of all problems, and what is known of the points; `recorded` for certificates, without balls of units."""

    recorded = False

    def __init__(self, query: Query, method: BaB, budget: Budget):
        self.query = replace(query, double=unpooled(query.double)) if query.double.graph.max_pools else query
        self.double, self.x, self.ball, self.prop = self.query.double, query.wide, query.ball, query.prop
        self.method, self.budget, self.limit = method, budget, budget.each(len(query))
        self.found = Outcome.nothing(query.wide)
        none = torch.zeros(len(query), dtype=torch.bool)
        # Given up; yielded; with subproblems that nothing could decide; with all open subproblems saved.
        self.given_up, self.reported, self.stuck, self.saved = none, none.clone(), none.clone(), none.clone()
        self.ended: dict[int, list[SavedSubproblems]] = {}
        self.arrived, self.pace = 0, 0.0
        self.problems: list[Problem] = []
        self.of: dict[int, list[Problem]] = {}

    @torch.no_grad()
    def run(self) -> Iterator[Decision]:
        """Bound the points as a whole, then round after round of subproblems until nothing is open."""
        # Weights are frozen between yields only: in float64 they may be the caller's own.
        with frozen_weights(self.double):
            self._roots()
        yield from self._decided()
        turns = deque(range(len(self.problems)))
        while not self.budget.over:
            chosen = self._chosen(turns)
            yield from self._decided()
            if not chosen:
                break
            started = time.monotonic()
            which = torch.tensor([key for key, _ in chosen])
            with frozen_weights(self.double):
                self._round(which, torch.tensor([slot for _, slot in chosen]))
            self._charge(started, which)
            yield from self._decided()
            if self.frontier.size() > self.method.memory:
                largest = max(self.of, key=self.frontier.size)
                self.given_up[largest] = True
                self.found.reasons.setdefault(largest, Reason.MEMORY)
        else:
            self.found.timed |= ~(self.found.decided | self.given_up)
        for point in self.of:
            self._save(point)
        yield from self.found.finish(self.reported, spec(self.method), self.query.x.dtype)

    def _decided(self) -> Iterator[Decision]:
        """The decisions about points that are decided since the last call."""
        decided = self.found.decided & ~self.reported
        self.reported |= decided
        places = decided.nonzero()[:, 0].tolist()
        for point in places:
            self._save(point)
        yield from self.found.decisions(places, spec(self.method), self.query.x.dtype)

    def _charge(self, started: float, which: Tensor) -> None:
        """Charge the time since `started` to the points of some problems, but for what is charged already."""
        spent = max(0.0, time.monotonic() - started - self.counterexamples.aside)
        self.counterexamples.aside, self.pace = 0.0, spent / len(which)
        share = torch.bincount(self.owner[which], minlength=len(self.x)).to(self.x)
        self.found.seconds += spent * share / share.sum()

    def _left(self, point: int) -> float:
        """The seconds that a point may still cost."""
        return min(self.budget.left, float(self.limit[point] - self.found.seconds[point]))

    def _roots(self) -> None:
        """Bound every point as a whole; the rows that are not proved are the problems.

        The pre-activation bounds that are found here serve all subproblems.
        """
        started = time.monotonic()
        bounds, margins = self.whole()
        self.margins = torch.stack([margins.real, margins.executed, margins.computed], -1)
        known = self.query.row_margins
        if known is not None:
            # Without a third column nothing is known of what was computed.
            self.margins = torch.fmax(self.margins, F.pad(known, (0, 3 - known.shape[-1]), value=math.nan))
        open_ = ~self.query.proves(self.margins)
        for point, saved in self.query.saved.items():
            kept = torch.zeros_like(open_[point]).index_fill(0, saved.row, True)
            open_[point] &= kept
        self.found.prove(~open_.any(1), self.margins[..., :2], self.margins[..., 2])
        places = open_.nonzero()
        self.owner = places[:, 0]
        round_ = self.owner.unique() if self.ball.p == 2 and not self.recorded else self.owner[:0]
        until = time.monotonic() + self.budget.left
        balls = UnitBalls.around(self.double, self.x, self.ball, bounds, round_, until)
        self.parts = SubProblems(self.query, balls, self.owner, places[:, 1], self.method.rate, self.method.candidates)
        self.parts.recorded = self.recorded
        unstable = {node.index: balls.bounds.inputs[node.index].unstable for node in self.parts.relus}
        self.frontier = Frontier(self.parts.relus, unstable, len(self.x), self.x.dtype)
        self.problems = [Problem(point, row) for point, row in places.tolist()]
        for problem in self.problems:
            self.of.setdefault(problem.point, []).append(problem)
        self.counterexamples = CounterexampleSearch(self.parts, self.method.descent, self.found, self._left)
        self.found.seconds += (time.monotonic() - started) / max(1, len(self.x))
        self._plant()

    def whole(self) -> tuple[UnitBounds, Margins]:
        """Pre-activation bounds and margins over whole balls: alpha, in l2 SDP-CROWN, and CROWN when time is up."""
        size = _AT_ONCE if self.ball.p == 2 or _deep(self.double) else max(1, len(self.x))
        found = [
            better_of_both(self.query.restrict(some), partial(self._root, some))
            for some in torch.arange(len(self.x)).split(size)
        ]
        units = UnitBounds.joined([units for units, _ in found])
        rounding = rounding_over(self.double, self.x, self.ball, units.inputs, self.query.net.dtype)
        margins = Margins.unstacked(torch.cat([margins.stacked() for _, margins in found]))
        return replace(units, rounding=rounding), margins

    def _root(self, some: Tensor, query: Query) -> tuple[UnitBounds, Margins]:
        """Pre-activation bounds and margins over the balls of a query about the points `some`, or some of these."""
        budget, left = self.method.budget, min(float(self.limit[some].sum()), self.budget.left)
        alone = query.ball.box is None and self.ball.box is not None  # seldom better, and other norms gain least
        if left <= 0 or (alone and self.ball.p != 2):
            method = CROWN(budget=budget)
        elif self.ball.p == 2:
            # Where the rows that SDP-CROWN proves are known, only the pre-activation bounds are new.
            steps = SDP.steps if self.query.row_margins is None else 0
            method = SDP(steps=steps, seconds=max(0.0, left), budget=budget)
        else:
            method = Alpha(budget=budget, seconds=_ROOT_SHARE * left)
            if _deep(self.double):
                return deep_bounds(query, method)
        known = started(query, method, query.double, query.wide)
        return method.prove(query.double, known, query.wide, query.ball, query.prop)

    def _plant(self) -> None:
        """The first subproblems of all problems: the whole ball, or what a larger one has left open."""
        keys, rows = [], []
        for key, problem in enumerate(self.problems):
            splits = torch.zeros(1, sum(self.parts.sizes), dtype=torch.int8)
            if problem.point in self.query.saved:
                splits = self.query.saved[problem.point].leaves(problem.row, *self.parts.known(problem.point))
                # Of what the search at the larger ball has closed only the sign of the margin is known.
                problem.close(math.ulp(0.0), math.ulp(0.0) if self.query.strict else -math.inf, -math.inf)
            keys += [key] * len(splits)
            rows.append(splits)
        if not keys:
            return
        every, splits = torch.tensor(keys), torch.cat(rows)
        size = min(self.method.batch, _FIRST) if self.budget.limited else self.method.batch
        for some in torch.arange(len(every)).split(size):
            started, which = time.monotonic(), every[some]
            start = self.parts.start(which, splits[some])
            late = torch.tensor([self._left(int(point)) <= 0 for point in self.owner[which]])
            over = late | (self.found.nodes[self.owner[which]] >= self.method.nodes)
            self._leave(which[over], splits[some][over])
            self.found.timed[self.owner[which][late]] = True
            for point in self.owner[which][over & ~late].tolist():
                self.found.reasons.setdefault(point, Reason.NODES)
            if bool((~over).any()):
                start = self.parts.compare(which[~over], start.restrict(~over), 2 * self.method.steps)
                self._bound(which[~over], start, steps=2 * self.method.steps)
            self._charge(started, which)

    def _leave(self, which: Tensor, splits: Tensor) -> None:
        """Set subproblems aside that are not proved and will not be searched: their points cannot be proved any more."""
        for place, key in enumerate(which.tolist()):
            point, units = self.problems[key].point, self.frontier.unstable[self.problems[key].point]
            self.stuck[point] = True
            row = torch.tensor([self.problems[key].row])
            leaf = SavedSubproblems(row, units, splits[place : place + 1, units])
            self.ended.setdefault(point, []).append(leaf)

    def _save(self, point: int) -> None:
        """Save the open subproblems of a point."""
        if self.saved[point]:
            return
        self.saved[point] = True
        if not (self.found.decided[point] or self.stuck[point]):
            for problem in self.of.get(point, []):
                row = self.margins[point, problem.row]
                row[0] = max(float(row[0]), problem.least())
                row[2] = torch.fmax(row[2], row[0])
            self.found.margin[point], _, self.found.computed[point] = self.margins[point].amin(0)
        parts = self.ended.pop(point, [])
        for problem in self.of.get(point, []):
            if problem.leaves:
                slots = torch.tensor([slot for _, _, slot in problem.leaves])
                parts.append(self.frontier.saved(point, problem.row, slots))
                problem.leaves.clear()
        self.frontier.forget(point)
        if parts and not self.found.proved[point]:
            self.found.saved[point] = SavedSubproblems.joined(parts)

    def _bound(self, which: Tensor, leaves: Leaves, *, steps: int) -> None:
        """Bound subproblems, search for counterexamples, and add what is not proved to the frontier."""
        found = self.parts.bound(which, leaves, steps)
        owner = self.owner[which]
        self.found.nodes += torch.bincount(owner, minlength=len(self.x))
        self.counterexamples.look(found.point, found.margin, which)
        proved = self.proved(found, which, leaves)
        places = (~proved).nonzero()[:, 0]
        open_ = Leaves(leaves.splits, found.slopes, found.betas).restrict(places)
        slots = self.frontier.add(owner[places], open_, found.units[places]) if len(places) else []
        for place, slot in zip(places.tolist(), slots, strict=True):
            self.arrived += 1
            leaf = (float(found.margin[place]), self.arrived, slot)
            heapq.heappush(self.problems[int(which[place])].leaves, leaf)

    def proved(self, found: AscentResult, which: Tensor, leaves: Leaves) -> Tensor:
        """Which of the subproblems `leaves` are proved; their problems take note of the margins."""
        margins = torch.stack([found.margin, found.executed, found.computed], 1)
        proved = self.query.proves(margins)
        for place in proved.nonzero()[:, 0].tolist():
            self.problems[int(which[place])].close(*margins[place].tolist())
        return proved

    def _chosen(self, turns: deque[int]) -> list[tuple[int, int]]:
        """The worst subproblems of the problems whose turn it is, `width` of each at most, as (problem, slot)."""
        chosen: list[tuple[int, int]] = []
        taken: dict[int, int] = {}
        # One look at the clock for each point: a point with chosen subproblems is not given up in the same call.
        seconds: dict[int, float] = {}
        for _ in range(len(turns)):
            if len(chosen) >= self.method.batch:
                break
            key = turns.popleft()
            problem = self.problems[key]
            point = problem.point
            left = seconds.setdefault(point, self._left(point))
            if (left <= 0 or self.found.nodes[point] >= self.method.nodes) and problem.leaves:
                self.given_up[point], self.found.timed[point] = True, left <= 0
                if left > 0:
                    self.found.reasons.setdefault(point, Reason.NODES)
            if self.found.decided[point] or self.given_up[point]:
                self._save(point)
                continue
            if not problem.leaves:
                self._closed(problem)
                continue
            count = min(self.method.width, len(problem.leaves))
            # The last round before the clock stops takes no more subproblems than there is time for.
            if math.isfinite(left) and self.pace > 0:
                count = max(0, min(count, max(int(left / self.pace), 1) - taken.get(point, 0)))
            taken[point] = taken.get(point, 0) + count
            chosen += [(key, heapq.heappop(problem.leaves)[2]) for _ in range(count)]
            turns.append(key)
        return chosen

    def _closed(self, problem: Problem) -> None:
        """A problem without open subproblems is proved, and its point if it was the last one."""
        problem.closed = True
        rest = [other for other in self.of[problem.point] if not other.closed]
        if not rest and not self.given_up[problem.point] and not self.stuck[problem.point]:
            self.found.proved[problem.point] = True
            for solved in self.of[problem.point]:
                place = solved.point, solved.row
                self.margins[place] = torch.fmax(self.margins[place], self.margins.new_tensor(solved.proved))
            least = self.margins[problem.point].amin(0)
            for values, value in zip((self.found.margin, self.found.executed, self.found.computed), least, strict=True):
                values[problem.point] = value

    def _round(self, which: Tensor, slots: Tensor) -> None:
        """Split every chosen subproblem in two and bound both."""
        leaves, units = self.frontier.take(self.owner[which], slots)
        full = units[:, 0] < 0
        if bool(full.any()):
            self._finish(which[full], leaves.restrict(full))
        which, units, leaves = which[~full], units[~full], leaves.restrict(~full)
        if len(which) == 0:
            return
        unit = self.parts.best_split(which, leaves, units)
        children = [self.parts.split(leaves, unit, sign) for sign in (1, -1)]
        splits, slopes, betas = (
            {node: torch.cat([value, other[node]]) for node, value in one.items()}
            for one, other in zip(*children, strict=True)
        )
        self._bound(torch.cat([which, which]), Leaves(splits, slopes, betas), steps=self.method.steps)

    def _finish(self, which: Tensor, leaves: Leaves) -> None:
        """Subproblems with nothing left to split: the convex program decides, or a long ascent where there is none."""
        every = self.parts.flat(leaves.splits, len(which))
        for place in range(len(which)):
            one, splits = which[place : place + 1], every[place : place + 1]
            point = int(self.owner[one])
            left, started = self._left(point), time.monotonic()
            if self.found.falsified[point] or self.given_up[point] or left <= 0:
                self._leave(one, splits)
                self.found.timed[point] |= left <= 0
                continue
            leaf = leaves.restrict(slice(place, place + 1))
            solved = leaf_program(self.double, self.parts.part(one, leaf.splits), left)
            if solved is None:
                found = self.parts.ascend(one, leaf, 20 * self.method.steps)
            else:
                # The minimiser lies on the boundary of the ball: rounded to the network's dtype it may lie outside.
                ball, x = self.ball.restrict(self.owner[one]), self.query.x[self.owner[one]]
                self.counterexamples.run(ball.project(x, solved[1].to(x)), self.owner[one])
                found = self.parts.ascend(one, leaf._replace(betas=solved[0]), 0)
            self.counterexamples.run(found.point, self.owner[one])
            # Neither proved nor falsified: the point has no proof any more; elsewhere there may be a counterexample.
            if not bool(self.proved(found, one, leaf)):
                self._leave(one, splits)
                rounded = self.query.strict and float(found.margin) > 0
                self.found.reasons.setdefault(point, Reason.ROUNDING if rounded else Reason.SUBPROBLEM)
            self.counterexamples.charge(point, started)
