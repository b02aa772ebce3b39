"""Figures of the paper, to stand beside ours: Table 1, in percent."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Test error, and lower and upper bound of the robust test error on the first 1000 test points, in percent."""

    test_error: float
    lower: float
    upper: float


def _table(text: str) -> dict[tuple[str, str, str, float], Published]:
    """Rows of data, scheme and TE LB UB for FC1 and CNN in l_inf, then for FC1 and CNN in l2."""
    table = {}
    for row in text.strip().splitlines():
        data, scheme, *cells = row.split()
        places = [(model, p) for p in (math.inf, 2.0) for model in ("fc1", "cnn")]
        for place, (model, p) in enumerate(places):
            triple = cells[3 * place : 3 * place + 3]
            if triple[0] != "-":
                table[data, model, scheme, p] = Published(*(float(cell) for cell in triple))
    return table


#: (data, model, scheme, p) -> Table 1 of Croce, Andriushchenko and Hein (AISTATS 2019); rs is Xiao et al.
TABLE_1 = _table("""
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
""")
