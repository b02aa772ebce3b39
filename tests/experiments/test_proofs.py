"""The table of certificate files: counts and seconds of small cases, continued where it stopped, and its page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.experiments import proofs
from relucert.experiments.proofs import Case, cases, main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `results/` and one network in it, of the embedded digits."""
    torch.manual_seed(0)
    (tmp_path / "results" / "digits-fc1").mkdir(parents=True)
    rc.save(rc.build("fc1", (1, 8, 8), 10).eval(), tmp_path / "results" / "digits-fc1" / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(proofs.RADII, "digits", {math.inf: 1e-4, 2.0: 1e-4, 1.0: 1e-4})
    return tmp_path


def test_cases_name_network_data_and_radius(folder: Path) -> None:
    every = {str(case): case for case in cases()}
    assert every["digits-fc1/inf/crown"] == Case("digits-fc1", math.inf, "crown")
    assert [every[name].data for name in ("kw_fmnist/2/kw", "mmr_universal/mnist/1/bab")] == ["fmnist", "mnist"]
    assert every["wk17a_mnist/2/sdp"].eps == 0.3
    assert "wk17a_mnist/inf/sdp" not in every
    assert Case("mmr_universal/mnist", 1.0, "kw").file(folder) == folder / "mmr_universal" / "mnist.mat"


def test_figures_and_page(folder: Path, capsys: Any) -> None:
    main([str(folder), "--points", "30", "digits-fc1/inf/crown", "digits-fc1/2/bab"])
    figures = json.loads((folder / "results" / "proofs.json").read_text())
    assert set(figures) == {"digits-fc1/inf/crown", "digits-fc1/2/bab"}
    for one in figures.values():
        assert one["points"] == 30
        assert one["robust"] == one["robust checked"] > 0
        assert one["none"] == one["refused"] == 0
        assert min(one["found"], one["written"], one["checked"]) > 0
        assert 500 < one["largest"] < 10_000
    page = (folder / "results" / "proofs.md").read_text()
    robust = figures["digits-fc1/inf/crown"]["robust"]
    assert f"| digits-fc1 | l_inf, 0.0001 | crown | 30 | {robust} of {robust} |" in page
    capsys.readouterr()
    main([str(folder), "--points", "3", "digits-fc1/inf/crown"])
    assert capsys.readouterr().out == "", "what has figures is not done again"


def test_unknown_names_are_errors(folder: Path) -> None:
    for wrong in ([], ["nowhere"], [str(folder), "crwn"]):
        with pytest.raises(InvalidInput, match="usage"):
            main(wrong)
