"""`rc.losses`: every loss is that of its scheme, one number for each example, with exact gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.training._schedules import Count, Schedule, Tightening
from relucert.training.losses.adversarial import Adversarial
from relucert.training.losses.bounded import Bounded
from relucert.training.losses.cross_lipschitz import CrossLipschitz
from relucert.training.losses.expressive import Expressive
from relucert.training.losses.loss import StepContext
from relucert.training.losses.maximum_margin import MaximumMargin
from relucert.training.losses.plain import Plain
from relucert.training.losses.spectral import Spectral
from relucert.training.losses.stability import Stability
from relucert.training.losses.universal import UniversalMargin
from zoo import inputs, network

BALL = rc.Ball(math.inf, 0.05)
MARGIN = rc.MMRParameters(p=2.0, gamma_b=0.4, gamma_d=0.3, k_b=4, k_d=2)
COUNTS = Schedule(Count(4, 4), Count(2, 2))
WHOLE = Tightening(0.0, 0.1)
SHARED = {"p": 2.0, "lam": 0.7, "gamma_d": 0.3, "schedule": COUNTS}
#: The loss of every example, and the scheme's at a late step, where schedules have ended.
LOSSES = {
    "plain": (rc.losses.plain, Plain()),
    "at": (lambda *batch: rc.losses.at(*batch, BALL, rc.PGD(steps=3)), Adversarial(BALL, 3)),
    "mmr": (lambda *batch: rc.losses.mmr(*batch, MARGIN, 0.7), MaximumMargin(**SHARED, gamma_b=0.4)),
    "mmr-dd": (
        lambda *batch: rc.losses.mmr(*batch, rc.MMRParameters(p=2.0, gamma_b=None, gamma_d=0.3, k_d=2), 0.7),
        MaximumMargin(**SHARED, gamma_b=None),
    ),
    "mmr+at": (
        lambda *batch: rc.losses.mmr(*batch, MARGIN, 0.7, ball=BALL),
        MaximumMargin(**SHARED, gamma_b=0.4, mix=Adversarial(BALL, 10).mix),
    ),
    "mmr-universal": (
        lambda *batch: rc.losses.mmr_universal(*batch, (0.5, 2.0), (1.0, 0.2), k_b=4, k_d=2),
        UniversalMargin(lam_1=0.5, lam_inf=2.0, gamma_1=1.0, gamma_inf=0.2, schedule=COUNTS),
    ),
    "cross-lipschitz": (lambda *batch: rc.losses.cross_lipschitz(*batch, lam=0.3), CrossLipschitz(0.3)),
    "kw": (lambda *batch: rc.losses.kw(*batch, BALL), Bounded(method="kw", ball=BALL, tightening=WHOLE)),
    "kw projected": (
        lambda *batch: rc.losses.kw(*batch, BALL, projections=8),
        Bounded(method="kw", ball=BALL, tightening=WHOLE, projections=8),
    ),
    "ibp": (
        lambda *batch: rc.losses.ibp(*batch, BALL, kappa=0.25),
        Bounded(method="ibp", ball=BALL, tightening=Tightening(0.0, 0.1, kappa=(1.0, 0.25))),
    ),
    "crown-ibp": (
        lambda *batch: rc.losses.crown_ibp(*batch, BALL, intervals=0.5),
        Bounded(method="crown-ibp", ball=BALL, tightening=WHOLE, intervals=0.5),
    ),
    "mtl-ibp": (
        lambda *batch: rc.losses.mtl_ibp(*batch, BALL, 0.3, rc.PGD(steps=3)),
        Expressive(method="mtl-ibp", ball=BALL, tightening=WHOLE, weight=0.3, attack=rc.PGD(steps=3)),
    ),
    "cc-ibp": (
        lambda *batch: rc.losses.cc_ibp(*batch, BALL, 0.3, rc.PGD(steps=3)),
        Expressive(method="cc-ibp", ball=BALL, tightening=WHOLE, weight=0.3, attack=rc.PGD(steps=3)),
    ),
    "sabr": (
        lambda *batch: rc.losses.sabr(*batch, BALL, 0.3, rc.PGD(steps=3)),
        Expressive(method="sabr", ball=BALL, tightening=WHOLE, weight=0.3, attack=rc.PGD(steps=3)),
    ),
    "stability": (
        lambda *batch: rc.losses.stability(*batch, BALL, (0.01, 0.001), rc.PGD(steps=3)),
        Stability(BALL, 3, 0.01, 0.001),
    ),
    "spectral": (lambda *batch: rc.losses.spectral(*batch, 0.1), Spectral(0.1, WHOLE)),
}
ALONE = set(LOSSES) - {
    "at",
    "mmr+at",
    "stability",
    "mtl-ibp",
    "cc-ibp",
    "sabr",
}  # losses of an example that depend on that example alone
NAMES = ["fc deep", "cnn", "residual", "max pool"]


def batch(name):
    net = network(name)
    return net, inputs(net, 6), torch.arange(6) % 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_mean_is_what_the_scheme_minimises(name, loss):
    if loss == "kw projected" and network(name).graph.max_pools:
        pytest.skip("projections are for ReLUs")
    net, x, y = batch(name)
    each, scheme = LOSSES[loss]
    found = each(net, x, y)
    terms = scheme(net, x, y, StepContext(0.9, torch.Generator().manual_seed(0)))
    assert found.shape == (6,)
    torch.testing.assert_close(found.mean(), terms.loss)
    weights = list(net.parameters())
    slopes = torch.autograd.grad(found.mean(), weights, allow_unused=True, materialize_grads=True)
    others = torch.autograd.grad(terms.loss, weights, allow_unused=True, materialize_grads=True)
    for slope, other in zip(slopes, others, strict=True):
        torch.testing.assert_close(slope, other)
    assert any(bool(slope.any()) for slope in slopes)


@pytest.mark.parametrize("loss", sorted(ALONE))
def test_a_loss_does_not_depend_on_the_other_examples(loss):
    net, x, y = batch("cnn")
    each = LOSSES[loss][0]
    together = each(net, x, y)
    for pick in ([3], [4, 1]):
        torch.testing.assert_close(each(net, x[pick], y[pick]), together[pick])


@pytest.mark.parametrize("loss", ["kw", "ibp", "crown-ibp"])
def test_bounds_are_above_every_cross_entropy_in_the_ball(loss):
    net, x, y = batch("cnn")
    worst = getattr(rc.losses, loss.replace("-", "_"))(net, x, y, BALL)
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        seen = F.cross_entropy(net(BALL.sample(x, generator)), y, reduction="none")
        assert bool((seen <= worst + 1e-9).all())


def test_modules_and_radii_of_single_examples_are_taken():
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x, y = torch.rand(5, 4), torch.arange(5) % 3
    radii = torch.tensor([0.0, 0.1, 0.2, 0.0, 0.3])
    found = rc.losses.ibp(module, x, y, rc.Ball(2, radii))
    clean = rc.losses.plain(module, x, y)
    torch.testing.assert_close(found[[0, 3]], clean[[0, 3]])
    assert bool((found[[1, 2, 4]] > clean[[1, 2, 4]]).all())
    assert rc.losses.at(module, x, y, rc.Ball(2, radii)).shape == (5,)


#: Losses over a ball, by the ball.
OVER_BALLS = {
    "at": lambda b, ball: rc.losses.at(*b, ball, share=1.0),
    "mmr+at": lambda b, ball: rc.losses.mmr(*b, MARGIN, ball=ball),
    "kw": lambda b, ball: rc.losses.kw(*b, ball),
    "ibp": lambda b, ball: rc.losses.ibp(*b, ball),
    "crown-ibp": lambda b, ball: rc.losses.crown_ibp(*b, ball=ball),
    "mtl-ibp": lambda b, ball: rc.losses.mtl_ibp(*b, ball, alpha=0.5),
    "cc-ibp": lambda b, ball: rc.losses.cc_ibp(*b, ball, alpha=0.5),
    "sabr": lambda b, ball: rc.losses.sabr(*b, ball, ratio=0.5),
    "mmr-ibp": lambda b, ball: rc.losses.mmr_ibp(*b, ball, 0.5, MARGIN),
    "stability": lambda b, ball: rc.losses.stability(*b, ball, (0.1, 0.0)),
}


def same(first, second, weights):
    """Losses and the gradients of their sums are the same."""
    torch.testing.assert_close(first, second)
    for one, two in zip(*(torch.autograd.grad(loss.sum(), weights) for loss in (first, second)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OVER_BALLS)
def test_a_scale_changes_the_ball_alone(name):
    """Entries of scale 0 stay as a box holds them; a scale of two is a radius of two; weights have the same gradients."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)).double()
    x, y = 0.2 + 0.6 * torch.rand(6, 4).double(), torch.arange(6) % 3
    loss, weights = OVER_BALLS[name], list(module.parameters())
    held = torch.zeros(6, 4).double(), torch.ones(6, 4).double()
    for side in held:
        side[:, 2] = x[:, 2]
    scale = torch.tensor([2.0, 2.0, 0.0, 2.0])
    found = loss((module, x, y), rc.Ball(math.inf, 0.05, (0.0, 1.0), scale=scale))
    same(found, loss((module, x, y), rc.Ball(math.inf, 0.1, held)), weights)
    assert bool((found != loss((module, x, y), rc.Ball(math.inf, 0.05, held))).any())


