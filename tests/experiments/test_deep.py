"""The page of deep networks says what the figures say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput
from relucert.experiments import deep

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_verbs_and_names_are_checked():
    for arguments in ([], ["prove"], ["decide", "fc3"]):
        with pytest.raises(InvalidInput, match=r"usage: train \[NAME \.\.\.\] or decide"):
            deep.main(arguments)


def test_the_page_counts_decided_points_and_charges():
    summary = {
        "robust": 10, "vulnerable": 2, "misclassified": 1, "unknown": 2, "points": 15, "seconds": 61.4, "by": {"bab": 10}
    }  # fmt: skip
    shares = {
        "executed median": 0.00123, "executed largest": 0.004, "executed scale": 0.003,
        "all median": 0.01, "all largest": 0.025, "all scale": 0.02,
    }  # fmt: skip
    text = deep.page({"fc10": {"0.03": summary, "slack 0.03": shares}})
    assert "| fc10 | l_inf, 0.03 | 10 | 2 | 1 | 2 | 86.7 | 61 | bab 10 |" in text
    assert "| fc10 | l_inf, 0.03 | 0.12 | 0.4 | 0.3 | 1 | 2.5 | 2 |" in text
    assert (
        'relucert train --data mnist --model fc10 --scheme "rs(lam=0, l1=2e-5, attack_steps=5)" --p inf --epochs 6'
        in text
    )


@pytest.mark.skipif(not (RESULTS / "deep.json").exists(), reason="no figures of deep networks here")
def test_figures_hold_what_is_promised():
    known = json.loads((RESULTS / "deep.json").read_text())
    assert (RESULTS / "deep.md").read_text() == deep.page(known)
    for name, one in known.items():
        for eps in deep.RADII:
            assert one[f"slack {eps:g}"]["executed scale"] <= 0.01, name
