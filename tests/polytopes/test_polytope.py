"""The distance to a polytope: proved from below, attained, and empty only where it is.

The oracles: exact rational arithmetic in the plane, where the nearest point is one of finitely many; the edges of a polygon for
other exponents; linear programs and SLSQP in 2 to 8 dimensions.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, linprog, minimize, minimize_scalar

from relucert.core.errors import InvalidInput
from relucert.polytopes.polytope import Polytope, PolytopeDistance, polytope_distance

POWERS = [1.0, 1.5, 2.0, 3.0, math.inf]
KINDS = [(face, boxed) for face in (False, True) for boxed in (False, True)]


def assert_attained(answer: PolytopeDistance, x, G, h, E, e, box, p) -> None:
    """The point is feasible, its distance is `upper`, and `lower` is no larger and within 1e-7."""
    assert answer.status == "optimal"
    assert answer.point is not None
    size = 1e-9 * (1.0 + np.abs(answer.point).sum())
    assert ((G @ answer.point - h) <= size * np.linalg.norm(G, axis=1)).all()
    if E is not None:
        assert (np.abs(E @ answer.point - e) <= size * np.linalg.norm(np.atleast_2d(E), axis=1)).all()
    if box is not None:
        assert (answer.point >= box[0]).all()
        assert (answer.point <= box[1]).all()
    assert answer.upper == pytest.approx(np.linalg.norm(answer.point - x, p), rel=1e-14)
    assert answer.lower <= answer.upper <= answer.lower * (1.0 + 1e-7) + 1e-12


# ---- exact arithmetic in the plane


def exact_candidates(x, lines):
    """All crossings of the lines, and the points where the distance to x in l1, l2 or l_inf can be smallest on a line."""
    for (a, b), c in lines:
        gap = c - a * x[0] - b * x[1]
        directions = [(a, b), (1, 0), (0, 1), (1, 1), (1, -1)]
        for u, v in directions:
            along = a * u + b * v
            if along != 0:
                yield x[0] + gap * u / along, x[1] + gap * v / along
    for ((a, b), c), ((k, m), n) in itertools.combinations(lines, 2):
        cross = a * m - b * k
        if cross != 0:
            yield (c * m - b * n) / cross, (a * n - c * k) / cross


def exact_distance(x, rows, limits, equal, offset, box):
    """The l1, squared l2 and l_inf distances as fractions, or None if there is no feasible point."""
    below = [((Fraction(a), Fraction(b)), Fraction(c)) for (a, b), c in zip(rows, limits, strict=True)]
    if box is not None:
        low, high = map(Fraction, box)
        below += [((1, 0), high), ((0, 1), high), ((-1, 0), -low), ((0, -1), -low)]
    on = [] if equal is None else [((Fraction(equal[0]), Fraction(equal[1])), Fraction(offset))]
    x = tuple(map(Fraction, x))
    best = None
    for z in itertools.chain([x], exact_candidates(x, below + on)):
        inside = all(a * z[0] + b * z[1] <= c for (a, b), c in below)
        if inside and all(a * z[0] + b * z[1] == c for (a, b), c in on):
            u, v = abs(z[0] - x[0]), abs(z[1] - x[1])
            found = (u + v, u * u + v * v, max(u, v))
            best = found if best is None else tuple(map(min, best, found))
    return best


coordinate = st.integers(-4, 4)
row = st.tuples(coordinate, coordinate)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(row, min_size=1, max_size=7),
    limits=st.lists(st.integers(-6, 6), min_size=7, max_size=7),
    face=st.none() | st.tuples(row, st.integers(-6, 6)),
    box=st.none() | st.just((-3, 3)),
    x=st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
)
def test_exact_in_the_plane(rows, limits, face, box, x):
    """Small integers make parallel, repeated, zero and redundant rows all the time; the answer is exact or infeasible."""
    x = tuple(value / 3.0 for value in x)
    limits = limits[: len(rows)]
    equal, offset = (None, None) if face is None else face
    truth = exact_distance(x, rows, limits, equal, offset, box)
    for p in (1, 2, math.inf):
        answer = polytope_distance(x, rows, limits, equal, offset, box, p)
        if truth is None:
            assert answer.status == "infeasible"
            assert answer.lower == math.inf
            continue
        assert answer.status == "optimal"
        distance = {1: truth[0], 2: truth[1], math.inf: truth[2]}[p]
        lower = Fraction(answer.lower)
        assert (lower**2 if p == 2 else lower) <= distance
        assert answer.upper == pytest.approx(math.sqrt(distance) if p == 2 else float(distance), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("p", [1.0, 1.2, 1.5, 2.0, 3.0, 8.0, math.inf])
def test_nearest_edge_of_a_polygon(p):
    """A polygon around a centre: the nearest point lies on one of its edges, found there by a search in one dimension."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        angles = np.sort(rng.uniform(0.0, 2.0 * np.pi, 9)) + np.linspace(0.0, 0.2, 9)
        angles = np.concatenate((angles, np.arange(4) * np.pi / 2.0))
        G = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        h = rng.uniform(0.5, 1.5, len(G))
        x = rng.normal(size=2) * 3.0
        if (G @ x <= h).all():
            continue
        best = math.inf
        for row, limit in zip(G, h, strict=True):
            along = np.array([-row[1], row[0]])
            rates, slack = G @ along, h - G @ (row * limit)
            with np.errstate(divide="ignore", invalid="ignore"):
                ends = slack / rates
            low, high = ends[rates < -1e-12].max(), ends[rates > 1e-12].min()
            if low < high:
                best = min(
                    best,
                    *(np.linalg.norm(row * limit + t * along - x, p) for t in (low, high)),
                    minimize_scalar(
                        lambda t, from_x=row * limit - x, along=along: np.linalg.norm(from_x + t * along, p),
                        bounds=(low, high),
                        method="bounded",
                        options={"xatol": 1e-10},
                    ).fun,
                )
        answer = polytope_distance(x, G, h, p=p)
        assert_attained(answer, x, G, h, None, None, None, p)
        assert answer.lower <= best * (1.0 + 1e-14)
        assert answer.upper >= best * (1.0 - 1e-7)


