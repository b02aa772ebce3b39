"""Sentences of the paper beside our figures: verification over lambda, and the CW attack."""

from __future__ import annotations

import math

import pytest

from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore
from relucert.reports.paper.claims import Verified, cw_comparison, lambda_comparison, verified
from relucert.reports.paper.measured import MeasuredNetwork
from relucert.reports.published import CW, LAMBDA, Key


def values(comparison, title):
    """The cells of a section by the names of their rows."""
    section = next(section for section in comparison.sections if section.title == title)
    return {row.labels[0]: row.cells[0] for row in section.rows}


def network(folder, key, records):
    file = folder / "x.jsonl"
    with RecordStore(file, writable=True) as store:
        for index, (method, eps, facts) in enumerate(records):
            store.append(
                Record(
                    model="a" * 64, data=key.data, split="test", index=facts.pop("index", index), method=method, label=1,
                    prediction=1, seconds=6.0, ball=ball_fields(key.p, eps, (0, 1)), **facts,
                )
            )  # fmt: skip
    return MeasuredNetwork(
        name="x", key=key, model="a" * 64, source="x", command="x", epochs=1, test_error=0.1, eps=0.1, records=file
    )


def test_lambda_has_every_sentence_and_ours(tmp_path):
    key = Key("mnist", "cnn", "lambda 0.5", math.inf)
    certify = "certify by auto(nodes=5)"
    found = network(
        tmp_path,
        key,
        [
            (certify, 0.1, {"verdict": Verdict.ROBUST, "margin": 1.0}),
            (certify, 0.1, {"verdict": Verdict.UNKNOWN, "reason": "nodes"}),
        ],
    )
    one = verified(found, 0.5)
    assert one == Verified(lam=0.5, minutes=pytest.approx(100.0), lower=0.0, upper=50.0, certified=50.0, decided=50.0)
    plain = Verified(lam=0.0, minutes=2500.0, lower=90.0, upper=100.0, certified=0.0, decided=90.0)
    comparison = lambda_comparison({"mnist": [plain, one]})
    cells = values(comparison, "MNIST")
    assert {name: cell.paper for name, cell in cells.items()} == LAMBDA
    assert cells["time of plain over that of MMR, largest factor"].ours == pytest.approx(25.0)
    assert cells["UB, plain, percent"].ours == 100.0
    assert "- lambda 0.5: 100 minutes for 1000 points, robust error 0.0 to 50.0 %" in comparison.markdown()


def test_lambda_without_networks_has_the_papers_figures_alone():
    cells = values(lambda_comparison({}), "MNIST")
    assert all(cell.ours is None and cell.paper is not None for cell in cells.values())


def test_cw_counts_what_is_longer(tmp_path):
    about = ", about the predicted class"
    theorem, cw = f"radius by region(regions=0){about}", f"smallest by cw(iterations=10){about}"
    records = [(theorem, math.inf, {"index": index, "lower": 0.5, "upper": 0.5}) for index in range(3)]
    records.append((theorem, math.inf, {"index": 3, "lower": 0.5, "upper": math.inf}))
    lengths = (0.5, 0.56, 1.0)
    records += [
        (cw, math.inf, {"index": index, "verdict": Verdict.VULNERABLE, "upper": length})
        for index, length in enumerate(lengths)
    ]
    found = network(tmp_path, Key("gts", "fc1", "mmr", 2.0), records)
    cells = values(cw_comparison({"gts": found}), "GTS")
    assert {name: cell.paper for name, cell in cells.items()} == CW
    ours = {name: cell.ours for name, cell in cells.items()}
    assert (ours["test points"], ours["points with a proved optimum"]) == (4, 3)
    assert (ours["CW at least 10 % longer, points"], ours["CW at least 20 % longer, points"]) == (2, 1)
    assert ours["largest difference, percent"] == pytest.approx(100)
    assert (ours["seconds of CW"], ours["seconds of the theorem"]) == (18.0, 24.0)
