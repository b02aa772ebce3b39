"""The adapter to SCIP: notices of its linear solver stay off the terminal, everything else is passed on."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from scipy.sparse import csr_array

from relucert.verification.mip import _scip as scip
from relucert.verification.mip._problem import Problem, Squares


def ball_problem() -> Problem:
    """The least of a linear function over a ball of l2 and a half space."""
    cost, ends = np.arange(1.0, 6.0), np.ones(5)
    rows = csr_array(np.array([[1.0, 1.0, -1.0, 0.0, 0.0]]))
    none = np.zeros(5, dtype=bool)
    limits = np.array([-0.2]), np.array([math.inf])
    return Problem(cost, -ends, ends, none, rows, *limits, Squares(np.arange(5), 0.5))


def test_notices_of_the_linear_solver_are_not_printed(monkeypatch, capfd):
    pytest.importorskip("pyscipopt")
    monkeypatch.setattr(scip, "TOLERANCE", 1e-11)  # below what the linear solver takes: a notice for every program
    found = scip.SCIP().minimise(ball_problem(), seconds=20.0)
    assert found.status == "optimal"
    assert capfd.readouterr() == ("", "")


def test_other_output_is_passed_on(capfd):
    with scip._without_notices():
        os.write(2, b"first\nCannot set feasibility tolerance to small value 1e-12 without GMP - using 1e-10.\nlast\n")
    assert capfd.readouterr().err == "first\nlast\n"
    with pytest.raises(ValueError, match="wrong"), scip._without_notices():
        raise ValueError("wrong")
    os.write(2, b"again\n")
    assert capfd.readouterr().err == "again\n"
