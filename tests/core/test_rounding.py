"""gamma_n and what is made of it, against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from relucert.core.rounding import DECISION_EPSILONS, RAISED, gamma, gamma_above, unit_roundoff
from relucert.networks.prediction import slack

DTYPES = (torch.float32, torch.float64)
COUNTS = (1, 2, 3, 10, 784, 3072, 100_000)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_roundoff_is_half_the_gap_behind_one(dtype):
    after = float(torch.nextafter(torch.ones((), dtype=dtype), torch.full((), 2.0, dtype=dtype)))
    assert unit_roundoff(dtype) == (after - 1) / 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", COUNTS)
def test_gamma_is_its_formula(count, dtype):
    total = count * Fraction(unit_roundoff(dtype))
    assert float(abs(Fraction(gamma(count, dtype)) / (total / (1 - total)) - 1)) <= 4 * unit_roundoff()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", COUNTS)
def test_gamma_above_is_above_gamma_and_counts_exactly(count, dtype):
    total = count * Fraction(unit_roundoff(dtype))
    assert Fraction(gamma_above(count, dtype)) == 2 * total > total / (1 - total)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slack_of_a_decision_is_a_multiple_of_the_largest_logit(dtype):
    logits = torch.tensor([[1.0, -3.0], [0.0, 0.25]], dtype=dtype)
    expected = DECISION_EPSILONS * torch.finfo(dtype).eps * torch.tensor([3.0, 0.25], dtype=dtype)
    assert torch.equal(slack(logits), expected)


def test_raised_pays_for_nine_roundings():
    assert Fraction(RAISED) * (1 - Fraction(unit_roundoff())) ** 9 > 1
