"""Examples that are held out of the training set, runs that stop after an epoch, and curves for TensorBoard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import relucert as rc
from relucert.core.errors import InvalidInput, RunError
from relucert.networks.checkpoints import digest
from relucert.networks.prediction import error
from relucert.training.config import TrainConfig
from relucert.training.loop import Observers, carry_out, config_task, train

SMALL = {"data": "digits", "epochs": 2, "batch": 200, "evaluate_points": 20}


def rows(x) -> set[bytes]:
    return {row.numpy().tobytes() for row in x}


def test_points_that_are_held_out_are_never_trained_on():
    task, data = config_task(TrainConfig(validation=0.1, **SMALL)), rc.dataset("digits")
    kept, held = task.examples, task.validation
    assert len(held.y) == round(0.1 * len(data.y_train))
    assert len(kept.y) + len(held.y) == len(data.y_train)
    seen = [x for epoch in range(2) for x, _ in kept.batches(epoch, 0)]
    assert rows(torch.cat(seen)) == rows(kept.x)
    assert rows(kept.x).isdisjoint(rows(held.x)) or len(rows(data.x_train)) < len(data.x_train)
    assert sorted(row.numpy().tobytes() for row in torch.cat([kept.x, held.x])) == sorted(
        row.numpy().tobytes() for row in data.x_train
    )  # nothing of the test set, nothing lost


def test_the_choice_has_a_seed_of_its_own():
    def held(**fields):
        return rows(config_task(TrainConfig(validation=0.2, **SMALL, **fields)).validation.x)

    assert held() == held(seed=5)
    assert held() != held(validation_seed=1)


def test_the_metrics_are_of_the_held_out_points_and_the_configuration_says_so(tmp_path):
    config = TrainConfig(validation=0.1, out=tmp_path / "run", **SMALL)
    run = train(config)
    held = config_task(config).validation
    assert run.last["validation_error"] == pytest.approx(error(run.net, held.x, held.y))
    assert "test_error" not in run.last
    assert config.to_json()["validation"] == 0.1
    assert TrainConfig.from_json(config.to_json()).validation == 0.1
    assert "validation" not in TrainConfig(**SMALL).to_json()  # runs of earlier versions go on
    with pytest.raises(RunError, match=r"holds another run \(validation is 0.1, not 0.2"):
        train(replace(config, validation=0.2))


@pytest.mark.parametrize("share", [-0.1, 1.0, 1e-9, 0.999999])
def test_a_share_that_leaves_nothing_on_one_side_is_refused(share):
    with pytest.raises(InvalidInput, match="validation must"):
        train(TrainConfig(validation=share, **SMALL))


def test_a_share_of_arrays_of_ones_own(tmp_path):
    data = rc.dataset("digits")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    arrays = (data.x_train[:100], data.y_train[:100])
    run = rc.train(module, arrays, validation=0.25, epochs=1, batch=25)
    assert run.last["validation_error"] == round(25 * run.last["validation_error"]) / 25
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*arrays), 25)
    with pytest.raises(InvalidInput, match="validation must be 0 for a loader"):
        rc.train(module, loader, validation=0.25, epochs=1)


def test_a_run_that_stops_after_epochs_ends_as_one_that_does_not(tmp_path):
    whole = train(TrainConfig(out=tmp_path / "whole", **SMALL | {"epochs": 3}))
    config = TrainConfig(out=tmp_path / "parts", **SMALL | {"epochs": 3})
    for epoch in (1, 1, 2, 3, 3):
        part = carry_out(config_task(config), Observers(), until=epoch)
        assert part.last["epoch"] == epoch
        assert (config.folder / "model.safetensors").exists() == (epoch == 3)
    assert digest(part.net) == digest(whole.net)


def test_curves_for_tensorboard_are_the_metrics_and_a_run_that_goes_on_has_one(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = TrainConfig(out=tmp_path / "run", tensorboard=True, **SMALL | {"epochs": 3})
    for epoch in (2, 3):
        run = carry_out(config_task(config), Observers(), until=epoch)
    curves = events.EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    for kind, name in [("epoch", "loss"), ("epoch", "rate"), ("evaluation", "test_error"), ("evaluation", "pgd_error")]:
        lines = [(line["step"], line[name]) for line in run.metrics if line["kind"] == kind]
        found = [(point.step, point.value) for point in curves.Scalars(f"{kind}/{name}")]
        assert len(found) == 3
        assert np.allclose(found, lines)


def test_a_run_that_has_begun_without_curves_gets_all_of_them(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = TrainConfig(out=tmp_path / "run", **SMALL)
    carry_out(config_task(config), Observers(), until=1)
    carry_out(config_task(replace(config, tensorboard=True)), Observers())
    curves = events.EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    assert len(curves.Scalars("epoch/loss")) == 2
