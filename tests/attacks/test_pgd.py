import math

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.core.errors import InvalidInput, WrongMode
from relucert.networks.prediction import changed
from zoo import inputs, network, randomised


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_linear_classifiers_are_falsified_just_beyond_their_distance(p):
    # With two classes the gradient is normal to the only decision hyperplane everywhere.
    net = rc.Network(randomised(nn.Sequential(nn.Linear(6, 2)), 3).double(), (6,)).eval()
    x = inputs(net, 30)
    y = net.predict(x)
    weight, bias = net.module[0].weight.detach(), net.module[0].bias.detach()
    rows = weight[y][:, None] - weight
    margin = (rows * x[:, None]).sum(2) + bias[y][:, None] - bias
    q = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]
    each = margin / torch.linalg.vector_norm(rows, q, dim=2)
    distance = each.scatter(1, y[:, None], math.inf).amin(1)
    attack = rc.PGD(steps=100, step=0.2)
    beyond = rc.attack(net, x, y, rc.Ball(p, 1.001 * distance, None), attack)
    assert bool(beyond.success.all())
    short = rc.attack(net, x, y, rc.Ball(p, 0.999 * distance, None), attack)
    assert not bool(short.success.any())


def test_without_labels_the_predicted_class_is_attacked():
    net = network("cnn")
    x = inputs(net, 8)
    with_labels = rc.attack(net, x, net.predict(x), rc.Ball(2, 1.0), "pgd(steps=5)")
    without = rc.attack(net, x, None, rc.Ball(2, 1.0), "pgd(steps=5)")
    assert torch.equal(with_labels.x, without.x)


def test_results_depend_on_the_seed_only():
    net = network("cnn")
    x = inputs(net, 8)
    first, same, other = (rc.attack(net, x, None, rc.Ball(2, 1.0), rc.PGD(steps=3, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first.x, same.x)
    assert not torch.equal(first.x, other.x)


def test_saturated_logits_still_have_a_direction():
    net = network("linear", torch.float32)
    with torch.no_grad():
        net.module[0].weight.mul_(1e4)
        net.module[0].bias.mul_(1e4)
    x = inputs(net, 10)
    found = rc.attack(net, x, None, rc.Ball(2, 3.0, None), rc.PGD(steps=10))
    assert bool(found.success.all())


def test_a_constant_network_and_an_empty_batch():
    net = network("fc")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.module[-1].bias[0] = 1.0
    x = inputs(net, 4)
    found = rc.attack(net, x, None, rc.Ball(2, 1.0))
    assert not bool(found.success.any())
    assert bool(found.distance.isinf().all())
    assert torch.equal(found.x, x)
    assert len(rc.attack(net, x[:0], None, rc.Ball(2, 1.0))) == 0


def test_a_tie_or_a_win_within_rounding_is_no_success():
    logits = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2e-7], [1.0, 1.01], [1.01, 1.0]])
    assert changed(logits, torch.zeros(4, dtype=torch.long)).tolist() == [False, False, True, False]


def test_bad_input_is_named():
    net = network("fc")
    x = inputs(net, 4)
    ball = rc.Ball(2, 0.1)
    for arguments, message in [
        ((x + 2, None, ball), "box"),
        ((x[:, :2], None, ball), "shape"),
        ((x, torch.tensor([0, 1, 2, 9]), ball), "y must lie in"),
        ((x, None, ball, "pgd(steps=0)"), "steps of pgd must be at least 1, got 0"),
        ((x, None, ball, "magic"), "method must be one of apgd, pgd"),
        ((x, None, rc.Ball(2, torch.tensor([0.1, 0.2]))), "eps"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            rc.attack(net, *arguments)
    with pytest.raises(WrongMode, match="eval mode"):
        rc.attack(network("residual").train(), inputs(network("residual")), None, ball)
