"""The methods of `certify` and `radius` by name, each with its verifier and its way to radii, and `auto`, the cascade of them.

A new method is one line in `ENTRIES`. `auto` goes from cheap to expensive, and every verifier sees only what is still open:
CROWN, a short attack, a long attack, alpha, in l2 SDP-CROWN, for networks with one layer of ReLUs the semidefinite bound of
`moments`, then branch and bound. After the first inputs of a call the attacks and bounds before branch and bound are ordered by
what they have decided (`_order`). Rows of the property that a bound proves are handed on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from relucert.attacks.apgd import APGD
from relucert.attacks.pgd import PGD
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.kw import KW
from relucert.bounding.methods.lipschitz import Lipschitz
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.bounding.preactivations import Bounding, SharedUnits
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, parse, spec
from relucert.core.results import Verdict
from relucert.geometry.exploration.universal import Universal
from relucert.geometry.theorem import Region
from relucert.verification._exploration import Exploration
from relucert.verification._incomplete import Attack, Bound, TimedBound
from relucert.verification._intervals import RadiusMethod
from relucert.verification._narrowing import RadiusNarrowing
from relucert.verification._order import merged
from relucert.verification._radii import RadiusCascade
from relucert.verification._regions import RegionTheorem, UniversalTheorem
from relucert.verification._search import RadiusSearch
from relucert.verification.bab.bab import BaB
from relucert.verification.mip.distortion import DistortionPrograms
from relucert.verification.mip.mip import MIP
from relucert.verification.verifier import GRACE, Budget, Decision, Query, Verifier, in_time

Stage = Attack | Bound | TimedBound | BaB

#: The seconds that an input may cost `auto` where neither `timeout` nor its own `seconds` say otherwise.
VERDICT_SECONDS, RADIUS_SECONDS = 60.0, 5.0
#: Inputs that are bounded between two looks at the clock.
SDP_CHUNK, MOMENTS_CHUNK = 8, 2
#: After so many inputs the order of the verifiers of `auto` follows from their decisions.
MEASURED = 50
SHARED = 2**28  # bytes of the pre-activation bounds that verifiers of a cascade leave to one another, at most
#: Seconds that the first bound of `auto` has beyond those of the others: it so has more time than it would have alone.
PATIENCE = 0.2
#: The first verifiers of `auto`: a cheap bound, which proves all that the region theorem proves of one region, and an attack.
CHEAP_BOUND = Bound(CROWN(), alone=False)
SHORT_ATTACK = Attack(PGD(steps=20, alike=True))
#: Slopes of inner bounds are left to branch and bound, which starts from them.
ALPHA = Alpha(inner=0)


@dataclass(frozen=True, kw_only=True)
class Auto(Method):
    """`nodes` limits the subproblems of branch and bound for each input; `restarts` those of the attack.

    `seconds`: what an input may cost where no `timeout` is given, by default `VERDICT_SECONDS` or, where radii are narrowed,
    `RADIUS_SECONDS`; `math.inf` for no limit.
    """

    name = "auto"
    nodes: int = 20_000
    restarts: int = 6
    seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seconds is not None and not self.seconds > 0:
            raise InvalidInput(f"seconds of auto must be positive, or None for the default, got {self.seconds}")
        for name in ("nodes", "restarts"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} of auto must be at least 1, got {getattr(self, name)}")

    def stages(self, p: float, *, single: bool = False, about_class: bool = True) -> tuple[Stage, ...]:
        """The verifiers in order for a ball of l_p; `single` says that the network has one layer of ReLUs.

        Where the query is not about the class but about chosen targets, the attacks are left out.
        """
        # Without the box bounds are seldom better: branch and bound, the last, looks at that.
        bounds: tuple[Stage, ...] = (Bound(ALPHA, alone=False),)
        if p == 2:
            bounds = (*bounds, TimedBound(SDP(), SDP_CHUNK, alone=False))
        if single:
            bounds = (*bounds, TimedBound(Moments(), MOMENTS_CHUNK, alone=False))
        last = BaB(nodes=self.nodes)
        if not about_class:
            return CHEAP_BOUND, *bounds, last
        long_attack = Attack(APGD(steps=50, restarts=self.restarts, alike=True))
        return CHEAP_BOUND, SHORT_ATTACK, long_attack, *bounds, last

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """Decisions of the first verifier that decides; what stays open is named after branch and bound."""
        return Cascade(self).decide(query, budget)


@dataclass(eq=False)
class Cascade:
    """`auto` as the verifier of one call: what attacks and bounds decide of the first inputs determines their order.

    `decided` counts decisions about the first inputs by the name of the method, `seen` these inputs. Several batches are taken
    at a time, so that the inputs which the first verifiers leave open fill a batch of the later ones.
    """

    method: Auto
    seen: int = 0
    decided: Counter[str] = field(default_factory=Counter)
    batches: ClassVar[int] = 5
    grace: ClassVar[float] = GRACE + PATIENCE

    def stages(self, query: Query) -> tuple[Stage, ...]:
        """The verifiers in the order in which the next inputs are given to them."""
        single = query.net.graph.one_layer and Moments.whole(query.net)
        *before, last = self.method.stages(query.p, single=single, about_class=query.about_class)
        if self.seen < MEASURED:
            return *before, last
        cheaper = [stage for stage in before if not isinstance(stage, BaB)]
        return *merged(cheaper, self.decided, query.prop.rows.shape[1]), last

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """Decisions of the first verifier that decides; what stays open is named after branch and bound."""
        measuring = self.seen < MEASURED
        for found in cascade(self.stages(query), query, budget, spec(BaB(nodes=self.method.nodes))):
            if measuring and found.verdict is not Verdict.UNKNOWN:
                self.decided[found.method.partition("(")[0]] += 1
            yield found
        if measuring:
            self.seen += len(query)


def cascade(stages: Sequence[Verifier], query: Query, budget: Budget, last: str) -> Iterator[Decision]:
    """The decisions of several verifiers, each of which sees what those before it have left open.

    A verifier sees as many inputs at a time as the query's `batch` says, and has the pre-activation bounds of those before it;
    an input that a clock has kept from these has none, nor have those beside it. An input has the largest margin and the
    seconds of all that saw it. When its seconds are spent, no further verifier sees it; the cheap bound has `PATIENCE` more, so
    that it proves here what it proves alone. Inputs that stay open are UNKNOWN by the method named `last`.
    """
    known = [_Known() for _ in range(len(query))]
    if 2 * query.double.hidden_units * len(query) * torch.float64.itemsize <= SHARED:
        query = replace(query, units=SharedUnits.about((query.net, query.double), query.x, query.ball))
    open_ = list(range(len(query)))
    for stage in stages:
        left = budget.after(torch.tensor([one.seconds for one in known], dtype=torch.float64))
        if stage != CHEAP_BOUND:
            left = replace(left, deadline=left.deadline - PATIENCE)
        seconds = left.each(len(query)).tolist()
        ready = [place for place in open_ if seconds[place] > 0]
        for start in range(0, len(ready), query.batch):
            if left.over and not (isinstance(stage, Bound) and stage.counted(query)):
                break
            places = ready[start : start + query.batch]
            index = torch.tensor(places, device=query.x.device)
            rows = _stacked([known[place].row_margins for place in places])
            part = replace(query.restrict(index), row_margins=rows)
            for found in in_time(stage, part, left.restrict(index.cpu())):
                place = places[found.index]
                decision = known[place].add(found)
                if decision.verdict is not Verdict.UNKNOWN:
                    open_.remove(place)
                    yield replace(decision, index=place)
    each = budget.each(len(query))
    for place in open_:
        one = known[place]
        timed = one.timed or one.seconds >= float(each[place]) or budget.over
        yield Decision(
            place, Verdict.UNKNOWN, one.margin, last, one.seconds, reason=one.reason, claim=one.claim, timed=timed,
            executed=one.executed, computed=one.computed, row_margins=one.row_margins,
        )  # fmt: skip


@dataclass(eq=False)
class _Known:
    """What the verifiers so far have found out about one input."""

    margin: float = -math.inf
    executed: float = -math.inf
    computed: float = -math.inf
    seconds: float = 0.0
    row_margins: Tensor | None = None
    timed: bool = False
    reason: str = ""
    claim: str = ""

    def add(self, found: Decision) -> Decision:
        """Take over what a verifier has found out; its decision with everything that is known."""
        self.margin, self.seconds = max(self.margin, found.margin), self.seconds + found.seconds
        self.executed, self.computed = max(self.executed, found.executed), max(self.computed, found.computed)
        if found.row_margins is not None:
            before = found.row_margins if self.row_margins is None else self.row_margins
            self.row_margins = torch.fmax(before, found.row_margins)
        self.timed, self.reason, self.claim = found.timed, found.reason, found.claim
        most = 0.0 if found.verdict is Verdict.VULNERABLE else math.inf
        return replace(
            found, margin=min(self.margin, most), executed=min(self.executed, most), computed=self.computed,
            seconds=self.seconds, row_margins=self.row_margins,
        )  # fmt: skip


def _stacked(rows: Sequence[Tensor | None]) -> Tensor | None:
    """The margins of rows of all inputs, None where no bound has seen them."""
    known = [row for row in rows if row is not None]
    return torch.stack(known) if known and len(known) == len(rows) else None


@dataclass(frozen=True)
class Entry:
    """A class of methods: how a method becomes a verifier and a radius method, and whether it takes `targets`."""

    kind: type[Method]
    verifier: Callable[[Any], Verifier]
    radius: Callable[[Any], RadiusMethod]
    targets: bool = True


def _itself(method: Any) -> Any:
    return method


ENTRIES: dict[str, Entry] = {
    entry.kind.name: entry
    for entry in (
        Entry(Region, RegionTheorem, lambda method: _exploration(method), targets=False),
        Entry(Universal, UniversalTheorem, UniversalTheorem, targets=False),
        Entry(IBP, Bound, RadiusSearch),
        Entry(KW, Bound, RadiusSearch),
        Entry(CROWN, Bound, RadiusSearch),
        Entry(Alpha, Bound, RadiusSearch),
        Entry(Lipschitz, Bound, RadiusSearch),
        Entry(SDP, lambda method: TimedBound(method, SDP_CHUNK), RadiusSearch),
        Entry(Moments, lambda method: TimedBound(method, MOMENTS_CHUNK), RadiusSearch),
        Entry(BaB, _itself, RadiusNarrowing),
        Entry(MIP, _itself, DistortionPrograms),
        Entry(Auto, Cascade, lambda method: RadiusCascade(method, method.nodes)),
    )
}
METHODS: dict[str, type[Method]] = {name: entry.kind for name, entry in ENTRIES.items()}
BOUNDING: dict[str, type[Bounding]] = {
    name: kind for name, kind in METHODS.items() if issubclass(kind, Bounding)
}  # fmt: skip


def _exploration(method: Region) -> Exploration:
    """The exploration of regions, from the radius of the bounding method that its `start` names."""
    return Exploration(method, None if method.start is None else RadiusSearch(parse(method.start, BOUNDING)))


def budget_of(method: Method, timeout: float | None, default: float, deadline: float = math.inf) -> Budget:
    """The budget of a method: `timeout` seconds an input; without one those of `auto`, or its `default`, else no limit."""
    if timeout is not None and not (isinstance(timeout, Real) and timeout > 0):
        raise InvalidInput(f"timeout must be a positive number of seconds, got {timeout!r}")
    own = math.inf
    if isinstance(method, Auto):
        own = default if method.seconds is None else method.seconds
    return Budget(own if timeout is None else float(timeout), deadline)


def find(method: str | Method) -> tuple[Method, Entry]:
    """The method that a name, a text or a value stands for, and its entry."""
    chosen = parse(method, METHODS)
    by_kind = {entry.kind: entry for entry in ENTRIES.values()}
    return chosen, next(by_kind[kind] for kind in type(chosen).__mro__ if kind in by_kind)
