"""Lower bounds proved by multipliers: sound for any multipliers, tight for a single row, and empty only where that is true."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from relucert.polytopes.certificates import certified_distance, certified_distances
from relucert.polytopes.farkas import certified_empty

POWERS = [1.0, 1.01, 1.5, 2.0, 3.0, 40.0, math.inf]


def shortest(weights, slacks, gain, p):
    """The least ||a||_p with <weights, a> = gain and 0 <= a <= slacks, by bisection on the scale of the step; inf if none."""
    if weights @ slacks < gain:
        return math.inf
    if p == 1.0:
        left, total = gain, 0.0
        for i in np.argsort(-weights):
            step = min(slacks[i], left / weights[i])
            left, total = left - step * weights[i], total + step
        return total
    low, high = -800.0, 800.0  # logarithms of the scale
    power = 0.0 if math.isinf(p) else 1.0 / (p - 1.0)

    def step(log_scale):
        return np.minimum(np.exp(np.minimum(log_scale + power * np.log(weights), 700.0)), slacks)

    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if weights @ step(middle) < gain else (low, middle)
    return np.linalg.norm(step(high), p)


@pytest.mark.parametrize("p", POWERS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 12))
def test_one_row_in_a_box_is_exact(p, seed, size):
    """For a single row the bound is the distance in the box, to 1e-10, and inf where the box does not reach the row."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=size)
    x[rng.uniform(size=size) < 0.2] = 0.0
    row = rng.normal(size=size)
    row /= np.linalg.norm(row)
    slacks = x, np.where(rng.uniform(size=size) < 0.2, 50.0, 1.0 - x)
    room = np.where(row > 0.0, *slacks)
    gain = float(rng.uniform(0.0, 1.1) * (np.abs(row) @ room)) + 1e-9
    truth = shortest(np.abs(row), room, gain, p)
    if abs(np.abs(row) @ room - gain) < 1e-9:
        return
    bound = certified_distance(row[None], np.array([row @ x - gain]), np.ones(1), x, slacks, p)
    assert bound <= truth * (1.0 + 1e-13)
    assert bound >= truth * (1.0 - 1e-10) - 1e-12


@pytest.mark.parametrize("p", POWERS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), boxed=st.booleans())
def test_any_multipliers_are_sound(p, seed, boxed):
    """Whatever the multipliers, a point that satisfies all rows is not nearer than the bound."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 8)), int(rng.integers(1, 6))
    rows = rng.normal(size=(n, d))
    z, x = rng.uniform(size=(2, d))
    limits = rows @ z + rng.uniform(1e-14, 0.1, size=n)
    slacks = (x, 1.0 - x) if boxed else (np.full(d, np.inf), np.full(d, np.inf))
    multipliers = rng.exponential(size=n) * (rng.uniform(size=n) < 0.6) * 10.0 ** rng.uniform(-9, 9, size=n)
    assert certified_distance(rows, limits, multipliers, x, slacks, p) <= np.linalg.norm(z - x, p)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(*[st.floats(-1, 1)] * 2), min_size=2, max_size=5),
    multipliers=st.lists(st.floats(0, 1), min_size=5, max_size=5),
    z=st.tuples(*[st.floats(-3, 3)] * 2),
)
def test_rounding_is_paid_for(rows, multipliers, z):
    """Rows through z, with limits rounded up to the next float: in l_inf and l1 the bound is below the exact distance of z."""
    exact = [sum(Fraction(a) * Fraction(b) for a, b in zip(row, z, strict=True)) for row in rows]
    limits = np.array([math.nextafter(float(value), math.inf) for value in exact])
    whole = np.full(2, np.inf)
    for x in (np.zeros(2), np.array([0.1, -0.7])):
        steps = [abs(Fraction(a) - Fraction(float(b))) for a, b in zip(z, x, strict=True)]
        for p, distance in ((1.0, sum(steps)), (math.inf, max(steps))):
            bound = certified_distance(np.array(rows), limits, np.array(multipliers[: len(rows)]), x, (whole, whole), p)
            assert Fraction(bound) <= distance


def test_nonsense_proves_nothing():
    """Multipliers of zero, or a combined row that x satisfies, give the bound 0; overflow is never taken for emptiness."""
    whole = np.full(2, np.inf)
    rows, limits = np.array([[0.6, 0.8]]), np.array([1.0])
    for multiplier in (0.0, 1.0):
        assert certified_distance(rows, limits, np.array([multiplier]), np.zeros(2), (whole, whole), 2.0) == 0.0
    steep = np.array([[1e-200, 0.0]])
    bound = certified_distance(steep, np.array([-1e200]), np.ones(1), np.zeros(2), (whole, whole), 2.0)
    assert 1e300 < bound < math.inf


def test_empty_without_a_box():
    """A simplex turned inside out is empty, by multipliers near the given ones; the same rows around a point are not."""
    rng = np.random.default_rng(0)
    for d in (1, 2, 5, 10, 40):
        rows = rng.normal(size=(d, d))
        rows = np.concatenate((rows, [-rng.uniform(0.5, 1.5, size=d) @ rows]))
        rows /= np.linalg.norm(rows, axis=1)[:, None]
        multipliers = np.linalg.svd(rows.T)[2][-1]
        multipliers *= np.sign(multipliers[0])
        x, whole = rng.normal(size=d), np.full(d, np.inf)
        middle = rows @ rng.normal(size=d)
        assert certified_empty(rows, middle - 1e-3, multipliers, 0, x, (whole, whole))
        assert not certified_empty(rows, middle + 1e-12, multipliers, 0, x, (whole, whole))


def test_empty_by_rational_multipliers():
    """Two parallel rows in three dimensions do not span them: only exact arithmetic tells parallel from nearly so."""
    whole = np.full(3, np.inf)
    x = np.array([0.1, 0.2, 0.3])
    rows, limits = np.array([[0.25, 0.5, 0.75], [-0.5, -1.0, -1.5]]), np.array([0.0, -1e-9])
    near = np.array([1.0, 0.5000000001])
    assert certified_empty(rows, limits, near, 0, x, (whole, whole))
    assert not certified_empty(rows, -limits, near, 0, x, (whole, whole))
    rows[1, 2] = math.nextafter(-1.5, 0.0)
    assert not certified_empty(rows, limits, near, 0, x, (whole, whole))
    # A bound on the one coordinate that is left decides again.
    assert certified_empty(rows, limits, near, 0, x, (np.array([np.inf, np.inf, 1.0]), np.array([np.inf, np.inf, 1.0])))


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    slack=st.sampled_from([0.0, 1e-12, 1e-6, 1e-2]),
    noise=st.sampled_from([0.0, 1e-12, 1e-3, 1.0]),
)
def test_what_has_a_point_is_never_proved_empty(seed, slack, noise):
    """Rows of small integers through an integer point, and multipliers near those that cancel the rows, from any x."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    rows = rng.integers(-3, 4, size=(n, d)).astype(float)
    z, x = rng.integers(-3, 4, size=d), rng.normal(size=d) * 10.0
    multipliers = nnls(np.concatenate((rows.T, np.ones((1, n)))), np.append(np.zeros(d), 1.0))[0]
    multipliers *= 1.0 + noise * rng.normal(size=n)
    multipliers += noise * rng.exponential(size=n) * (rng.uniform(size=n) < 0.5)
    open_side = rng.uniform(size=d) < 0.8
    slacks = np.where(open_side, np.inf, 40.0), np.where(open_side, np.inf, 40.0)
    assert not certified_empty(rows, rows @ z + slack, multipliers.clip(min=0.0), 0, x.clip(-30.0, 30.0), slacks)


