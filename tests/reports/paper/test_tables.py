"""The tables have every row and every column of the paper's, and our figures in the right cells."""

from __future__ import annotations

import pytest

from relucert.reports.paper.measured import MeasuredNetwork
from relucert.reports.paper.tables import LAYOUTS
from relucert.reports.published import Key

#: Name -> rows of every section, columns; as printed in the paper.
SHAPES = {
    "table1": ([6, 5, 5, 6], 12),
    "table2": ([2, 2, 2], 6),
    "table3": ([3, 3, 3], 5),
    "bounds": ([4, 4, 4], 4),
    "l2": ([5, 5, 5], 9),
    "l2-cifar10": ([5], 3),
    "cross-lipschitz": ([4], 3),
}


def network(folder, key, test_error=0.0164):
    return MeasuredNetwork(
        name="-".join(map(str, key)), key=key, model="a" * 64, source="runs/x", command="relucert train --data mnist",
        epochs=3, test_error=test_error, eps=0.1, records=folder / "none.jsonl",
    )  # fmt: skip


def test_all_layouts_are_counted():
    assert set(SHAPES) == set(LAYOUTS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_shape_is_that_of_the_paper(name):
    found = LAYOUTS[name].comparison([])
    rows, columns = SHAPES[name]
    assert [len(section.rows) for section in found.sections] == rows
    assert len(found.columns) == columns
    cells = [cell for section in found.sections for row in section.rows for cell in row.cells]
    assert all(len(row.cells) == columns for section in found.sections for row in section.rows)
    published = [value for cells in LAYOUTS[name].paper.values() for value in cells.values() if value is not None]
    assert sorted(cell.paper for cell in cells if cell.paper is not None) == sorted(published)
    assert all(cell.ours is None for cell in cells)


def test_columns_of_table_1():
    assert LAYOUTS["table1"].comparison([]).columns[:7] == (
        "l_inf FC1 TE", "l_inf FC1 LB", "l_inf FC1 UB", "l_inf CNN TE", "l_inf CNN LB", "l_inf CNN UB", "l_2 FC1 TE",
    )  # fmt: skip


def test_our_figures_stand_in_their_cells(tmp_path):
    ours = network(tmp_path, Key("mnist", "cnn", "mmr+at", float("inf")))
    text = LAYOUTS["table1"].comparison([ours]).markdown()
    row = next(line for line in text.splitlines() if line.startswith("| MMR+at"))
    assert row.split(" | ")[4] == "1.19 / 1.64 / +0.45"
    assert "runs/x, 3 epochs, 0 points. `relucert train --data mnist`" in text


def test_digits_stand_below_in_the_rows_of_the_first_data_set(tmp_path):
    ours = network(tmp_path, Key("digits", "fc10", "mmr-dd", 2.0), 0.5)
    found = LAYOUTS["table2"].comparison([ours])
    assert [section.title for section in found.sections] == ["MNIST", "GTS", "F-MNIST", "digits (not in the paper)"]
    rows = found.sections[-1].rows
    assert [row.labels for row in rows] == [("FC1",), ("FC10",)]
    assert [cell.ours for cell in rows[1].cells] == [None, None, None, 50.0, None, None]
    assert all(cell.paper is None for row in rows for cell in row.cells)
