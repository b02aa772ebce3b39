"""Radii by a complete method: the interval is narrowed until its ends meet to a tolerance, or time is up.

The upper end starts at an attack's witness, the lower end at a bound's radius. An interval of relative width `tol` needs one
proof at least at upper / (1 + tol), so that is asked first: a proof there ends the search, and a witness lowers the upper end,
the next question being asked ever further below it. What can not be decided is asked again nearer to what is proved. Every
witness and every proof stays: the one cuts off all larger radii, the other all smaller ones. Questions go on from the leaves
that the last one which was not proved has left open: its radius was larger, so what it closed stays closed. Where no witness
is known, the first question is about the whole box: a proof there is one for every radius.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding.methods.crown import CROWN
from relucert.core.ball import Ball
from relucert.core.methods import spec
from relucert.core.norms import norm
from relucert.core.properties import class_stays
from relucert.core.results import RadiusInterval, concatenate, meets
from relucert.core.rounding import cast_up, length_up
from relucert.networks.network import Network, in_double
from relucert.verification.bab.bab import BaB, branch_and_bound
from relucert.verification.bab.tree import Tree
from relucert.verification.mip.mip import MIP, mixed_integer
from relucert.verification.search import search_radius
from relucert.verification.upper import ROUNDING, attacked, refuse_contradictions

BATCH = 100
ROUNDS = 60
SHARE = 0.5  # of the time that is left, for one question


def narrow_radius(
    net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"], p: float, box: Any, method: BaB,
    tol: float, limit: float,
) -> RadiusInterval:  # fmt: skip
    """The interval of every example, to a relative width of `tol` or after `limit` seconds, its share of its batch's."""
    double = in_double(net)
    whole = Ball(p, math.inf, box)
    found = []
    for part in torch.arange(len(x), device=x.device).split(BATCH):
        sides = None if box is None else whole.restrict(part).bounds(x[part])
        started = time.monotonic()
        first = search_radius(net, x[part], y[part], p, sides, CROWN())
        first = attacked(net, x[part], y[part], p, sides, first, "best")
        spent = (time.monotonic() - started) / len(part)
        found.append(Narrowing(net, double, x[part], y[part], p, sides, method, tol, limit, first, spent).run())
    return concatenate(found)


def reach(x: Float[Tensor, " batch *input"], p: float, sides: Any) -> Float[Tensor, " batch"]:
    """A radius at which the ball holds the whole box, in float64 and rounded up; infinite without a box."""
    if sides is None:
        return torch.full((len(x),), math.inf, dtype=torch.float64)
    lower, upper = (side.double() for side in sides)
    return norm(torch.maximum(x.double() - lower, upper - x.double()), p) * (1 + 1e-9)


