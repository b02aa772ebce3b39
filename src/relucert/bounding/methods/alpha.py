"""`alpha`: lower slopes optimised for every example and every row of the property (alpha-CROWN, Xu et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding._dual_ascent import Schedule, Variables, dual_ascent
from relucert.bounding.backward_bounds import BackwardBounds, tightened
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN, AfterCROWN, crown_margins
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import Relaxations, pull_back
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.bounding.rounding import Charge, Margins
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.networks.affine_map import one_hot
from relucert.networks.network import Network
from relucert.networks.nodes import MaxPool2d


@dataclass(frozen=True, kw_only=True)
class Alpha(AfterCROWN):
    """`steps` of Adam on the slopes, from CROWN's; every step's bound is sound, and the best is kept.

    Pre-activation bounds are CROWN's, improved by `inner` steps with separate slopes for every unstable unit. `rate` is the
    step size of the slopes, which are numbers in [0, 1].
    """

    name = "alpha"
    single = True
    steps: int = 20
    inner: int = 0
    rate: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "inner"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} of alpha must be at least 0, got {getattr(self, name)}")
        if not 0 < self.rate < 10:
            raise InvalidInput(f"rate of alpha must lie between 0 and 10, got {self.rate}")

    @property
    def contains(self) -> tuple[CROWN]:
        """Cheaper methods that prove no more."""
        return (CROWN(budget=self.budget),)

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Pre-activation bounds of all units."""
        bounds = self.start(net, x, ball)
        return self._refined(net, bounds, x, ball) if self.inner else bounds

    def prove(
        self, net: Network, known: UnitBounds, x: Tensor, ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """Pre-activation bounds after the `inner` steps, and the best margins after `steps`."""
        known = known.detach()
        with torch.no_grad():
            best = crown_margins(net, known, x, ball, prop)
            if self.inner:
                known = self._refined(net, known, x, ball)
                best = best.best(crown_margins(net, known, x, ball, prop))
        outputs = _Functionals(net, len(net.graph) - 1, prop.rows, known, x, ball, known.charge())
        unknown = prop.rows.new_full((*prop.rows.shape[:2], 3), -math.inf)
        found = Margins.unstacked(self._ascend(outputs, unknown, self.steps))
        return known, best.best(found.plus(prop.offsets))

    @torch.no_grad()
    def _refined(self, net: Network, bounds: UnitBounds, x: Tensor, ball: Ball) -> UnitBounds:
        """Pre-activation bounds, layer after layer, with separate slopes for each end of every unit."""
        backward = BackwardBounds(net.graph, x, ball, self.budget)
        inputs = dict(bounds.inputs)
        for node in net.switches:
            source, within = node.inputs[0], inputs[node.index]
            if backward.switched(source):
                shape = within.lower.shape[1:]
                low, high = within.lower.flatten(1), within.upper.flatten(1)
                needed = within.unstable.flatten(1)
                if isinstance(node.op, MaxPool2d):
                    needed = torch.ones_like(needed)
                for batch, units, chosen in backward.chosen(needed, 2):
                    known = bounds.improved(inputs).restrict(batch)
                    picked = one_hot(units, shape, x.dtype)
                    rows = torch.cat([picked, -picked], 1)
                    unknown = rows.new_full((*rows.shape[:2], 3), -math.inf)
                    functionals = _Functionals(
                        net, source, rows, known, x[batch], ball.restrict(batch), known.charge(node.index)
                    )
                    ends = self._ascend(functionals, unknown, self.inner)[..., 2]
                    below, above = ends.split(units.shape[1], 1)
                    low, high = tightened((low, high), (batch, units, chosen), (below, -above), keep=True)
                inputs[node.index] = Interval(low.reshape(-1, *shape), high.reshape(-1, *shape))
        return bounds.improved(inputs)

    def _ascend(self, functionals: _Functionals, best: Tensor, steps: int) -> Float[Tensor, " batch rows 3"]:
        """The best lower bounds of functionals after `steps` on the slopes of all ReLUs on the way, at least `best`.

        Bounds are those of `Margins`: as computed, for real arithmetic, for the executed network.
        """
        slopes, fixed = functionals.start()

        def bound() -> tuple[Tensor, Tensor]:
            margins = functionals.margins(slopes, fixed)
            return margins.computed, margins.stacked()

        leaks = [functionals.net.graph[index].op.slope for index in slopes]  # type: ignore[attr-defined]
        variables = Variables(list(slopes.values()), leaks, 1.0, self.rate)
        return dual_ascent(functionals.net, bound, [variables], best, Schedule(steps=steps, final=False))


@dataclass(frozen=True, eq=False)
class _Functionals:
    """Linear functionals of the value of a node, (batch, rows, *shape), to be bounded below over a ball."""

    net: Network
    node: int
    rows: Float[Tensor, " batch rows *shape"]
    bounds: UnitBounds
    x: Float[Tensor, " batch *input"]
    ball: Ball
    charge: Charge | None

    def start(self) -> tuple[dict[int, Tensor], Relaxations]:
        """CROWN's lower slopes of every ReLU on the way, one for each row, and the relaxations of all other nodes."""
        starts = self.bounds.relaxed(self.net, "adaptive")
        slopes = {}
        for relu in self.net.relus:
            if relu.index <= self.node:
                relaxation = starts[relu.index]
                assert isinstance(relaxation, ReLURelaxation)
                below = relaxation.below.detach().unsqueeze(1)
                slopes[relu.index] = below.expand(-1, self.rows.shape[1], *relu.shape).clone()
        return slopes, {i: other for i, other in starts.items() if i <= self.node and i not in slopes}

    def margins(self, slopes: dict[int, Tensor], fixed: Relaxations) -> Margins:
        """The lower bounds for given slopes."""
        relaxations = dict(fixed)
        for index, slope in slopes.items():
            op, drift = self.net.graph[index].op, self.bounds.drift(index)
            relaxations[index] = relax(op, self.bounds.inputs[index], slope, drift)  # type: ignore[arg-type]
        return pull_back(self.net.graph, self.node, self.rows, relaxations, self.charge).margins(self.x, self.ball)
