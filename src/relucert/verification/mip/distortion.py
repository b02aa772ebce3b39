"""The distance to the nearest change of decision by mixed-integer programs: the radius itself is minimised.

    min r  subject to  ||z - x||_p <= r,  f_y(z) - f_s(z) <= goal,  z in the box        for every other class s

The goal is the evaluation error of the margin (`bounding.rounding`), so that below r the network keeps its decision in its own
dtype too. r is measured in units of a radius `start` within which pre-activation bounds are known: the distance of a witness,
if there is one. The upper end comes from a point that was run through the network. The solver's bound says where a proof is
likely: the lower end is the largest radius that was proved, beginning there (`narrowing`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array, vstack
from torch import Tensor

from relucert.attacks.best import polish
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import RAISED
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import spec
from relucert.core.results import RadiusInterval, scattered
from relucert.geometry.distances import distances
from relucert.geometry.witness import PUSHES, Witnesses
from relucert.networks.prediction import slack as decision_slack
from relucert.verification._intervals import Intervals
from relucert.verification._narrowing import Narrowing
from relucert.verification._search import theorem
from relucert.verification._upper import attacked
from relucert.verification.bab.bab import BaB
from relucert.verification.mip._encoding import Encoding
from relucert.verification.mip._program import SLACK, Program
from relucert.verification.mip._solver import Problem, Solver, allowance
from relucert.verification.mip._tightening import LinearPrograms
from relucert.verification.mip.mip import MIP
from relucert.verification.verifier import Budget, Query

BATCH = 10
WIDTH = 0.01  # relative width of intervals where what the solver claims cannot be proved
SHORT = (3e-7, 3e-6, 3e-5)  # relative amounts by which a proved radius may fall short of the claimed one, tried in turn
GUESSED = 2000  # subproblems of a proof of a claimed radius


@dataclass(frozen=True)
class DistortionPrograms:
    """`mip` as a radius method."""

    method: MIP

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """The interval of every input, by programs where the region theorem is not exact; they start at attacked points."""
        method = self.method
        if method.trust != "proof":
            raise InvalidInput(
                f"trust of mip must be 'proof' for a radius, which is always proved, got {method.trust!r}"
            )
        method.open(query.p)
        return Intervals.by_batches(query, BATCH, lambda part: _piece(part, method))


@torch.no_grad()
def _piece(query: Query, method: MIP) -> RadiusInterval:
    """First the theorem and an attack, then programs within their radii, then proofs of what the solver claims."""
    started, count = time.perf_counter(), len(query)
    first = theorem(query)
    index = (~first.exact).nonzero()[:, 0]
    if len(index) == 0:
        return replace(first, method=[spec(method)] * count)
    part = query.restrict(index)
    known = attacked(part, first[index], "best")
    far = part.reach()
    guess = 4 * distances(part.double, part.wide, part.y, part.p).decision.clamp(min=1e-3, max=1e3)
    start = torch.where(known.upper.isfinite(), known.upper.double(), torch.where(far.isfinite(), far, guess))
    claimed, witnesses, seconds = minimal_distortion(part, method, start)
    nearer = witnesses.distance < known.upper
    points = torch.full_like(part.x, math.nan) if known.witness is None else known.witness
    points = torch.where(nearer.reshape(-1, *(1,) * (part.x.dim() - 1)), witnesses.point, points)
    spent = (time.perf_counter() - started - float(seconds.sum())) / count
    known = replace(
        known, upper=torch.minimum(known.upper, witnesses.distance), witness=points,
        lower=torch.minimum(known.lower, witnesses.distance), exact=torch.zeros_like(known.exact),
        seconds=torch.zeros_like(known.seconds),
    )  # fmt: skip
    # Guessed radii are proved by programs, all others by branch and bound.
    proofs = Narrowing(part, BaB(nodes=method.nodes), known, Budget(method.seconds), WIDTH)
    for share in SHORT:
        proofs.guess(claimed * (1 - share), replace(method, nodes=min(method.nodes, GUESSED)))
    solved = Intervals.joined(proofs.run())
    solved = replace(
        solved, seconds=solved.seconds + seconds.to(part.x.dtype) + spent, method=[spec(method)] * len(index)
    )
    return scattered(replace(first, method=[spec(method)] * count), index, solved)


@torch.no_grad()
def minimal_distortion(
    query: Query, method: MIP, start: Float[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Witnesses, Float[Tensor, " batch"]]:
    """The radii that a solver claims for inputs classified as y, the nearest witnesses it leads to, and seconds.

    Changes of decision are searched within `start` (finite, in float64). What is claimed is at most `start`, unless the ball of
    that radius holds the whole box: then it is inf. The claim is the solver's word and no proof.
    """
    net, double, x, y, p = query.net, query.double, query.x, query.y, query.p
    solver, wide, prop = method.open(p), query.wide, query.prop
    # Slightly larger, so that the ball holds the witness at `start` itself.
    start = start.double() * (1 + 1e-6)
    ball = Ball(p, start, query.wide_sides)
    began = time.monotonic()
    bounding = CROWN() if method.tighten == "crown" else Alpha()
    units, margins = bounding.prove(double, bounding.start(double, wide, ball, net.dtype), wide, ball, prop)
    assert units.rounding is not None
    goal = RAISED * (prop.rows.abs() @ units.rounding.at_logits().drift.sum(1).unsqueeze(2)).squeeze(2)
    encoding = Encoding(double)
    seconds = wide.new_full((len(x),), (time.monotonic() - began) / max(1, len(x)))
    sides = query.ball.bounds(x)
    witnesses = Witnesses(net, x, y, p, sides, double)
    claimed = torch.zeros_like(start)
    for point in range(len(x)):
        began = time.monotonic()
        one = slice(point, point + 1)
        bounds = units.restrict(torch.tensor([point]))
        own = Witnesses(net, x[one], y[one], p, tuple(side[one] for side in sides), double)
        search = _Search(encoding, own, ball.restrict(point), method, solver, float(start[point]))
        order = margins.computed[point].argsort()
        rows = [row for row in order.tolist() if not margins.real[point, row] > 0]
        claimed[point] = search.run(bounds, prop.rows[point].numpy(), rows, goal[point].tolist())
        witnesses.point[point], witnesses.distance[point] = own.point[0], own.distance[0]
        seconds[point] += time.monotonic() - began
    everything = (claimed >= query.reach()) & witnesses.distance.isinf()
    return torch.where(everything, math.inf, claimed), witnesses, seconds


class _Search:
    """The problems of one point: one for each class that may win within `start`."""

    def __init__(
        self, encoding: Encoding, found: Witnesses, ball: Ball, method: MIP, solver: Solver, start: float
    ):  # fmt: skip
        self.encoding, self.found, self.ball, self.method = encoding, found, ball, method
        self.solver, self.start = solver, start
        self.x = found.x.double()

    def run(self, bounds: UnitBounds, margins: np.ndarray, rows: list[int], goal: list[float]) -> float:
        """The largest radius within which no class wins, at most `start`."""
        p, encoding = float(self.ball.p), self.encoding
        program = encoding.program(self.x, self.ball, self.start)
        column = program.bound_norm(p, None)
        assert column is not None
        tighten = LinearPrograms(self.method.bound_seconds, math.inf) if self.method.tighten == "lp" else None
        program.build(encoding.graph, encoding.wires, encoding.ranges(bounds, executed=False), tighten)
        cost = np.zeros(program.columns)
        cost[column] = 1.0
        problem, least = program.problem(cost), 1.0
        for row in rows:
            margin, constant = program.margin(margins[row], 0.0)
            least = min(least, self._row(program, problem, margin, constant, goal[row]))
        return self.start * (math.sqrt(max(0.0, least)) if p == 2 else max(0.0, least))

    def _row(self, program: Program, problem: Problem, margin: np.ndarray, constant: float, goal: float) -> float:
        """A lower bound on the radius at which one class wins, in units of `start` (in l2 its square), at most 1."""
        prop = _with_row(problem, margin, goal + SLACK - constant)
        extra = allowance(prop, self.solver.gap, 1.0)
        # Beyond what is known: a bound that was cut by the allowance should still meet the witness.
        answer = self.solver.minimise(
            prop, seconds=self.method.seconds, cutoff=self._known() + 2 * extra, target=-math.inf
        )
        if answer.point is not None and not self._behind(program, answer.point):
            self._across(program, problem, answer.point, margin, constant, goal)
        return min(answer.bound - extra, 1.0) if math.isfinite(answer.bound) else 0.0

    def _across(
        self, program: Program, problem: Problem, point: np.ndarray, margin: np.ndarray, constant: float, goal: float
    ) -> None:
        """The nearest points of a minimiser's pattern behind the border, where the way straight on does not lead across."""
        lower, upper = problem.lower.copy(), problem.upper.copy()
        lower[problem.integer] = upper[problem.integer] = np.round(point[problem.integer])
        fixed = replace(problem, lower=lower, upper=upper, integer=np.zeros_like(problem.integer))
        slack = float(decision_slack(self.found.net(self.found.x)).max())
        for times in (1, 10, 100):
            prop = _with_row(fixed, margin, -times * (goal + SLACK + 2 * slack) - constant)
            answer = self.solver.minimise(
                prop, seconds=self.method.bound_seconds, cutoff=math.inf, target=-math.inf
            )  # fmt: skip
            if answer.point is not None and self._behind(program, answer.point):
                return

    def _known(self) -> float:
        """How far the nearest witness is, in units of `start` (in l2 squared)."""
        known = min(1.0, float(self.found.distance[0]) / self.start)
        return known**2 if self.ball.p == 2 else known

    def _behind(self, program: Program, point: np.ndarray) -> bool:
        """Whether the decision changes at a point of the program or hardly further away; it is kept if it is nearer."""
        inputs = program.values[0]
        step = torch.from_numpy(inputs.factor * point[inputs.column]).reshape(self.x.shape)
        if not bool(step.isfinite().all()):
            return False
        index = torch.zeros(1, dtype=torch.long)
        for push in (0.0, *PUSHES[:-2]):
            if bool(self.found.offer(index, self.x + (1 + push) * step)):
                polish(self.found)
                return True
        return False


def _with_row(problem: Problem, row: np.ndarray, upper: float) -> Problem:
    """The program with one more row, `row x <= upper`."""
    return replace(
        problem, rows=csr_array(vstack([problem.rows, csr_array(row[None])])),
        row_lower=np.append(problem.row_lower, -math.inf), row_upper=np.append(problem.row_upper, upper),
        row_errors=None,
    )  # fmt: skip
