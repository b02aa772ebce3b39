"""`bab`: branch and bound over the ReLUs, complete: sub-problems of all open points are bounded in one batch.

A point and one other class make a problem. Its leaves are sub-problems, the ball with some ReLUs split into on and off; a
leaf whose bound is proved is closed, another is split once more, at the unit that raises the worse of the two children most
among some candidates. A problem is proved when it has no leaf, and a point when all its problems are. Witnesses are looked for
at the minimisers of the leaves' bounds (`counterexamples`).

What happens to a problem depends on its own leaves alone, so verdicts do not depend on who shares the batch; only a wall
clock does, and then the verdict is UNKNOWN. What is left open is a `Tree`, from which a smaller radius can go on.

Max pools are made of ReLUs first (`unpooled`), so that they are split like all others; witnesses are run through the network
as it was given, and its own rounding is what margins must exceed.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.methods.alpha import Alpha
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.sdp import SDP
from relucert.bounding.preactivations import BUDGET
from relucert.bounding.rounding import bound_error, evaluation_error, largest_inputs
from relucert.bounding.split_bounds import Numbers, Signs
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method
from relucert.core.properties import Property
from relucert.networks.freezing import frozen_weights
from relucert.networks.network import Network
from relucert.networks.unpooled import unpooled
from relucert.verification.bab.counterexamples import CounterexampleSearch
from relucert.verification.bab.frontier import LeafStore
from relucert.verification.bab.leaves import leaf_program
from relucert.verification.bab.subproblems import SubProblems
from relucert.verification.bab.tree import Tree
from relucert.verification.outcome import OnDecided, Outcome

_AT_ONCE = 8  # points whose SDP-CROWN bounds are found between two looks at the clock
_FIRST = 16  # leaves that are bounded between two looks at the clock before the pace is known


@dataclass(frozen=True, kw_only=True)
class BaB(Method):
    """At most `nodes` sub-problems a point; `batch` of them are bounded together, with `steps` of climbing each.

    `candidates` units are tried before each split; from the best minimiser of a problem's leaves `descent` steps go downhill.
    Where open leaves take more than `memory` bytes, the point with most of them is given up.
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


@torch.no_grad()
def branch_and_bound(
    net: Network, double: Network, x: Tensor, ball: Ball, prop: Property, method: BaB, deadline: float = math.inf,
    limit: float | Tensor = math.inf, on_decided: OnDecided | None = None, known: Tensor | None = None,
    trees: Mapping[int, Tree] | None = None,
) -> Outcome:  # fmt: skip
    """Decide points (float64), whose property holds at the point itself, until `deadline` (of `time.monotonic`).

    `limit`: seconds that a point may cost, its share of the batch's, one number or one for each. `on_decided` is called
    with points as they are decided. `known` (batch, specs) has the margins of rows of the property that are proved already,
    -inf for others; `trees` what a larger ball has left open of some points.
    """
    return _Search(net, double, x, ball, prop, method, deadline, limit, known, trees or {}).run(on_decided)


@dataclass(eq=False)
class _Problem:
    """One point and one row of its property: its leaves (margin, order of arrival, slot), worst first."""

    point: int
    row: int
    leaves: list[tuple[float, int, int]] = field(default_factory=list)
    closed: bool = False