# ---- more dimensions


def random_polytope(rng: np.random.Generator, boxed: bool):
    """A polytope around a random centre, and x outside it or in it: (x, G, h, centre, box)."""
    d = int(rng.integers(2, 9))
    m = int(rng.integers(d, 4 * d))
    G = rng.normal(size=(m, d)) * rng.lognormal(size=(m, 1))
    centre = rng.uniform(size=d) if boxed else rng.normal(size=d)
    h = G @ centre + rng.exponential(0.3, size=m) * np.linalg.norm(G, axis=1)
    x = rng.uniform(size=d) if boxed else 2.0 * rng.normal(size=d)
    if boxed:
        x[rng.uniform(size=d) < 0.3] = 0.0
    return x, G, h, centre, ((0.0, 1.0) if boxed else None)


def random_problem(rng: np.random.Generator, face: bool, boxed: bool):
    """A random polytope, and as E and e its first row, which may be no facet."""
    x, G, h, _, box = random_polytope(rng, boxed)
    return x, G, h, *((G[0], h[0]) if face else (None, None)), box


def bounds_of(box, d):
    return [(None, None) if box is None else box] * d


def linear_oracle(x, G, h, E, e, box, p):
    """The l1 or l_inf distance by a linear program in z and t, with |z_i - x_i| <= t_i or t."""
    d = len(x)
    eye = np.eye(d)
    spread = -eye if p == 1.0 else -np.ones((d, 1))
    columns = spread.shape[1]
    A = np.block([[G, np.zeros((len(G), columns))], [eye, spread], [-eye, spread]])
    b = np.concatenate((h, x, -x))
    A_eq = None if E is None else np.append(np.atleast_2d(E), np.zeros((1, columns)), axis=1)
    b_eq = None if E is None else np.atleast_1d(e)
    cost = np.concatenate((np.zeros(d), np.ones(columns)))
    bounds = bounds_of(box, d) + [(0, None)] * columns
    return linprog(cost, A_ub=A, b_ub=b, A_eq=A_eq, b_eq=b_eq, bounds=bounds)


