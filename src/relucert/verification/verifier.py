"""`Verifier`: the interface of everything that decides a query.

A `Query` is a property to be decided over the balls around a batch of inputs, a `Budget` the time that may take. A verifier
makes a `Decision` for every input. An `Outcome` is what it knows of its batch so far, and the only place where verdicts of
`certify` other than MISCLASSIFIED are made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol, cast

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from relucert.bounding.preactivations import SharedUnits
from relucert.core.ball import Ball
from relucert.core.errors import OutOfTime
from relucert.core.methods import Method, spec
from relucert.core.norms import norm
from relucert.core.properties import Property, against, class_stays
from relucert.core.results import Verdict
from relucert.core.verdict import CLOCK, Reason, arithmetic_of, rounding_of
from relucert.networks.network import Network, in_double
from relucert.networks.traversal import ending

#: Seconds that a batch may take beyond those of its inputs: a cheap bound of a small network keeps its verdicts.
GRACE = 0.3


@dataclass(frozen=True, eq=False)
class SavedSubproblems:
    """The open subproblems of one point: the `row` of the property that each is about, and its splits at `units`.

    Units are numbered over all ReLUs in the order of the nodes; 1 active, -1 inactive, 0 open. What no subproblem covers is
    proved, in this ball and in every smaller one: a search there needs these subproblems only.
    """

    row: Int[Tensor, " leaves"]
    units: Int[Tensor, " units"]
    splits: Int8[Tensor, " leaves units"]

    def leaves(
        self, row: int, on: Bool[Tensor, " all"], off: Bool[Tensor, " all"], unstable: Bool[Tensor, " all"]
    ) -> Int8[Tensor, " leaves all"]:
        """The subproblems of one row in a ball where units are known to be `on`, `off` or `unstable`, each once.

        A subproblem whose split contradicts what is known is empty. Splits of other units that are stable are dropped, which
        makes a subproblem larger, never smaller.

        >>> saved = SavedSubproblems(torch.zeros(3, dtype=torch.long), torch.tensor([0, 2]),
        ...                          torch.tensor([[1, 1], [-1, 1], [1, -1]], dtype=torch.int8))
        >>> on = torch.tensor([True, False, False])
        >>> saved.leaves(0, on, ~on & False, ~on).tolist()
        [[0, 0, -1], [0, 0, 1]]
        """
        splits = self.splits[self.row == row]
        empty = ((splits < 0) & on[self.units]) | ((splits > 0) & off[self.units])
        kept = splits[~empty.any(1)] * unstable[self.units]
        found = torch.zeros(len(kept), len(unstable), dtype=torch.int8)
        found[:, self.units] = kept
        # Without units all subproblems are the same one.
        return found.unique(dim=0) if found.numel() else found[:1]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.numel() * part.element_size() for part in (self.row, self.units, self.splits))

    @staticmethod
    def joined(parts: list[SavedSubproblems]) -> SavedSubproblems:
        """The subproblems of several, at the same units."""
        rows, splits = torch.cat([part.row for part in parts]), torch.cat([part.splits for part in parts])
        return SavedSubproblems(rows, parts[0].units, splits)


@dataclass(frozen=True, eq=False)
class Query:
    """Does C f(z) + c > 0 hold for all z in the ball around every input x?

    `net` is f in its own dtype, which is the dtype of `x`; `double` is its float64 copy, on which bounds are computed. `y` are
    the labels, `prop` has C and c in float64, and `holds` says where the network satisfies the property at x itself.
    `about_class` says that the property is "the class stays y". A proof must hold in real arithmetic; where `strict`, for the
    network as executed in its dtype as well. `batch` inputs are worked on together.

    What is known already: `row_margins` has proved margins of single rows, for real arithmetic and for the executed network,
    and the bounds as computed if they are known (NaN if not), or is None if no bound has been computed; `saved` has, by
    position in the batch, the subproblems that branch and bound at a larger ball left open; `units` has the pre-activation
    bounds that verifiers leave to one another, None where they leave none.
    """

    net: Network
    double: Network
    x: Float[Tensor, " batch *input"]
    y: Int[Tensor, " batch"]
    ball: Ball
    prop: Property
    holds: Bool[Tensor, " batch"]
    about_class: bool = True
    strict: bool = False
    batch: int = 100
    row_margins: Float[Tensor, " batch specs columns"] | None = None
    saved: Mapping[int, SavedSubproblems] = field(default_factory=dict)
    units: SharedUnits | None = None

    @classmethod
    @torch.no_grad()
    def of(
        cls, net: Network, x: Tensor, y: Tensor, ball: Ball, targets: Tensor | None = None, batch: int = 100
    ) -> Query:
        """The query "the class stays y", or "y stays ahead of `targets`" (batch, specs), about inputs that were checked.

        The network is evaluated at `batch` inputs at a time.
        """
        rows = partial(class_stays, y) if targets is None else partial(against, y, targets)
        prop = rows(net.classes, dtype=torch.float64)
        holds = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for part in torch.arange(len(x), device=x.device).split(batch):
            own = prop.restrict(part)
            holds[part] = net.predict(x[part]) == y[part] if targets is None else own.holds(net(x[part]).double())
        return cls(net, in_double(net), x, y, ball.beside(x), prop, holds, targets is None, batch=batch)

    def __len__(self) -> int:
        return len(self.x)

    def proves(self, margins: Float[Tensor, " *shape columns"]) -> Bool[Tensor, " *shape"]:
        """Which margins decide the query; the first two columns are proved for real arithmetic and for the executed network.

        NaN proves nothing.
        """
        return margins[..., 1 if self.strict else 0] > 0

    @cached_property
    def wide(self) -> Float[Tensor, " batch *input"]:
        """x in float64."""
        return self.x.double()

    @property
    def p(self) -> float:
        """The norm of the ball."""
        return float(self.ball.p)

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor] | None:
        """The box as two tensors like x, None without a box."""
        return None if self.ball.box is None else self.ball.bounds(self.x)

    @property
    def wide_sides(self) -> tuple[Tensor, Tensor] | None:
        """The box in float64."""
        return None if self.sides is None else (self.sides[0].double(), self.sides[1].double())

    def restrict(self, index: Int[Tensor, " n"]) -> Query:
        """The query about some of the inputs, by their positions."""
        position = {old: new for new, old in enumerate(index.tolist())} if self.saved else {}
        return replace(
            self, x=self.x[index], y=self.y[index], ball=self.ball.restrict(index), prop=self.prop.restrict(index),
            holds=self.holds[index], row_margins=None if self.row_margins is None else self.row_margins[index],
            saved={position[old]: kept for old, kept in self.saved.items() if old in position},
            units=None if self.units is None else self.units.restrict(index),
        )  # fmt: skip

    def split(self, size: int) -> Iterator[Query]:
        """The same query in batches of at most `size` inputs, in order."""
        for part in torch.arange(len(self), device=self.x.device).split(size):
            yield self.restrict(part)

    def reach(self) -> Float[Tensor, " batch"]:
        """A radius at which the ball holds the whole box, in float64 and rounded up; infinite without a box."""
        if self.wide_sides is None:
            return torch.full((len(self),), math.inf, dtype=torch.float64)
        farthest = torch.maximum(self.wide - self.wide_sides[0], self.wide_sides[1] - self.wide)
        return norm(farthest, self.p) * (1 + 1e-9)


@dataclass(frozen=True, eq=False)
class Budget:
    """The time that a verifier may take.

    `seconds` that each input may cost, its share of its batch's, as one number or one for each input; at `deadline`, a moment
    of `time.monotonic`, everything ends.
    """

    seconds: float | Float[Tensor, " batch"] = math.inf
    deadline: float = math.inf

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    @property
    def left(self) -> float:
        """The seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def limited(self) -> bool:
        """Whether any clock can end the search."""
        return math.isfinite(self.deadline) or bool(torch.as_tensor(self.seconds).isfinite().any())

    def each(self, count: int) -> Float[Tensor, " batch"]:
        """The seconds of each of `count` inputs."""
        return torch.as_tensor(self.seconds, dtype=torch.float64).expand(count)

    def restrict(self, index: Int[Tensor, " n"]) -> Budget:
        """The budget of some of the inputs."""
        return Budget(self.seconds[index], self.deadline) if isinstance(self.seconds, Tensor) else self

    def until(self, count: int, grace: float = GRACE) -> float:
        """When the seconds of `count` inputs together, and a moment of grace, are over, from now on; or the deadline."""
        return min(self.deadline, time.monotonic() + float(self.each(count).clamp(min=0).sum()) + grace)

    def after(self, spent: Float[Tensor, " batch"]) -> Budget:
        """What is left when every input has cost the seconds `spent`."""
        return Budget(self.each(len(spent)) - spent, self.deadline)


