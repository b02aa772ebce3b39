"""Lines of evaluations: errors come first, on a terminal as much as it is wide, in a file everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from relucert.training.config import TrainConfig
from relucert.training.progress import _line

MEASURED = {
    "epoch": 13, "loss": 0.78361, "region": 0.0234, "decision": 0.1196, "exact": 0.402, "test_error": 0.0732,
    "pgd_error": 0.3831, "pgd_points": 355, "eps": 0.1,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return TrainConfig(data="digits", model="fc1", scheme="mmr", epochs=20, out=tmp_path / "run")


def test_a_file_has_everything(config):
    assert _line(config, MEASURED) == (
        "digits fc1 mmr l_inf epoch 13/20: test error 7.32%, robust error at least 38.31% (PGD, first 355, eps 0.1), "
        "loss 0.7836, region term 0.023, decision term 0.120, share exact 0.402"
    )


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_terminal_has_whole_terms_that_fit(config, width):
    line = _line(config, MEASURED, width)
    assert line.startswith("digits fc1 mmr l_inf epoch 13/20: test error 7.32%, robust error at least 38.31%")
    assert len(line) <= max(width, 80)
    whole = _line(config, MEASURED).replace(" (PGD, first 355, eps 0.1)", "")
    assert set(line.split(", ")) <= set(whole.split(", "))
    assert (line == whole) == (width >= len(whole))