@pytest.mark.parametrize("p", [1.0, math.inf])
@pytest.mark.parametrize(("face", "boxed"), KINDS)
def test_linear_programs_agree(face, boxed, p):
    """For l1 and l_inf the answer is that of one linear program, and infeasible where that is."""
    rng = np.random.default_rng([face, boxed])
    seen = set()
    for _ in range(25):
        problem = random_problem(rng, face, boxed)
        answer, oracle = polytope_distance(*problem, p=p), linear_oracle(*problem, p)
        seen.add(answer.status)
        if oracle.status == 2:
            assert answer.status == "infeasible"
        else:
            assert_attained(answer, *problem, p)
            assert answer.upper == pytest.approx(oracle.fun, rel=1e-7, abs=1e-9)
    assert seen == ({"optimal", "infeasible"} if face else {"optimal"})


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
@pytest.mark.parametrize(("face", "boxed"), KINDS)
def test_general_solver_agrees(face, boxed, p):
    """For 1 < p < inf SLSQP finds the same distance, and infeasible is what a linear program finds infeasible."""
    rng = np.random.default_rng([face, boxed])
    for _ in range(12):
        problem = x, G, h, _, _, box = random_problem(rng, face, boxed)
        answer, start = polytope_distance(*problem, p=p), linear_oracle(*problem, math.inf)
        if start.status == 2:
            assert answer.status == "infeasible"
            continue
        assert_attained(answer, *problem, p)
        size = np.linalg.norm(G, axis=1)
        rows, limits = G / size[:, None], h / size
        constraints = [LinearConstraint(rows[1:], -np.inf, limits[1:])]
        constraints.append(LinearConstraint(rows[0], limits[0] if face else -np.inf, limits[0]))
        bounds = None if box is None else bounds_of(box, len(x))
        found = minimize(
            lambda z, x=x: (np.abs(z - x) ** p).sum(),
            start.x[: len(x)],
            jac=lambda z, x=x: p * np.sign(z - x) * np.abs(z - x) ** (p - 1.0),
            method="SLSQP",
            bounds=bounds,
            constraints=constraints,
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert answer.upper == pytest.approx(found.fun ** (1.0 / p), rel=1e-6, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), boxed=st.booleans(), p=st.sampled_from([*POWERS, 1.05, 20.0]))
def test_no_interior_point_is_nearer(seed, boxed, p):
    """Vertices and mixtures, moved a little towards the centre to be feasible beyond rounding, are not nearer than `lower`."""
    rng = np.random.default_rng(seed)
    x, G, h, centre, box = random_polytope(rng, boxed)
    answer = polytope_distance(x, G, h, box=box, p=p)
    assert_attained(answer, x, G, h, None, None, box, p)
    d = len(x)
    corners = [
        linprog(c, A_ub=G, b_ub=h, bounds=[(-10, 10) if box is None else box] * d) for c in rng.normal(size=(5, d))
    ]
    corners.append(linprog(G.T @ (G @ x > h), A_ub=G, b_ub=h, bounds=[(-10, 10) if box is None else box] * d))
    ends = np.array([corner.x for corner in corners if corner.status == 0] + [answer.point])
    mixed = rng.dirichlet(np.full(len(ends), 0.3), size=50) @ ends
    points = 0.999 * np.concatenate((ends, mixed)) + 0.001 * centre
    inside = (points @ G.T <= h).all(1)
    if box is not None:
        inside &= (points >= 0.0).all(1) & (points <= 1.0).all(1)
    assert inside.any()
    assert (np.linalg.norm(points[inside] - x, p, axis=1) >= answer.lower).all()


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("face", [False, True])
def test_many_rows_and_coordinates(face, boxed, p):
    """Regions of a layer of units at an image: most rows are never active, many coordinates are at a side of the box."""
    rng = np.random.default_rng(5)
    d, m = 150, 300
    x = rng.uniform(size=d)
    x[rng.uniform(size=d) < 0.5] = 0.0
    G, b = rng.normal(size=(m, d)) / math.sqrt(d), 0.3 * rng.normal(size=m)
    side = np.sign(G @ x + b)
    G, h = -side[:, None] * G, side * b
    if not face:
        x = np.clip(x + 0.3 * rng.normal(size=d), 0.0, 1.0)
    polytope = Polytope(G, h, (0.0, 1.0) if boxed else None)
    for i in range(3):
        E, e = (G[i], h[i]) if face else (None, None)
        answer = polytope.distance(x, E, e, p)
        assert_attained(answer, x, G, h, E, e, (0.0, 1.0) if boxed else None, p)
        assert answer.upper > 0.0