def test_scales_that_differ_are_those_of_the_first_matrix():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)).double()
    x, y, scale = torch.rand(6, 4).double(), torch.arange(6) % 3, torch.tensor([0.5, 3.0, 1.0, 20.0]).double()
    divided = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), module[2]).double()
    with torch.no_grad():
        divided[0].weight.copy_(module[0].weight * scale)
        divided[0].bias.copy_(module[0].bias)
    for p in (1, 2, math.inf):
        for name in ("kw", "ibp", "at"):
            found = OVER_BALLS[name]((module, x, y), rc.Ball(p, 0.01, None, scale=scale))
            same(found, OVER_BALLS[name]((divided, x / scale, y), rc.Ball(p, 0.01, None)), [module[2].weight])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: rc.losses.at(*b, 0.1), "ball must be a Ball"),
        (lambda b: rc.losses.at(*b, BALL, share=2), "share must be a number from 0 to 1, got 2"),
        (lambda b: rc.losses.at(*b, BALL, rc.PGD(restarts=2)), "attack must be relucert.PGD with one start"),
        (lambda b: rc.losses.at(*b, rc.Ball(2, 0.1, scale=[1.0, 2.0])), "scale must broadcast to one input"),
        (lambda b: rc.losses.ibp(*b, BALL, kappa=-1), "kappa must be a number from 0 to 1, got -1"),
        (lambda b: rc.losses.kw(*b, BALL, projections=0), "projections must be at least 1, got 0"),
        (lambda b: rc.losses.crown_ibp(*b, BALL, intervals=2), "intervals must be a number from 0 to 1, got 2"),
        (lambda b: rc.losses.mmr(*b, MARGIN, lam=-1.0), "lam must be a number >= 0, got -1.0"),
        (
            lambda b: rc.losses.mmr(*b, BALL),
            r"margin must be relucert.MMRParameters\(p=, gamma_b=, gamma_d=\), got Ball",
        ),
        (lambda b: rc.losses.cross_lipschitz(*b, BALL), "lam must be a number >= 0, got Ball"),
        (
            lambda b: rc.losses.mmr(*b, rc.MMRParameters(p=2.0, gamma_b=1.0, gamma_d=1.0, k_b=999)),
            "k_b must be a whole",
        ),
        (lambda b: rc.losses.mmr_universal(*b, 1.0, (1.0, 1.0)), "lam must be two numbers, for l_1 and l_inf, got 1.0"),
        (lambda b: rc.losses.mtl_ibp(*b, BALL, 1.5), "alpha must be a number from 0 to 1, got 1.5"),
        (lambda b: rc.losses.sabr(*b, BALL, 0.0), "ratio must be a number above 0 and at most 1, got 0.0"),
        (lambda b: rc.losses.plain(b[0], b[1], b[2] + 9), "y must lie in"),
        (lambda b: rc.losses.spectral(*b, -1.0), "eps must be a number >= 0, got -1.0"),
        (lambda b: rc.losses.stability(*b, BALL, (1.0, -1.0)), "weights must be two numbers >= 0"),
    ],
)
def test_bad_parameters_are_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call(batch("fc"))


def test_public_losses_are_listed():
    assert set(rc.losses.__all__) >= {
        "mmr", "kw", "ibp", "crown_ibp", "at", "stability", "cross_lipschitz", "mmr_universal"
    }  # fmt: skip
    assert "losses" in rc.__all__
