"""SCIP: the adapter for mixed-integer programs, with a quadratic row where there is one; pyscipopt is an extra."""

from __future__ import annotations

import importlib
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from relucert.core.errors import InvalidInput
from relucert.networks.traversal import look
from relucert.verification.mip._problem import TOLERANCE, Answer, Problem
from relucert.verification.mip._scaling import solve_scaled

NOTICE = (b"Cannot set feasibility tolerance", b"Cannot set optimality tolerance")


class SCIP:
    """Minimises mixed-integer programs with linear rows and a quadratic one by SCIP; needs pyscipopt."""

    squares = True
    gap = 1e-6  # SCIP compares sums with this tolerance

    def __init__(self) -> None:
        try:
            self._scip: Any = importlib.import_module("pyscipopt")
        except ImportError as error:
            raise InvalidInput(
                "solver of mip must be installed: scip needs pyscipopt (pip install 'relucert[scip]'), got 'scip' without it"
            ) from error

    def minimise(
        self, problem: Problem, *, seconds: float, cutoff: float = math.inf, target: float = -math.inf
    ) -> Answer:
        """See `Solver`."""
        return solve_scaled(
            problem, lambda scaled, factor: self._minimise(scaled, seconds, cutoff * factor, target * factor)
        )

    def _minimise(self, problem: Problem, seconds: float, cutoff: float, target: float) -> Answer:
        model, columns = self._model(problem)
        model.setParam("limits/time", max(0.0, seconds))
        if math.isfinite(cutoff):
            model.setObjlimit(cutoff)
            model.setParam("limits/dual", cutoff)
        if math.isfinite(target):
            model.setParam("limits/primal", target)
        try:
            with _without_notices():
                model.optimize()
        except Exception as error:  # pyscipopt raises plain exceptions where an inner solver fails
            return Answer("failed", -math.inf, None, warning=f"SCIP failed: {error}")
        status, bound = model.getStatus(), float(model.getDualbound())
        best = model.getBestSol() if model.getNSols() else None
        point = None if best is None else np.array([model.getSolVal(best, column) for column in columns])
        nodes = int(model.getNTotalNodes())
        if status in ("infeasible", "duallimit"):
            return Answer("cutoff", cutoff, None, nodes)
        if status == "optimal":
            return Answer("optimal", bound, point, nodes)
        if status in ("timelimit", "primallimit"):
            bound = -math.inf if bound <= -model.infinity() else min(bound, cutoff)
            return Answer("time" if status == "timelimit" else "target", bound, point, nodes)
        return Answer("failed", -math.inf, point, nodes)

    def _model(self, problem: Problem) -> tuple[Any, list[Any]]:
        """A model of SCIP with the program, column by column and row by row."""
        model = self._scip.Model()
        model.hideOutput()
        for name in ("numerics/feastol", "numerics/dualfeastol"):
            model.setParam(name, TOLERANCE)
        model.setParam("numerics/epsilon", TOLERANCE / 10)
        model.setParam("lp/threads", 1)
        kinds = np.where(problem.integer, "I", "C")
        columns = [
            model.addVar(lb=low, ub=high, vtype=kind, obj=cost)
            for low, high, kind, cost in zip(
                *(part.tolist() for part in (problem.lower, problem.upper, kinds, problem.cost)), strict=True
            )
        ]
        rows = problem.rows
        starts, indices = ([int(place) for place in part] for part in (rows.indptr, rows.indices))
        data = [float(value) for value in rows.data]
        limits = zip(problem.row_lower.tolist(), problem.row_upper.tolist(), strict=True)
        for row, (low, high) in enumerate(limits):
            look()
            part = range(starts[row], starts[row + 1])
            total = self._scip.quicksum(data[at] * columns[indices[at]] for at in part)
            if low == high:
                model.addCons(total == low)
                continue
            if math.isfinite(high):
                model.addCons(total <= high)
            if math.isfinite(low):
                model.addCons(total >= low)
        if problem.squares is not None:
            total = self._scip.quicksum(columns[at] * columns[at] for at in problem.squares.columns.tolist())
            more = 0 if problem.squares.column is None else columns[problem.squares.column]
            model.addCons(total - more <= problem.squares.limit)
        return model, columns


@contextmanager
def _without_notices() -> Iterator[None]:
    """Keep the notices of SCIP's linear solver off the terminal.

    After numerical trouble SCIP solves a linear program again with a tolerance 1000 times smaller than its own. The linear
    solver takes 1e-10 instead and says so on file descriptor 2, whatever SCIP's verbosity. All other output is passed on.
    """
    try:
        terminal = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            output.seek(0)
            os.write(terminal, b"".join(line for line in output if not line.startswith(NOTICE)))
            os.close(terminal)