@dataclass(frozen=True, eq=False)
class Decision:
    """What was found out about the input at position `index` of a query.

    `margin` is a proved lower bound of the property's margin over the ball, -inf without one, `executed` the same for the
    network as executed in its dtype, `computed` the bound before rounding was charged. `witness` is given if and only if the
    verdict is VULNERABLE; `method` is the text of the method that decided, or of the last one that tried; `seconds` is the
    input's share of the time. `reason` says why the input is UNKNOWN, `claim` names the solver that claims without proof that
    it is robust, `timed` says that a clock ended the search. `ball` is the position of the ball that decided, if the query is
    about the union of several.

    For a verifier that carries on: `row_margins` are the margins of single rows of the property, as in `Query`; `saved` are the
    subproblems that branch and bound left open; `nodes` counts its subproblems.
    """

    index: int
    verdict: Verdict
    margin: float
    method: str
    seconds: float
    executed: float = -math.inf
    computed: float = -math.inf
    witness: Float[Tensor, " *input"] | None = None
    reason: str = ""
    claim: str = ""
    timed: bool = False
    ball: int = 0
    row_margins: Float[Tensor, " specs columns"] | None = None
    saved: SavedSubproblems | None = None
    nodes: int = 0

    @property
    def by(self) -> str:
        """The method, after a note where a clock ended the search."""
        return f"{CLOCK}{self.method}" if self.timed else self.method

    @property
    def arithmetic(self) -> str:
        """What the proof covers: "executed" or "real"; "" without a proof."""
        return arithmetic_of(self.verdict, self.executed)

    @property
    def rounding(self) -> float:
        """What the margin was charged for rounding, NaN if that is not known; a counterexample has no margin to charge."""
        return math.nan if self.verdict is Verdict.VULNERABLE else rounding_of(self.computed, self.margin)


