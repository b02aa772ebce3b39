"""Table 1 of the paper is whole."""

from __future__ import annotations

import math

from relucert.reports.published import TABLE_1


def test_table_1_is_whole():
    assert len(TABLE_1) == 2 * (2 * 5 + 2 * 5 + 2 * 5 + 5) + 2  # four data sets, both norms, and Xiao et al. twice
    assert TABLE_1["mnist", "fc1", "mmr+at", math.inf].test_error == 2.04
    assert TABLE_1["fmnist", "cnn", "kw", math.inf].upper == 32.4
    assert TABLE_1["cifar10", "cnn", "mmr+at", 2.0].lower == 43.9
    assert all(found.lower <= found.upper for found in TABLE_1.values())
