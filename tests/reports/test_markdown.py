"""Markdown tables: every row has as many cells as the head."""

from __future__ import annotations

from relucert.reports._markdown import ball, percent, row, table


def test_a_table_is_a_head_a_rule_and_rows():
    assert table(["a", "b", "c"], [["1", "", "3"], ["4", "5", "6"]]) == [
        "| a | b | c |", "|---|---|---|", "| 1 |  | 3 |", "| 4 | 5 | 6 |",
    ]  # fmt: skip
    assert table(["a"], []) == ["| a |", "|---|"]
    assert row(["a"]) == "| a |"


def test_cells():
    assert ball(2.0, 0.30000000000000004) == "l_2, 0.3"
    assert percent(1, 3) == "33.3"
