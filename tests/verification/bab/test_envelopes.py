"""One layer of ReLUs: lines below margins and above ReLUs are that, cuts keep every counterexample, verdicts agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from relucert.bounding.methods.crown import CROWN
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.verdict import Verdict
from relucert.networks.network import Network, in_double
from relucert.verification.bab._envelope_program import EnvelopeProgram, LinearRows, bounded
from relucert.verification.bab._layer_margin import LayerMargin, Region
from relucert.verification.bab.bab import BaB
from relucert.verification.bab.envelopes import Envelopes
from relucert.verification.verifier import Budget, Query


def _query(seed: int, eps: float, inputs: int = 5, units: int = 12, leak: float = 0.0) -> Query:
    torch.manual_seed(seed)
    act = nn.LeakyReLU(leak) if leak else nn.ReLU()
    net = in_double(Network(nn.Sequential(nn.Linear(inputs, units), act, nn.Linear(units, 3)), (inputs,)).eval())
    x = torch.rand(3, inputs, dtype=torch.float64)
    return Query.of(net, x, net(x).argmax(1), Ball(math.inf, eps))


def _margins(query: Query, place: int = 0) -> list[LayerMargin]:
    own = torch.tensor([place])
    units = CROWN().start(query.double, query.wide[own], query.ball.restrict(own), torch.float64)
    low, high = (side.flatten(1)[place].numpy() for side in query.ball.hull(query.wide))
    found = LayerMargin.of(query.double, units, query.prop.rows[place], query.prop.offsets[place], (low, high))
    assert found is not None
    return found


def _points(rng: np.random.Generator, margin: LayerMargin, count: int = 2000) -> np.ndarray:
    """Points of the box, many of them on its sides."""
    share = np.clip(rng.uniform(-0.5, 1.5, (count, len(margin.p))), 0.0, 1.0)
    return margin.lower + share * (margin.upper - margin.lower)


def _regions(rng: np.random.Generator, margin: LayerMargin) -> list[Region]:
    """The whole box, and parts of it with some splits."""
    found = [margin.root()]
    for _ in range(6):
        signs = rng.choice(np.array([-1, 0, 0, 1], dtype=np.int8), len(margin.b))
        ends = np.sort(_points(rng, margin, 2), 0)
        region = margin.inside(margin.root()._replace(lower=ends[0], upper=ends[1], signs=signs))
        if (region.least <= region.most).all():
            found.append(region)
    return found


def _inside(margin: LayerMargin, region: Region, x: np.ndarray) -> np.ndarray:
    """The points of a region, given points of the box that are moved into its box."""
    x = np.clip(x, region.lower, region.upper)
    z = x @ margin.w.T + margin.b
    return x[((z >= region.least) & (z <= region.most)).all(1)]


@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_the_margin_is_that_of_the_network_and_never_above_it(leak: float) -> None:
    rng = np.random.default_rng(0)
    for seed in range(4):
        query = _query(seed, 0.4, leak=leak)
        for row, margin in enumerate(_margins(query)):
            x = _points(rng, margin)
            logits = query.double(torch.from_numpy(x)).detach()
            true = (logits @ query.prop.rows[0, row] + query.prop.offsets[0, row]).numpy()
            assert np.abs(margin.value(x) - true).max() < 1e-9


def test_every_multiplier_gives_a_line_below_the_margin() -> None:
    rng = np.random.default_rng(1)
    tight = 0
    for seed in range(6):
        for margin in _margins(_query(seed, 0.5)):
            for region in _regions(rng, margin):
                count = len(margin.b)
                shares, weights = rng.random(count), rng.choice([0.0, 0.3, 1.0], count)
                betas = rng.exponential(size=count) * (rng.random(count) < 0.5)
                x = _inside(margin, region, _points(rng, margin))
                at = x[0] if len(x) else region.lower
                slopes = (1 - weights)[:, None] * margin.envelope(region, np.arange(count), at)
                if rng.random() < 0.5:
                    slopes = slopes + rng.normal(size=slopes.shape)
                below = margin.below(region, shares, weights, slopes, betas)
                if len(x):
                    assert (margin.value(x) >= x @ below.rows + below.offset).all()
                    assert (margin.value(x) >= below.margin).all()
                    tight += 1
    assert tight > 30


def test_envelopes_are_above_relus_exact_at_corners_and_below_chords() -> None:
    rng = np.random.default_rng(2)
    for seed in range(4):
        margin = _margins(_query(seed, 0.5))[0]
        region, every = margin.root(), np.arange(len(margin.b))
        x = _points(rng, margin)
        relu = np.maximum(x @ margin.w.T + margin.b, 0.0)
        k, h = margin.chord(region)
        for at in x[:20]:
            slopes = margin.envelope(region, every, at)
            e = margin.offsets(region, every, slopes, np.ones(len(every)))
            assert (x @ slopes.T + e >= relu - 1e-9).all()
            assert (slopes @ at + e <= k * (margin.w @ at + margin.b) + h + 1e-9).all()
        corner = np.where(rng.random(len(margin.p)) < 0.5, region.lower, region.upper)
        slopes = margin.envelope(region, every, corner)
        e = margin.offsets(region, every, slopes, np.ones(len(every)))
        assert np.allclose(slopes @ corner + e, np.maximum(margin.w @ corner + margin.b, 0.0), atol=1e-9)


def test_cuts_keep_every_point_where_the_margin_is_not_positive() -> None:
    rng = np.random.default_rng(3)
    cut, kept = 0, 0
    for seed in range(8):
        for margin in _margins(_query(seed, 0.6)):
            none = LinearRows(np.zeros(0, dtype=np.int64), np.zeros((0, len(margin.p))))
            for region in _regions(rng, margin):
                found = bounded(margin, region, none, 4, math.inf)
                x = _inside(margin, region, _points(rng, margin))
                assert (margin.value(x) >= found.below.margin).all()
                left = margin.cut(region, found.below)
                x = x[margin.value(x) <= 0]
                if left is None:
                    assert len(x) == 0
                    continue
                z = x @ margin.w.T + margin.b
                assert ((x >= left.lower) & (x <= left.upper)).all()
                assert ((z >= left.least - 1e-12) & (z <= left.most + 1e-12)).all()
                cut += bool((left.upper - left.lower < 0.99 * (region.upper - region.lower)).any())
                kept += len(x)
    assert cut > 3
    assert kept > 50


def test_envelopes_tighten_the_program() -> None:
    margin = _margins(_query(1, 0.8, inputs=10, units=30))[0]
    none = LinearRows(np.zeros(0, dtype=np.int64), np.zeros((0, 10)))
    first = EnvelopeProgram(margin, margin.root(), none).solve(10.0)
    assert first is not None
    best = bounded(margin, margin.root(), none, 8, math.inf)
    assert best.below.margin > first.below.margin
    assert best.below.margin <= margin.value(_points(np.random.default_rng(0), margin)).min()


@pytest.mark.parametrize("eps", [0.1, 0.5])
@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_verdicts_are_those_of_splits_of_relus(eps: float, leak: float) -> None:
    seen = set()
    for seed in range(5):
        query = _query(seed, eps, leak=leak)
        verdicts = []
        for method in (Envelopes(), BaB()):
            found = {one.index: one for one in method.decide(query, Budget(seconds=20.0))}
            verdicts.append([found[place].verdict for place in range(len(query))])
            for one in found.values():
                if one.verdict is Verdict.VULNERABLE:
                    assert one.witness is not None
                    own = torch.tensor([one.index])
                    assert bool(query.ball.restrict(own).contains(query.x[own], one.witness[None]))
                    assert not bool(query.prop.restrict(own).holds(query.net(one.witness[None])))
        assert verdicts[0] == verdicts[1]
        seen |= set(verdicts[0])
    assert Verdict.UNKNOWN not in seen


def test_what_is_not_taken_and_limits() -> None:
    query = _query(0, 0.5)
    assert Envelopes.takes(query)
    clauses = Property(query.prop.rows, query.prop.offsets, torch.tensor([0, 0]))
    others = [
        Query.of(query.net, query.x, query.y, Ball(2, 0.1)),
        Query(query.net, query.double, query.x, query.y, query.ball, clauses, query.holds),
        Query(query.net, query.double, query.x, query.y, query.ball, query.prop, query.holds, strict=True),
    ]
    for other in others:
        assert not Envelopes.takes(other)
        with pytest.raises(InvalidInput, match="one small layer"):
            list(Envelopes().decide(other, Budget()))
    with pytest.raises(InvalidInput, match="rounds of envelopes must be at least 1, got 0"):
        Envelopes(rounds=0)
    late = list(Envelopes().decide(_query(3, 0.6, 10, 40), Budget(deadline=0.0)))
    assert all(one.verdict is not Verdict.ROBUST or one.nodes for one in late)