class Verifier(Protocol):
    """Decides whether the property of a query holds all over the balls."""

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """One decision for every input, each yielded as soon as it is made; inputs that stay open are UNKNOWN, at the end.

        The property holds at the inputs themselves. ROBUST is a proof: the margin, less what the bound may have been rounded
        by, is positive, in a strict query for the network as executed in its dtype. VULNERABLE needs a witness in ball and
        box that was run through the network again.
        """
        ...


def in_time(verifier: Verifier, query: Query, budget: Budget) -> Iterator[Decision]:
    """The decisions of a verifier until the deadline of the budget.

    What the verifier computes when the deadline passes is given up. What it has decided by then is kept, and all other inputs
    are UNKNOWN.
    """
    found, done = verifier.decide(query, budget), set[int]()
    while True:
        began = time.monotonic()
        try:
            with ending(budget.deadline):
                decision = next(found)
        except StopIteration:
            return
        except OutOfTime:
            break
        done.add(decision.index)
        yield decision
    open_ = [place for place in range(len(query)) if place not in done]
    spent, method = (time.monotonic() - began) / max(1, len(open_)), getattr(verifier, "method", verifier)
    for place in open_:
        name = spec(cast(Method, method))
        yield Decision(place, Verdict.UNKNOWN, -math.inf, name, spent, reason=Reason.TIME, timed=True)


def batches(verifier: Verifier) -> int:
    """How many batches a verifier takes at a time: its attribute of this name, or 1."""
    return getattr(verifier, "batches", 1)


