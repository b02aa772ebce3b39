"""`crown`: linear bounds with adaptive slopes (Zhang et al. 2018), never worse than with flat ones or than intervals.

`alpha`: lower slopes optimised for every example and every row of the property (alpha-CROWN, Xu et al. 2021).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding._dual_ascent import Functionals, Schedule
from relucert.bounding._inner_slopes import InnerAscent
from relucert.bounding._least_margins import least_margins
from relucert.bounding.backward_bounds import BUDGET
from relucert.bounding.preactivations import Bounding, Tightening, UnitBounds, interval_margins, unit_bounds
from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import Rule
from relucert.bounding.rounding import Margins
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.networks.network import Network

#: Layers of switching nodes from which on the slopes of inner bounds are optimised, unless `inner` says otherwise.
DEEP = 4
INNER = 8  # steps on them
MOST = 2000  # unstable units of an example beyond which they are not, unless `inner` says otherwise
SINGLE = 50  # rows that go through the network at once in any case: their time is that of the calls
_SHARE = 0.7  # of the seconds, for the inner bounds


@dataclass(frozen=True, kw_only=True)
class CROWN(Bounding):
    """Adaptive lower slopes, and flat ones, whichever proves more; intermediate bounds are intersected with intervals.

    `budget`: bytes of memory for backward propagation.
    """

    name = "crown"
    single = True
    shares = True
    budget: int = BUDGET

    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """Bounds of all units."""
        return unit_bounds(net, x, ball, Tightening(rule="adaptive", budget=self.budget), executed)

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """The margins; differentiable in the weights."""
        return known, crown_margins(net, known, x, ball, prop)

    def prove_least(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """As `prove`, where all that counts is the least margin of every example, and which rows are proved.

        Flat slopes are left out for rows that change neither (`bounding._least_margins`); no gradient.
        """
        if prop.offsets.numel() <= SINGLE:
            return self.prove(net, known, x, ball, prop)
        return known, least_margins(net, known, x, ball, prop, self.budget)


@dataclass(frozen=True, kw_only=True)
class AfterCROWN(Bounding):
    """A method that starts from CROWN's bounds of the units; no gradient in the weights."""

    shares = True
    budget: int = BUDGET

    @torch.no_grad()
    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """CROWN's bounds of the units."""
        return CROWN(budget=self.budget).start(net, x, ball, executed)


@dataclass(frozen=True, kw_only=True)
class Alpha(AfterCROWN):
    """`steps` of Adam on the slopes, from CROWN's; every step's bound is sound, and the best is kept.

    Pre-activation bounds are CROWN's, improved by `inner` steps with separate slopes for each end of every unstable unit; None:
    8 steps for networks of four and more layers of ReLUs and examples of at most 2000 unstable units, none for others.
    `rate` is the step size of the slopes, which are numbers in [0, 1]. After `seconds`, those of `crown` not counted, the
    best bounds so far are the answer. With `early` the sign of margins is all that counts, and CROWN's margins are known: steps
    on the slopes of a row end once its margin is positive, or hardly will be (`bounding._dual_ascent`).
    """

    name = "alpha"
    single = True
    steps: int = 20
    inner: int | None = None
    rate: float = 0.3
    seconds: float = math.inf
    early: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "inner"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidInput(f"{name} of alpha must be at least 0, got {value}")
        if not 0 < self.rate < 10:
            raise InvalidInput(f"rate of alpha must lie between 0 and 10, got {self.rate}")
        if not self.seconds >= 0:
            raise InvalidInput(f"seconds of alpha must be at least 0, got {self.seconds}")

    @property
    def contains(self) -> tuple[CROWN]:
        """Cheaper methods that prove no more."""
        return (CROWN(budget=self.budget),)

    def inner_steps(self, net: Network) -> int:
        """The steps on the slopes of inner bounds for a network."""
        if self.inner is not None:
            return self.inner
        return INNER if len(net.switches) >= DEEP else 0

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Pre-activation bounds of all units."""
        return self._refined(net, self.start(net, x, ball), x, ball, time.monotonic())

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """Pre-activation bounds after the `inner` steps, and the best margins after `steps`."""
        known, started = known.detach(), time.monotonic()
        best = Margins.unstacked(prop.rows.new_full((*prop.offsets.shape, 3), -math.inf))
        with torch.no_grad():
            if not self.early:
                best = crown_margins(net, known, x, ball, prop)
            if self.inner_steps(net):
                known = self._refined(net, known, x, ball, started)
                best = best.best(crown_margins(net, known, x, ball, prop))
        if time.monotonic() >= started + self.seconds:
            return known, best
        outputs = Functionals(net, len(net.graph) - 1, prop.rows, known, x, ball, known.charge())
        schedule = Schedule(steps=self.steps, final=False, deadline=started + self.seconds)
        goal = -prop.offsets if self.early else None
        return known, best.best(Margins.unstacked(outputs.ascend(self.rate, schedule, goal)).plus(prop.offsets))

    def _refined(self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, started: float) -> UnitBounds:
        """Pre-activation bounds with optimised slopes, in a share of the seconds."""
        steps = self.inner_steps(net)
        if not steps:
            return known
        ascent = InnerAscent(
            steps=steps, rate=self.rate, budget=self.budget, deadline=started + _SHARE * self.seconds,
            most=MOST if self.inner is None else math.inf,
        )  # fmt: skip
        return ascent.refined(net, known, x, ball)


def crown_margins(net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property) -> Margins:
    """The margins from known bounds of the units: the best of adaptive slopes, flat slopes and intervals."""
    last = len(net.graph) - 1
    rules: tuple[Rule, ...] = "adaptive", "flat"
    found = interval_margins(net, bounds, x, ball, prop)
    for rule in rules:
        functional = pull_back(net.graph, last, prop.rows, bounds.relaxed(net, rule), bounds.charge())
        found = found.best(functional.margins(x, ball).plus(prop.offsets))
    return found


def mixed_margins(
    net: Network, bounds: UnitBounds, x: Tensor, ball: Ball, prop: Property
) -> Float[Tensor, " batch specs"]:
    """Margins by backward propagation with adaptive slopes from any bounds of the units: with intervals, CROWN-IBP."""
    found = pull_back(net.graph, len(net.graph) - 1, prop.rows, bounds.relaxed(net, "adaptive"))
    return found.minimum(x, ball) + prop.offsets
