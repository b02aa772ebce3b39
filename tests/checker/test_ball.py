"""Minima of linear functions over a ball cut with a box: below every point of the set, and attained."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import relucert as rc
from relucert.checker.arithmetic import Outward, Rational, Refused
from relucert.checker.ball import Ball

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
        ball, precise = (Ball.of(num, p, eps, x, *sides) for num in (Outward(), Rational()))
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
        Ball.of(Outward(), p, eps, np.array([x]), np.zeros(1), np.ones(1))
