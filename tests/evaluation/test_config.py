"""What an evaluation is about, where the configuration leaves it open: a run knows its data, norm and radius."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.evaluation.attack import AttackTask
from relucert.evaluation.certify import verdicts
from relucert.evaluation.config import AttackConfig, CertifyConfig, EvaluateConfig, PointsConfig, RadiusConfig
from relucert.evaluation.evaluate import evaluate
from relucert.evaluation.radius import radii
from relucert.training.config import TrainConfig

VERBS: list[type[PointsConfig]] = [EvaluateConfig, CertifyConfig, RadiusConfig, AttackConfig]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with the configuration of a run in l2, and no network."""
    config = TrainConfig(data="fmnist", p=2, eps=0.7)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_knows_its_data_and_norm(run: Path, verb: type[PointsConfig]) -> None:
    config = verb(model=run)
    assert (config.data, config.norm) == ("fmnist", 2.0)
    other = verb(model=run, data="mnist", p=math.inf)
    assert (other.data, other.norm) == ("mnist", math.inf)


@pytest.mark.parametrize("verb", VERBS)
def test_without_a_run_the_norm_is_the_same_in_all_verbs(tmp_path: Path, verb: type[PointsConfig]) -> None:
    file = tmp_path / "net.safetensors"
    assert verb(model=file, data="mnist").norm == math.inf
    with pytest.raises(InvalidInput, match=r"data must be given for .*net.safetensors"):
        verb(model=file)


@pytest.mark.parametrize("verb", [EvaluateConfig, CertifyConfig])
def test_the_radius_is_that_of_the_run_in_its_own_norm_alone(run: Path, verb: type[CertifyConfig]) -> None:
    assert verb(model=run).radius == 0.7
    assert verb(model=run, eps=0.2).radius == 0.2
    assert verb(model=run, p=math.inf).radius == 0.1
    assert verb(model=run, data="mnist").radius == 0.3
    with pytest.raises(InvalidInput, match="eps must be given for p=1"):
        verb(model=run, p=1)


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"data": 7}')
    with pytest.raises(InvalidInput, match=r"config.json must be the configuration of a run"):
        CertifyConfig(model=tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of twenty images, the digits, and a network for them that knows ten classes."""
    data = rc.dataset("digits")
    for i in range(20):
        folder = tmp_path / "photos" / str(int(data.y_test[i]))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.x_test[i, 0] * 255).numpy().round().astype(np.uint8)).save(folder / f"{i}.png")
    net = rc.build("fc1", (1, 8, 8), 10).eval()
    rc.save(net, tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors", tmp_path / "photos"


def test_a_folder_of_images_goes_through_every_verb(photos: tuple[Path, Path]) -> None:
    model, folder = photos
    about = {"model": model, "data": str(folder), "p": 2.0, "points": None}
    assert evaluate(EvaluateConfig(**about, eps=0.1, attack="pgd(steps=3)")).points == 20
    assert sum(verdicts(CertifyConfig(**about, eps=1e-3, method="crown")).counts.values()) == 20
    assert len(radii(RadiusConfig(**about, attack=None)).records) == 20
    assert len(AttackTask(AttackConfig(**about, eps=0.1))) == 20


def test_features_have_no_box(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rc.save(
        rc.Network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,)).eval(),
        tmp_path / "net.safetensors",
    )
    (tmp_path / "own.csv").write_text("a,b,c,label\n3,-2,7,0\n5,1,-9,1\n")
    task = AttackTask(AttackConfig(model=tmp_path / "net.safetensors", data=str(tmp_path / "own.csv"), p=2.0))
    assert task.box is None
    assert task.question.ball["box"] is None
    records = list(task.records())
    assert len(records) == 2
