"""Complete verification of published networks: every listed case runs as configured, and the page shows its results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput
from relucert.experiments import complete
from relucert.records.record import Record, ball_fields

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_what_is_asked_must_be_known(tmp_path):
    with pytest.raises(InvalidInput, match="usage: FOLDER"):
        complete.main([str(tmp_path), "nothing"])
    with pytest.raises(InvalidInput, match=r"FOLDER must hold lpd_mlp_mnist\.safetensors"):
        complete.checkpoint(complete.CASES["lpd-mlp"], tmp_path)


def test_the_union_is_broken_by_any_and_proved_by_all(tmp_path, monkeypatch):
    monkeypatch.setattr(complete, "RESULTS", tmp_path)
    assert complete.union() is None
    for name, proved, falsified in zip(complete.UNION, ([1, 2, 3], [2, 3, 4], [2, 3]), ([5], [5, 6], [7]), strict=True):
        (tmp_path / f"{name}-points.json").write_text(json.dumps({"proved": proved, "broken": falsified}))
    assert complete.union() == (3 / 1000, 1 - 2 / 1000)


def test_stages_add_up_to_the_ends_of_the_robust_error(monkeypatch, tmp_path) -> None:
    """Points are counted by who decided them, in the order of the cascade, and the page adds them up."""
    decided = [("crown", "robust"), ("prediction", "misclassified"), ("bab(nodes=9)", "robust"), ("pgd", "vulnerable"),
               ("crown", "robust"), ("stopped by the clock: bab", "unknown")]  # fmt: skip
    records = [
        Record(model="m", data="mnist", split="test", index=index, ball=ball_fields(2, 0.3, (0, 1)), method="auto",
               verdict=verdict, by=by)
        for index, (by, verdict) in enumerate(decided)
    ]  # fmt: skip
    found = complete.stages(records)
    assert list(found.items()) == [
        ("prediction", {"robust": 0, "broken": 1}),
        ("crown", {"robust": 2, "broken": 0}),
        ("pgd", {"robust": 0, "broken": 1}),
        ("bab", {"robust": 1, "broken": 0}),
    ]
    monkeypatch.setattr(complete, "RESULTS", tmp_path)
    open_ = [{"index": 5, "unstable": 70, "bound": -0.25, "seconds": 30.0}]
    one = {"points": 6, "stages": found, "open": open_, "broken_error": 2 / 6, "robust_error": 0.5, "by": {}}
    (tmp_path / "fc1-at-2.json").write_text(json.dumps({**one, "undecided": [5], "seconds": 31.0}))
    lines = complete.page().splitlines()
    assert "| fc1-at-2 | pgd | 0 | 1 | 33.3% to 66.7% | 33.3% |" in lines
    assert "| fc1-at-2 | bab | 1 | 0 | 33.3% to 50.0% | 16.7% |" in lines
    assert "| fc1-at-2 | 5 | 70 | -0.250 | 30 |" in lines


@pytest.mark.parametrize(
    ("single", "double", "said"),
    [
        ({"verdicts": "rvm"}, {"verdicts": "rvm"}, "the same at every point"),
        ({"verdicts": "rum"}, {"verdicts": "rvm"}, "others at 1 points"),
        ({"verdicts": "rvm"}, {}, "the same robust error"),
        ({"verdicts": "rvm", "robust_error": 0.75}, {}, "another robust error"),
    ],
)
def test_verdicts_in_float32_are_compared_with_float64(monkeypatch, tmp_path, single, double, said) -> None:
    monkeypatch.setattr(complete, "RESULTS", tmp_path)
    both = {"points": 3, "broken_error": 0.5, "robust_error": 0.5, "by": {}, "undecided": [], "seconds": 7.0}
    (tmp_path / "lpd-mlp.json").write_text(json.dumps({**both, **double}))
    assert "## In float32" not in complete.page()
    (tmp_path / "lpd-mlp-float32.json").write_text(json.dumps({**both, "seconds": 3.0, **single}))
    assert f"| lpd-mlp | {said} | 0 | 3 | 7 |" in complete.page().splitlines()


@pytest.mark.skipif(not (RESULTS / "complete.md").exists(), reason="no figures of complete verification here")
def test_the_page_is_that_of_the_figures(monkeypatch):
    monkeypatch.setattr(complete, "RESULTS", RESULTS / "complete")
    assert (RESULTS / "complete.md").read_text() == complete.page()
    for name, case in complete.CASES.items():
        file = RESULTS / "complete" / f"{name}.json"
        if file.exists() and case.stated:
            found = json.loads(file.read_text())
            exact = float(case.stated.split()[0])
            assert 100 * found["broken_error"] <= exact + 1e-9 <= 100 * found["robust_error"] + 2e-9
