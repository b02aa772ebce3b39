"""The list of trained networks: its commands are those of the command line, and its page says what the figures say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput
from relucert.experiments.trained import FIGURES, command, configurations, main, page

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_commands_are_the_configurations():
    found = configurations()
    assert command(found["mnist-cnn-mmr+at-inf"]) == (
        "relucert train --data mnist --model cnn --scheme mmr+at --p inf --epochs 8 --out results/mnist-cnn-mmr+at-inf"
    )
    assert len(found) == len({command(config) for config in found.values()})


def test_the_page_has_a_row_for_every_network_and_norm():
    known = configurations()
    regions = {"mean_d_b": 0.01, "mean_d_d": 0.2, "certified": 0.5, "exact": 0.25}
    one = {"eps": 0.1, "test_error": 0.02, "robust_error": 0.14, "regions": regions, "crown": {"robust_error": 0.3}}
    large = one | {"regions": regions | {"mean_d_b": 0.2}}
    names = {"mnist-fc1-plain-inf": {"inf": one, "2": one}, "mnist-fc1-mmr-inf": {"inf": large}}
    text = page({name: (known[name], found) for name, found in names.items()})
    assert (
        "| mnist | fc1 | plain | l_inf, 0.1 | 20 | 2.00 (1.44) | 14.0 (93.0) | 30.0 (100.0) | 0.01 | 0.2 | 25.0 | 50.0 |"
        in text
    )
    assert "| mnist | fc1 | l_inf | mmr | 0.01 | 0.2 | 20 | 25.0% | 25.0% |" in text
    assert "relucert train --data mnist --model fc1 --scheme mmr --p inf" in text


def test_what_is_asked_must_be_known():
    with pytest.raises(InvalidInput, match="usage: train"):
        main(["train", "nothing"])
    with pytest.raises(InvalidInput, match="usage: train"):
        main([])


@pytest.mark.skipif(not RESULTS.exists(), reason="no trained networks here")
def test_the_page_is_that_of_the_figures():
    known = configurations(RESULTS)
    found = {
        name: (configurations()[name], json.loads((config.folder / FIGURES).read_text()))
        for name, config in known.items()
        if (config.folder / FIGURES).exists()
    }
    assert (RESULTS / "README.md").read_text() == page(found)
    for name in found:
        config = json.loads((RESULTS / name / "config.json").read_text())
        assert config["epochs"] == configurations()[name].epochs
        assert (RESULTS / name / "model.safetensors").stat().st_size <= 4 * 2**20