def test_exact_multipliers_are_checked():
    """Multipliers that look like a proof from x, whose exact neighbours have a wrong sign or prove nothing."""
    whole, x = np.full(2, np.inf), np.array([3.0, 3.0])
    same_side = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert not certified_empty(same_side, np.array([1.0, 0.0]), np.ones(2), 0, x, (whole, whole))
    slab = np.array([[1.0, 2.0], [-2.0, -4.0]])
    assert not certified_empty(slab, np.zeros(2), np.array([1.0, 0.4]), 0, x, (whole, whole))
    assert certified_empty(slab, np.array([0.0, -1e-9]), np.array([1.0, 0.4]), 0, x, (whole, whole))
    # As an equality the first row may have a multiplier of either sign.
    assert certified_empty(same_side, np.array([1.0, 0.0]), np.array([-2.0, 1.000001]), 1, -x, (whole, whole))


def test_a_corrected_entry_may_turn_its_sign_and_use_the_other_side_of_the_box():
    """With multipliers 1 the second column adds up to 2^-39, with those that cancel the first to -2^-39; x is at the side."""
    rows = np.array([[1.0, 1.0], [-(1 - 2**-38), -(1 - 2**-39)]])
    limits, x = np.array([0.0, -1e-7]), np.zeros(2)
    z = np.array([-1e6, 1e6])
    exact = [sum(Fraction(a) * Fraction(b) for a, b in zip(row, z, strict=True)) for row in rows.tolist()]
    assert all(value <= Fraction(limit) for value, limit in zip(exact, limits.tolist(), strict=True))
    assert not certified_empty(rows, limits, np.ones(2), 0, x, (np.array([np.inf, 0.0]), np.array([np.inf, 1e6])))


def test_rows_without_a_limit_say_nothing_whatever_their_multipliers():
    whole = np.full((1, 2), np.inf)
    x, limits, multipliers = np.array([[5.0, 0.0]]), np.array([[np.inf, -1.0]]), np.ones((1, 2))
    bound = certified_distances(np.eye(2)[None], limits, multipliers, np.zeros((1, 2)), x, (whole, whole), 2.0)
    assert 1 - 1e-12 < bound[0] <= 1.0  # the point (5, -1) is at distance 1
