"""Batch norm that is folded in every step: torch's batch norm, saved without a trace; averages of the last weights."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.networks.architectures import build
from relucert.networks.network import Network
from relucert.training._folded_norms import FoldedNorms, normalised_layers
from relucert.training._weights import Weights
from relucert.training.config import TrainConfig
from relucert.training.loop import Observers, carry_out, config_task, train
from relucert.training.ranks import Ranks
from relucert.training.schemes.registry import SCHEMES

SHAPE = (1, 8, 8)


def with_batch_norm(net: Network) -> nn.Sequential:
    """The paper's CNN with torch's batch norm in front of every ReLU, whose shift is the layer's bias."""
    layers: list[nn.Module] = []
    parts = list(copy.deepcopy(net.module))
    for place, part in enumerate(parts):
        layers.append(part)
        if place + 1 < len(parts) and isinstance(parts[place + 1], nn.ReLU):
            wide = isinstance(part, nn.Conv2d)
            norm = (nn.BatchNorm2d if wide else nn.BatchNorm1d)(len(part.bias)).double()
            with torch.no_grad():
                norm.bias.copy_(part.bias)
                part.bias.zero_()
            layers.append(norm)
    return nn.Sequential(*layers)


def test_steps_and_evaluation_are_those_of_torchs_batch_norm():
    generator = torch.Generator().manual_seed(0)
    net = build("cnn", SHAPE, 10, seed=1).double()
    with torch.no_grad():
        for value in net.parameters():
            if value.dim() == 1:
                value.normal_(generator=generator)
    theirs, weights = with_batch_norm(net), Weights(net, True, 0.0, 10)
    for _ in range(3):
        x = torch.rand(7, *SHAPE, dtype=torch.float64, generator=generator)
        with weights.in_step(x):
            logits = net(x)
            torch.testing.assert_close(net.logits(x), logits)
        expected = theirs.train()(x)
        torch.testing.assert_close(logits, expected)
        slope = torch.randn(logits.shape, dtype=torch.float64, generator=generator)
        net.zero_grad()
        theirs.zero_grad()
        (logits * slope).sum().backward()
        (expected * slope).sum().backward()
        for mine, other in zip(
            net.module, [part for part in theirs if not isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)], strict=True
        ):
            if isinstance(mine, nn.Conv2d | nn.Linear):
                torch.testing.assert_close(mine.weight.grad, other.weight.grad)
        norms = [part for part in theirs if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]
        for gain, norm in zip(weights.norms.gains, norms, strict=True):
            torch.testing.assert_close(gain.grad, norm.weight.grad)
            gain.grad = None
    theirs.eval()
    x = torch.rand(5, *SHAPE, dtype=torch.float64, generator=generator)
    raw = [value.detach().clone() for value in net.parameters()]
    with weights.evaluated():
        torch.testing.assert_close(net(x), theirs(x))
    assert all(torch.equal(value, before) for value, before in zip(net.parameters(), raw, strict=True))
    weights.finish()
    torch.testing.assert_close(net(x), theirs(x))
    assert [type(part) for part in net.module] == [type(part) for part in build("cnn", SHAPE, 10).module]


