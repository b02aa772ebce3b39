import math

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.attacks._ascent import cross_entropy, margin, ratio
from relucert.attacks.apgd import checkpoints
from zoo import inputs, network, randomised


def test_checkpoints_are_those_of_the_paper():
    # p_0 = 0, p_1 = 0.22, p_(j+1) = p_j + max(p_j - p_(j-1) - 0.03, 0.06), of 100 steps
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]


@pytest.mark.parametrize(
    ("p", "loss"),
    [(1.0, "ce"), (1.0, "mixed"), (2.0, "mixed"), (2.0, "dlr"), (math.inf, "targeted"), (math.inf, "mixed")],
)
def test_linear_classifiers_are_falsified_just_beyond_their_distance_in_the_box(p, loss):
    # With two classes the gradient is normal to the only decision hyperplane everywhere.
    net = rc.Network(randomised(nn.Sequential(nn.Linear(6, 2)), 3).double(), (6,)).eval()
    x = inputs(net, 12)
    x[:, :3] = x[:, :3].round()  # beside the box
    exact = rc.radius(net, x, p=p, method="region")
    has = (exact.exact & exact.upper.isfinite()).nonzero()[:, 0]
    assert len(has) > 6
    method = rc.APGD(steps=60, restarts=2, loss=loss)
    beyond = rc.attack(net, x[has], None, rc.Ball(p, 1.02 * exact.upper[has]), method)
    assert bool(beyond.success.all())
    short = rc.attack(net, x[has], None, rc.Ball(p, 0.999 * exact.upper[has]), method)
    assert not bool(short.success.any())


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_the_losses_together_falsify_linear_classifiers_of_three_classes(p, seed):
    # The maximiser of the cross-entropy may differ from that of the margin, and ratios are not concave: one loss may fail.
    net = rc.Network(randomised(nn.Sequential(nn.Linear(6, 3)), seed).double(), (6,)).eval()
    x = inputs(net, 20)
    x[:, :3] = x[:, :3].round()
    exact = rc.radius(net, x, p=p, method="region")
    has = (exact.exact & exact.upper.isfinite()).nonzero()[:, 0]
    assert len(has) > 15
    found = rc.attack(net, x[has], None, rc.Ball(p, 1.02 * exact.upper[has]), rc.APGD(steps=100, restarts=6))
    assert bool(found.success.all())


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_it_falsifies_at_least_as_many_as_pgd_with_equal_gradients(p):
    net = network("cnn", torch.float32)
    x = inputs(net, 60)
    eps = {1.0: 2.0, 2.0: 0.4, math.inf: 0.08}[p]
    falsified = [
        int(rc.attack(net, x, None, rc.Ball(p, eps), method).success.sum())
        for method in (rc.PGD(steps=20, restarts=3), rc.APGD(steps=20, restarts=3))
    ]
    assert 0 < falsified[0] <= falsified[1] < 60


def test_ratios_do_not_change_with_scale_and_shift():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 5, generator=generator, dtype=torch.float64)
    y, target = torch.arange(50) % 5, (torch.arange(50) + 1) % 5
    for aim in (None, target):
        torch.testing.assert_close(ratio(1e4 * logits + 7, y, aim), ratio(logits, y, aim), rtol=1e-9, atol=1e-9)
    assert torch.equal(ratio(logits, y) > 0, logits.argmax(1) != y)
    assert torch.equal(margin(logits, y) > 0, logits.argmax(1) != y)
    ranked = logits[0].sort(descending=True).values
    expected = (logits[0, 1] - logits[0, 0]) / (ranked[0] - (ranked[2] + ranked[3]) / 2)
    torch.testing.assert_close(ratio(logits, y, target)[0], expected)


def test_the_smooth_margin_has_the_direction_of_the_cross_entropy():
    logits = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    y = torch.arange(20) % 4
    (ours,) = torch.autograd.grad(cross_entropy(logits, y).sum(), logits)
    (theirs,) = torch.autograd.grad(nn.functional.cross_entropy(logits, y, reduction="sum"), logits)
    torch.testing.assert_close(nn.functional.normalize(ours), nn.functional.normalize(theirs))
    saturated = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    (gradient,) = torch.autograd.grad(cross_entropy(saturated, torch.tensor([0])).sum(), saturated)
    assert gradient.tolist() == [[-1.0, 1.0, 0.0]]
