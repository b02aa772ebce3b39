"""The table of the demo has two columns for each ball and a row for each network."""

from __future__ import annotations

from relucert.reports.demo import DemoRow, table


def test_cells_are_percentages_in_the_order_of_the_balls():
    plain = DemoRow(name="plain", test_error=0.021, shares=((0.5, 0.25), (0.125, 0.75)), last=True)
    drawn = table(["l_inf 0.1", "l_2 0.3"], [plain])
    heads = [
        "training",
        "test error",
        "PGD error\nl_inf 0.1",
        "proved\nl_inf 0.1",
        "PGD error\nl_2 0.3",
        "proved\nl_2 0.3",
    ]
    assert [column.header for column in drawn.columns] == heads
    assert [list(column.cells) for column in drawn.columns] == [
        ["plain"], ["2.1%"], ["50.0%"], ["25.0%"], ["12.5%"], ["75.0%"],
    ]  # fmt: skip
    assert drawn.rows[0].end_section