def test_every_loss_sees_the_weights_of_the_step():
    net = build("cnn", SHAPE, 10, seed=1).double()
    x, y = torch.rand(6, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    weights, fixed = Weights(net, True, 0.0, 10), copy.deepcopy(net)
    with weights.in_step(x):
        margin = rc.MMRParameters(p=2, gamma_b=0.3, gamma_d=0.3, k_b=20, k_d=5)
        ball = rc.Ball(float("inf"), 0.05)
        found = [rc.losses.mmr(net, x, y, margin), rc.losses.ibp(net, x, y, ball), rc.losses.kw(net, x, y, ball)]
        now = {name: value.detach() for name, value in net.named_parameters()}
    with torch.no_grad():
        for name, value in fixed.named_parameters():
            value.copy_(now[name])
    expected = [rc.losses.mmr(fixed, x, y, margin), rc.losses.ibp(fixed, x, y, ball), rc.losses.kw(fixed, x, y, ball)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert all(
            bool(part.any()) for part in torch.autograd.grad(one.sum(), list(weights.norms.gains), retain_graph=True)
        )


def test_layers_that_no_relu_follows_or_that_share_weights_are_left_alone():
    assert [layer.units for layer in normalised_layers(build("cnn", SHAPE, 10))] == [16, 32, 100]
    assert normalised_layers(build("resnet", SHAPE, 10)) == []  # has batch norm of its own
    same = nn.Linear(4, 4)
    assert normalised_layers(Network(nn.Sequential(same, nn.ReLU(), same, nn.ReLU(), nn.Linear(4, 2)), (4,))) == []
    frozen = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, 2))
    assert normalised_layers(Network(frozen, (4,))) == []
    bare = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))
    assert FoldedNorms(Network(bare, (4,))).layers == []


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_average_is_the_mean_of_the_last_weights(batch_norm):
    generator = torch.Generator().manual_seed(0)
    net = build("fc-2x30", SHAPE, 10).double()
    weights, seen = Weights(net, batch_norm, 0.3, 10), []
    for step in range(1, 11):
        with torch.no_grad():
            for value in weights.trained():
                value.add_(torch.randn(value.shape, dtype=value.dtype, generator=generator))
        if batch_norm:
            weights.norms.of_batch(torch.rand(9, *SHAPE, dtype=torch.float64, generator=generator))
        weights.record(step)
        folded = weights.norms.settled() if batch_norm else {}
        seen.append({**{n: v.detach().clone() for n, v in net.named_parameters()}, **folded})
    assert weights.count == 3
    weights.finish()
    for name, value in net.named_parameters():
        torch.testing.assert_close(value.detach(), sum(one[name] for one in seen[-3:]) / 3)


def test_runs_end_with_the_paper_s_architecture_and_what_was_evaluated(tmp_path):
    config = TrainConfig(data="digits", model="cnn", scheme="mtl-ibp", epochs=2, batch=200, out=tmp_path / "run")
    run = train(config)
    loaded = rc.load(tmp_path / "run")
    assert [node.kind for node in loaded.graph] == [node.kind for node in build("cnn", SHAPE, 10).graph]
    data = rc.dataset("digits")
    error = float((loaded.predict(data.x_test) != data.y_test).double().mean())
    assert run.last["test_error"] == pytest.approx(error)
    with pytest.raises(InvalidInput, match="batch_norm must be False for a network that is trained by 2 processes"):
        carry_out(config_task(config), Observers(), ranks=Ranks(0, 2))
    for wrong, message in (
        ({"start": "xavier"}, "start must be one of he, ibp, got 'xavier'"),
        ({"clip": -1.0}, "clip must be a number >= 0, got -1.0"),
        ({"average": 1.0}, "average must be a share of the run, at least 0 and below 1, got 1.0"),
    ):
        with pytest.raises(InvalidInput, match=message):
            TrainConfig(**wrong)


def test_gradients_are_cut_to_a_length():
    net = build("fc-1x20", SHAPE, 10)
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    data = rc.dataset("digits")
    seen = []
    rc.train(
        net, (data.x_train[:50], data.y_train[:50]), scheme="plain", epochs=1, batch=50, clip=1e-3,
        step_callback=lambda line: seen.append(float(torch.stack([v.grad.norm() for v in net.parameters()]).norm())),
    )  # fmt: skip
    assert seen == [pytest.approx(1e-3, rel=1e-3)]
    assert any(not torch.equal(value, before[name]) for name, value in net.named_parameters())


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_trains_with_batch_norm_and_an_average(name):
    data = rc.dataset("digits")
    given = {"lam": 1.0, "gamma_b": 0.3, "gamma_d": 0.3, "attack_steps": 2}
    given |= {"lam_1": 1.0, "lam_inf": 1.0, "gamma_1": 1.0, "gamma_inf": 0.2}
    fields = {field.name for field in dataclasses.fields(SCHEMES[name])}
    known = {key: value for key, value in given.items() if key in fields}
    net = build("fc-2x20", SHAPE, 10, seed=1)
    run = rc.train(
        net, (data.x_train[:60], data.y_train[:60]), scheme=SCHEMES[name](**known), p=2, eps=0.1, epochs=2, batch=20,
        batch_norm=True, average=0.5,
    )  # fmt: skip
    assert run.metrics[-1]["loss"] < 1e3
    assert all(bool(value.isfinite().all()) for value in net.parameters())
    assert not torch.equal(net.module[1].weight, build("fc-2x20", SHAPE, 10, seed=1).module[1].weight)