@dataclass(eq=False)
class Outcome:
    """What a verifier knows of a batch: inputs are proved, falsified by a witness (NaN for others), or open.

    `margin` is proved for real arithmetic, `executed` for the network in its dtype, `computed` is the bound before rounding was
    charged; `seconds` is the input's share of the time, `nodes` counts its subproblems, `timed` says that a clock
    ended its search; `row_margins`, `saved`, `reasons` and `claims`, the last three by position, are those of `Decision`.
    `cut` says that a deadline ended the work on the batch: this is what was known by then.
    """

    proved: Bool[Tensor, " batch"]
    falsified: Bool[Tensor, " batch"]
    witness: Float[Tensor, " batch *input"]
    margin: Float[Tensor, " batch"]
    executed: Float[Tensor, " batch"]
    computed: Float[Tensor, " batch"]
    seconds: Float[Tensor, " batch"]
    nodes: Int[Tensor, " batch"]
    timed: Bool[Tensor, " batch"]
    row_margins: Float[Tensor, " batch specs columns"] | None = None
    saved: dict[int, SavedSubproblems] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    claims: dict[int, str] = field(default_factory=dict)
    cut: bool = False

    @classmethod
    def nothing(cls, x: Float[Tensor, " batch *input"]) -> Outcome:
        """What is known before the search."""
        none = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        numbers = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        margin, executed, computed = (torch.full_like(numbers, -math.inf) for _ in range(3))
        return cls(
            none, none.clone(), torch.full_like(x, math.nan), margin, executed, computed, numbers,
            torch.zeros(len(x), dtype=torch.long, device=x.device), none.clone(),
        )  # fmt: skip

    def prove(
        self,
        proved: Bool[Tensor, " batch"],
        rows: Float[Tensor, " batch specs 2"],
        computed: Float[Tensor, " batch specs"] | None = None,
    ) -> None:
        """Take note of proved margins of all rows, and of the inputs that they prove; NaN proves nothing."""
        least = rows.nan_to_num(-math.inf, math.inf, -math.inf).amin(1).double()
        self.proved = proved
        self.margin, self.executed = least.unbind(1)
        third = torch.full_like(rows[..., 0], math.nan) if computed is None else computed.detach().to(rows)
        self.row_margins = torch.cat([rows, third.unsqueeze(-1)], -1)
        if computed is not None:
            self.computed = computed.detach().nan_to_num(-math.inf, math.inf, -math.inf).amin(1).double()

    @property
    def decided(self) -> Bool[Tensor, " batch"]:
        """Which inputs are proved or falsified."""
        return self.proved | self.falsified

    def decisions(self, places: Iterable[int], method: str, dtype: torch.dtype) -> Iterator[Decision]:
        """The decisions about the inputs at some positions, with witnesses in `dtype`."""
        for place in places:
            falsified, proved = bool(self.falsified[place]), bool(self.proved[place])
            margins = [float(part[place]) for part in (self.margin, self.executed)]
            computed = float(self.computed[place])
            # A proof and a witness exclude each other; the margin of a bound that proves nothing says nothing either.
            most = 0.0 if falsified else math.inf
            margin, executed = (-math.inf if math.isnan(part) else min(part, most) for part in margins)
            verdict = Verdict.VULNERABLE if falsified else Verdict.ROBUST if proved else Verdict.UNKNOWN
            open_ = verdict is Verdict.UNKNOWN
            yield Decision(
                index=place,
                verdict=verdict,
                margin=margin,
                executed=executed,
                computed=-math.inf if math.isnan(computed) else computed,
                method=method,
                seconds=float(self.seconds[place]),
                witness=self.witness[place].to(dtype) if falsified else None,
                reason=self.reasons.get(place, "") if open_ else "",
                claim=self.claims.get(place, "") if open_ else "",
                timed=open_ and bool(self.timed[place]),
                row_margins=None if self.row_margins is None else self.row_margins[place],
                saved=self.saved.get(place),
                nodes=int(self.nodes[place]),
            )

    def finish(self, done: Bool[Tensor, " batch"], method: str, dtype: torch.dtype) -> Iterator[Decision]:
        """The decisions about all inputs but those of the mask `done`."""
        return self.decisions((~done).nonzero()[:, 0].tolist(), method, dtype)
