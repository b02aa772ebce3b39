"""A share of the cases has every row of every table in it."""

from __future__ import annotations

import math
from itertools import product

import pytest

from sharing import taken


@pytest.mark.parametrize(
    ("sizes", "n"),
    [((2, 10, 5), 4), ((13, 10, 2), 3), ((6, 13), 4), ((2, 2, 2), 2), ((2, 4, 2), 3), ((3, 6), 2), ((11, 2, 2), 2)],
)
def test_every_row_is_taken_with_some_others(sizes, n):
    cases = list(product(*(range(size) for size in sizes)))
    share = [case for number, case in enumerate(cases) if taken(number, sizes, n)]
    for place, size in enumerate(sizes):
        assert {case[place] for case in share} == set(range(size))
    assert math.floor(len(cases) / n) - 1 <= len(share) <= math.ceil(len(cases) / n) + 1


def test_one_table_is_taken_in_steps():
    assert [number for number in range(10) if taken(number, (10,), 3)] == [0, 3, 6, 9]
