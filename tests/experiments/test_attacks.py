"""The page of attacks says what the figures say, and the figures hold what the project promises of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput
from relucert.experiments.attacks import FIGURES, MINIMAL, PAGE, main, page
from relucert.experiments.trained import configurations
from relucert.reports.attacks import NEAR

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_the_page_sorts_ratios_into_shares():
    ratios = {method: {"seconds": 1.0, "ratios": [1.0, 1.0, 1.0005, 1.5]} for method in MINIMAL}
    known = {
        "some-net": {
            "broken": {"points": 10, "correct": 9, "pgd": 3, "apgd": 4},
            "ratios": {"points": 10, "exact": 5, "attacked": 4, **ratios},
        }
    }
    text = page(known)
    assert "| some-net | 9 | 3 | 4 |" in text
    assert "| `best` | 1.0000 | 1.0000 | 1.5000 | 1.5000 | 1.5000 | 1.1251 | 75.0% | 1 |" in text


def test_names_must_be_those_of_trained_networks():
    with pytest.raises(InvalidInput, match="names must be among"):
        main(["nothing"])


@pytest.mark.skipif(not (RESULTS / PAGE).exists(), reason="no figures of attacks here")
def test_figures_hold_what_is_promised():
    known = {
        name: json.loads((RESULTS / name / FIGURES).read_text())
        for name in configurations()
        if (RESULTS / name / FIGURES).exists()
    }
    assert (RESULTS / PAGE).read_text() == page(known)
    for name, found in known.items():
        assert found["broken"]["apgd"] >= found["broken"]["pgd"], name
        if "ratios" in found:
            best = found["ratios"]["best"]["ratios"]
            assert sum(one <= 1 + NEAR for one in best) >= 0.99 * len(best) > 0
