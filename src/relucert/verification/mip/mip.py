"""`mip`: the network as a mixed-integer program (Tjeng, Xiao and Tedrake 2019).

One problem is one point and one row of its property: a solver minimises the margin over the ball. A minimiser is a
counterexample when the network, run on it in its own dtype inside ball and box, changes its decision. Where the solver claims
that every margin stays positive, the claim is proved anew: by a tree of linear programs over the same whole numbers, closed by
multipliers that are evaluated with their rounding (`lp_tree`), or by branch and bound (`bab`). A claim alone is no proof:
tolerances of a solver can be exceeded without end by a badly scaled program. What cannot be proved anew is UNKNOWN, with the
reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import RAISED, absolute
from relucert.core.errors import InvalidInput, OutOfTime
from relucert.core.methods import Method, spec
from relucert.core.results import Verdict
from relucert.core.rounding import gamma
from relucert.core.verdict import Reason
from relucert.networks.prediction import falsified, slack
from relucert.networks.traversal import ending
from relucert.verification._device import decide_on_cpu
from relucert.verification.bab.bab import BaB
from relucert.verification.mip._encoding import Encoding
from relucert.verification.mip._lp_tree import prove_cutoff
from relucert.verification.mip._program import Program
from relucert.verification.mip._solver import SOLVERS, Solver, allowance
from relucert.verification.mip._tightening import LinearPrograms
from relucert.verification.verifier import Budget, Decision, Outcome, Query

POSITIVE = math.ulp(0.0)  # the margin of a row that is proved to be positive, and no more
COVERED = 1e-3  # of the largest pre-activation: rounding of the executed network up to this is covered by the program


@dataclass(frozen=True, kw_only=True)
class MIP(Method):
    """At most `seconds` for each problem (a point and another class); `solver` is `highs`, or `scip`, which takes l2 too.

    `tighten`: where pre-activation bounds come from: `crown`; `alpha`, which leaves fewer problems; `lp`, linear programs
    besides, `bound_seconds` each at most, for the unstable units. `trust`: with `proof` what the solver claims is proved anew,
    with at most `nodes` subproblems a point; with `solver` the claim is noted (`Certificate.claim`), as the paper's comparison
    needs it, and the verdict is UNKNOWN.
    """

    name = "mip"
    solver: Literal["highs", "scip"] = "highs"
    seconds: float = 120.0
    bound_seconds: float = 5.0
    tighten: Literal["crown", "alpha", "lp"] = "alpha"
    trust: Literal["proof", "solver"] = "proof"
    nodes: int = 20_000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("seconds", "bound_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} of mip must be positive, got {getattr(self, name)}")
        if self.nodes < 1:
            raise InvalidInput(f"nodes of mip must be at least 1, got {self.nodes}")

    def open(self, p: float) -> Solver:
        """The solver, if it is installed and takes the norm."""
        if p not in (1.0, 2.0, math.inf):
            raise InvalidInput(f"p must be 1, 2 or inf for method mip, got {p:g}")
        solver = SOLVERS[self.solver]()
        if p == 2 and not solver.squares:
            raise InvalidInput(
                f"p must be 1 or inf for method mip with solver {self.solver!r}, 'scip' takes 2, got {p:g}"
            )
        return solver

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """Either verdict for every point, given time, one point after the other.

        With `trust="solver"` what the solver claims to be robust is UNKNOWN, with the claim.
        """
        if query.x.device.type != "cpu":
            return decide_on_cpu(query, lambda near: self.decide(near, budget))
        return _decide(self, query, budget)


@torch.no_grad()
def _decide(method: MIP, query: Query, budget: Budget) -> Iterator[Decision]:
    """The points that bounds prove at once, then the programs of one point after the other."""
    double, x, ball, prop = query.double, query.wide, query.ball, query.prop
    name, dtype = spec(method), query.x.dtype
    started, limits = time.monotonic(), budget.each(len(x))
    solver = method.open(query.p)
    # Half of the time at most for bounds; the rest is for programs.
    bounding = (
        CROWN() if method.tighten == "crown" else Alpha(seconds=max(0.0, 0.5 * min(float(limits.sum()), budget.left)))
    )
    units, margins = bounding.prove(double, bounding.start(double, x, ball, query.net.dtype), x, ball, prop)
    known = torch.stack([margins.real, margins.executed, margins.computed], -1)
    open_ = ~query.proves(known)
    found = Outcome.nothing(x)
    found.prove(~open_.any(1), known[..., :2], margins.computed)
    undecided = open_.any(1).nonzero()[:, 0].tolist()
    encoding = Encoding(double) if undecided else None
    found.seconds += (time.monotonic() - started) / max(1, len(x))
    yield from found.decisions(found.proved.nonzero()[:, 0].tolist(), name, dtype)
    for point in undecided:
        started = time.monotonic()
        one = slice(point, point + 1)
        until = min(budget.deadline, started + float(limits[point] - found.seconds[point]))
        assert encoding is not None
        part = query.restrict(torch.tensor([point]))
        own = units.restrict(torch.tensor([point]))
        search = _Point(part, encoding, method, solver, until)
        order = margins.computed[point].masked_fill(~open_[point], math.inf).argsort()[: int(open_[point].sum())]
        goal = search.run_in_time(own, order.tolist())
        found.nodes[point] = search.nodes
        if goal is None:
            found.timed[point], found.reasons[point] = True, Reason.TIME
        elif search.witness is not None:
            found.falsified[point], found.witness[point] = True, search.witness
        elif search.claimed and method.trust == "solver":
            found.claims[point] = method.solver
            found.reasons[point] = f"robust on the word of {method.solver} alone"
        elif search.claimed:
            for row in order.tolist():
                if search.prove(row, float(goal[row])):
                    # The margin is positive; no more is known of it.
                    covered = [POSITIVE, POSITIVE if search.executed else -math.inf, math.nan]
                    known[point, row] = torch.fmax(known[point, row], known.new_tensor(covered))
            _prove(found, point, method, replace(part, row_margins=known[one]), until)
        else:
            found.timed[point] = time.monotonic() >= until
            found.reasons[point] = search.warning or f"{method.solver} did not solve the program"
        found.seconds[point] += time.monotonic() - started
        yield from found.decisions([point], name, dtype)


def _prove(found: Outcome, point: int, method: MIP, query: Query, until: float) -> None:
    """Prove what the solver claims of one point, rows without a proved margin by branch and bound; or note the reason."""
    assert query.row_margins is not None
    if bool(query.proves(query.row_margins).all()):
        found.proved[point] = True
        found.margin[point], found.executed[point], found.computed[point] = query.row_margins[0].amin(0)
        return
    try:
        with ending(until):
            (tried,) = BaB(nodes=method.nodes).decide(query, Budget(deadline=until))
    except OutOfTime:
        found.timed[point], found.reasons[point] = True, Reason.TIME
        return
    found.nodes[point] += tried.nodes
    found.proved[point], found.timed[point] = tried.verdict is Verdict.ROBUST, tried.timed
    found.margin[point] = max(float(found.margin[point]), tried.margin)
    found.executed[point] = max(float(found.executed[point]), tried.executed)
    found.computed[point] = max(float(found.computed[point]), tried.computed)
    if tried.witness is not None:
        found.falsified[point], found.witness[point] = True, tried.witness.double()
    elif tried.verdict is Verdict.UNKNOWN:
        found.reasons[point] = (
            f"{method.solver} claims that the point is robust, but neither linear programs nor {tried.nodes} subproblems of "
            "bab prove it"
        )


class _Point:
    """The problems of one point: `witness` if one was found, else whether the solver claims that all margins are positive."""

    def __init__(self, query: Query, encoding: Encoding, method: MIP, solver: Solver, until: float):
        self.net, self.x, self.ball, self.prop = query.net, query.wide, query.ball, query.prop
        self.encoding, self.method, self.solver, self.until = encoding, method, solver, until
        self.strict, self.executed = query.strict, True
        self.witness: Tensor | None = None
        self.claimed, self.nodes, self.warning = False, 0, ""
        self.program: Program | None = None

    def run_in_time(self, bounds: UnitBounds, rows: list[int]) -> Float[Tensor, " specs"] | None:
        """As `run`; None if time was up before the program was built."""
        try:
            with ending(self.until):
                return self.run(bounds, rows)
        except OutOfTime:
            return None

    def run(self, bounds: UnitBounds, rows: list[int]) -> Float[Tensor, " specs"]:
        """Solve the programs of rows, the most endangered one first, until there is a witness or no time.

        Returns the values that the margins of the program must exceed: what rounding does to the logits. Proofs cover the
        executed network (`executed`), unless its rounding is so large that only real arithmetic can be proved.
        """
        rounding = bounds.rounding
        assert rounding is not None
        largest = max([float(absolute(within).max()) for within in bounds.inputs.values()], default=0.0)
        drifts = [float(drift[:, 1].max()) for drift in rounding.before.values()]
        self.executed = self.strict or max(drifts, default=0.0) <= COVERED * largest
        drift = rounding.at_logits().drift[0]
        each = drift.sum(0) if self.executed else drift[0]
        goal = RAISED * (self.prop.rows[0].abs() @ each + rounding.lost + gamma(8) * self.prop.offsets[0].abs())
        radius = float(self.ball.radii(self.x)[0])
        p = float(self.ball.p)
        bounded = math.isfinite(radius) and radius > 0
        # In l2 the radius is the unit, so that the quadratic row is one of numbers around 1.
        scale = radius if p == 2 and bounded else 1.0
        program = self.encoding.program(self.x, self.ball, scale)
        if bounded:
            program.bound_norm(p, radius / scale)
        tighten = LinearPrograms(self.method.bound_seconds, self.until) if self.method.tighten == "lp" else None
        ranges = self.encoding.ranges(bounds, self.executed)
        program.build(self.encoding.graph, self.encoding.wires, ranges, tighten)
        self.program, claimed = program, 0
        for row in rows:
            if self.witness is not None or time.monotonic() >= self.until:
                return goal
            claimed += self._row(program, row, float(goal[row]))
        self.claimed = claimed == len(rows)
        return goal

    def _row(self, program: Program, row: int, goal: float) -> bool:
        """Whether the solver claims that the margin of a row exceeds the goal all over the ball."""
        cost, constant = program.margin(self.prop.rows[0, row].numpy(), float(self.prop.offsets[0, row]))
        problem = program.problem(cost)
        extra = allowance(problem, self.solver.gap, goal - constant)
        cutoff = goal + extra - constant
        logits = self.net(self.x.to(self.net.dtype))
        # Cheap enough to be a witness in spite of tolerances and rounding; if it is none, once more to the end.
        enough = -2 * (goal + extra + float(slack(logits))) - constant
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
                self.warning = self.warning or answer.warning
                # Without whole numbers the program is the network's own at x, so that nothing can exclude everything.
                believed = answer.status != "cutoff" or bool(problem.integer.any())
                meant = self.method.trust == "proof" or not answer.warning
                return self.witness is None and believed and meant and answer.bound > cutoff
        return False

    def prove(self, row: int, goal: float) -> bool:
        """Whether a tree of linear programs proves that the margin of a row exceeds the goal, rounding included."""
        assert self.program is not None
        cost, constant = self.program.margin(self.prop.rows[0, row].numpy(), float(self.prop.offsets[0, row]))
        seconds = min(self.method.seconds, self.until - time.monotonic()) / 2
        proof = prove_cutoff(self.program.problem(cost), goal - constant, seconds, self.method.nodes)
        self.nodes += proof.nodes
        return proof.proved

    def _try(self, program: Program, point: np.ndarray) -> None:
        """Run a minimiser through the network as it is used, inside ball and box; keep it if it changes the decision."""
        inputs = program.values[0]
        step = torch.from_numpy(inputs.factor * point[inputs.column]).reshape(self.x.shape)
        if not bool(step.isfinite().all()):
            return
        centre = self.x.to(self.net.dtype)
        own = self.ball.project(centre, (self.x + step).to(self.net.dtype))
        if bool(falsified(self.net, self.encoding.double, own, self.prop) & self.ball.contains(self.x, own)):
            self.witness = own[0].double()
