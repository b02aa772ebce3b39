"""Every function computes on the device of its input: the same numbers as on the CPU, and no mixture of devices."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from accelerator import fake_accelerator
from zoo import inputs, network

BALL = rc.Ball(math.inf, 0.05)
MARGIN = rc.MMRParameters(p=2.0, gamma_b=0.4, gamma_d=0.3, k_b=4, k_d=2)
FUNCTIONS = {
    "distances": lambda *batch: rc.distances(*batch, 2).region,
    "mmr": lambda *batch: rc.mmr(*batch, 2, 0.3, 0.3, 3, 2),
    "pgd": lambda *batch: rc.attack(*batch, BALL, "pgd(steps=3)").x,
    "fab": lambda *batch: rc.minimal_attack(*batch, 2, method="fab(steps=3)").x,
    "bounds": lambda net, x, y: rc.bounds(net, x, BALL, "crown").logits.lower,
    "gradients": lambda net, x, y: rc.bounds(net, x, BALL, "kw", differentiable=True).logits.upper,
    "crown": lambda *batch: rc.certify(*batch, BALL, "crown").margin,
    "alpha": lambda *batch: rc.certify(*batch, BALL, "alpha(steps=2)").margin,
    "bab": lambda *batch: rc.certify(*batch, BALL, "bab").margin,
    "radius": lambda *batch: rc.radius(*batch, 2, method="region(regions=2)").lower,
    "loss mmr+at": lambda *batch: rc.losses.mmr(*batch, MARGIN, ball=BALL),
    "loss crown-ibp": lambda *batch: rc.losses.crown_ibp(*batch, BALL),
    "loss stability": lambda *batch: rc.losses.stability(*batch, BALL),
    "training": lambda net, x, y: rc.train(
        net, (x, y), scheme="mmr+at(attack_steps=2)", p=2, eps=0.1, epochs=1, batch=2
    ).net(x),
}


def test_devices_do_not_mix():
    with fake_accelerator() as device:
        there, near = torch.ones(3, device=device), torch.ones(3)
        assert (2 * there).sum().item() == 6
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            there + near
        with pytest.raises(TypeError, match="can't convert"):
            there.numpy()


@pytest.mark.parametrize("name", ["cnn"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_numbers_are_those_of_the_cpu(name, function):
    net, other = network(name), network(name)
    x = inputs(net, 3)
    y = net.predict(x)
    expected = FUNCTIONS[function](net, x, y)
    with fake_accelerator() as device:
        found = FUNCTIONS[function](other.to(device), x.to(device), y.to(device))
        assert found.device == device
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-9)
