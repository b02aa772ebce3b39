"""The radius theorem as a verifier: ROBUST where the ball lies in one linear region and the theorem's radius covers it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import relax
from relucert.bounding.rounding import Margins
from relucert.core.errors import InvalidInput
from relucert.core.methods import spec
from relucert.core.norms import dual
from relucert.core.results import RadiusInterval
from relucert.geometry.exploration.universal import Universal
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import hyperplane_norms
from relucert.geometry.theorem import Known, Region
from relucert.verification._incomplete import BATCH, Named, explain
from relucert.verification._intervals import Intervals
from relucert.verification.verifier import Budget, Decision, Outcome, Query


@dataclass(frozen=True)
class RegionTheorem(Named):
    """The radius theorem as a verifier."""

    method: Region

    @torch.no_grad()
    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """ROBUST where the theorem's radius covers the ball and the ball lies in the linear region of x."""
        started, found = time.monotonic(), Outcome.nothing(query.x)
        inside, margins = self._margins(query)
        rows = torch.where(inside[:, None, None], torch.stack([margins.real, margins.executed], -1), -math.inf)
        found.prove(query.proves(rows).all(1), rows, margins.computed.where(inside[:, None], -math.inf))
        explain(found)
        found.seconds += (time.monotonic() - started) / len(query)
        yield from found.decisions(range(len(query)), spec(self.method), query.x.dtype)

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """The intervals of the theorem, which is about real arithmetic."""
        self._refuse_strict(query)
        return Intervals.by_batches(query, BATCH, self._radius)

    def _refuse_strict(self, query: Query) -> None:
        if query.strict:
            raise InvalidInput(
                f"arithmetic must be 'real' for a radius by {self.name}, whose theorem is about real arithmetic, got 'executed'"
            )

    def _radius(self, part: Query) -> RadiusInterval:
        return self.method.radius(part.net, part.x, part.y, part.p, part.sides)

    def _margins(self, query: Query) -> tuple[Bool[Tensor, " batch"], Margins]:
        """Which balls lie inside the linear region of x, and the margins there, where the network is linear.

        Where only neighbouring regions cover the ball the decision is proved to stay, but no margin is.
        """
        double, x, y, ball = query.double, query.wide, query.y, query.ball
        eps = ball.radii(x)
        region, values, _ = LinearRegion.evaluated(double, x)
        hyperplanes, _ = hyperplane_norms(region, y, dual(ball.p))
        away = torch.where(
            hyperplanes == 0, math.inf, region.margins_of(values, x) / torch.where(hyperplanes == 0, 1.0, hyperplanes)
        )
        near = away.amin(1) if away.shape[1] else x.new_full((len(x),), math.inf)
        inside = near * (1 - 1e-9) > eps
        # The theorem covers the rounding errors of the distances; it is needed only where the ball lies in the region.
        some = inside.nonzero()[:, 0]
        if len(some):
            part = query.restrict(some)
            proved = self.method.radius(
                part.net, part.x, part.y, part.p, part.sides, Known(region=region.restrict(some))
            )
            inside[some] = proved.lower > eps[some]
        return inside, _region_margins(query, values)


@dataclass(frozen=True)
class UniversalTheorem(RegionTheorem):
    """The radius of every l_p from distances in l_1 and l_inf as a verifier and as a radius method."""

    method: Universal  # type: ignore[assignment]

    def _margins(self, query: Query) -> tuple[Bool[Tensor, " batch"], Margins]:
        proved = self.method.radius(query.net, query.x, query.y, query.p).lower
        _, values, _ = LinearRegion.evaluated(query.double, query.wide)
        return proved > query.ball.radii(query.wide), _region_margins(query, values)


def _region_margins(query: Query, values: list[Tensor]) -> Margins:
    """The smallest margins over the ball of the linear function that the network is in the region of x.

    `values` are the inputs of the switching nodes at x.
    For the executed network they hold where rounding cannot change the pattern: all units are stable by interval arithmetic.
    """
    double, x, ball = query.double, query.wide, query.ball
    bounds = IBP().start(double, x, ball, query.net.dtype)
    lines = {
        node.index: relax(node.op, Interval(value, value), "adaptive", bounds.drift(node.index))
        for node, value in zip(double.switches, values, strict=True)
    }
    functional = pull_back(double.graph, len(double.graph) - 1, query.prop.rows, lines, bounds.charge())
    found = functional.margins(x, ball).plus(query.prop.offsets)
    stable = x.new_ones(len(x), dtype=torch.bool)
    for node in double.switches:
        within = bounds.inputs[node.index]
        line = relax(node.op, within, "parallel")
        fixed = ~within.unstable if node.op.decided_by_sign else line.offset == 0
        stable &= fixed.flatten(1).all(1)
    return replace(found, executed=torch.where(stable[:, None], found.executed, -math.inf))
