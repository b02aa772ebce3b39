"""`CounterexampleSearch`: where branch and bound looks for counterexamples while it bounds.

The minimiser of every subproblem's bound is run through the network. From the best minimiser of each problem a few steps of
projected gradient descent follow. After 1, 2, 4, 8, ... rounds, in l_1 and l_inf, the linear program of the linear region there
is solved, and the search goes on from its minimiser.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from relucert.bounding.split_bounds import Splits
from relucert.networks.prediction import falsified
from relucert.verification.bab._leaves import leaf_program
from relucert.verification.bab._subproblems import SubProblems
from relucert.verification.verifier import Outcome

_CORNERS = 4  # linear programs, one after the other
_EFFORT = 1200  # unstable units of all programs of a turn together: with more units there are fewer programs
_AROUND = 16  # random points around each minimiser
_NEAR = 0.25  # a program is solved only where the margin is below this part of what the bound is below zero


@dataclass(eq=False)
class CounterexampleSearch:
    """Counterexamples for the network as executed, for the problems of `parts`.

    `descent` is the number of gradient steps, `left(point)` the seconds that a point may still cost. Counterexamples go into
    `found`; `aside` are the seconds that were charged to single points there.
    """

    parts: SubProblems
    descent: int
    found: Outcome
    left: Callable[[int], float]
    aside: float = 0.0

    def __post_init__(self) -> None:
        query = self.parts.query
        self.net, self.x, self.ball, self.prop = query.net, query.wide, query.ball, query.prop
        self.owner = self.parts.owner
        self.rounds = [0] * len(self.owner)

    def look(self, points: Tensor, bounds: Tensor, which: Tensor) -> None:
        """Search from the minimisers of subproblems of the problems `which`, whose bounds are given."""
        self.run(points, self.owner[which])
        if self.descent == 0:
            return
        best = self._best_of(points.to(self.net.dtype), which)
        chosen, z = which[best], self._descend(points[best], which[best], 0.5)
        self.run(z, self.owner[chosen])
        near = self._margins(z.to(self.net.dtype), chosen).double() < -_NEAR * bounds[best]
        for place, key in enumerate(chosen.tolist()):
            self.rounds[key] += 1
            # A linear program takes longer than a round of subproblems: it has its turn after 1, 2, 4, 8 rounds.
            seldom = self.rounds[key] & (self.rounds[key] - 1) == 0
            linear, point = self.ball.p in (1.0, math.inf), int(self.owner[key])
            if seldom and linear and bool(near[place]) and not self.found.falsified[point]:
                started = time.monotonic()
                self._corner(z[place : place + 1], chosen[place : place + 1])
                self.charge(point, started)

    def charge(self, point: int, started: float) -> None:
        """Charge the time since `started` to one point alone, not to all points of the round."""
        spent = time.monotonic() - started
        self.found.seconds[point] += spent
        self.aside += spent

    def run(self, points: Tensor, owner: Tensor) -> None:
        """Run points through the network in its dtype, and keep those that violate the property as witnesses."""
        own = points.to(self.net.dtype)
        changed = falsified(self.net, self.parts.net, own, self.prop.restrict(owner))
        inside = self.ball.restrict(owner).contains(self.x[owner], own)
        for place in (changed & inside & ~self.found.proved[owner]).nonzero()[:, 0].tolist():
            point = int(owner[place])
            if not self.found.falsified[point]:
                self.found.falsified[point] = True
                self.found.witness[point] = own[place].double()

    def _corner(self, z: Tensor, which: Tensor) -> None:
        """Minimise over the linear region of one point, descend from around the minimiser, and repeat."""
        owner = self.owner[which]
        ball, x = self.ball.restrict(owner), self.x[owner]
        generator = torch.Generator().manual_seed(self.rounds[int(which)])
        unstable = sum(int(one.unstable[owner].sum()) for one in self.parts.bounds.inputs.values())
        started, left = time.monotonic(), self.left(int(owner))
        for _ in range(max(1, min(_CORNERS, _EFFORT // max(1, unstable)))):
            seconds = left - (time.monotonic() - started)
            if seconds <= 0:
                return
            splits: Splits = {}
            if len(self.parts.net.relus) < len(self.parts.net.switches):
                return
            for node, pattern in zip(self.parts.net.relus, self.parts.net.pattern(z), strict=True):
                side = torch.where(pattern, 1, -1).to(torch.int8)
                splits[node.index] = side * self.parts.bounds.inputs[node.index].unstable[owner]
            solved = leaf_program(self.parts.net, self.parts.part(which, splits), seconds)
            if solved is None:
                return
            around = (torch.rand(_AROUND, *x.shape[1:], generator=generator) - 0.5).to(x)
            eps = ball.radii(x).reshape(-1, *[1] * (x.ndim - 1)).clamp(max=1.0)
            many = which.expand(_AROUND)
            starts = self.ball.restrict(self.owner[many]).project(x.expand_as(around), solved[1] + 0.02 * eps * around)
            points = torch.cat([solved[1], self._descend(starts, many, 0.05)])
            many = which.expand(len(points))
            self.run(points, self.owner[many])
            z = points[self._best_of(points.to(self.net.dtype), many)]
            if self.found.falsified[int(owner)]:
                return

    def _best_of(self, points: Tensor, which: Tensor) -> Tensor:
        """The position of the smallest margin of every problem."""
        order = self._margins(points, which).argsort()
        keys, number = torch.unique(which[order], return_inverse=True)
        first = torch.full((len(keys),), len(order))
        return order[first.scatter_reduce(0, number, torch.arange(len(order)), "amin")]

    def _descend(self, points: Tensor, which: Tensor, share: float) -> Tensor:
        """Points after steps of projected gradient descent on their margins, from `share` of eps down to 0."""
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
            way = way.nan_to_num(0.0, 0.0, 0.0)  # a gradient whose length overflows leads nowhere
            z = ball.project(x, z.detach() - share * (1 - step / self.descent) * eps * way)
        return z.detach().double()

    def _margins(self, z: Tensor, which: Tensor) -> Tensor:
        """The margin of each problem at one point, by the network in its dtype."""
        place = self.owner[which], self.parts.row[which]
        return (self.net(z) * self.prop.rows[place].to(z.dtype)).sum(1) + self.prop.offsets[place].to(z.dtype)
