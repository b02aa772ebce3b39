"""Complete verification of published networks: the list is asked as it says, and the page says what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput
from relucert.experiments import complete

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_what_is_asked_must_be_known(tmp_path):
    with pytest.raises(InvalidInput, match="usage: FOLDER"):
        complete.main([str(tmp_path), "nothing"])
    with pytest.raises(InvalidInput, match=r"FOLDER must hold lpd_mlp_mnist\.safetensors"):
        complete.checkpoint(complete.CASES["lpd-mlp"], tmp_path)


def test_the_union_is_broken_by_any_and_proved_by_all(tmp_path, monkeypatch):
    monkeypatch.setattr(complete, "RESULTS", tmp_path)
    assert complete.union() is None
    for name, proved, broken in zip(complete.UNION, ([1, 2, 3], [2, 3, 4], [2, 3]), ([5], [5, 6], [7]), strict=True):
        (tmp_path / f"{name}-points.json").write_text(json.dumps({"proved": proved, "broken": broken}))
    assert complete.union() == (3 / 1000, 1 - 2 / 1000)


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
