"""The set that is smaller never has the smaller margin: a ball cut with a box is proved wherever the ball alone is."""

from __future__ import annotations

import math

import pytest
import torch

from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.kw import KW
from relucert.bounding.methods.lipschitz import Lipschitz
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.bounding.preactivations import Bounding
from relucert.core.ball import Ball
from relucert.networks.network import Network
from relucert.verification._incomplete import better_of_both, proved_margins
from relucert.verification.verifier import Query
from zoo import NETWORKS, inputs, network

METHODS: tuple[Bounding, ...] = (
    IBP(), KW(), CROWN(), Alpha(steps=4), Lipschitz(), SDP(steps=3), Moments(steps=10),
)  # fmt: skip
EPS = {1.0: 0.6, 2.0: 0.3, 3.0: 0.25, math.inf: 0.12}
ROUNDING = 1e-9


def queries(name: str, p: float, dtype: torch.dtype = torch.float64) -> tuple[Network, Query, Query]:
    """A network and the same question about balls cut with a box and about balls alone; inputs lie near sides of the box."""
    net = network(name, dtype)
    x = inputs(net, 4).mul(1.4).sub(0.2).clamp(0, 1)
    y = net.predict(x)
    radii = EPS[p] * torch.tensor([0.2, 0.5, 1.0, 2.0], dtype=torch.float64)
    cut, alone = (Query.of(net, x, y, Ball(p, radii, box)) for box in ((0.0, 1.0), None))
    return net, cut, alone


@pytest.mark.share(8)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("p", EPS)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_box_takes_no_proof_away(name: str, p: float, method: Bounding) -> None:
    assert_no_worse(name, p, method)


@pytest.mark.parametrize(("name", "p", "method"), [("dense", 2.0, Lipschitz()), ("residual", math.inf, SDP(steps=3))])
def test_bounds_over_the_smaller_set_alone_would_be_worse(name: str, p: float, method: Bounding) -> None:
    assert_no_worse(name, p, method)
    _, cut, alone = queries(name, p)
    assert not bool((proved_margins(cut, method, alone=False).real >= proved_margins(alone, method).real).all())


def assert_no_worse(name: str, p: float, method: Bounding) -> None:
    """The margins of balls cut with the box are those of balls alone, or larger."""
    _, cut, alone = queries(name, p)
    less, more = proved_margins(cut, method), proved_margins(alone, method)
    proved = (less.real > 0).all(1)
    assert bool((proved | ~(more.real > 0).all(1)).all())
    # Where a point is not proved, the margins of both sets were computed, of all rows but those that one of them proves.
    assert bool((proved[:, None] | (less.real > 0) | (less.real >= more.real - ROUNDING)).all())


@pytest.mark.parametrize("name", ["fc deep", "cnn"])
@pytest.mark.parametrize("method", ["kw", "crown", "alpha"])
def test_a_box_takes_no_proof_away_in_float32(name: str, method: str) -> None:
    chosen = next(one for one in METHODS if one.name == method)
    _, cut, alone = queries(name, 2.0, torch.float32)
    proved = [(proved_margins(query, chosen).real > 0).all(1) for query in (cut, alone)]
    assert bool((proved[0] | ~proved[1]).all())


@pytest.mark.share(4)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("method", [Alpha(steps=2), SDP(steps=1)], ids=lambda method: method.name)
def test_roots_of_branch_and_bound_are_no_worse(name: str, method: Bounding) -> None:
    _, cut, alone = queries(name, 2.0)

    def bound(query: Query):
        known = method.start(query.double, query.wide, query.ball, torch.float64)
        return method.prove(query.double, known, query.wide, query.ball, query.prop)

    units, margins = better_of_both(cut, bound)
    wider, below = bound(alone)
    open_ = ~(margins.real > 0).all(1)
    assert bool((margins.real >= below.real - ROUNDING)[open_].all())
    for index, within in units.inputs.items():
        assert bool((within.lower >= wider.inputs[index].lower)[open_].all())
        assert bool((within.upper <= wider.inputs[index].upper)[open_].all())
