"""The page of bounds of others' networks says what the figures say, and they are near what was published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput
from relucert.experiments import bounds

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_a_folder_is_needed(tmp_path):
    with pytest.raises(InvalidInput, match="usage: FOLDER, which has the networks of others, got"):
        bounds.main([str(tmp_path / "nothing")])


@pytest.mark.skipif(not (RESULTS / "bounds.json").exists(), reason="no figures of bounds here")
def test_the_page_is_that_of_the_figures():
    found = json.loads((RESULTS / "bounds.json").read_text())
    assert (RESULTS / "bounds.md").read_text() == bounds.page(found)
    for case, one in zip(bounds.CASES, found["kw"], strict=True):
        assert one == pytest.approx(case.stated, abs=0.1001)
    share = found["ladder"]
    for p, methods in bounds.LADDER.items():
        for method in methods:
            assert share[f"{p:g} {method} free"] <= share[f"{p:g} {method} box"]
    assert share["2 crown free"] < share["2 crown box"]
    for box in ("free", "box"):
        assert share[f"inf ibp {box}"] <= share[f"inf crown {box}"] <= share[f"inf alpha {box}"]
        assert share[f"2 crown {box}"] <= share[f"2 alpha {box}"]
