"""Which cases of a table run in `make test`: `@pytest.mark.share(n)` takes about one in n, the others are slow."""

from __future__ import annotations

from collections.abc import Sequence


def taken(number: int, sizes: Sequence[int], n: int) -> bool:
    """Whether case `number` of a product of tables is taken: the numbers of its rows add up to a multiple of n.

    `sizes` are the lengths of the tables, the last of which varies fastest. As in a Latin square every row of a table is taken
    with some row of the others if one of these has n rows.

    >>> [taken(number, (3, 2), 2) for number in range(6)]
    [True, False, False, True, True, False]
    """
    rows = 0
    for size in reversed(sizes):
        number, row = divmod(number, size)
        rows += row
    return rows % n == 0
