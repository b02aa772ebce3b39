"""The least margins of examples, and what is proved of them, need flat slopes for few rows only."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.bounding import _least_margins
from relucert.bounding._least_margins import least_margins
from relucert.bounding.backward_bounds import BUDGET
from relucert.bounding.methods.crown import CROWN, crown_margins
from relucert.core.properties import class_stays
from relucert.verification._incomplete import proved_margins
from relucert.verification.verifier import Query
from zoo import NETWORKS, inputs, network

EPS = {1.0: 0.5, 2.0: 0.25, math.inf: 0.08}
NEAR = {torch.float32: 1e-4, torch.float64: 1e-9}


def problem(name: str, p: float, dtype: torch.dtype, count: int = 12):
    """A network, inputs, balls of many sizes, the property that the class stays, and CROWN's bounds of the units."""
    net = network(name, dtype)
    x = inputs(net, count).to(dtype)
    ball = rc.Ball(p, EPS[p] * torch.linspace(0.05, 1.5, count, dtype=torch.float64)).beside(x)
    prop = class_stays(net.predict(x), net.classes, dtype=dtype)
    return net, x, ball, prop, CROWN().start(net, x, ball, dtype)


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("p", EPS)
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.share(6)
def test_they_are_those_of_all_rows(name, p, dtype):
    """As computed, in real arithmetic and as executed; examples with a row that is not proved have the margins of all rows."""
    net, x, ball, prop, known = problem(name, p, dtype)
    every = crown_margins(net, known, x, ball, prop).stacked()
    found = least_margins(net, known, x, ball, prop, BUDGET).stacked()
    near = {"rtol": NEAR[dtype], "atol": NEAR[dtype]}
    torch.testing.assert_close(found.amin(1), every.amin(1), **near)
    assert bool((found <= every + NEAR[dtype] * (1 + every.abs())).all())
    open_ = ~(every[..., 2] > NEAR[dtype]).all(1)
    torch.testing.assert_close(found[open_], every[open_], **near)


@torch.no_grad()
def test_flat_slopes_are_left_out(monkeypatch):
    """Most rows of proved examples go through the network once."""
    net, x, ball, prop, known = problem("fc", math.inf, torch.float64, 40)
    rows: dict[str, int] = {"adaptive": 0, "flat": 0}
    improve = _least_margins._Rows.improve

    def counted(self, rule, needed):
        rows[rule] += int(needed.sum())
        improve(self, rule, needed)

    monkeypatch.setattr(_least_margins._Rows, "improve", counted)
    margins = least_margins(net, known, x, ball, prop, BUDGET)
    proved = int((margins.executed > 0).all(1).sum())
    assert rows["adaptive"] == prop.offsets.numel()
    assert 0 < proved < len(x)
    assert rows["flat"] < (len(x) - proved) * prop.offsets.shape[1] + 3 * proved


@torch.no_grad()
@pytest.mark.parametrize("name", ["fc", "cnn", "residual", "max pool"])
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_verifiers_have_the_margins_of_all_rows(name, dtype, monkeypatch):
    """What `crown` answers as a verifier, of every example, is what it answers with all rows by both slopes."""
    net, x, ball, _, _ = problem(name, math.inf, dtype, 24)
    query = Query.of(net, x, net.predict(x), ball)
    found = proved_margins(query, CROWN())
    monkeypatch.setattr("relucert.bounding.methods.crown.SINGLE", 10**9)
    every = proved_margins(query, CROWN())
    near = {"rtol": NEAR[dtype], "atol": NEAR[dtype]}
    for kind in ("computed", "real", "executed"):
        torch.testing.assert_close(getattr(found, kind).amin(1), getattr(every, kind).amin(1), **near)
    assert torch.equal((found.executed > 0).all(1), (every.executed > 0).all(1))
