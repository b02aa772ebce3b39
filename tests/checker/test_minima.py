"""Minima of linear functions over a ball cut with a box: below every point of the set, and attained."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import relucert as rc
from relucert.checker.arithmetic import Outward, Rational, Refused
from relucert.checker.minima import Ball, over_ball, over_box

NORMS = (1.0, 2.0, math.inf)


def problem(seed: int, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = np.round(draw.uniform(size=size), 2)
    x[0] = 0.0
    return x, draw.normal(size=(5, size)) * 10 ** draw.uniform(-2, 2, (5, 1))


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("eps", [0.05, 0.4, 3.0])
def test_minima_are_those_of_the_package_and_of_rational_numbers(p: float, eps: float) -> None:
    for seed in range(5):
        x, rows = problem(seed)
        sides = np.zeros(len(x)), np.ones(len(x))
        ball, precise = (Ball(num, p, eps, x, *sides) for num in (Outward(), Rational()))
        found, exactly = ball.minimum(rows), precise.minimum(Rational().numbers(rows))
        assert all(isinstance(value, Fraction) for value in exactly)
        assert all(Fraction(float(a)) <= b for a, b in zip(found, exactly, strict=True)), "rounded the wrong way"
        given = torch.from_numpy(x)[None]
        known = rc.Ball(p, eps).minimum(given, torch.from_numpy(rows)[None]).value[0].numpy() + rows @ x
        np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-7 * np.abs(rows).max())
        inside = rc.Ball(p, eps).sample(given, torch.Generator().manual_seed(seed), 200)[0].numpy()
        assert (inside @ rows.T >= found - 1e-9).all()
        assert (ball.minimum(rows, box=False) <= found + 1e-6 * np.abs(found)).all()


@pytest.mark.parametrize(
    ("p", "eps", "x", "says"),
    [
        (3, 0.1, 0.5, "norm"),
        (2, math.inf, 0.5, "finite"),
        (2, math.nan, 0.5, "finite"),
        (2, 0.1, 1.5, "outside its box"),
    ],
)
def test_what_is_no_ball_is_refused(p: float, eps: float, x: float, says: str) -> None:
    with pytest.raises(Refused, match=says):
        Ball(Outward(), p, eps, np.array([x]), np.zeros(1), np.ones(1))


@pytest.mark.parametrize("num", [Outward(), Rational()], ids=["outward", "exact"])
def test_minima_of_relus_are_below_all_points_and_reached(num: Outward) -> None:
    """Over a box the least value is at one of the corners and kinks; over box and ball no sampled point is below."""
    draw = np.random.default_rng(0)
    for leak in (0.0, 0.25, 1.0):
        low = draw.uniform(-1, 0.5, 3)
        high = low + draw.uniform(0, 1, 3)
        c, g, z0 = draw.normal(size=(4, 3)), draw.normal(size=(4, 3)), draw.uniform(low, high)
        given = (num, num.numbers(c), num.numbers(g), num.numbers(leak)[()])
        ends = np.stack([low, high, np.clip(0, low, high)])
        terms = c[:, None] * np.maximum(ends, leak * ends) - g[:, None] * ends
        found = over_box(*given, num.numbers(low), num.numbers(high)).astype(float)
        np.testing.assert_allclose(found, terms.min(1).sum(1), atol=1e-12)
        assert (found <= terms.min(1).sum(1) + 1e-15).all()
        for radius in (0.05, 0.3, 10.0):
            box = num.numbers(low) - num.numbers(z0), num.numbers(high) - num.numbers(z0)
            least = over_ball(*given, num.numbers(z0), box, num.numbers(radius)[()]).astype(float)
            d = np.clip(draw.normal(size=(4000, 3)) * min(radius, 1.0), low - z0, high - z0)
            length = np.linalg.norm(d, axis=1, keepdims=True)
            z = z0 + d * np.minimum(1, radius / length)  # towards z0, which is in the box
            values = np.maximum(z, leak * z) @ c.T - z @ g.T
            assert (values >= least - 1e-9).all()
            if radius == 10.0:
                np.testing.assert_allclose(least, found, atol=1e-2 * np.abs(c).sum())
