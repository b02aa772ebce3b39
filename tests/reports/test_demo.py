"""The table of the demo has two columns for each ball and a row for each network; more is better in every column."""

from __future__ import annotations

from relucert.reports.demo import DemoRow, sentence, table

PLAIN = DemoRow(name="plain", correct=0.979, shares=((0.5, 0.25), (0.125, 0.75)), last=True)
MMR = DemoRow(name="mmr", correct=0.9, shares=((0.875, 0.75), (0.5, 0.25)), last=False)


def test_cells_are_percentages_in_the_order_of_the_balls():
    drawn = table(["l_inf 0.1", "l_2 0.3"], [PLAIN])
    heads = ["training", "correct", "survives\nl_inf 0.1", "proved\nl_inf 0.1", "survives\nl_2 0.3", "proved\nl_2 0.3"]
    assert [column.header for column in drawn.columns] == heads
    assert [list(column.cells) for column in drawn.columns] == [
        ["plain"], ["97.9%"], ["50.0%"], ["25.0%"], ["12.5%"], ["75.0%"],
    ]  # fmt: skip
    assert drawn.rows[0].end_section


def test_the_sentence_is_about_the_most_proofs_in_the_first_ball():
    text = sentence([PLAIN, MMR], 0.1, 200)
    assert "150 of 200 test images" in text
    assert "trained with mmr" in text
    assert text.endswith("proved for 50.")