class _Search:
    """The leaves of all problems, and what is known of the points."""

    def __init__(
        self, net: Network, double: Network, x: Tensor, ball: Ball, prop: Property, method: BaB, deadline: float,
        limit: float | Tensor, known: Tensor | None, trees: Mapping[int, Tree],
    ):  # fmt: skip
        self.net, self.x, self.ball, self.prop, self.method = net, x, ball, prop, method
        self.pooled, self.double = double, unpooled(double)  # as it was given, and as it is split
        self.deadline, self.limit = deadline, torch.as_tensor(limit).expand(len(x))
        self.known, self.planted = known, trees
        self.found = Outcome.nothing(x)
        none = torch.zeros(len(x), dtype=torch.bool)
        # Given up; told of; with leaves that nothing could decide; with all that is open put into a tree.
        self.given_up, self.reported, self.stuck, self.saved = none, none.clone(), none.clone(), none.clone()
        self.ended: dict[int, list[Tree]] = {}
        self.arrived, self.pace = 0, 0.0
        self.problems: list[_Problem] = []
        self.of: dict[int, list[_Problem]] = {}

    def run(self, on_decided: OnDecided | None = None) -> Outcome:
        """Bound the points as a whole, then round after round of leaves until nothing is open."""
        with frozen_weights(self.double):
            self._roots()
            self._report_decided(on_decided)
            turns = deque(range(len(self.problems)))
            while (started := time.monotonic()) < self.deadline:
                chosen = self._chosen(turns)
                if not chosen:
                    break
                which = torch.tensor([key for key, _ in chosen])
                self._round(which, torch.tensor([slot for _, slot in chosen]))
                self._charge(started, which)
                self._report_decided(on_decided)
                if self.store.size() > self.method.memory:
                    self.given_up[max(self.of, key=self.store.size)] = True
            else:
                self.found.timed |= ~(self.found.proved | self.found.falsified | self.given_up)
            for point in self.of:
                self._save_open(point)
        return self.found

    def _charge(self, started: float, which: Tensor) -> None:
        """Charge the time since then to the points of some problems, but for what is charged already."""
        spent = max(0.0, time.monotonic() - started - self.counterexamples.aside)
        self.counterexamples.aside, self.pace = 0.0, spent / len(which)
        share = torch.bincount(self.owner[which], minlength=len(self.x)).to(self.x)
        self.found.seconds += spent * share / share.sum()

    def _left(self, point: int) -> float:
        """The seconds that a point may still cost."""
        return min(self.deadline - time.monotonic(), float(self.limit[point] - self.found.seconds[point]))

    def _report_decided(self, on_decided: OnDecided | None) -> None:
        """Let others hear of the points that are decided, once of each."""
        decided = (self.found.proved | self.found.falsified) & ~self.reported
        if on_decided is not None and bool(decided.any()):
            on_decided(self.found, decided.nonzero()[:, 0].tolist())
        self.reported |= decided

    def _roots(self) -> None:
        """Bound every point as a whole; the rows that are not proved are the problems.

        The bounds of the units that are found here serve all sub-problems.
        """
        started = time.monotonic()
        inputs, margins = self._whole()
        error = bound_error(self.double, self.x, self.ball, inputs, self.prop)
        self.needed = self._needed(inputs)
        reach, unit = largest_inputs(self.double, self.x, self.ball, inputs)
        # Walks of small networks multiply in another order, once more for every product that was made before.
        error, unit = 2 * error, 2 * unit
        goal = error + self.needed
        open_, self.margins = ~(margins > goal), margins - error
        if self.known is not None:
            open_, self.margins = open_ & self.known.isinf(), torch.maximum(self.margins, self.known)
        for point, tree in self.planted.items():
            kept = torch.zeros_like(open_[point]).index_fill(0, tree.row, True)
            open_[point] &= kept
        self.found.proved, self.found.margin = ~open_.any(1), self.margins.amin(1)
        places = open_.nonzero()
        self.owner, self.goal = places[:, 0], goal[open_]
        self.parts = SubProblems(
            self.double, self.x, self.ball, self.prop, inputs, self.owner, places[:, 1], self.goal, reach, unit,
            self.method.rate, self.method.candidates,
        )  # fmt: skip
        unstable = {node.index: inputs[node.index].unstable for node in self.parts.relus}
        self.store = LeafStore(self.parts.relus, unstable, len(self.x), self.x.dtype)
        self.problems = [_Problem(point, row) for point, row in places.tolist()]
        for problem in self.problems:
            self.of.setdefault(problem.point, []).append(problem)
        self.counterexamples = CounterexampleSearch(self.net, self.parts, self.method.descent, self.found, self._left)
        self.found.seconds += (time.monotonic() - started) / max(1, len(self.x))
        self._plant()

    def _whole(self) -> tuple[dict[int, Interval], Tensor]:
        """Bounds of the units and margins over whole balls, in l2 by SDP-CROWN; by CROWN where the clock was faster."""
        budget, found = self.method.budget, []
        for some in torch.arange(len(self.x)).split(_AT_ONCE if self.ball.p == 2 else max(1, len(self.x))):
            left = min(float(self.limit[some].sum()), self.deadline - time.monotonic())
            method = Alpha(budget=budget)
            if self.ball.p == 2:
                # Where the rows that can be proved so are known, the bounds of the units alone are new.
                steps = SDP.steps if self.known is None else 0
                method = SDP(steps=steps, seconds=max(0.0, left), budget=budget)
            if left <= 0:
                method = CROWN(budget=budget)
            found.append(method.solve(self.double, self.x[some], self.ball.restrict(some), self.prop.restrict(some)))
        inputs = {
            node.index: Interval(*(
                torch.cat([getattr(units.inputs[node.index], side) for units, _ in found]) for side in ("lower", "upper")
            ))
            for node in self.double.switches
        }  # fmt: skip
        return inputs, torch.cat([margins.detach() for _, margins in found])

    def _needed(self, inputs: dict[int, Interval]) -> Tensor:
        """What margins must exceed: the rounding of the network as it runs, which takes maxima instead of sums of ReLUs."""
        if self.pooled is not self.double:
            inputs = CROWN(budget=self.method.budget).units(self.pooled, self.x, self.ball).inputs
        return evaluation_error(self.pooled, self.x, self.ball, inputs, self.prop, self.net.dtype)

    def _plant(self) -> None:
        """The first leaves of all problems: the whole ball, or what a larger one has left open."""
        keys, rows = [], []
        for key, problem in enumerate(self.problems):
            leaves = torch.zeros(1, sum(self.parts.sizes), dtype=torch.int8)
            if problem.point in self.planted:
                leaves = self.planted[problem.point].leaves(problem.row, *self.parts.known(problem.point))
            keys += [key] * len(leaves)
            rows.append(leaves)
        if not keys:
            return
        every, signs = torch.tensor(keys), torch.cat(rows)
        clocked = math.isfinite(self.deadline) or bool(self.limit.isfinite().any())
        for some in torch.arange(len(every)).split(min(self.method.batch, _FIRST) if clocked else self.method.batch):
            started, which = time.monotonic(), every[some]
            start = self.parts.start(which, signs[some])
            late = torch.tensor([self._left(int(point)) <= 0 for point in self.owner[which]])
            over = late | (self.found.nodes[self.owner[which]] >= self.method.nodes)
            self._leave(which[over], signs[some][over])
            self.found.timed[self.owner[which][late]] = True
            if bool((~over).any()):
                mine = [{i: value[~over] for i, value in part.items()} for part in start]
                self._bound(which[~over], mine[0], mine[1], mine[2], steps=2 * self.method.steps)
            self._charge(started, which)

    def _leave(self, which: Tensor, signs: Tensor) -> None:
        """Leaves that are looked at no more, though nothing is proved of them: their points can not be proved here."""
        for place, key in enumerate(which.tolist()):
            point, units = self.problems[key].point, self.store.open[self.problems[key].point]
            self.stuck[point] = True
            leaf = Tree(torch.tensor([self.problems[key].row]), units, signs[place : place + 1, units])
            self.ended.setdefault(point, []).append(leaf)

    def _save_open(self, point: int) -> None:
        """Put all that is open of a point into a tree, and forget its leaves."""
        if self.saved[point]:
            return
        self.saved[point] = True
        parts = self.ended.pop(point, [])
        for problem in self.of[point]:
            if problem.leaves:
                slots = torch.tensor([slot for _, _, slot in problem.leaves])
                signs = self.store.rows[point].rows["signs"][slots]
                parts.append(Tree(torch.full((len(slots),), problem.row), self.store.open[point], signs))
                problem.leaves.clear()
        self.store.forget(point)
        if parts and not self.found.proved[point]:
            self.found.trees[point] = Tree.joined(parts)

    def _bound(self, which: Tensor, signs: Signs, slopes: Numbers, betas: Numbers, *, steps: int) -> None:
        """Bound sub-problems, look for witnesses, and keep what is not proved as leaves."""
        found = self.parts.ascend(which, signs, slopes, betas, steps)
        owner = self.owner[which]
        self.found.nodes += torch.bincount(owner, minlength=len(self.x))
        self.counterexamples.look(found.point, found.margin, which)
        lost = ~(found.margin > self.goal[which])
        places = lost.nonzero()[:, 0]
        kept = [{i: value[places] for i, value in part.items()} for part in (signs, found.slopes, found.betas)]
        slots = self.store.add(owner[places], kept[0], kept[1], kept[2], found.units[places]) if len(places) else []
        for place, slot in zip(places.tolist(), slots, strict=True):
            self.arrived += 1
            leaf = (float(found.margin[place]), self.arrived, slot)
            heapq.heappush(self.problems[int(which[place])].leaves, leaf)

    def _chosen(self, turns: deque[int]) -> list[tuple[int, int]]:
        """The worst leaves of the problems whose turn it is, `width` of each at most, as (problem, slot)."""
        chosen: list[tuple[int, int]] = []
        taken: dict[int, int] = {}
        for _ in range(len(turns)):
            if len(chosen) >= self.method.batch:
                break
            key = turns.popleft()
            problem = self.problems[key]
            point = problem.point
            left = self._left(point)
            if (left <= 0 or self.found.nodes[point] >= self.method.nodes) and problem.leaves:
                self.given_up[point], self.found.timed[point] = True, left <= 0
            if self.found.falsified[point] or self.found.proved[point] or self.given_up[point]:
                self._save_open(point)
                continue
            if not problem.leaves:
                self._closed(problem)
                continue
            count = min(self.method.width, len(problem.leaves))
            # The last round before the clock stops takes no more leaves than there is time for.
            if math.isfinite(left) and self.pace > 0:
                count = max(0, min(count, max(int(left / self.pace), 1) - taken.get(point, 0)))
            taken[point] = taken.get(point, 0) + count
            chosen += [(key, heapq.heappop(problem.leaves)[2]) for _ in range(count)]
            turns.append(key)
        return chosen

    def _closed(self, problem: _Problem) -> None:
        """A problem without leaves is proved, and its point if it was the last one."""
        problem.closed = True
        rest = [other for other in self.of[problem.point] if not other.closed]
        if not rest and not self.given_up[problem.point] and not self.stuck[problem.point]:
            self.found.proved[problem.point] = True
            # Every leaf's margin exceeds what rounding asks for, so that much is proved of the rows that were split.
            for one in self.of[problem.point]:
                place = one.point, one.row
                self.margins[place] = torch.maximum(self.margins[place], self.needed[place])
            self.found.margin[problem.point] = self.margins[problem.point].amin()

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
        children = [self.parts.split(signs, unit, sign) for sign in (1, -1)]
        both = {index: torch.cat([child[index] for child in children]) for index in signs}
        twice = [{i: torch.cat([value, value]) for i, value in part.items()} for part in (slopes, betas)]
        self._bound(torch.cat([which, which]), both, *twice, steps=self.method.steps)

    def _finish(self, which: Tensor, signs: Signs, slopes: Numbers, betas: Numbers) -> None:
        """Leaves with nothing left to split: the program decides, or a long climb where there is none."""
        every = self.parts.flat(signs, len(which))
        for place in range(len(which)):
            one, splits = which[place : place + 1], every[place : place + 1]
            point = int(self.owner[one])
            left, started = self._left(point), time.monotonic()
            if self.found.falsified[point] or self.given_up[point] or left <= 0:
                self._leave(one, splits)
                self.found.timed[point] |= left <= 0
                continue
            here, there, own = (
                {i: value[place : place + 1] for i, value in part.items()} for part in (signs, slopes, betas)
            )
            solved = leaf_program(self.double, self.parts.part(one, here), left)
            if solved is None:
                found = self.parts.ascend(one, here, there, own, 20 * self.method.steps)
            else:
                # Rounding to the network's dtype may put the minimiser, which lies at the end of the ball, outside.
                mine, own = self.ball.restrict(self.owner[one]), self.x[self.owner[one]].to(self.net.dtype)
                self.counterexamples.run(mine.project(own, solved[1].to(own)), self.owner[one])
                found = self.parts.ascend(one, here, there, solved[0], 0)
            self.counterexamples.run(found.point, self.owner[one])
            # What is neither proved nor broken here leaves the point without a proof; elsewhere there may be a witness.
            if not bool(found.margin > self.goal[one]):
                self._leave(one, splits)
            self.counterexamples.charge(point, started)

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
            found = self.parts.ascend(which[repeat], self.parts.split(many[0], flat, sign), many[1], many[2], 0)
            # What is proved anyhow needs no more.
            ends.append(torch.minimum(found.margin, self.goal[which[repeat]]).reshape(count, tried))
        score = torch.minimum(*ends) + 0.1 * torch.maximum(*ends)
        return units.gather(1, score.masked_fill(units < 0, -math.inf).argmax(1, keepdim=True))[:, 0]
