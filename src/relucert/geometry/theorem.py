"""The radius theorem: an interval around the distance to the nearest adversarial example (Theorem 3.1 of the paper).

If d_B(x) < d_D(x), the decision does not change within d_B. If d_D(x) <= d_B(x), d_D is the distance to the nearest adversarial
example, which is the projection of x onto the decision hyperplane. With a box both are the distances to the parts of the
hyperplanes inside the box. Exploring neighbours of Q(x) gives larger lower bounds and more exact answers (`exploration`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.errors import Contradiction, InvalidInput
from relucert.core.methods import Method, spec
from relucert.core.results import RadiusInterval, concatenate, meets
from relucert.core.rounding import cast_up
from relucert.geometry.exploration.arrangement import ArrangementSearch, has_one_layer
from relucert.geometry.exploration.facets import FacetSearch
from relucert.geometry.exploration.neighbours import HyperplaneSearch
from relucert.geometry.exploration.search import Limits, RegionSearch, stored_bytes
from relucert.geometry.region import LinearRegion
from relucert.geometry.witness import Witnesses
from relucert.networks.network import Network, in_double

SMALL = 20_000  # hidden units times inputs up to which facets are computed by default


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """What is known of inputs before the search: their linear regions in the float64 copy of the network, certified radii.

    `seconds`: what is left for each input.
    """

    region: LinearRegion | None = None
    radius: Float[Tensor, " batch"] | None = None
    seconds: float = math.inf

    def restrict(self, index: Int[Tensor, " rows"]) -> Known:
        """What is known of some of the inputs."""
        return Known(
            region=None if self.region is None else self.region.restrict(index),
            radius=None if self.radius is None else self.radius[index], seconds=self.seconds,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Region(Method):
    """The radius theorem with at most `regions` neighbours of the region of x, 5 as in the paper.

    0 neighbours: the theorem alone; None: no limit. `seconds` for each input, its share of its batch's: the bounds proved by
    then are returned. `start`: a bounding method such as "crown" or "sdp", whose certified radius the search starts from
    (`rc.radius`). `facets`: solve linear and quadratic programs for the distances to facets, which makes answers exact and
    takes time; None does so for small networks. `budget`: bytes of memory.
    """

    name = "region"
    regions: int | None = 5
    facets: bool | None = None
    budget: int = 2**31
    seconds: float | None = None
    start: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regions is not None and self.regions < 0:
            raise InvalidInput(f"regions of region must be at least 0, or None for no limit, got {self.regions}")
        if self.budget < 2**20:
            raise InvalidInput(f"budget of region must be at least {2**20} bytes, got {self.budget}")
        if self.seconds is not None and not self.seconds > 0:
            raise InvalidInput(f"seconds of region must be positive, or None for no limit, got {self.seconds}")

    def radius(
        self,
        net: Network,
        x: Float[Tensor, " batch *input"],
        y: Int[Tensor, " batch"],
        p: float,
        box: Any,
        known: Known | None = None,
    ) -> RadiusInterval:
        """The interval of every example; see `relucert.radius`."""
        known = Known() if known is None else known
        double = in_double(net) if known.region is None else known.region.net
        pieces = torch.arange(len(x), device=x.device).split(max(1, self.budget // (2 * self._size(double))))
        ball = Ball(p, math.inf, box)
        results = [
            self._piece(net, double, x[part], y[part], ball.restrict(part), known.restrict(part)) for part in pieces
        ]
        return concatenate(results) if results else _empty(x)

    def _size(self, net: Network) -> int:
        """The bytes of an example, about."""
        planes = sum(math.prod(node.op.in_shape) * 4 for node in net.switches)
        rows = max(net.classes, 8) * math.prod(net.input_shape)
        if self.regions is not None and self._search(net) is ArrangementSearch:
            # Rows are made for as many regions at a time as fit; what is stored of a region are its keys.
            return 8 * (6 * planes + 8 * rows) + 4 * (self.regions + 1) * stored_bytes(net.hidden_units)
        layers = 8 if self.regions is None else min(self.regions + 1, 64)
        size = 8 * (planes * (2 * layers + 6) + 64 * rows)
        if self._programs(net):  # rows and nearest points of all regions are stored
            size += 16 * layers * (planes + net.classes) * math.prod(net.input_shape)
        return size

    def _piece(self, net: Network, double: Network, x: Tensor, y: Tensor, ball: Ball, known: Known) -> RadiusInterval:
        started, clock = time.perf_counter(), time.monotonic()
        each = min(known.seconds, math.inf if self.seconds is None else self.seconds)
        p, sides = float(ball.p), ball.bounds(x)
        witnesses = Witnesses(net, x, y, p, sides, double)
        with torch.no_grad():
            wrong = net(x).argmax(1) != y
        lower = x.new_zeros(len(x), dtype=torch.float64)
        right = (~wrong).nonzero()[:, 0]
        if len(right):
            nearest = Witnesses(net, x[right], y[right], p, tuple(side[right] for side in sides), double)
            box = tuple(side.double() for side in (nearest.lower, nearest.upper))
            limit = math.inf if self.regions is None else self.regions + 1.0
            with torch.no_grad():
                region = LinearRegion.at(double, nearest.x.double()) if known.region is None else None
            certified = None if known.radius is None else known.radius[right]
            limits = Limits(limit, self.budget // 2, clock + each * len(x), certified)
            region = known.restrict(right).region if region is None else region
            assert region is not None
            search = self._search(double)(region, nearest, box, limits)
            search.run()
            lower[right] = search.lower
            witnesses.point[right], witnesses.distance[right] = nearest.point, nearest.distance
        witnesses.point[wrong], witnesses.distance[wrong] = x[wrong], 0.0
        upper = witnesses.distance
        _check_consistency(lower, upper)
        rounded = -cast_up(-lower, x.dtype)
        proved = torch.minimum(rounded, upper)
        # If the lower bound exceeds the witness distance by more than the tolerance, the answer is not exact.
        exact = meets(proved, upper) & meets(upper, rounded) & (upper.isfinite() | proved.isinf())
        seconds = torch.full_like(upper, (time.perf_counter() - started) / max(1, len(x)))
        return RadiusInterval(proved, upper, exact, witnesses.point, seconds, [spec(self)] * len(x))

    def _search(self, net: Network) -> type[RegionSearch]:
        """The search for a network: by facets, by the arrangement of one layer, or by hyperplanes."""
        if self._programs(net):
            return FacetSearch
        return ArrangementSearch if has_one_layer(net, self.budget) else HyperplaneSearch

    def _programs(self, net: Network) -> bool:
        if self.facets is not None:
            return self.facets
        return net.hidden_units * math.prod(net.input_shape) <= SMALL


def _check_consistency(lower: Tensor, upper: Tensor) -> None:
    """Raise `Contradiction` if a witness is nearer than a proved lower bound.

    Both hold for the network of real arithmetic, for every dtype of execution, so rounding cannot explain such a gap.
    """
    gap = lower > upper.double() * (1 + 1e-6) + 1e-9
    if bool(gap.any()):
        at = int(gap.nonzero()[0])
        raise Contradiction(
            f"example {at}: the proved radius {float(lower[at])} exceeds the distance {float(upper[at])} of a witness; this is "
            "a fault of relucert, please report it with the network"
        )


def _empty(x: Tensor) -> RadiusInterval:
    none = x.new_zeros(0)
    return RadiusInterval(none, none, torch.zeros(0, dtype=torch.bool), None, none, [])
