"""A third of a million samples (two million with the slow cases), and attacks, against every bounding method.

No sample leaves a bound, none breaks a proof.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import relucert as rc
from relucert.core.properties import class_stays
from relucert.core.results import Verdict
from relucert.networks.network import Network
from relucert.verification.registry import BOUNDING
from zoo import NETWORKS, inputs, network

SHORT = {"alpha": {"steps": 4}, "sdp": {"steps": 3}, "moments": {"steps": 10, "rank": 3}}
METHODS = {name: kind(**SHORT.get(name, {})) for name, kind in BOUNDING.items()}
ATTACKS = rc.PGD(steps=15, restarts=2), rc.APGD(steps=15)
#: Of each network, norm and box: 13 networks, 6 of these, 3 examples and two tests make more than two million.
COUNT = 4500
EXAMPLES = 3
UNIT = (0.0, 1.0)

names = pytest.mark.parametrize("name", NETWORKS)
balls = pytest.mark.parametrize(
    ("p", "box"), [(1.0, UNIT), (2.0, None), (2.0, UNIT), (3.0, UNIT), (math.inf, None), (math.inf, UNIT)]
)


def points_of(net: Network, x: Tensor, y: Tensor, ball: rc.Ball) -> Tensor:
    """Points of the ball, (batch, count, *input): samples, half of them near its surface, and where attacks end."""
    found = [ball.sample(x, torch.Generator().manual_seed(0), COUNT)]
    found += [rc.attack(net, x, y, ball, method).x.unsqueeze(1) for method in ATTACKS]
    return torch.cat(found, 1)


@pytest.mark.share(6)
@names
@balls
def test_no_sample_and_no_attack_leaves_a_bound(name: str, p: float, box: tuple[float, float] | None) -> None:
    net = network(name, torch.float64)
    x = inputs(net, EXAMPLES)
    y = net.predict(x)
    ball = rc.Ball(p, torch.tensor([0.03, 0.15, 0.5], dtype=torch.float64), box)
    prop = class_stays(y, net.classes, dtype=torch.float64)
    with torch.no_grad():
        points = points_of(net, x, y, ball).flatten(0, 1)
        seen = [value.unflatten(0, (EXAMPLES, -1)) for value in (*net.preactivations(points), net(points))]
        ends = [value.aminmax(dim=1) for value in seen]
        margins = (prop.rows @ seen[-1].mT).amin(2) + prop.offsets
    for method in METHODS.values():
        found = rc.bounds(net, x, ball, method)
        for (low, high), within in zip(ends, [*found.inputs.values(), found.logits], strict=True):
            assert bool((low >= within.lower - 1e-11 * (1 + low.abs())).all()), method.name
            assert bool((high <= within.upper + 1e-11 * (1 + high.abs())).all()), method.name
        with torch.no_grad():
            proved = method.solve(net, x, ball, prop)[1]
        assert bool((margins >= proved - 1e-11 * (1 + margins.abs())).all()), method.name


@pytest.mark.share(9)
@names
@balls
def test_no_sample_and_no_attack_breaks_a_proof(name: str, p: float, box: tuple[float, float] | None) -> None:
    """In float32, as networks run, at radii where some points are proved by some methods only."""
    net = network(name, torch.float32)
    x = inputs(net, EXAMPLES)
    y = net.predict(x)
    widest = rc.radius(net, x, y, p=p, box=box, method="crown").lower.clamp(1e-6, 1e3)
    ball = rc.Ball(p, torch.tensor([0.99, 1.1, 1.4]) * widest, box)
    points = points_of(net, x, y, ball)
    kept = (net.predict(points.flatten(0, 1)).reshape(EXAMPLES, -1) == y[:, None]).all(1)
    for method in METHODS.values():
        assert bool(kept[rc.certify(net, x, y, ball, method).which(Verdict.ROBUST)].all()), method.name
