"""The page of explored regions says what the figures say, and these hold what exploration promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput
from relucert.experiments import regions

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_names_are_checked():
    with pytest.raises(InvalidInput, match=r"usage: \[NETWORK \.\.\.\], where NETWORK is one of mnist-fc1-mmr-2"):
        regions.main(["fc3"])


def test_the_page_has_means_shares_and_seconds():
    summary = {"mean_lower": 0.24231, "mean_upper": 1.25, "share_exact": 0.3, "seconds": 5.04}
    text = regions.page({"mnist-fc1-mmr-2": {"region(regions=5)": summary}})
    assert "| mnist-fc1-mmr-2 | `region(regions=5)` | 0.2423 | 1.2500 | 30 | 0.050 |" in text
    assert "regions=30" not in text


@pytest.mark.skipif(not (RESULTS / "regions.json").exists(), reason="no figures of regions here")
def test_figures_hold_what_is_promised():
    known = json.loads((RESULTS / "regions.json").read_text())
    assert (RESULTS / "regions.md").read_text() == regions.page(known)
    for network, one in known.items():
        curve = [one[f"region(regions={count})"]["mean_lower"] for count in regions.NEIGHBOURS]
        assert curve == sorted(curve), network
        bound, started = (one[method]["mean_lower"] for method in regions.STARTED)
        assert started >= bound, network