class Narrowing:
    """The intervals of some examples, and the smallest radii at which no answer was found."""

    def __init__(
        self, net: Network, double: Network, x: Tensor, y: Tensor, p: float, sides: Any, method: BaB, tol: float,
        limit: float, first: RadiusInterval, spent: float, programs: MIP | None = None,
    ):  # fmt: skip
        self.net, self.double, self.x, self.y, self.p, self.sides = net, double, x, y, p, sides
        self.programs = programs  # who is asked at guessed radii; by default branch and bound
        self.method, self.tol, self.limit = method, tol, limit
        self.lower, self.upper = first.lower.double(), first.upper.double()
        self.witness = torch.full_like(x, math.nan) if first.witness is None else first.witness.clone()
        self.blocked = torch.full_like(self.lower, math.inf)
        self.hits = torch.zeros_like(self.lower)
        self.seconds = torch.full_like(self.lower, spent)
        self.open = net.predict(x) == y
        self.reach = reach(x, p, sides)
        self.trees: dict[int, Tree] = {}
        self.grown = torch.zeros_like(self.lower)  # the radii of their balls

    def guess(self, radii: Float[Tensor, " batch"]) -> None:
        """Ask at radii (float64) where a proof is likely, infinity for the whole box; a proof there ends the search."""
        radii = torch.minimum(radii, self.reach)
        prop = (self.open & (radii > self.lower) & radii.isfinite()).nonzero()[:, 0]
        if len(prop):
            self._ask(prop, radii[prop], self.programs)
            # Rounded to the input's dtype the radius may have become a little smaller.
            self.open[prop[self.lower[prop] >= radii[prop] * (1 - 1e-6)]] = False

    def run(self) -> RadiusInterval:
        """Ask until every interval is narrow."""
        endless = (self.open & self.upper.isinf() & self.reach.isfinite() & (self.seconds < self.limit)).nonzero()[:, 0]
        if len(endless):
            self._ask(endless, self.reach[endless])
        for _ in range(ROUNDS):
            top = torch.minimum(self.upper, self.blocked)
            wide = (top > self.lower * (1 + self.tol)) & top.isfinite()
            open_ = (self.open & wide & (self.seconds < self.limit)).nonzero()[:, 0]
            if len(open_) == 0:
                break
            self._ask(open_, self._trial(open_))
        # What was cut back to a witness by more than the tolerance is not exact.
        proved, upper = -cast_up(-self.lower, self.x.dtype), self.upper.to(self.x.dtype)
        lower = torch.minimum(proved, upper)
        exact = meets(lower, upper) & meets(upper, proved) & (upper.isfinite() | lower.isinf())
        return RadiusInterval(
            lower, upper, exact, self.witness, self.seconds.to(self.x.dtype), [spec(self.method)] * len(self.x)
        )

    def _keep(self, trees: dict[int, Tree]) -> None:
        """Trees for the next questions, as long as there is room for them; any larger ball's will do."""
        self.trees |= trees
        for index in sorted(self.trees, key=lambda index: -self.trees[index].size):
            if sum(tree.size for tree in self.trees.values()) <= self.method.memory:
                break
            del self.trees[index]

    def _trial(self, open_: Tensor) -> Tensor:
        """The next radii: just below the witness, further below after each that was found, or halfway where that is blocked."""
        low, high, blocked = self.lower[open_], self.upper[open_], self.blocked[open_]
        middle = torch.where(low > 0, (low * torch.minimum(high, blocked)).sqrt(), torch.minimum(high, blocked) / 2)
        near = high / (1 + self.tol) ** (2 ** self.hits[open_])
        return torch.where(blocked.isfinite(), middle, torch.maximum(near, middle))

    def _ask(self, open_: Tensor, eps: Tensor, programs: MIP | None = None) -> None:
        """One question about every open example, to branch and bound or to mixed-integer programs."""
        x, y = self.x[open_], self.y[open_]
        sides = None if self.sides is None else tuple(side[open_] for side in self.sides)
        # What covers the whole box must do so after rounding, too.
        eps = torch.where(eps >= self.reach[open_], cast_up(eps, self.x.dtype), eps.to(self.x.dtype))
        ball = Ball(self.p, eps, sides)
        numbers, radii = open_.tolist(), ball.radii(x).double()
        # Witnesses are measured with rounding: a tree of a ball that is smaller, by however little, proves nothing here.
        grown = (radii <= self.grown[open_]).tolist()
        prop = class_stays(y, self.net.classes, dtype=torch.float64)
        question = self.net, self.double, x.double(), Ball(self.p, ball.radii(x).double(), sides), prop
        limit = (SHARE * (self.limit - self.seconds[open_])).clamp(min=0.1)
        if programs is not None:
            found = mixed_integer(*question, programs, limit=limit)
        else:
            trees = {place: self.trees[i] for place, i in enumerate(numbers) if i in self.trees and grown[place]}
            found = branch_and_bound(*question, self.method, limit=limit, trees=trees)
        for place in found.trees:
            self.grown[numbers[place]] = radii[place]
        self._keep({numbers[place]: tree for place, tree in found.trees.items()})
        self.seconds[open_] += found.seconds.to(self.seconds)
        won, lost = open_[found.proved], open_[found.falsified]
        proved = torch.where(radii >= self.reach[open_], math.inf, radii)[found.proved]
        self.lower[won] = torch.maximum(self.lower[won], proved)
        if len(lost):
            points = found.witness[found.falsified].to(self.x)
            distance = cast_up(length_up(self.x[lost], points, self.p), self.x.dtype).double()
            nearer = distance < self.upper[lost]
            self.upper[lost[nearer]] = distance[nearer]
            self.witness[lost[nearer]] = points[nearer]
            self.hits[lost] += 1
        open_ended = open_[~(found.proved | found.falsified)]
        self.blocked[open_ended] = torch.minimum(self.blocked[open_ended], radii[~(found.proved | found.falsified)])
        refuse_contradictions(self.lower, self.upper, [spec(self.method)] * len(self.x), ROUNDING)
