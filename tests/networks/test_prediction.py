"""Counterexamples hold for the network as executed and in real arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from torch import nn

import exact
from relucert.core.properties import Property, class_stays
from relucert.networks.network import Network, in_double
from relucert.networks.prediction import changed, class_changes, confirmed, falsified, logits_with_errors, slack
from zoo import NETWORKS, inputs, network

EXACT = [name for name in NETWORKS if name not in ("cnn colour", "residual", "leaky", "dense", "fc deep", "max pool")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_errors_of_logits_hold_the_exact_ones(name, dtype):
    net = network(name, dtype)
    x = inputs(net, 3)
    logits, errors = logits_with_errors(in_double(net), x.double())
    for i in range(len(x)):
        truth = exact.logits(net, x[i])
        for value, error, real in zip(logits[i].tolist(), errors[i].tolist(), truth, strict=True):
            assert abs(Fraction(value) - real) <= Fraction(error)
            assert error <= 1e-10 * (1 + abs(value))


def cancelling(order: tuple[int, ...]) -> Network:
    """A float32 network whose executed decision is decided by rounding: two huge terms that cancel, and a small one.

    The library chooses in which order terms are summed up, so the units are put in a chosen `order`.
    """
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1e7, 1.0], [1e7, 1.0], [0.0, 3.0]]))
        module[0].bias.copy_(torch.tensor([0.0, 0.0, -1.0]))
        module[2].weight.copy_(torch.tensor([[1e3, -1e3, 1e-3], [0.0, 0.0, 0.0]]))
        module[2].bias.zero_()
        module[0].weight[1, 1] += 1e-6
        places = list(order)
        for values in (module[0].weight, module[0].bias):
            values.copy_(values[places].clone())
        module[2].weight.copy_(module[2].weight[:, places].clone())
    return Network(module, (2,)).eval()


def test_a_change_by_rounding_alone_is_none():
    """Over many points: wherever the executed class changes but the real one does not, nothing is called a counterexample."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1000, 2, generator=generator)
    y, seen, differs = torch.ones(len(x), dtype=torch.long), False, False
    for order in itertools.permutations(range(3)):
        net = cancelling(order)
        with torch.no_grad():
            executed = changed(net(x), y)
            found = class_changes(net, in_double(net), x, y)
        real = torch.tensor([(lambda f: f[0] > f[1])(exact.logits(net, one)) for one in x])
        assert not bool((found & ~real).any())
        assert not bool((found & ~executed).any())
        differs |= bool((executed & ~real).any())
        seen |= bool(found.any())
    assert differs, "rounding changes nothing here"
    assert seen


@pytest.mark.parametrize("name", NETWORKS)
def test_clear_changes_are_found(name):
    net = network(name)
    x = inputs(net, 20)
    y = net.predict(x)
    other = (y + 1) % net.classes
    assert bool(class_changes(net, net, x, other).all())
    assert not bool(class_changes(net, net, x, y).any())
    wanted = class_stays(other, net.classes, dtype=torch.float64)
    assert bool(confirmed(net, x, wanted).all())


def test_ties_are_no_counterexamples():
    module = nn.Sequential(nn.Linear(2, 2)).double()
    with torch.no_grad():
        module[0].weight.copy_(torch.ones(2, 2))
        module[0].bias.zero_()
    net = Network(module, (2,)).eval()
    x = torch.rand(10, 2, dtype=torch.float64)
    for label in (0, 1):
        assert not bool(class_changes(net, net, x, torch.full((10,), label)).any())


def test_properties_with_offsets():
    net = network("fc")
    x = inputs(net, 5)
    with torch.no_grad():
        logits = net(x)
    rows = torch.zeros(5, 1, net.classes, dtype=torch.float64)
    rows[:, 0, 0] = 1.0
    for shift, expected in ((1e-9, False), (-1e-9, True)):
        prop = Property(rows, (-logits[:, :1] + shift).detach())
        assert falsified(net, net, x, prop).tolist() == [expected] * 5
    assert bool((slack(logits) > 0).all())


def test_a_counterexample_holds_alone_as_well_as_in_its_batch(monkeypatch):
    """Where the order of summation decides, the executed logits of a point alone are others than in a batch: seen with
    cancelling weights in float32, replayed here with a network that adds to the logits of single inputs.
    """
    net = network("fc1", torch.float32)
    points = inputs(net, 6)
    with torch.no_grad():
        y = net(points).argmin(1)
    assert bool(class_changes(net, in_double(net), points, y).all())
    forward, own = net.forward, torch.nn.functional.one_hot(y[:1], net.classes) * 1e3
    monkeypatch.setattr(net, "forward", lambda z: forward(z) + own * (len(z) == 1) * bool((z[0] == points[0]).all()))
    assert class_changes(net, in_double(net), points, y).tolist() == [False] + [True] * 5
