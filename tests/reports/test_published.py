"""The published figures are those of the paper: every table is parsed from its LaTeX, where that is at hand."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput
from relucert.reports import published
from relucert.reports.published import (
    BOUNDS,
    CROSS_LIPSCHITZ,
    CW,
    ERRORS,
    L2,
    L2_CIFAR10,
    LAMBDA,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    Key,
)

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper.tex"
needs_paper = pytest.mark.skipif(not PAPER.exists(), reason="needs the LaTeX of the paper")
DATA = {"MNIST": "mnist", "F-MNIST": "fmnist", "GTS": "gts", "CIFAR-10": "cifar10"}
SCHEMES = {"plain": "plain", "at": "at", "KW": "kw", "Xiao et al": "rs", "MMR": "mmr", "MMR+at": "mmr+at"}
MODELS = {"FC1": "fc1", "FC10": "fc10", "CNN": "cnn"}


def rows(label: str) -> list[list[str]]:
    r"""The cells of the rows of a table without markup; a cell that a \multirow leaves empty has the value above it."""
    text = re.sub(r"\\ifnotinapp.*?\\fi\b", "", PAPER.read_text(), flags=re.DOTALL)
    start = text.rindex(r"\begin{tabular}", 0, text.index(rf"\label{{{label}}}"))
    body = text[start : text.index(r"\end{tabular}", start)]
    body = body.replace("\\newline", "")
    found, above = [], ""
    for line in re.split(r"\\\\", body):
        line = re.sub(r"\\(hline|cline\{[^}]*\}|cdashline\{[^}]*\})", "", line)
        line = re.sub(r"\\(?:multirow|multicolumn)\{[^}]*\}\{[^}]*\}\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1", line)
        line = re.sub(r"\\text(?:bf|it)\{([^{}]*)\}", r"\1", line)
        cells = [re.sub(r"\\%|\*|\$|\^1|\s+$|^\s+", "", cell).strip() for cell in line.split("&")]
        if not cells[0] and len(cells) > 2:
            cells[0] = above
        above = cells[0]
        found.append(cells)
    return found


def numbers(cells: list[str]) -> list[float | None]:
    """Figures of cells, None for dashes."""
    return [None if cell == "-" else float(cell) for cell in cells]


@needs_paper
def test_table_1_is_that_of_the_paper():
    data, seen = "", {}
    for cells in rows("tab:main_exps4_2"):
        name = cells[0].split("\n")[-1].strip()
        if name in DATA:
            data = DATA[name]
        elif name in SCHEMES and len(cells) == 13:
            found = numbers(cells[1:])
            for place, (p, model) in enumerate((p, model) for p in (math.inf, 2.0) for model in ("fc1", "cnn")):
                seen[Key(data, model, SCHEMES[name], p)] = dict(
                    zip(ERRORS, found[3 * place : 3 * place + 3], strict=True)
                )
    assert len(seen) == 22 * 4
    assert seen == TABLE_1


@needs_paper
@pytest.mark.parametrize(
    ("table", "label", "names"),
    [
        (TABLE_2, "tab:MMR2", [("mmr", name) for name in ERRORS] + [("mmr-dd", name) for name in ERRORS]),
        (
            TABLE_3,
            "tab:opt_solutions",
            [("mmr", name) for name in ("TE", "optimal", "opt vs LB")]
            + [("plain", name) for name in ("TE", "optimal")],
        ),
    ],
)
def test_tables_by_architecture_are_those_of_the_paper(table, label, names):
    seen: dict[Key, dict[str, float | None]] = {}
    for cells in rows(label):
        name = cells[0].split("\n")[-1].strip()
        if name in DATA and cells[1] in MODELS:
            for (scheme, figure), value in zip(names, numbers(cells[2:]), strict=True):
                seen.setdefault(Key(DATA[name], MODELS[cells[1]], scheme, 2.0), {})[figure] = value
    assert seen == table


@needs_paper
def test_lower_bounds_are_those_of_the_paper():
    seen = {}
    for cells in rows("tab:our_bounds2"):
        name = cells[0].split("\n")[-1].strip()
        if name in DATA and cells[1] in MODELS:
            key = Key(DATA[name], MODELS[cells[1]], SCHEMES[cells[2]], 2.0)
            seen[key] = dict(zip(("TE", "KW", "theorem", "improved"), numbers(cells[3:]), strict=True))
    assert seen == BOUNDS


@needs_paper
def test_l2_tables_are_those_of_the_paper():
    seen = {}
    for cells in rows("tab:main_exps4_v1_2"):
        name = cells[0].split("\n")[-1].strip()
        if name in DATA and cells[1] in SCHEMES:
            found = numbers(cells[2:])
            for place, model in enumerate(("fc1", "fc10", "cnn")):
                key = Key(DATA[name], model, SCHEMES[cells[1]], 2.0)
                seen[key] = dict(zip(ERRORS, found[3 * place : 3 * place + 3], strict=True))
    assert seen == L2
    cifar = {
        Key("cifar10", "cnn", SCHEMES[name], 2.0): dict(zip(ERRORS, numbers(cells[1:]), strict=True))
        for cells in rows("tab:bounds_cifar10_2")
        if (name := cells[0].split("\n")[-1].strip()) in SCHEMES
    }
    assert cifar == L2_CIFAR10


@needs_paper
def test_sentences_are_those_of_the_paper():
    text = PAPER.read_text()
    found = CROSS_LIPSCHITZ[Key("mnist", "fc1", "cross-lipschitz", 2.0)]
    assert f"test error of {found['TE']}\\%, and the robust error bounded between {found['LB']}\\%" in text
    assert f"and {found['UB']}\\% by \\cite{{WonKol2018}}" in text
    for sentence in (
        "{points with a proved optimum:.0f} out of {test points:.0f} test points",
        "{CW at least 10 % longer, points:.0f} points ($18.5\\%$",
        "{CW at least 20 % longer, points:.0f} points (around $9.1\\%$)",
        "relative difference is {largest difference, percent:.0f}\\%",
        "CW-attack is {seconds of CW:.0f}s",
        "in {seconds of the theorem:.0f}s",
    ):
        assert re.sub(r"\{([^}]*):\.0f\}", lambda name: f"{CW[name[1]]:.0f}", sentence) in text, sentence
    fewest, most = LAMBDA["minutes for 1000 points, MMR, fewest"], LAMBDA["minutes for 1000 points, MMR, most"]
    assert f"between {fewest} and {most} minutes" in text
    assert f"almost {LAMBDA['minutes for 1000 points, plain']} minutes" in text
    assert f"needs {LAMBDA['time of plain over that of MMR, largest factor']} times more" in text
    assert f"is between {LAMBDA['points decided, MMR, fewest, percent']}\\% and 100\\%" in text


def test_tables_are_whole():
    assert len(TABLE_1) == 22 * 4
    assert sum(cells["TE"] is not None for cells in TABLE_1.values()) == 2 * (2 * 5 + 2 * 5 + 2 * 5 + 5) + 2
    assert [len(table) for table in (TABLE_2, TABLE_3, BOUNDS, L2, L2_CIFAR10, CROSS_LIPSCHITZ)] == [
        12,
        18,
        12,
        45,
        5,
        4,
    ]
    for table in (TABLE_1, TABLE_2, L2, L2_CIFAR10):
        for cells in table.values():
            low, high = cells["LB"], cells["UB"]
            assert (low is None) == (high is None)
            assert low is None or high is None or low <= high


def test_a_row_with_too_many_figures_is_refused():
    with pytest.raises(InvalidInput, match="a row must have as many figures as columns"):
        published._table("mnist 1 2", ("data",), [({"model": "fc1", "scheme": "mmr"}, ("TE",))])
