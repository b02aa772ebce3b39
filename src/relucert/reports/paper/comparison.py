"""A table with the paper's figure, ours and the difference in every cell, as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relucert.reports._markdown import table

#: What stands for a figure that is not known.
NOTHING = "-"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The paper's figure and ours, None where there is none, with the number of decimals that the paper prints.

    >>> cell = Cell(paper=24.9, ours=26.41, digits=1)
    >>> cell.text, round(cell.difference, 2)
    ('24.9 / 26.4 / +1.5', 1.51)
    """

    paper: float | None
    ours: float | None
    digits: int = 2

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper

    @property
    def parts(self) -> tuple[str, str, str]:
        """The paper's figure, ours and the signed difference as texts."""
        plain = [NOTHING if value is None else f"{value:.{self.digits}f}" for value in (self.paper, self.ours)]
        change = self.difference
        return plain[0], plain[1], NOTHING if change is None else f"{change:+.{self.digits}f}"

    @property
    def text(self) -> str:
        """The three in one cell; one dash where neither figure is known."""
        return NOTHING if self.paper is None and self.ours is None else " / ".join(self.parts)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: its labels, and a cell for every column."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """Rows under one title, such as those of a data set; the title may be empty."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A table of the paper beside ours.

    `heads` are the heads of the labels, `columns` those of the cells; `name` is that of its files, and `notes` are
    sentences below it.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table as Markdown, one for every section."""
        lines = [f"# {self.title}", "", "Every cell: the paper's figure / ours / the difference.", ""]
        for section in self.sections:
            rows = [[*row.labels, *(cell.text for cell in row.cells)] for row in section.rows]
            title = [f"## {section.title}", ""] if section.title else []
            lines += [*title, *table([*self.heads, *self.columns], rows), ""]
        for note in self.notes:
            lines += [note, ""]
        return "\n".join(lines).rstrip() + "\n"

    def latex(self) -> str:
        """The table for a paper that loads `booktabs`: the three figures of a cell stand below each other."""
        count = len(self.heads) + len(self.columns)
        lines = [
            f"% {self.title}. Every cell: the paper's figure, ours, and the difference.",
            r"\begin{tabular}{" + "l" * len(self.heads) + "r" * len(self.columns) + "}",
            r"\toprule",
            " & ".join(_escaped(head) for head in (*self.heads, *self.columns)) + r" \\",
        ]
        for section in self.sections:
            lines.append(r"\midrule")
            if section.title:
                lines += [rf"\multicolumn{{{count}}}{{l}}{{\textbf{{{_escaped(section.title)}}}}} \\"]
            for row in section.rows:
                stacked = [
                    NOTHING
                    if cell.text == NOTHING
                    else r"\shortstack[r]{" + r" \\ ".join(f"${part}$" for part in cell.parts) + "}"
                    for cell in row.cells
                ]
                lines.append(" & ".join([*map(_escaped, row.labels), *stacked]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def csv(self) -> str:
        """One line for every cell: section, labels, column, the paper's figure, ours and the difference."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["section", *self.heads, "column", "paper", "ours", "difference"])
        for section in self.sections:
            for row in section.rows:
                for column, cell in zip(self.columns, row.cells, strict=True):
                    known = (cell.paper, cell.ours, cell.difference)
                    figures = ["" if value is None else f"{value:.6g}" for value in known]
                    writer.writerow([section.title, *row.labels, column, *figures])
        return text.getvalue()

    def json(self) -> str:
        """All of it, figures with all digits."""
        found: dict[str, Any] = {
            "name": self.name, "title": self.title, "heads": list(self.heads), "columns": list(self.columns),
            "sections": [
                {
                    "title": section.title,
                    "rows": [
                        {
                            "labels": list(row.labels),
                            "cells": [
                                {"paper": cell.paper, "ours": cell.ours, "difference": cell.difference}
                                for cell in row.cells
                            ],
                        }
                        for row in section.rows
                    ],
                }
                for section in self.sections
            ],
            "notes": list(self.notes),
        }  # fmt: skip
        return json.dumps(found, indent=1) + "\n"

    def files(self) -> dict[str, str]:
        """The four files by name."""
        texts = {"md": self.markdown(), "tex": self.latex(), "csv": self.csv(), "json": self.json()}
        return {f"{self.name}.{suffix}": text for suffix, text in texts.items()}


def _escaped(text: str) -> str:
    r"""A text for LaTeX.

    >>> _escaped("opt vs LB, %")
    'opt vs LB, \\%'
    """
    for character in ("\\", "%", "_", "&", "#", "$"):
        text = text.replace(character, "\\textbackslash{}" if character == "\\" else f"\\{character}")
    return text
