"""Branch and bound in deep networks: subproblems whose pre-activation bounds are computed again.

A split of an early unit narrows the intervals of the units behind it, and so every later relaxation, which bounds over the
whole ball do not show. A subproblem is a ball with some intervals cut off at zero. Its children have one more interval cut
off, the slopes of all inner bounds behind that unit optimised again (`bounding.inner_slopes`), and then the slopes of the
margins. That takes a hundred times as long as a subproblem of `bab`, and pays where hundreds of those have not closed a point.

The unit is chosen by the derivative of CROWN's margin in the ends of its interval, through the bounds of all units behind it.

Points of the ball at which a unit vanishes belong to both children, so the children cover their subproblem, whether units are
those of real arithmetic or of the executed network; bounds hold for both, each in its own subproblem.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.bounding.backward_bounds import BUDGET, BackwardBounds
from relucert.bounding.inner_slopes import InnerAscent, optimised
from relucert.bounding.interval import Interval
from relucert.bounding.methods.alpha import Alpha
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import relax
from relucert.bounding.rounding import Margins
from relucert.core.methods import spec
from relucert.core.properties import Property
from relucert.core.results import Verdict
from relucert.networks.affine_map import one_hot
from relucert.networks.network import frozen_weights
from relucert.verification.verifier import Budget, Decision, Query

if TYPE_CHECKING:
    from relucert.verification.bab.bab import BaB

#: Pre-activation bounds and margins of all inputs of a query, or nothing.
Roots = tuple[tuple[UnitBounds, Margins], ...]


class Search(Protocol):
    """Branch and bound with a limit of subproblems, from given pre-activation bounds if there are any."""

    def __call__(self, query: Query, nodes: int, budget: Budget, given: Roots = ()) -> Iterator[Decision]: ...


FEW = 400  # subproblems of `bab` before bounds are computed again
REGIONS = 2000  # subproblems with bounds of their own
INSIDE = 80  # subproblems of `bab` inside one of these
_SHARE = 0.8  # of the seconds that are left, for these
_TOGETHER = 16  # subproblems that are split at once, fewer where memory is short
_SEARCHED = 8  # of them that are searched at once
_INNER, _STEPS = 4, 12  # steps on the slopes of inner bounds, and on those of margins
_RATE = 0.4

_BETTER = 0.1  # the weight of the better child in a branching score


@dataclass(frozen=True, eq=False)
class Tree:
    """What is proved of one point: margins of all rows of its property (specs, 3), as in `Margins` and in float64.

    `falsified` is a decision with a counterexample, None without one.
    """

    margins: Float[Tensor, " specs 3"]
    closed: bool
    nodes: int
    falsified: Decision | None = None


@dataclass
class _Reach:
    """Margins below which a search inside a subproblem is not tried (again), and above which it has closed subproblems."""

    tried: float
    closed: float = 0.0


class RegionTree:
    """The subproblems of one point with bounds of their own, in the dtype of the network if that is float32.

    With a `search`, subproblems are first given to branch and bound with the bounds that they have, for a few of its nodes,
    where the margin lacks less than half of what was too much for it before.
    """

    def __init__(self, query: Query, search: Search | None = None, budget: int = BUDGET):
        self.query, self.search, self.budget = query, search, budget
        single = query.net.dtype == torch.float32 and query.prop.fits(torch.float32)
        self.net, self.x = (query.net, query.x) if single else (query.double, query.wide)
        self.prop = query.prop.to(self.x.dtype)
        self.backward = BackwardBounds(self.net.graph, self.x, query.ball, budget)

    @torch.no_grad()
    def grow(self, nodes: int, deadline: float) -> Tree:
        """Split until every subproblem is proved, until so many are open at some time, or until the deadline."""
        method = Alpha(budget=self.budget, seconds=max(0.0, deadline - time.monotonic()))
        known = method.start(self.net, self.x, self.query.ball, self.query.net.dtype)
        root, margins = method.prove(self.net, known, self.x, self.query.ball, self.prop)
        best = margins.stacked()[0].double()
        if self.query.row_margins is not None:
            best[:, 1:] = torch.fmax(best[:, 1:], self.query.row_margins[0, :, :2])
        open_ = (~self.query.proves(best[:, 1:])).nonzero()[:, 0]
        if len(open_) == 0:
            return Tree(best, True, 1)
        rows = Property(self.prop.rows[:, open_], self.prop.offsets[:, open_])
        count, arrived, least = 1, 0, torch.full_like(best[open_], math.inf)
        heap = [(float(best[open_, 1].min()), 0, root.inputs, best[open_])]
        reach = _Reach(heap[0][0] / 2)
        while heap and arrived < nodes and time.monotonic() < deadline:
            several = self._at_once(heap[0][2])
            # A subproblem without unstable units has nothing to split: its margin ignores where its other units vanish.
            if several == 0 or not any(bool(within.unstable.any()) for within in heap[0][2].values()):
                break
            some = [heapq.heappop(heap) for _ in range(min(len(heap), several))]
            children, bounds = self._split(root, rows, [each[2:] for each in some], deadline)
            worst, count = bounds[..., 1].amin(1), count + len(bounds)
            while self.search is not None and time.monotonic() < deadline:
                ready = self._ready(bounds, worst, reach)
                if len(ready) == 0:
                    break
                for found in self._searched(children, best, open_, bounds, ready, deadline):
                    place = int(ready[found.index])
                    count += found.nodes
                    if found.verdict is Verdict.VULNERABLE:
                        return Tree(best, False, count, found)
                    if found.verdict is Verdict.ROBUST:
                        proved = bounds.new_tensor([found.margin, found.margin, found.executed])
                        bounds[place] = torch.fmax(bounds[place], proved)
                        reach.closed = min(reach.closed, float(worst[place]))
                    else:
                        reach.tried = max(reach.tried, float(worst[place]), float(worst[place]) / 2)
            proved = self._proves(bounds)
            for place in range(len(bounds)):
                if bool(proved[place]):
                    least = torch.minimum(least, bounds[place])
                    continue
                own = {i: within.restrict(torch.tensor([place])) for i, within in children.inputs.items()}
                arrived += 1
                heapq.heappush(heap, (float(worst[place]), arrived, own, bounds[place]))
        if not heap:
            best[open_] = torch.fmax(best[open_], least)
        return Tree(best, not heap, count)

    def _proves(self, bounds: Float[Tensor, " n specs 3"]) -> Bool[Tensor, " n"]:
        """Which subproblems are proved in every row."""
        return self.query.proves(bounds[..., 1:]).all(1)

    def _ready(self, bounds: Tensor, worst: Float[Tensor, " n"], reach: _Reach) -> Int[Tensor, " k"]:
        """The children that the search is to try: all that are like those it has closed, else the best one, if any."""
        open_ = ~self._proves(bounds) & (worst > reach.tried)
        like = (open_ & (worst >= reach.closed)).nonzero()[:, 0]
        if len(like) or not bool(open_.any()):
            return like[:_SEARCHED]
        return torch.where(open_, worst, -math.inf).argmax()[None]

    def _searched(
        self, children: UnitBounds, best: Tensor, open_: Tensor, bounds: Tensor, ready: Tensor, deadline: float
    ) -> list[Decision]:
        """The decisions of branch and bound about some children, with the bounds that they have."""
        assert self.search is not None
        every = best.repeat(len(ready), 1, 1)
        every[:, open_] = bounds[ready]
        part = replace(self.query.restrict(torch.zeros(len(ready), dtype=torch.long)), row_margins=_as_rows(every))
        units = children.restrict(ready).recharged(part.double, part.wide, part.ball)
        given = ((units, Margins.unstacked(every)),)
        return list(self.search(part, INSIDE, Budget(deadline=deadline), given))

    def _at_once(self, inputs: dict[int, Interval]) -> int:
        """How many subproblems are split together: so many that the derivatives of their bounds fit the memory, maybe none."""
        sizes = [math.prod(node.shape) for node in self.net.graph]
        entries = sum(sizes)
        for node in self.net.switches:
            if self.backward.switched(node.inputs[0]):
                # Functionals of both ends of every unstable unit, at all nodes on the way, and before each of them.
                entries += 4 * int(inputs[node.index].unstable.sum()) * sum(sizes[: node.inputs[0] + 1])
        return min(_TOGETHER, self.budget // (entries * self.x.element_size()))

    def _split(
        self, root: UnitBounds, rows: Property, parents: list[tuple[dict[int, Interval], Tensor]], deadline: float
    ) -> tuple[UnitBounds, Float[Tensor, " children specs 3"]]:
        """Bounds and margins of both children of some subproblems; margins are at least those of the parents."""
        inputs = {
            i: Interval(
                torch.cat([one[i].lower for one, _ in parents]), torch.cat([one[i].upper for one, _ in parents])
            )
            for i in root.inputs
        }
        count = len(parents)
        known = root.restrict(torch.zeros(count, dtype=torch.long)).improved(inputs)
        before = torch.stack([bounds for _, bounds in parents])
        node, unit = self._chosen(known, rows, before[..., 1].argmin(1))
        twice = torch.arange(count).repeat(2)
        children = {}
        for i, within in inputs.items():
            low, high = within.lower[twice].flatten(1), within.upper[twice].flatten(1)
            here = (node == i).nonzero()[:, 0]
            low[here, unit[here]] = low[here, unit[here]].clamp(min=0.0)
            high[count + here, unit[here]] = high[count + here, unit[here]].clamp(max=0.0)
            shape = (2 * count, *within.lower.shape[1:])
            children[i] = Interval(low.reshape(shape), high.reshape(shape))
        none = torch.zeros(2 * count, dtype=torch.long)
        x, ball = self.x[none], self.query.ball.restrict(none)
        ascent = InnerAscent(steps=_INNER, rate=_RATE, budget=self.budget, deadline=deadline)
        found = ascent.refined(self.net, root.restrict(none).improved(children), x, ball, node[twice])
        prop = Property(rows.rows[none], rows.offsets[none])
        margins = optimised(self.net, found, x, ball, prop, replace(ascent, steps=_STEPS))
        return found, torch.fmax(before[twice], margins.stacked().double())

    def _chosen(
        self, known: UnitBounds, rows: Property, row: Int[Tensor, " n"]
    ) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """The node and the unit at which each subproblem is split, for the row of the property that is proved least."""
        scores, nodes, units = [], [], []
        for i, (down, up) in self._derivatives(known, rows.rows[0, row].unsqueeze(1)).items():
            within = known.inputs[i]
            gains = -within.lower * down, -within.upper * up
            score = torch.minimum(*gains) + _BETTER * torch.maximum(*gains)
            score = score.masked_fill(~within.unstable, -math.inf).flatten(1)
            scores.append(score)
            nodes.append(torch.full((score.shape[1],), i))
            units.append(torch.arange(score.shape[1]))
        place = torch.cat(scores, 1).nan_to_num(-math.inf).argmax(1)
        return torch.cat(nodes)[place], torch.cat(units)[place]

    def _derivatives(self, known: UnitBounds, rows: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
        """The derivatives of CROWN's margins in both ends of every interval, through the bounds of all units behind it."""
        net, count = self.net, len(rows)
        none = torch.zeros(count, dtype=torch.long)
        x, ball = self.x[none], self.query.ball.restrict(none)
        ends: dict[int, tuple[Tensor, Tensor]] = {}
        relaxations = {}
        with torch.enable_grad(), frozen_weights(net):
            for node in net.switches:
                within, source = known.inputs[node.index], node.inputs[0]
                low, high = within.lower, within.upper
                if self.backward.switched(source):
                    low, high = self._carried(node.index, source, known, relaxations)
                down, up = torch.zeros_like(within.lower), torch.zeros_like(within.upper)
                ends[node.index] = down.requires_grad_(), up.requires_grad_()
                relaxations[node.index] = relax(node.op, Interval(low + down, high + up), "adaptive")
            margin = pull_back(net.graph, len(net.graph) - 1, rows, relaxations).minimum(x, ball).sum()
            every = [end for pair in ends.values() for end in pair]
            found = torch.autograd.grad(margin, every, allow_unused=True)
        slopes = [torch.zeros_like(end) if part is None else part for end, part in zip(every, found, strict=True)]
        return {i: (slopes[2 * place], slopes[2 * place + 1]) for place, i in enumerate(ends)}

    def _carried(self, index: int, source: int, known: UnitBounds, relaxations: dict) -> tuple[Tensor, Tensor]:
        """The known ends of a node's intervals, with the derivatives of CROWN's at the unstable units."""
        within = known.inputs[index]
        shape, needed = within.lower.shape[1:], within.unstable.flatten(1)
        low, high = within.lower.flatten(1), within.upper.flatten(1)
        wide = int(needed.sum(1).max())
        if wide == 0:
            return within.lower, within.upper
        none = torch.zeros(len(needed), dtype=torch.long)
        x, ball = self.x[none], self.query.ball.restrict(none)
        units = needed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :wide]
        picked = one_hot(units, shape, self.x.dtype)
        ends = pull_back(self.net.graph, source, torch.cat([picked, -picked], 1), relaxations).minimum(x, ball)
        moved = (ends - ends.detach()) * needed.gather(1, units).repeat(1, 2)
        below, above = moved.split(wide, 1)
        low, high = low.scatter_add(1, units, below), high.scatter_add(1, units, -above)
        return low.reshape(-1, *shape), high.reshape(-1, *shape)


