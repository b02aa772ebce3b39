"""Tables with the paper's figure, ours and the difference, in four formats."""

from __future__ import annotations

import csv
import io
import json

from relucert.reports.paper.comparison import Cell, Comparison, Row, Section

TABLE = Comparison(
    name="table1",
    title="Table 1",
    heads=("training",),
    columns=("FC1 TE", "FC1 LB, %"),
    sections=(
        Section(
            title="F_MNIST & co",
            rows=(
                Row(labels=("plain",), cells=(Cell(paper=1.44, ours=1.6449), Cell(paper=93.0, ours=None, digits=1))),
                Row(labels=("rs",), cells=(Cell(paper=None, ours=None), Cell(paper=None, ours=5.0, digits=1))),
            ),
        ),
    ),
    notes=("A note.",),
)


def test_markdown_has_three_figures_a_cell():
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "# Table 1"
    assert "| training | FC1 TE | FC1 LB, % |" in lines
    assert "| plain | 1.44 / 1.64 / +0.20 | 93.0 / - / - |" in lines
    assert "| rs | - | - / 5.0 / - |" in lines
    assert lines[-1] == "A note."


def test_latex_is_whole_and_escaped():
    text = TABLE.latex()
    assert text.count("{") == text.count("}")
    assert r"\multicolumn{3}{l}{\textbf{F\_MNIST \& co}} \\" in text
    assert r"plain & \shortstack[r]{$1.44$ \\ $1.64$ \\ $+0.20$} & \shortstack[r]{$93.0$ \\ $-$ \\ $-$} \\" in text
    assert r"training & FC1 TE & FC1 LB, \% \\" in text
    assert all(
        line.count("&") - line.count(r"\&") == 2 for line in text.splitlines() if line.startswith(("plain", "rs"))
    )


def test_csv_has_a_line_for_every_cell():
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == ["section", "training", "column", "paper", "ours", "difference"]
    assert rows[1] == ["F_MNIST & co", "plain", "FC1 TE", "1.44", "1.6449", "0.2049"]
    assert rows[4] == ["F_MNIST & co", "rs", "FC1 LB, %", "", "5", ""]
    assert len(rows) == 5


def test_json_has_all_digits():
    found = json.loads(TABLE.json())
    cell = found["sections"][0]["rows"][0]["cells"][0]
    assert cell["ours"] == 1.6449
    assert abs(cell["difference"] - 0.2049) < 1e-12
    assert found["notes"] == ["A note."]
    assert set(TABLE.files()) == {"table1.md", "table1.tex", "table1.csv", "table1.json"}
