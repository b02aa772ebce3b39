"""Figures of Croce, Andriushchenko and Hein (AISTATS 2019), to stand beside ours, and where the paper has them.

A table is a dictionary: a network of the paper (`Key`) -> its figures by name, None where the paper prints a dash. The names
are those of the tables' columns: `TE` (test error), `LB` and `UB` (in Table 1 of the robust test error; errors in percent,
and distances elsewhere). Networks with `recipe` tables23 are those of Tables 2 and 3 and of the l2 tables of the
appendix, which are others than those of Table 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from relucert.core.errors import InvalidInput


class Key(NamedTuple):
    """A network of the paper: data set, architecture, training scheme and norm."""

    data: str
    model: str
    scheme: str
    p: float


#: The figures of every network of one table.
PublishedTable = dict[Key, dict[str, float | None]]
#: What follows the head of a row: model, scheme and norm of a network, and the names of its figures.
Columns = Sequence[tuple[dict[str, str | float], tuple[str, ...]]]

ERRORS = ("TE", "LB", "UB")


def _table(text: str, head: tuple[str, ...], columns: Columns) -> PublishedTable:
    """The table of a text with one row a line: the fields named in `head`, then the figures of `columns` in order."""
    table: PublishedTable = {}
    for row in text.strip().splitlines():
        words = row.split()
        fields: dict[str, str | float] = dict(zip(head, words, strict=False))
        cells = iter(words[len(head) :])
        for own, names in columns:
            key = {"p": 2.0, **fields, **own}
            found = {name: None if (cell := next(cells)) == "-" else float(cell) for name in names}
            table[Key(str(key["data"]), str(key["model"]), str(key["scheme"]), float(key["p"]))] = found
        if left := list(cells):
            raise InvalidInput(f"a row must have as many figures as columns, got {left} too many in {row!r}")
    return table


#: Table 1 (`tab:main_exps4_2`): test error, lower and upper bound of the robust test error; the first 1000 test points for
#: l_inf, all for l2. rs is Xiao et al., as they report it. KW on the CNN in l_inf on MNIST, F-MNIST and CIFAR-10: networks of
#: Wong and Kolter. MMR+at on the CNN in l2 on MNIST: epoch 50 of 100.
TABLE_1 = _table(
    """
    mnist   plain   1.44 93.0 100   0.91 74.0 100   1.73  9.7 66.3  0.85  3.1 100
    mnist   at      0.92 10.0 99.0  0.82  3.0 100   1.15  2.6 16.9  0.87  1.8 100
    mnist   kw      3.19 10.9 10.9  1.26  4.4  4.4  1.19  2.4  5.2  1.11  2.2  6.0
    mnist   rs      -    -    -     1.32  4.9  5.7  -     -    -    -     -    -
    mnist   mmr     2.11 22.5 24.9  1.65  6.0  6.0  2.40  5.9  8.8  2.57  5.8 11.6
    mnist   mmr+at  2.04 14.0 14.1  1.19  3.6  3.6  1.77  3.8  6.4  2.12  4.6  9.7
    fmnist  plain   9.49 100  100   9.50 96.0 100   9.70 42.8 91.8  9.32 57.1 100
    fmnist  at     11.69 29.5 95.5 11.54 21.5 73.0  9.15 19.9 61.4  8.10 20.4 100
    fmnist  kw     21.31 32.8 32.8 21.73 32.4 32.4 11.24 17.2 22.7 13.08 18.5 21.7
    fmnist  mmr    18.11 37.6 42.0 14.52 33.2 33.6 13.28 25.0 28.0 12.85 25.4 35.3
    fmnist  mmr+at 15.84 31.3 34.8 14.50 26.6 30.7 12.12 19.7 23.4 13.42 26.2 39.1
    gts     plain  12.72 61.0 77.0  7.11 63.0 99.5 12.24 37.5 44.7  6.78 33.3 99.2
    gts     at      9.33 34.5 48.5  6.84 29.5 81.0 13.55 33.1 43.2  8.75 23.8 98.6
    gts     kw     13.99 33.0 33.0 15.56 36.1 36.6 16.84 16.9 31.2 14.33 28.7 34.7
    gts     mmr    14.29 39.8 39.8 13.31 49.5 49.6 14.55 33.2 34.7 14.22 36.2 36.9
    gts     mmr+at 13.10 33.1 35.4 14.88 38.3 38.4 13.94 29.7 32.1 15.35 32.1 33.2
    cifar10 plain   -    -    -    24.63 91.0 100   -    -    -    23.31 47.2 100
    cifar10 at      -    -    -    27.04 52.5 88.5  -    -    -    25.82 35.8 100
    cifar10 kw      -    -    -    38.91 46.6 48.0  -    -    -    40.24 43.9 49.0
    cifar10 rs      -    -    -    38.88 50.1 54.1  -    -    -    -     -    -
    cifar10 mmr     -    -    -    34.61 57.5 61.0  -    -    -    40.92 50.6 57.1
    cifar10 mmr+at  -    -    -    35.38 47.9 54.2  -    -    -    37.75 43.9 53.3
    """,
    ("data", "scheme"),
    [({"model": model, "p": p}, ERRORS) for p in (math.inf, 2.0) for model in ("fc1", "cnn")],
)

#: Table 2 (`tab:MMR2`), l2: test error of the whole test set, mean lower and upper bounds of the distance to another class on
#: its first 1000 points, of MMR and of MMR with its decision term alone.
TABLE_2 = _table(
    """
    mnist  fc1   1.51 0.69 1.69   0.93 0.35 1.69
    mnist  fc10  1.87 0.48 1.48   1.21 0.20 1.62
    gts    fc1  11.15 0.69 0.69  12.09 0.48 0.63
    gts    fc10 12.82 0.64 0.67  12.41 0.12 0.48
    fmnist fc1  10.22 0.50 0.85   9.83 0.31 1.30
    fmnist fc10 11.73 0.68 1.18  10.32 0.13 1.15
    """,
    ("data", "model"),
    [({"scheme": scheme}, ERRORS) for scheme in ("mmr", "mmr-dd")],
)

#: Table 3 (`tab:opt_solutions`), l2, all test points, in percent: those with a proved optimum, and by how much optima exceed
#: the bounds of Wong and Kolter.
TABLE_3 = _table(
    """
    mnist  fc1   1.51  0.20 14.11   1.59 0.02
    mnist  fc10  1.87  0.06 -       1.81 0.02
    mnist  cnn   1.17  0.00 -       0.97 0.00
    gts    fc1  11.15 99.97  0.59  12.27 1.12
    gts    fc10 12.82 94.86  0.66  11.28 0.14
    gts    cnn   7.40  0.00 -       6.73 0.00
    fmnist fc1  10.22 11.22  6.53   9.61 0.37
    fmnist fc10 11.73  9.90  7.27  10.53 0.04
    fmnist cnn  10.30  0.09 -       8.86 0.00
    """,
    ("data", "model"),
    [({"scheme": "mmr"}, ("TE", "optimal", "opt vs LB")), ({"scheme": "plain"}, ("TE", "optimal"))],
)

#: Lower bounds of the distance (`tab:our_bounds2`), l2, means over the first 1000 points: Wong and Kolter, the region theorem,
#: and the theorem with neighbouring regions.
BOUNDS = _table(
    """
    mnist  fc1  mmr     1.51 0.69 0.22 0.29
    mnist  fc1  mmr+at  1.59 0.70 0.25 0.33
    mnist  fc10 mmr     1.87 0.48 0.31 0.33
    mnist  fc10 mmr+at  1.35 0.40 0.21 0.26
    gts    fc1  mmr    11.15 0.69 0.69 0.69
    gts    fc1  mmr+at 11.72 0.72 0.72 0.72
    gts    fc10 mmr    12.82 0.64 0.63 0.63
    gts    fc10 mmr+at 13.36 0.64 0.63 0.63
    fmnist fc1  mmr    10.22 0.50 0.30 0.41
    fmnist fc1  mmr+at 10.94 0.66 0.33 0.42
    fmnist fc10 mmr    11.73 0.68 0.56 0.64
    fmnist fc10 mmr+at 11.39 0.67 0.53 0.60
    """,
    ("data", "model", "scheme"),
    [({}, ("TE", "KW", "theorem", "improved"))],
)

#: Mean lower and upper bounds of the distance (`tab:main_exps4_v1_2`), l2, the first 1000 points.
L2 = _table(
    """
    mnist  plain   1.59 0.34 0.98   1.81 0.13 0.70   0.97 0.04 1.03
    mnist  at      1.29 0.25 1.23   0.93 0.14 1.59   0.86 0.14 1.67
    mnist  kw      1.37 0.70 1.75   1.69 0.75 1.74   1.04 0.32 1.84
    mnist  mmr     1.51 0.69 1.69   1.87 0.48 1.48   1.17 0.38 1.70
    mnist  mmr+at  1.59 0.70 1.70   1.35 0.40 1.60   1.14 0.38 1.86
    gts    plain  12.24 0.33 0.57  11.25 0.08 0.48   6.73 0.06 0.43
    gts    at     13.55 0.34 0.66  13.01 0.10 0.56   8.12 0.06 0.53
    gts    kw     13.06 0.35 0.63  13.56 0.16 0.52   8.44 0.11 0.52
    gts    mmr    11.15 0.69 0.69  12.82 0.64 0.67   7.40 0.09 0.59
    gts    mmr+at 11.72 0.72 0.72  13.36 0.64 0.66  10.50 0.11 0.62
    fmnist plain   9.61 0.18 0.53  10.53 0.05 0.44   8.86 0.03 0.32
    fmnist at      9.89 0.11 1.00   9.89 0.11 1.00   8.77 0.07 0.80
    fmnist kw      9.95 0.46 1.11  11.42 0.47 1.22  10.37 0.17 0.96
    fmnist mmr    10.22 0.50 0.85  11.73 0.68 1.18  10.30 0.17 0.88
    fmnist mmr+at 10.94 0.66 1.45  11.39 0.67 1.24  10.48 0.21 1.14
    """,
    ("data", "scheme"),
    [({"model": model}, ERRORS) for model in ("fc1", "fc10", "cnn")],
)

#: The same on CIFAR-10 (`tab:bounds_cifar10_2`).
L2_CIFAR10 = _table(
    """
    cifar10 plain  25.98 0.02 0.16
    cifar10 at     25.36 0.04 0.42
    cifar10 kw     41.52 0.16 0.66
    cifar10 mmr    41.86 0.16 0.39
    cifar10 mmr+at 41.11 0.13 0.57
    """,
    ("data", "scheme"),
    [({"model": "cnn"}, ERRORS)],
)

#: Comparison to Cross-Lipschitz regularisation (appendix, "Further experiments"), and the networks of Table 1 beside it.
CROSS_LIPSCHITZ: PublishedTable = {
    Key("mnist", "fc1", "cross-lipschitz", 2.0): {"TE": 1.38, "LB": 2.5, "UB": 7.2},
    **{key: TABLE_1[key] for key in (Key("mnist", "fc1", scheme, 2.0) for scheme in ("at", "kw", "mmr+at"))},
}

#: Evaluation of the CW attack (section 5.2 and figure `fig:CW_long`): GTS, FC1 trained with MMR, all 12630 test points.
#: Points with a proved optimum; those of them where CW is at least 10 and 20 % longer, also as shares of these; the largest
#: relative difference in percent; seconds of CW and of the region theorem.
CW: dict[str, float] = {
    "test points": 12630,
    "points with a proved optimum": 12596,
    "CW at least 10 % longer, points": 2330,
    "CW at least 10 % longer, percent": 18.5,
    "CW at least 20 % longer, points": 1145,
    "CW at least 20 % longer, percent": 9.1,
    "largest difference, percent": 235,
    "seconds of CW": 16327,
    "seconds of the theorem": 1701,
}

#: Verifiability (section 5.1 and figure `fig:MIP_stats`): MNIST, CNN, l_inf 0.1, gamma 0.15, MIP with 120 s a point, in minutes
#: and percent. The paper draws the curve, and says this of it; "almost 2000 minutes" stands as 2000.
LAMBDA: dict[str, float] = {
    "minutes for 1000 points, plain": 2000,
    "minutes for 1000 points, MMR, fewest": 35,
    "minutes for 1000 points, MMR, most": 79,
    "time of plain over that of MMR, largest factor": 51,
    "UB, plain, percent": 100,
    "points certified, plain, percent": 1,
    "points decided, MMR, fewest, percent": 99.3,
    "points decided, MMR, most, percent": 100,
}
