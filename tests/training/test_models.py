"""Networks of a run: architectures by name, functions of the user, checkpoints."""

from __future__ import annotations

import pytest
import torch

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.networks.checkpoints import digest
from relucert.training._models import adopt, architecture, network_of
from relucert.training.config import TrainConfig
from relucert.training.loop import config_task, train

CODE = """
from torch import nn
def shaped(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, classes))
def plain():
    return shaped((1, 8, 8), 10)
def wrong():
    return 3
def three(a, b, c):
    return shaped(a, b)
"""
SHAPE = (1, 8, 8)


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["shaped", "plain"])
def test_functions_of_the_user_make_networks_that_follow_from_the_seed(code, name):
    config = TrainConfig(model=f"my_networks:{name}", epochs=1, out=code / "run", evaluate_points=0)
    before = torch.get_rng_state()
    nets = [network_of(config, SHAPE, 10) for _ in range(2)]
    assert torch.equal(before, torch.get_rng_state())
    assert digest(nets[0]) == digest(nets[1])
    assert nets[0].hidden_units == 12
    run = train(config)
    assert digest(train(config).net) == digest(run.net)
    assert rc.load(code / "run").hidden_units == 12


def test_checkpoints_are_gone_on_with(code):
    first = train(TrainConfig(model="fc-2x20", epochs=1, out=code / "first", evaluate_points=0))
    assert first.net.hidden_units == 40
    for settings in (
        {"model": "first"},
        {"model": "first/model.safetensors"},
        {"model": "fc-2x20", "init": code / "first"},
    ):
        config = TrainConfig(**settings, epochs=1, rate=1e-9, out=code / "next", evaluate_points=0)
        net = network_of(config, SHAPE, 10)
        assert digest(net) == digest(first.net)
        assert TrainConfig.from_json(config.to_json()).to_json() == config.to_json()
    assert train(config).last["test_error"] == pytest.approx(first.last["test_error"], abs=0.02)


def test_a_run_from_another_checkpoint_is_another_run(code):
    for seed in (0, 1):
        rc.save(rc.build("fc-1x9", SHAPE, 10, seed=seed), code / f"{seed}.safetensors")
    settings = {"model": "fc-1x9", "epochs": 1, "out": code / "run", "evaluate_points": 0}
    train(TrainConfig(**settings, init=code / "0.safetensors"))
    (code / "0.safetensors").write_bytes((code / "1.safetensors").read_bytes())
    with pytest.raises(rc.RelucertError, match=r"holds another run \(another network\)"):
        train(TrainConfig(**settings, init=code / "0.safetensors"))


def test_architectures_are_equal_whatever_the_weights_are():
    one, same, other = rc.build("cnn", SHAPE, 10), rc.build("cnn", SHAPE, 10, seed=1), rc.build("fc1", SHAPE, 10)
    assert architecture(one) == architecture(same) != architecture(other)
    adopt(same, one, "a file")
    assert digest(same) == digest(one)
    resnets = [rc.build("resnet", SHAPE, 10, seed=seed) for seed in (0, 1)]
    resnets[0](torch.rand(8, *SHAPE))  # moves running statistics
    adopt(resnets[1], resnets[0], "a file")
    assert digest(resnets[1]) == digest(resnets[0])


def test_weights_that_are_computed_cannot_be_taken_over():
    module = torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3)))
    other = torch.nn.Sequential(torch.nn.Linear(4, 3))
    with pytest.raises(InvalidInput, match="model must hold its weights in parameters"):
        adopt(rc.Network(module, (4,)), rc.Network(other, (4,)), "a file")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "my_networks:wrong"}, "model must name a function that makes an nn.Module, got a int"),
        ({"model": "my_networks:three"}, r"model must name a function of \(input_shape, classes\), or of nothing"),
        ({"model": "my_networks:none"}, "model must name a function that can be imported, .*has no attribute 'none'"),
        ({"model": "no_such_package:f"}, "model must name a function that can be imported, .*No module named"),
        ({"model": "nothing.safetensors"}, "nothing.safetensors does not exist"),
        (
            {"model": "vgg"},
            "model must be one of fc1, .*, got 'vgg': others are fc-LAYERSxUNITS, PACKAGE.MODULE:FUNCTION",
        ),
        ({"model": "fc-0x9"}, "model must be one of fc1"),
        ({"model": "small.safetensors"}, r"must take inputs of shape \(1, 8, 8\), as data has them, got \(3,\)"),
        ({"device": "nowhere"}, "device must be one that torch can use here, such as cpu, got 'nowhere'"),
        ({"init": "small.safetensors"}, "init must hold a network of the architecture of model"),
    ],
)
def test_what_is_no_network_is_named(code, settings, message):
    rc.save(rc.build("fc-1x2", (3,), 10), code / "small.safetensors")
    with pytest.raises(rc.RelucertError, match=message):
        config_task(TrainConfig(**settings))
