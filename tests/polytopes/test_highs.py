"""The adapter to HiGHS: statuses, multipliers and rays of known programs, changes, clocks and silence."""

from __future__ import annotations

import math

import highspy
import numpy as np
import pytest

from relucert.polytopes.highs import TINY, Highs, LinearProgram, Options, SparseRows


def triangle(integer: bool = False, **changes) -> LinearProgram:
    """min -x - 2 y with x + y <= 1.5, both from 0 to 1: the optimum -2.5 is at (0.5, 1), of whole numbers -2 at (0, 1)."""
    parts = {
        "cost": np.array([-1.0, -2.0]), "lower": np.zeros(2), "upper": np.ones(2),
        "rows": SparseRows.of(np.ones((1, 2))), "row_lower": np.array([-math.inf]), "row_upper": np.array([1.5]),
        "integer": np.full(2, integer),
    }  # fmt: skip
    return LinearProgram(**{**parts, **changes})


@pytest.mark.parametrize("options", [TINY, Options(), Options(presolve=False), Options(tolerance=1e-7)])
def test_the_optimum_of_a_linear_program_and_its_multipliers(options):
    highs = Highs(triangle(), options)
    assert highs.accepted
    best = highs.optimum()
    assert best is not None
    assert best.x == pytest.approx([0.5, 1.0])
    assert best.multipliers == pytest.approx([1.0])
    assert highs.multipliers() == pytest.approx([-1.0])
    assert highs.bound == pytest.approx(-2.5)
    assert highs.point() == pytest.approx([0.5, 1.0])
    assert (highs.nodes, highs.ray()) == (0, None)


def test_a_program_without_points_has_a_ray_that_proves_it():
    highs = Highs(triangle(row_lower=np.array([3.0]), row_upper=np.array([4.0])), TINY)
    assert highs.optimum() is None
    assert highs.solve() == "infeasible"
    assert highs.point() is None
    ray = highs.ray()
    assert ray is not None
    assert ray[0] != 0  # the sum of both columns is at most 2


def test_whole_numbers_cutoffs_and_targets():
    assert Highs(triangle(True), Options()).solve() == "optimal"
    highs = Highs(triangle(True), Options(presolve=False))
    assert highs.solve() == "optimal"
    assert highs.bound == pytest.approx(-2.0)
    assert highs.point() == pytest.approx([0.0, 1.0])
    assert Highs(triangle(True), Options()).solve(cutoff=-3.0) in ("infeasible", "bound")
    assert Highs(triangle(True), Options()).solve(target=-0.5) in ("target", "optimal")


def test_a_program_is_changed_and_solved_again():
    highs = Highs(triangle(), TINY)
    assert highs.solve() == "optimal"
    highs.change_bounds(np.array([1]), np.zeros(1), np.full(1, 0.25))
    assert highs.solve() == "optimal"
    assert highs.values() == pytest.approx([1.0, 0.25])
    highs.change_cost(0, 1.0)
    assert highs.solve() == "optimal"
    assert highs.values() == pytest.approx([0.0, 0.25])
    highs.add_rows(SparseRows.of(np.array([[0.0, 1.0]])), np.array([-math.inf]), np.array([0.125]))
    assert highs.solve() == "optimal"
    assert highs.values() == pytest.approx([0.0, 0.125])


def test_without_time_there_is_no_optimum():
    generator = np.random.default_rng(0)
    rows, size = 60, 60
    program = LinearProgram(
        generator.normal(size=size), np.zeros(size), np.ones(size), SparseRows.of(generator.normal(size=(rows, size))),
        np.full(rows, -math.inf), generator.uniform(1.0, 2.0, rows), np.ones(size, dtype=bool),
    )  # fmt: skip
    assert Highs(program, Options()).solve(seconds=0.0) == "time"


def test_coefficients_that_would_be_dropped_are_not_accepted():
    tiny = SparseRows.of(np.array([[1.0, 1e-11]]))
    assert Highs(triangle(rows=tiny), Options()).accepted
    assert not Highs(triangle(rows=tiny), TINY).accepted


def test_other_users_of_highs_may_have_asked_for_more_threads(capfd):
    highspy.Highs.resetGlobalScheduler(True)
    other = highspy.Highs()
    other.setOptionValue("output_flag", False)
    other.setOptionValue("threads", 2)
    other.addVar(0.0, 1.0)
    other.run()
    assert Highs(triangle(), TINY).optimum() is not None
    assert capfd.readouterr() == ("", "")
