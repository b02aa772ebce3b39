"""`inputs`: branch and bound over the inputs, for networks with few of them; thousands of boxes are bounded in one batch.

A box is closed when every clause of the property is proved in it. What is left is first clipped: the linear bound of a row that
a clause needs shows where in the box the row may fail, and everything else is cut away (`_boxes.clipped`). A box that clipping
does not make much smaller is halved: of deep networks with few inputs at the side with the largest shares in the fall of the
bound and in the relaxation gaps of the first layer, else where the bound falls most. Counterexamples are searched at the
centres of boxes and at the corners where bounds are smallest.

Bounds are CROWN's with their rounding charged. They are proofs for real arithmetic over the box as given in float64. Where
float32 has the weights, boxes are bounded in float32, rounded outwards, which is nearly twice as fast, until they are small or
rounding keeps too many of them from a proof.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.bounding.backward_bounds import BUDGET
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import Rule
from relucert.bounding.rounding import Margins
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, spec
from relucert.core.properties import Property
from relucert.core.verdict import Reason
from relucert.networks.network import in_single
from relucert.verification.bab._boxes import Boxes, BoxFrontier, clipped
from relucert.verification.bab._confirming import Confirm, falsifying
from relucert.verification.verifier import Budget, Decision, Outcome, Query

RULES: tuple[Rule, ...] = ("adaptive", "flat")
_AGAIN = 0.5  # of its volume: a box that clipping leaves less of is bounded again before it is halved
_UNITS = 2**21  # units of all boxes of a batch
_COARSE = 2.0**-12  # of the numbers in a box: its shorter sides are not bounded in float32
_LOST = 0.05  # of the boxes: where rounding in float32 keeps more from a proof, float64 is used from then on
_SMALL = 1e-6  # of the side of the whole box: sides of this length are tried at the corner of the whole box

_NARROW, _DOUBLED = (
    16,
    64,
)  # boxes of a round at first, which searches in depth, and rounds after which there are twice as many
_FEW, _WIDE = 10, 256  # with so few free inputs depth gains little: rounds have so many boxes at first


@dataclass(frozen=True, kw_only=True)
class InputSplitting(Method):
    """At most `nodes` boxes an input; `batch` of them are bounded together, fewer where the network is large.

    `width`: boxes of the first rounds, by default few, so that the search goes into depth; with `nodes` it goes into breadth.
    `budget`: bytes of memory of backward propagation; `memory`: of open boxes, beyond which the search is given up.
    """

    name = "inputs"
    nodes: int = 100_000_000
    batch: int = 2048
    width: int | None = None
    budget: int = BUDGET
    memory: int = 2 * 2**30

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("nodes", "batch", "width", "memory"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidInput(f"{name} of inputs must be at least 1, got {value}")

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """Either verdict for every input, given time; the ball must be that of l_inf."""
        return self.search(query, budget, None)

    def search(self, query: Query, budget: Budget, confirm: Confirm | None) -> Iterator[Decision]:
        """As `decide`; `confirm` says which points count as counterexamples."""
        low, high = query.ball.hull(query.wide)
        if not (math.isinf(query.p) and bool((low.isfinite() & high.isfinite()).all())):
            raise InvalidInput(f"ball must be a finite one of l_inf for the method inputs, got {query.ball!r}")
        if query.strict:
            raise InvalidInput("arithmetic must be real for the method inputs, got executed")
        return BoxSearch(query, self, confirm or falsifying(query)).run(budget)


class BoxSearch:
    """The boxes of all inputs, and what is known of the inputs; `run` may be called again, and goes on."""

    def __init__(self, query: Query, method: InputSplitting, confirm: Confirm):
        self.query, self.method, self.confirm = query, method, confirm
        self.net, self.prop = query.double, query.prop
        self.clauses = torch.arange(self.prop.rows.shape[1]) if self.prop.clauses is None else self.prop.clauses
        self.found, self.frontier = Outcome.nothing(query.wide), BoxFrontier()
        self.low, self.high = (side.flatten(1) for side in query.ball.hull(query.wide))
        self.free = (self.low < self.high).any(0).nonzero()[:, 0]
        self.given_up = torch.zeros(len(query), dtype=torch.bool)
        self.reported = self.given_up.clone()
        units = sum(math.prod(node.shape) for node in self.net.switches)
        self.batch = max(1, min(method.batch, _UNITS // max(1, units)))
        self.narrow = method.width or (_NARROW if len(self.free) > _FEW else _WIDE)
        self.dropped = self.given_up.clone()
        self.influence = self._influence()
        exact = torch.equal(self.prop.rows.float().double(), self.prop.rows)
        # A point is never halved: it is bounded once, in float64.
        self.single = in_single(self.net) if exact and len(self.free) else None
        self.rounds = 0
        count, clauses = len(query), int(self.clauses.max()) + 1
        self.frontier.add(
            Boxes(
                self.low[:, self.free], self.high[:, self.free], torch.arange(count),
                torch.ones(count, clauses, dtype=torch.bool), torch.full((count,), -math.inf, dtype=torch.float64),
            )
        )  # fmt: skip

    @torch.no_grad()
    def run(self, budget: Budget) -> Iterator[Decision]:
        """Round after round of boxes until nothing is open; the decisions about inputs that were not decided before."""
        limit = budget.each(len(self.query))
        while len(self.frontier) and not budget.over:
            started = time.monotonic()
            boxes = self.frontier.take(min(self.batch, self.narrow * 2 ** (self.rounds // _DOUBLED)))
            self._round(boxes)
            self.rounds += 1
            share = torch.bincount(boxes.owner, minlength=len(limit)).double()
            self.found.seconds += (time.monotonic() - started) * share / share.sum()
            self._give_up(limit)
            self.frontier.keep(~(self.found.decided | self.given_up))
            yield from self._decided()
        self._note_margins(~(self.found.decided | self.given_up))
        self.found.timed |= ~(self.found.decided | self.given_up)
        yield from self.found.finish(self.reported, spec(self.method), self.query.x.dtype)

    def drop(self, which: Bool[Tensor, " batch"]) -> None:
        """Search no more for some inputs, which are decided elsewhere."""
        self.given_up |= which
        self.frontier.keep(~which)

    def _give_up(self, limit: Float[Tensor, " batch"]) -> None:
        """Note which inputs are proved, and which have used up their boxes, their seconds or the memory."""
        open_ = torch.zeros_like(self.given_up)
        for part in self.frontier.parts:
            open_[part.owner] = True
        proved = ~(open_ | self.found.decided | self.given_up)
        self.found.proved |= proved
        late = open_ & (self.found.seconds >= limit)
        self.found.timed |= late
        many = open_ & ~late & (self.found.nodes >= self.method.nodes)
        size = len(self.frontier) * (16 * len(self.free) + 32)
        full = open_ & ~late & ~many & (size > self.method.memory)
        for mask, reason in ((many, Reason.NODES), (full, Reason.MEMORY)):
            for place in mask.nonzero()[:, 0].tolist():
                self.found.reasons.setdefault(place, reason)
        self._note_margins((late | many | full) & ~self.given_up)
        self.given_up |= late | many | full

    def _note_margins(self, ended: Bool[Tensor, " batch"]) -> None:
        """Note the least margin of the open boxes of inputs whose search ends; what is closed has a positive one."""
        least = torch.full_like(self.found.margin, math.inf)
        for part in self.frontier.parts:
            least.scatter_reduce_(0, part.owner, part.margin, "amin")
        self.found.margin[ended & ~self.dropped] = least[ended & ~self.dropped]

    def _decided(self) -> Iterator[Decision]:
        """The decisions about inputs that are decided since the last call."""
        decided = self.found.decided & ~self.reported
        self.reported |= decided
        yield from self.found.decisions(decided.nonzero()[:, 0].tolist(), spec(self.method), self.query.x.dtype)

    def _whole(self, values: Float[Tensor, " n free"], owner: Tensor, other: Tensor) -> Float[Tensor, " n *input"]:
        """Points of all inputs from those of the free ones; the others are those of `other`."""
        flat = other[owner].clone()
        flat[:, self.free] = values
        return flat.reshape(-1, *self.query.wide.shape[1:])

    def _round(self, boxes: Boxes) -> None:
        """Bound boxes; what is not proved is clipped, searched for counterexamples and halved."""
        self.found.nodes += torch.bincount(boxes.owner, minlength=len(self.query))
        prop = self.prop.restrict(boxes.owner)
        units, rows, margins = self._linear_bounds(boxes, prop)
        best, chosen = margins.max(1)  # of the rules
        by_clause = prop.by_clause(best)
        lower, upper, empty = self._clip(boxes, rows, margins)
        still = boxes.open & ~(by_clause > 0) & ~empty
        left = still.any(1).nonzero()[:, 0]
        if len(left) == 0:
            return
        worst = by_clause.masked_fill(~still, math.inf)[left].min(1)
        open_ = Boxes(lower[left], upper[left], boxes.owner[left], still[left], worst.values)
        # The row that comes nearest to a proof of the clause that is farthest from one.
        nearest = best[left].masked_fill(self.clauses != worst.indices[:, None], -math.inf).argmax(1)
        row = rows[left, chosen[left, nearest], nearest]
        if self._falsify(open_, boxes.restrict(left), row):
            return
        self._split(open_, boxes.restrict(left), row, units, left)

    def _linear_bounds(
        self, boxes: Boxes, prop: Property
    ) -> tuple[UnitBounds, Float[Tensor, " n rules specs free"], Float[Tensor, " n rules specs"]]:
        """Bounds of units, and of all rows linear lower bounds by every rule: coefficients of the free inputs, margins."""
        low, high = self._whole(boxes.lower, boxes.owner, self.low), self._whole(boxes.upper, boxes.owner, self.high)
        reach = torch.maximum(boxes.lower.abs(), boxes.upper.abs())
        net, dtype = self.net, torch.float64
        if self.single is not None and bool((boxes.width >= _COARSE * reach).all()):
            sides = -_rounded_up(-low), _rounded_up(high)
            if all(bool(side.isfinite().all()) for side in sides):
                net, dtype, (low, high) = self.single, torch.float32, sides
        # Half of the smallest number of a dtype is rounded to zero.
        x, ball = (low / 2 + high / 2).clamp(low, high), Ball(math.inf, math.inf, box=(low, high))
        units = CROWN(budget=self.method.budget).start(net, x, ball, dtype)
        rows, margins, computed = [], [], []
        for rule in RULES:
            relaxed = units.relaxed(net, rule)
            functional = pull_back(net.graph, len(net.graph) - 1, prop.rows.to(dtype), relaxed, units.charge())
            rows.append(functional.rows.flatten(2)[:, :, self.free].double())
            found = functional.margins(x, ball)
            wide = Margins(found.computed.double(), found.real.double(), found.executed.double()).plus(prop.offsets)
            margins.append(wide.real)
            computed.append(wide.computed)
        real = torch.stack(margins, 1).nan_to_num(-math.inf, math.inf, -math.inf)
        if net is self.single:
            proved, nearly = (prop.by_clause(part.amax(1)) > 0 for part in (real, torch.stack(computed, 1)))
            if int((nearly & ~proved).any(1).sum()) > _LOST * len(boxes):
                self.single = None
        return units, torch.stack(rows, 1), real

    def _clip(self, boxes: Boxes, rows: Tensor, margins: Tensor) -> tuple[Tensor, Tensor, Bool[Tensor, " n clauses"]]:
        """The boxes around what all rows of some open clause leave, and the clauses that leave nothing."""
        rules = rows.shape[1]
        low, high = clipped(boxes.lower, boxes.upper, rows.flatten(1, 2), margins.flatten(1))
        count = boxes.open.shape[1]
        place = self.clauses.repeat(rules)[None, :, None].expand(low.shape)
        shape = (len(boxes), count, low.shape[2])
        below = low.new_full(shape, -math.inf).scatter_reduce(1, place, low, "amax")
        above = high.new_full(shape, math.inf).scatter_reduce(1, place, high, "amin")
        empty = (below > above).any(2)
        gone = (empty | ~boxes.open).unsqueeze(2)
        lower = below.masked_fill(gone, math.inf).amin(1)
        upper = above.masked_fill(gone, -math.inf).amax(1)
        return lower, upper, empty

    def _falsify(self, boxes: Boxes, before: Boxes, row: Tensor) -> bool:
        """Try the corners where the bounds are smallest, the centres, and corners of the whole box; whether all is decided."""
        corner = torch.where(row > 0, boxes.lower, boxes.upper)
        centre = boxes.lower / 2 + boxes.upper / 2
        owner = boxes.owner
        root_low, root_high = self.low[owner][:, self.free], self.high[owner][:, self.free]
        near = torch.where(centre - root_low < root_high - centre, root_low, root_high)
        small = boxes.width <= _SMALL * (root_high - root_low)
        tried = [corner, centre] + ([torch.where(small, near, centre)] if bool(small.any()) else [])
        points = self._whole(torch.cat(tried), owner.repeat(len(tried)), self.low)
        self.try_points(points, owner.repeat(len(tried)))
        return bool(self.found.decided.all())

    def try_points(self, points: Float[Tensor, " n *input"], owner: Tensor) -> None:
        """Run points through the network, and confirm those whose margin is not positive, the smallest first."""
        margins = self.prop.restrict(owner).margin(self.net(points))
        for place in (margins <= 0).nonzero()[:, 0][margins[margins <= 0].argsort()].tolist()[:_TRIED]:
            own = int(owner[place])
            if self.found.decided[own]:
                continue
            point = points[place : place + 1].clone()
            if bool(self.confirm(point, own)[0]):
                self.found.falsified[own], self.found.witness[own] = True, point[0].to(self.query.x.dtype)

    def _split(self, boxes: Boxes, before: Boxes, row: Tensor, units: UnitBounds, left: Tensor) -> None:
        """Halve boxes, but those that clipping has made much smaller."""
        whole = before.width.clamp(min=math.ulp(0.0))
        shrunk = (boxes.width / whole).clamp(min=1e-300).log().sum(1)
        again = shrunk < math.log(_AGAIN)
        self.frontier.add(boxes.restrict(again))
        halved = ~again
        boxes, row = boxes.restrict(halved), row[halved]
        if len(boxes) == 0:
            return
        fall, gap = row.abs() * boxes.width, self._gaps(units, left[halved]) * boxes.width
        few = len(self.free) <= _FEW and len(self.net.switches) > 1
        score = _shares(fall) + _shares(gap) if few else fall + GAP * gap
        possible = boxes.divisible()
        stuck = ~possible.any(1)
        for place in boxes.owner[stuck].unique().tolist():
            self.given_up[place] = self.dropped[place] = True
            self.found.reasons.setdefault(place, Reason.SUBPROBLEM)
        if bool(stuck.all()):
            return
        side = score.masked_fill(~possible, -math.inf)[~stuck].argmax(1)
        self.frontier.add(boxes.restrict(~stuck).halves(side))

    def _influence(self) -> dict[int, Float[Tensor, " free units"]]:
        """How much every free input moves the units of the first switching nodes, by the nodes' index."""
        first = self.net.switches[:1]
        base = self.query.wide[:1].flatten(1)
        moved = base.repeat(len(self.free) + 1, 1)
        moved[torch.arange(len(self.free)), self.free] += 1.0
        found = {}
        for node in first:
            value = self.net.graph.values(moved.reshape(-1, *self.query.wide.shape[1:]), [node.inputs[0]])
            flat = value[node.inputs[0]].flatten(1)
            found[node.index] = (flat[:-1] - flat[-1:]).abs()
        return found

    def _gaps(self, units: UnitBounds, which: Tensor) -> Float[Tensor, " n free"]:
        """How much of the relaxation error of the first switching nodes every free input makes, for each unit of its length."""
        total = torch.zeros(len(which), len(self.free), dtype=torch.float64)
        for index, moves in self.influence.items():
            within = units.inputs[index]
            low, high = within.lower.flatten(1)[which].double(), within.upper.flatten(1)[which].double()
            gap = ((-low).clamp(min=0) * high.clamp(min=0)) / (high - low).clamp(min=1e-300)
            total += (gap / (high - low).clamp(min=1e-300)) @ moves.T
        return total


def _shares(values: Float[Tensor, " n free"]) -> Float[Tensor, " n free"]:
    """Parts of the sums, so that the scales of outputs and of units do not matter; 0 where the sum is 0."""
    return values / values.sum(1, keepdim=True).clamp(min=math.ulp(0.0))


def _rounded_up(values: Float[Tensor, " n *input"]) -> Float[Tensor, " n *input"]:
    """The nearest float32 numbers that are not smaller."""
    near = values.float()
    return torch.where(near.double() < values, torch.nextafter(near, torch.full_like(near, math.inf)), near)


_TRIED = 16  # points of a batch that are confirmed
GAP = 0.01  # of relaxation gaps where the fall of the bound decides