def test_a_large_empty_face_is_proved_empty():
    """Among many rows and coordinates, with and without a box, a hyperplane beyond the polytope is proved not to meet it."""
    rng = np.random.default_rng(6)
    d = 60
    G = np.concatenate((rng.normal(size=(300, d)), np.eye(d), -np.eye(d)))
    h = np.concatenate((rng.uniform(5.0, 9.0, 300), np.ones(2 * d)))
    direction = rng.normal(size=d)
    far = linprog(-direction, A_ub=G, b_ub=h, bounds=[(None, None)] * d)
    for box in (None, (-1.0, 1.0)):
        for p in POWERS:
            assert polytope_distance(np.zeros(d), G, h, direction, 1.001 * -far.fun, box, p).status == "infeasible"
            assert polytope_distance(np.zeros(d), G, h, direction, 0.999 * -far.fun, box, p).status == "optimal"


# ---- degenerate problems


@pytest.mark.parametrize("p", [1.0, 1.02, 1.5, 2.0, 3.0, 50.0, 500.0, math.inf])
def test_a_single_point_given_by_many_rows(p):
    """Each row twice, scaled, and reversed: all equalities; the distance is that of the one point."""
    rng = np.random.default_rng(1)
    half = rng.normal(size=(9, 4))
    G, z = np.concatenate((half, half, 2.0 * half, -3.0 * half)), rng.normal(size=4)
    answer = polytope_distance(np.zeros(4), G, G @ z, p=p)
    assert answer.status == "optimal"
    assert answer.upper == pytest.approx(np.linalg.norm(z, p), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e-20, 1e20, 1e100, 1e300])
@pytest.mark.parametrize("p", POWERS)
def test_rows_and_lengths_of_any_scale(scale, p):
    """Neither the scale of a row nor, within reason, that of all lengths changes the relative answer."""
    G, h = np.array([[-1.0, -2.0], [-3.0, 1.0]]), np.array([-3.0, -4.0])
    usual = polytope_distance([0.0, 0.0], G, h, p=p)
    scaled = polytope_distance([0.0, 0.0], G * [[scale], [1.0]], h * [scale, 1.0], p=p)
    assert scaled.status == "optimal"
    assert scaled.upper == pytest.approx(usual.upper, rel=1e-9)
    if 1e-200 < scale < 1e200:
        longer = polytope_distance([0.0, 0.0], G, h * scale, p=p)
        assert longer.status == "optimal"
        assert longer.lower == pytest.approx(usual.lower * scale, rel=1e-7)


@pytest.mark.parametrize("p", POWERS)
def test_nearly_parallel_rows_meet_far_away(p):
    """Two rows that meet at a distance of 1e6: not called infeasible, and proved to be that far."""
    G, h = [[1.0, 1e-6], [-1.0, 1e-6]], [-1.0, -1.0]
    answer = polytope_distance([0.0, 0.0], G, h, p=p)
    assert answer.status == "optimal"
    assert answer.lower == pytest.approx(1e6, rel=1e-7)
    assert polytope_distance([0.0, 0.0], G, h, box=(-9e5, 9e5), p=p).status == "infeasible"


def test_lines_that_only_rounding_separates_are_not_called_empty():
    """3.3 a and -a are not exactly parallel as floats: the half spaces meet, very far away."""
    a = np.array([0.1, 0.2, 0.3])
    answer = polytope_distance(np.zeros(3), [3.3 * a, -a], [3.0, -5.0])
    assert answer.status == "unknown"
    assert 1e12 < answer.lower < math.inf
    # Where they are parallel the proof is in rational arithmetic.
    assert polytope_distance(np.zeros(3), [[3, 6, 9], [-1, -2, -3]], [3, -5]).status == "infeasible"


def network_region(rng: np.random.Generator, d: int, biases: float):
    """The region of a network with two layers of ReLUs at a random point; some units are dead, equal, or opposite."""
    first, second = rng.normal(size=(12, d)), 0.4 * rng.normal(size=(12, 12))
    b, c = biases * rng.normal(size=(2, 12))
    first[0], b[0] = 0.0, -abs(b[0])
    first[3], b[3] = 2.0 * first[4], 2.0 * b[4]
    second[5], c[5] = -second[6], -c[6]
    z = rng.uniform(size=d)
    on = first @ z + b > 0.0
    rows = np.concatenate((first, second @ (on[:, None] * first)))
    offsets = np.concatenate((b, second @ (on * b) + c))
    sign = np.where(rows @ z + offsets > 0.0, -1.0, 1.0)
    return sign[:, None] * rows, -sign * offsets


