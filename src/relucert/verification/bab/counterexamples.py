"""`CounterexampleSearch`: where branch and bound looks for witnesses while it bounds.

The minimiser of every leaf's bound is run through the network. From the best of each problem's a few steps go downhill; now
and then, in l_1 and l_inf, the program of the linear region around there is solved, and the hunt goes on from its minimiser.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from relucert.bounding.split_bounds import Signs
from relucert.networks.network import Network
from relucert.networks.prediction import falsified
from relucert.verification.bab.leaves import leaf_program
from relucert.verification.bab.subproblems import SubProblems
from relucert.verification.outcome import Outcome

_CORNERS = 4  # programs of linear regions, one after the other
_EFFORT = 1200  # fewer of them where this many units may switch, all programs of a turn together
_AROUND = 16  # points around their minimisers
_NEAR = 0.25  # of what the bound is below zero: points above it are no place to look for witnesses


@dataclass(eq=False)
class CounterexampleSearch:
    """Witnesses of the network as it is used, `net`, for the problems of `parts`.

    `descent` is the number of steps downhill, `left(point)` are the seconds that a point may still cost. Witnesses go into
    `found`; `aside` are the seconds that were charged to single points there.
    """

    net: Network
    parts: SubProblems
    descent: int
    found: Outcome
    left: Callable[[int], float]
    aside: float = 0.0

    def __post_init__(self) -> None:
        self.x, self.ball, self.prop, self.owner = self.parts.x, self.parts.ball, self.parts.prop, self.parts.owner
        self.rounds = [0] * len(self.owner)

    def look(self, points: Tensor, bounds: Tensor, which: Tensor) -> None:
        """Look at the minimisers of leaves of the problems `which`, whose bounds are given, and around there."""
        self.run(points, self.owner[which])
        if self.descent == 0:
            return
        best = self._best_of(points.to(self.net.dtype), which)
        chosen, z = which[best], self._downhill(points[best], which[best], 0.5)
        self.run(z, self.owner[chosen])
        near = self._margins(z.to(self.net.dtype), chosen).double() < -_NEAR * bounds[best]
        for place, key in enumerate(chosen.tolist()):
            self.rounds[key] += 1
            # The program of a linear region takes longer than a round of leaves: it has its turn after 1, 2, 4, 8 rounds.
            seldom = self.rounds[key] & (self.rounds[key] - 1) == 0
            linear, point = self.ball.p in (1.0, math.inf), int(self.owner[key])
            if seldom and linear and bool(near[place]) and not self.found.falsified[point]:
                started = time.monotonic()
                self._corner(z[place : place + 1], chosen[place : place + 1])
                self.charge(point, started)

    def charge(self, point: int, started: float) -> None:
        """Charge the time since then to one point, and not to all that share the round."""
        spent = time.monotonic() - started
        self.found.seconds[point] += spent
        self.aside += spent

    def run(self, points: Tensor, owner: Tensor) -> None:
        """Run points through the network as it is used, and keep what changes the decision as witnesses."""
        own = points.to(self.net.dtype)
        changed = falsified(self.net, self.parts.net, own, self.prop.restrict(owner))
        inside = self.ball.restrict(owner).contains(self.x[owner], own)
        for place in (changed & inside & ~self.found.proved[owner]).nonzero()[:, 0].tolist():
            point = int(owner[place])
            if not self.found.falsified[point]:
                self.found.falsified[point] = True
                self.found.witness[point] = own[place].double()

    def _corner(self, z: Tensor, which: Tensor) -> None:
        """From one point to the best one of its linear region, downhill from around there, and once more."""
        owner = self.owner[which]
        ball, x = self.ball.restrict(owner), self.x[owner]
        generator = torch.Generator().manual_seed(self.rounds[int(which)])
        unstable = sum(int(one.unstable[owner].sum()) for one in self.parts.inputs.values())
        started, left = time.monotonic(), self.left(int(owner))
        for _ in range(max(1, min(_CORNERS, _EFFORT // max(1, unstable)))):
            seconds = left - (time.monotonic() - started)
            if seconds <= 0:
                return
            signs: Signs = {}
            if len(self.parts.net.relus) < len(self.parts.net.switches):
                return
            for node, pattern in zip(self.parts.net.relus, self.parts.net.pattern(z), strict=True):
                side = torch.where(pattern, 1, -1).to(torch.int8)
                signs[node.index] = side * self.parts.inputs[node.index].unstable[owner]
            solved = leaf_program(self.parts.net, self.parts.part(which, signs), seconds)
            if solved is None:
                return
            around = (torch.rand(_AROUND, *x.shape[1:], generator=generator) - 0.5).to(x)
            eps = ball.radii(x).reshape(-1, *[1] * (x.ndim - 1)).clamp(max=1.0)
            many = which.expand(_AROUND)
            starts = self.ball.restrict(self.owner[many]).project(x.expand_as(around), solved[1] + 0.02 * eps * around)
            points = torch.cat([solved[1], self._downhill(starts, many, 0.05)])
            many = which.expand(len(points))
            self.run(points, self.owner[many])
            z = points[self._best_of(points.to(self.net.dtype), many)]
            if self.found.falsified[int(owner)]:
                return

    def _best_of(self, points: Tensor, which: Tensor) -> Tensor:
        """The place of the smallest margin of every problem."""
        order = self._margins(points, which).argsort()
        keys, number = torch.unique(which[order], return_inverse=True)
        first = torch.full((len(keys),), len(order))
        return order[first.scatter_reduce(0, number, torch.arange(len(order)), "amin")]

    def _downhill(self, points: Tensor, which: Tensor, share: float) -> Tensor:
        """Points after projected steps against the gradients of their problems' margins, from `share` of eps to nothing."""
        owner = self.owner[which]
        x, ball = self.x[owner].to(self.net.dtype), self.ball.restrict(owner)
        eps = ball.radii(x).reshape(-1, *[1] * (x.ndim - 1)).clamp(max=1e30)
        z = points.to(self.net.dtype)
        for step in range(self.descent):
            with torch.enable_grad():
                z = z.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(self._margins(z, which).sum(), z)
            if math.isinf(self.ball.p):
                way = gradient.sign()
            else:
                way = gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-30).reshape(eps.shape)
            z = ball.project(x, z.detach() - share * (1 - step / self.descent) * eps * way)
        return z.detach().double()

    def _margins(self, z: Tensor, which: Tensor) -> Tensor:
        """What each of the problems is about, at one point each, by the network as it is used."""
        place = self.owner[which], self.parts.row[which]
        return (self.net(z) * self.prop.rows[place].to(z.dtype)).sum(1) + self.prop.offsets[place].to(z.dtype)