def rebounds(query: Query) -> bool:
    """Whether bounds of subproblems are computed again: the network is deep by the rule of `alpha`, and has ReLUs only."""
    return Alpha().inner_steps(query.double) > 0 and not query.double.graph.max_pools and not query.saved


def rebounded(query: Query, budget: Budget, search: Search, method: BaB) -> Iterator[Decision]:
    """Decisions of a short search, then of subproblems with bounds of their own, then of a search with all nodes."""
    open_: list[Decision] = []
    nodes = method.nodes
    name, each = spec(method), budget.each(len(query))
    for found in search(query, min(FEW, nodes), budget):
        if found.verdict is Verdict.UNKNOWN and nodes > FEW and not found.timed:
            open_.append(found)
        else:
            yield replace(found, method=name)
    rest: list[Decision] = []
    for found in open_:
        started, left = time.monotonic(), min(float(each[found.index]) - found.seconds, budget.left)
        if left > 0:
            part = replace(query.restrict(torch.tensor([found.index])), row_margins=_rows(found))
            tree = RegionTree(part, search, method.budget).grow(REGIONS, started + _SHARE * left)
            seconds, count = found.seconds + time.monotonic() - started, found.nodes + tree.nodes
            rows = _as_rows(tree.margins)
            found = replace(found, row_margins=rows, seconds=seconds, nodes=count)
            if tree.falsified is not None:
                yield replace(tree.falsified, index=found.index, seconds=seconds, nodes=count, method=name)
                continue
            if tree.closed:
                margin, executed, computed = rows.amin(0).tolist()
                yield replace(
                    found, verdict=Verdict.ROBUST, margin=margin, executed=executed, computed=computed, method=name,
                    reason="", saved=None,
                )  # fmt: skip
                continue
        rest.append(found)
    if not rest:
        return
    index = torch.tensor([found.index for found in rest])
    spent = torch.zeros(len(query), dtype=torch.float64).index_put(
        (index,), torch.tensor([each.seconds for each in rest]).double()
    )
    known = [found.row_margins for found in rest if found.row_margins is not None]
    rows = torch.stack(known) if len(known) == len(rest) else None
    part = replace(query.restrict(index), row_margins=rows)
    for last in search(part, nodes, budget.after(spent).restrict(index)):
        before = rest[last.index]
        seconds, count = before.seconds + last.seconds, before.nodes + last.nodes
        yield replace(last, index=before.index, seconds=seconds, nodes=count, method=name)


def _as_rows(margins: Float[Tensor, " *rows 3"]) -> Float[Tensor, " *rows 3"]:
    """Margins in the order of a query's `row_margins`: for real arithmetic, as executed, as computed."""
    return margins[..., [1, 2, 0]]


def _rows(found: Decision) -> Tensor | None:
    return None if found.row_margins is None else found.row_margins[None]
