"""Witnesses of all attacks and verifiers lie in the ball in exact arithmetic, and their distances are not rounded down."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from exact import length_at_most
from relucert.attacks.problem import FIXED, MINIMAL
from relucert.core.errors import InvalidInput
from relucert.core.results import Verdict
from zoo import inputs, network

P = (1.0, 1.5, 2.0, 3.0, math.inf)
DTYPES = (torch.float32, torch.float64)
ATTACKS = {"pgd": "pgd(steps=10)", "apgd": "apgd(steps=10)"}
VERIFIERS = ("bab(nodes=20)",)


@pytest.fixture(scope="module", params=DTYPES, ids=["float32", "float64"])
def case(request):
    net = network("fc", request.param)
    x = inputs(net, 5)
    return net, x, net.predict(x)


@pytest.mark.parametrize("p", P)
def test_witnesses_lie_in_the_ball(case, p):
    net, x, y = case
    assert set(ATTACKS) == set(FIXED)
    nearest = rc.minimal_attack(net, x, y, p, method="fab(steps=20)").distance.clamp(max=2.0)
    # Balls in which a witness must lie near the surface.
    ball, seen = rc.Ball(p, nearest.double() * 1.0001), 0
    for method in (*ATTACKS.values(), *VERIFIERS, *(("mip",) if p in (1.0, math.inf) else ())):
        if method in ATTACKS.values():
            found = rc.attack(net, x, y, ball, method)
            points, which = found.x, found.success
        else:
            proof = rc.certify(net, x, y, ball, method)
            points, which = proof.witness, proof.which(Verdict.VULNERABLE)
        for i in which.nonzero()[:, 0].tolist():
            assert points is not None
            assert length_at_most(x[i], points[i], p, float(ball._radii(x)[i])), (method, i)
            seen += 1
    assert seen >= 5


@pytest.mark.slow
@pytest.mark.parametrize("p", P)
def test_distances_of_witnesses_are_not_rounded_down(case, p):
    net, x, y = case
    for method in MINIMAL:
        try:
            found = rc.minimal_attack(net, x, y, p, method=method)
        except InvalidInput:  # an attack for other norms
            continue
        for i in found.success.nonzero()[:, 0].tolist():
            assert length_at_most(x[i], found.x[i], p, float(found.distance[i])), (method, i)
    for method in ("region", "crown", "bab(nodes=60)"):
        radii = rc.radius(net, x, y, p, method=method, tol=0.05)
        for i in radii.upper.isfinite().nonzero()[:, 0].tolist():
            assert radii.witness is not None
            assert length_at_most(x[i], radii.witness[i], p, float(radii.upper[i])), (method, i)
