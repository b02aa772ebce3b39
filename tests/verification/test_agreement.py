"""Branch and bound, mixed-integer programs and attacks agree on random networks of all kinds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import relucert as rc
from relucert.core.results import Verdict
from relucert.networks.network import Network
from zoo import inputs, randomised


class Residual(nn.Module):
    """A block with a shortcut, and a leaky unit behind it."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(nn.functional.leaky_relu(x + self.inner(x), 0.1))


def random_network(seed: int) -> Network:
    """A small network whose kind and sizes follow from the seed."""
    width = 4 + seed % 5
    kinds = [
        ((4,), nn.Sequential(nn.Linear(4, 2 * width), nn.ReLU(), nn.Linear(2 * width, 3))),
        ((4,), nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))),
        ((1, 5, 5), nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))),
        ((4,), Residual(width)),
        ((1, 5, 5), nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3))),
        ((4,), nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.LeakyReLU(0.2), nn.Linear(width, 3))),
    ]
    shape, module = kinds[seed % len(kinds)]
    return Network(randomised(module, seed).double(), shape).eval()


def agree(seed: int) -> tuple[int, int]:
    """How many of the verdicts both have given are proofs, and how many witnesses."""
    net = random_network(seed)
    x = inputs(net, 3, seed)
    y = net.predict(x)
    p = (math.inf, 1.0)[seed % 2]
    eps = torch.tensor([0.03, 0.1, 0.3]).double() * (1.0 if math.isinf(p) else 2.0)
    ball = rc.Ball(p, eps)
    found = {name: rc.certify(net, x, y, ball, name) for name in ("bab(nodes=400)", "mip", "auto(nodes=400)")}
    falsified = rc.attack(net, x, y, ball, rc.APGD(steps=30, restarts=3)).success
    proofs = witnesses = 0
    for place in range(3):
        verdicts = {one.verdict[place] for one in found.values()} - {Verdict.UNKNOWN}
        assert len(verdicts) <= 1, (seed, place, {name: str(one.verdict[place]) for name, one in found.items()})
        if falsified[place]:
            assert Verdict.ROBUST not in verdicts, (seed, place)
        both = [one.verdict[place] for one in list(found.values())[:2]]
        proofs += both == [Verdict.ROBUST] * 2
        witnesses += both == [Verdict.VULNERABLE] * 2
    return proofs, witnesses


def test_methods_agree_on_some_random_networks():
    counts = [agree(seed) for seed in range(12)]
    assert sum(one for one, _ in counts) >= 10
    assert sum(one for _, one in counts) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("start", range(12, 312, 50))
def test_methods_agree_on_hundreds_of_random_networks(start):
    for seed in range(start, start + 50):
        agree(seed)
