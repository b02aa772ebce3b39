from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relucert.core.norms import critical_size, filling_scale, water_level

positive = st.floats(2.0**-10, 1.0, width=32)
columns = st.lists(st.tuples(positive, st.one_of(st.just(0.0), st.floats(0.0, 2.0, width=32))), min_size=1, max_size=8)


def exact_level(widths: list[float], caps: list[float]) -> Fraction | float:
    """The level in rational arithmetic: columns reach their caps in the order of y / w."""
    order = sorted(
        zip(map(Fraction, widths), map(Fraction, caps), strict=True), key=lambda column: column[1] / column[0]
    )
    full, slope = Fraction(0), sum((width for width, _ in order), Fraction(0))
    for width, cap in order:
        level = (1 - full) / slope
        if level * width <= cap:
            return level
        full, slope = full + cap, slope - width
    return math.inf


def levels(table: list, dtype: torch.dtype, max_iterations: int = 64) -> float:
    widths, caps = (torch.tensor([column], dtype=dtype) for column in zip(*table, strict=True))
    return water_level(widths, caps, max_iterations).item()


@settings(max_examples=300, deadline=None)
@given(table=columns)
def test_the_level_agrees_with_rational_arithmetic(table):
    expected = exact_level(*zip(*table, strict=True))
    # The residual may be at most 1e-11; without a slope every level satisfies that.
    found = levels(table, torch.float64)
    water = sum(min(Fraction(found) * Fraction(w), Fraction(y)) for w, y in table) if math.isfinite(found) else 0
    if expected == math.inf:
        assert found == math.inf or water >= 1 - Fraction(1, 10**11)
    else:
        assert abs(water - 1) <= Fraction(1, 10**11) or found == math.inf
        assert found == math.inf or found <= expected * (1 + Fraction(1, 10**12))


@settings(max_examples=100, deadline=None)
@given(table=columns, steps=st.integers(0, 4))
def test_an_early_stop_is_never_above_the_level(table, steps):
    expected = exact_level(*zip(*table, strict=True))
    assert levels(table, torch.float64, steps) <= expected * (1 + 1e-12)
    assert levels(table, torch.float64, steps) <= levels(table, torch.float64, steps + 1)


def test_rows_are_independent_of_the_other_rows():
    generator = torch.Generator().manual_seed(0)
    widths = torch.rand(50, 40, generator=generator, dtype=torch.float64).pow(4).clamp_(min=1e-9)
    caps = torch.rand(50, 40, generator=generator, dtype=torch.float64) * torch.logspace(-3, 1, 50)[:, None]
    together = water_level(widths, caps)
    apart = torch.cat([water_level(widths[i : i + 1], caps[i : i + 1]) for i in range(50)])
    torch.testing.assert_close(together, apart, rtol=1e-13, atol=0)
    assert 0 < together.isinf().sum() < 50


@pytest.mark.parametrize("q", [1.0, 1.5, 2.0, 3.0, 20.0, 22.0, 101.0, 4001.0])
def test_the_filling_scale_solves_its_equation_for_every_power(q):
    generator = torch.Generator().manual_seed(1)
    c = torch.randn(40, 12, generator=generator, dtype=torch.float64)
    c /= c.abs().amax(-1, keepdim=True)
    caps = torch.rand(40, 12, generator=generator, dtype=torch.float64)
    scale = filling_scale(c, caps, q)
    filled = torch.minimum((c.abs() * scale[:, None]).pow(q), caps).sum(-1)
    torch.testing.assert_close(filled, torch.ones_like(filled), rtol=1e-14 * q + 1e-13, atol=0)
    assert filling_scale(c, caps * 0.01, q).isinf().all()


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 4),
    size=st.integers(1, 80),
    seed=st.integers(0, 10**6),
    share=st.floats(0, 1.2),
    ties=st.booleans(),
)
def test_the_critical_size_is_the_largest_that_suffices(rows, size, seed, share, ties):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.rand(rows, size, generator=generator, dtype=torch.float64)
    if ties:
        sizes = (4 * sizes).round() / 4
    # Amounts are multiples of 1/8, so that sums are exact in any order.
    amounts = (8 * torch.rand(rows, size, generator=generator, dtype=torch.float64)).round() / 8
    need = (8 * share * amounts.sum(-1)).round() / 8
    found = critical_size(sizes, amounts, need)
    for row in range(rows):
        enough = [t for t in sizes[row].tolist() if amounts[row][sizes[row] >= t].sum() >= need[row]]
        assert found[row].item() == max(enough, default=0.0)