@pytest.mark.parametrize("biases", [0.0, 0.5])
def test_every_face_of_regions_of_networks(biases):
    """In the box every row has its distance or is proved to be no facet; without biases many touch the region in its apex."""
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(12):
        d = int(rng.integers(2, 7))
        G, h = network_region(rng, d, biases)
        x = rng.uniform(size=d)
        polytope = Polytope(G, h, (0.0, 1.0))
        for row, limit in zip(G, h, strict=True):
            euclidean = polytope.distance(x, row, limit)
            empty = (
                linprog(np.zeros(d), A_ub=G, b_ub=h, A_eq=row[None], b_eq=[limit], bounds=[(0.0, 1.0)] * d).status == 2
            )
            assert euclidean.status == ("infeasible" if empty else "optimal")
            for p in (1.0, math.inf):
                assert polytope.distance(x, row, limit, p).status == euclidean.status
            seen.add(euclidean.status)
    assert seen == ({"optimal", "infeasible"} if biases else {"optimal"})


def test_rows_of_zeros_infinite_limits_and_no_rows():
    whole = polytope_distance([1.0, 2.0], np.zeros((0, 2)), [])
    assert (whole.lower, whole.upper, whole.status) == (0.0, 0.0, "optimal")
    trivial = polytope_distance([1.0, 2.0], [[0.0, 0.0], [1.0, 0.0]], [0.0, np.inf])
    assert (trivial.lower, trivial.upper, trivial.status) == (0.0, 0.0, "optimal")
    assert polytope_distance([1.0, 2.0], [[0.0, 0.0]], [-1e-300]).status == "infeasible"
    assert polytope_distance([1.0, 2.0], [[1.0, 0.0]], [5.0], E=[0.0, 0.0], e=1.0).status == "infeasible"
    assert polytope_distance([1.0, 2.0], [[1.0, 0.0]], [5.0], E=[0.0, 0.0], e=0.0).upper == 0.0


@pytest.mark.parametrize("p", POWERS)
def test_a_point_of_the_polytope_has_distance_zero(p):
    inside = polytope_distance([0.5, 0.5], [[1.0, 1.0], [-1.0, 0.0]], [1.0, 0.0], p=p)
    assert (inside.lower, inside.upper, inside.status) == (0.0, 0.0, "optimal")
    np.testing.assert_array_equal(inside.point, [0.5, 0.5])


def test_prepared_polytope_gives_the_same_answers():
    """One `Polytope` for many faces gives what separate calls give."""
    rng = np.random.default_rng(2)
    x, G, h, _, box = random_polytope(rng, boxed=True)
    polytope = Polytope(G, h, box)
    for i in range(len(G)):
        again, alone = polytope.distance(x, G[i], h[i]), polytope_distance(x, G, h, G[i], h[i], box)
        assert (again.lower, again.upper, again.status) == (alone.lower, alone.upper, alone.status)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0], [[1.0, 0.0]], [0.0]), "x must be 2 finite numbers"),
        (([0.0, np.nan], [[1.0, 0.0]], [0.0]), "x must be 2 finite numbers"),
        (([0.0, 0.0], [1.0, 0.0], [0.0]), "G must be a matrix"),
        (([0.0, 0.0], [[1.0, 0.0]], [0.0, 1.0]), "h must have the shape"),
        (([0.0, 0.0], [[1.0, np.inf]], [0.0]), "G must be finite"),
        (([0.0, 0.0], [[1.0, 0.0]], [np.nan]), "h must be numbers above -inf"),
        (([0.0, 0.0], [[1.0, 0.0]], [0.0], [1.0, 0.0]), "got E alone"),
        (([0.0, 0.0], [[1.0, 0.0]], [0.0], [1.0], 0.0), "E must have 2 columns"),
        (([0.0, 0.0], [[1.0, 0.0]], [0.0], [1.0, 0.0], np.inf), "e must be finite"),
        (([0.0, 0.0], [[1.0, 0.0]], [0.0], None, None, (1.0, 0.0)), "lower <= upper, got 1.0 > 0.0"),
        (([0.0, 2.0], [[1.0, 0.0]], [0.0], None, None, (0.0, 1.0)), "x must lie in the box, got 2.0"),
        (([0.0, 0.0], [[1.0, 0.0]], [0.0], None, None, (0.0, [1.0])), "upper of box must be one number or 2"),
        (([0.0, 0.0], [[1.0, 0.0]], [0.0], None, None, None, 0.5), "p must be a number of at least 1"),
    ],
)
def test_errors_name_parameter_rule_and_value(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        polytope_distance(*arguments)
