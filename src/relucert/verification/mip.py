"""`mip`: the network as a mixed-integer program (Tjeng, Xiao and Tedrake 2019), complete.

One problem is one point and one row of its property: the margin is minimised over the ball. It is proved when the solver's
bound exceeds what rounding asks for (`bounding.rounding`) by the solver's own allowance (`solver`); a minimiser is a witness
when the network, run on it in its own dtype inside ball and box, changes its decision. Everything else is UNKNOWN.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from relucert.bounding.alpha import Alpha
from relucert.bounding.crown import CROWN
from relucert.bounding.intervals import Interval
from relucert.bounding.rounding import bound_error, evaluation_error
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method
from relucert.core.properties import Property
from relucert.networks.network import Network
from relucert.verification.encoding import Encoding
from relucert.verification.outcome import News, Outcome
from relucert.verification.program import Program
from relucert.verification.solver import SOLVERS, Solver, allowance
from relucert.verification.tightening import LinearPrograms


@dataclass(frozen=True, kw_only=True)
class MIP(Method):
    """At most `seconds` for each problem (a point and another class); `solver` is `highs`, or `scip`, which takes l2 too.

    `tighten`: where bounds of units come from: `crown`; `alpha`, which leaves fewer problems; `lp`, linear programs besides,
    `bound_seconds` each at most, for the units that may still switch.
    """

    name = "mip"
    solver: Literal["highs", "scip"] = "highs"
    seconds: float = 120.0
    bound_seconds: float = 5.0
    tighten: Literal["crown", "alpha", "lp"] = "alpha"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("seconds", "bound_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} of mip must be positive; found {getattr(self, name)}")

    def open(self, p: float) -> Solver:
        """The solver, if it is installed and takes the norm."""
        if p not in (1.0, 2.0, math.inf):
            raise InvalidInput(f"p must be 1, 2 or inf for method mip; found {p:g}")
        solver = SOLVERS[self.solver]()
        if p == 2 and not solver.squares:
            raise InvalidInput(
                f"p must be 1 or inf for method mip with solver {self.solver!r}, 'scip' takes 2; found {p:g}"
            )
        return solver


@torch.no_grad()
def mixed_integer(
    net: Network, double: Network, x: Tensor, ball: Ball, asked: Property, method: MIP, deadline: float = math.inf,
    limit: float | Tensor = math.inf, news: News | None = None,
) -> Outcome:  # fmt: skip
    """Decide points (float64), whose property holds at the point itself, until `deadline` (of `time.monotonic`).

    `limit`: seconds that a point may cost, one number or one for each. `news` hears of every point that is decided.
    """
    started, limits = time.monotonic(), torch.as_tensor(limit).expand(len(x))
    solver = method.open(float(ball.p))
    bounding = CROWN() if method.tighten == "crown" else Alpha()
    units, margins = bounding.solve(double, x, ball, asked)
    error = bound_error(double, x, ball, units.inputs, asked)
    needed = evaluation_error(double, x, ball, units.inputs, asked, net.dtype)
    goal = error + needed
    open_ = ~(margins > goal)
    found = Outcome.nothing(x)
    found.proved, found.margin = ~open_.any(1), (margins - error).amin(1)
    undecided = open_.any(1).nonzero()[:, 0].tolist()
    encoding = Encoding(double) if undecided else None
    found.seconds += (time.monotonic() - started) / max(1, len(x))
    if news is not None:
        news(found, found.proved.nonzero()[:, 0].tolist())
    for point in undecided:
        started = time.monotonic()
        one = slice(point, point + 1)
        until = min(deadline, started + float(limits[point] - found.seconds[point]))
        assert encoding is not None
        here = {index: Interval(within.lower[one], within.upper[one]) for index, within in units.inputs.items()}
        decided = _Point(net, encoding, x[one], ball.restrict(point), asked.restrict(one), method, solver, until)
        order = margins[point].masked_fill(~open_[point], math.inf).argsort()[: int(open_[point].sum())]
        decided.run(here, order.tolist(), goal[point])
        found.nodes[point], found.seconds[point] = decided.nodes, found.seconds[point] + time.monotonic() - started
        if decided.witness is not None:
            found.broken[point], found.witness[point] = True, decided.witness
        elif decided.proved:
            # Every row's margin exceeds what rounding asks for, so that much is proved.
            found.proved[point], found.margin[point] = True, needed[point].amin()
        else:
            found.timed[point] = time.monotonic() >= until
            continue
        if news is not None:
            news(found, [point])
    return found


class _Point:
    """The problems of one point."""

    def __init__(
        self, net: Network, encoding: Encoding, x: Tensor, ball: Ball, asked: Property, method: MIP,
        solver: Solver, until: float,
    ):  # fmt: skip
        self.net, self.encoding, self.x, self.ball, self.asked = net, encoding, x, ball, asked
        self.method, self.solver, self.until = method, solver, until
        self.witness: Tensor | None = None
        self.proved, self.nodes = False, 0

    def run(self, inputs: dict[int, Interval], rows: list[int], goal: Tensor) -> None:
        """Decide rows, the most endangered one first, until there is a witness or no time."""
        radius = float(self.ball.radii(self.x)[0])
        p = float(self.ball.p)
        bounded = math.isfinite(radius) and radius > 0
        # In l2 the radius is the unit, so that the quadratic row is one of numbers around 1.
        scale = radius if p == 2 and bounded else 1.0
        program = self.encoding.program(self.x, self.ball, scale)
        if bounded:
            program.bound_norm(p, radius / scale)
        tighten = LinearPrograms(self.method.bound_seconds, self.until) if self.method.tighten == "lp" else None
        ranges = self.encoding.ranges(self.x, self.ball, inputs)
        program.build(self.encoding.graph, self.encoding.wires, ranges, tighten)
        proved = 0
        for row in rows:
            if self.witness is not None or time.monotonic() >= self.until:
                return
            proved += self._row(program, row, float(goal[row]))
        self.proved = proved == len(rows)

    def _row(self, program: Program, row: int, goal: float) -> bool:
        """Whether the margin of a row exceeds the goal all over the ball."""
        cost, constant = program.margin(self.asked.rows[0, row].numpy(), float(self.asked.offsets[0, row]))
        problem = program.problem(cost)
        extra = allowance(problem, self.solver.gap, goal - constant)
        cutoff = goal + extra - constant
        logits = self.net(self.x.to(self.net.dtype)).double()
        # Cheap enough to be a witness in spite of tolerances and rounding; if it is none, once more to the end.
        enough = -2 * (goal + extra) - 64 * torch.finfo(self.net.dtype).eps * float(logits.abs().max()) - constant
        for target in (enough, -math.inf):
            left = min(self.method.seconds, self.until - time.monotonic())
            if left <= 0:
                return False
            # A little beyond the cutoff, so that what is pruned at it has cleared it.
            answer = self.solver.minimise(problem, seconds=left, cutoff=cutoff + extra, target=target)
            self.nodes += answer.nodes
            if answer.point is not None:
                self._try(program, answer.point)
            if answer.status != "target" or self.witness is not None:
                # Without whole numbers the program is the network's own at x, so that nothing can exclude everything.
                believed = answer.status != "cutoff" or bool(problem.integer.any())
                return self.witness is None and believed and answer.bound > cutoff
        return False

    def _try(self, program: Program, point: np.ndarray) -> None:
        """Run a minimiser through the network as it is used, inside ball and box; keep it if it changes the decision."""
        inputs = program.values[0]
        step = torch.from_numpy(inputs.factor * point[inputs.column]).reshape(self.x.shape)
        if not bool(step.isfinite().all()):
            return
        centre = self.x.to(self.net.dtype)
        own = self.ball.project(centre, (self.x + step).to(self.net.dtype))
        logits = self.net(own).double()
        # As in `changed`: what another batch may round away is no witness.
        slack = 32 * torch.finfo(self.net.dtype).eps * logits.abs().amax(1)
        changed = self.asked.margin(logits) < -slack
        if bool(changed & self.ball.contains(self.x, own)):
            self.witness = own[0].double()
