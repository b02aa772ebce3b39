"""Radii by branch and bound: the exact distance lies in every interval, and intervals are as narrow as requested."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.core.errors import Contradiction, InvalidInput
from relucert.verification import _narrowing as narrowing
from relucert.verification.bab.bab import BaB
from relucert.verification.verifier import Outcome
from zoo import inputs, network


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("box", [(0.0, 1.0), None])
def test_intervals_hold_the_exact_distance_and_are_narrow(p, box):
    net = network("fc")
    x = inputs(net, 4)
    truth = rc.radius(net, x, p=p, box=box, method=rc.Region(regions=60))
    known = (truth.exact & truth.upper.isfinite()).nonzero()[:, 0]
    found = rc.radius(net, x[known], p=p, box=box, method="bab(nodes=1000)", tol=0.005)
    assert len(known) > 0
    assert bool((found.lower <= truth.upper[known] * (1 + 1e-6)).all())
    assert bool((found.upper >= truth.lower[known] * (1 - 1e-6)).all())
    assert bool((found.upper <= found.lower * 1.0051).all())
    assert found.witness is not None
    y = net.predict(x[known])
    assert bool((net.predict(found.witness) != y).all())


def test_misclassified_inputs_have_radius_zero_and_labels_matter():
    net = network("fc")
    x = inputs(net, 3)
    y = (net.predict(x) + torch.tensor([1, 0, 0])) % net.classes
    found = rc.radius(net, x, y, p=2, method="auto(nodes=200)", tol=0.05)
    assert (float(found.lower[0]), float(found.upper[0])) == (0, 0)
    assert bool((found.lower[1:] > 0).all())


def test_time_ends_the_search_with_a_valid_interval():
    net = network("fc deep")
    x = inputs(net, 4)
    wide = rc.radius(net, x, p=2, method="bab", tol=1e-6, timeout=1e-6)
    narrow = rc.radius(net, x, p=2, method="bab(nodes=200)", tol=0.05)
    assert bool((wide.lower <= narrow.upper).all())
    assert bool((wide.upper >= narrow.lower).all())
    assert bool((wide.lower <= narrow.lower * (1 + 1e-9)).all())


@pytest.mark.parametrize(
    ("given", "message"), [({"tol": 0.0}, "tol must be above 0"), ({"timeout": 0}, "timeout must be")]
)
def test_bad_input_is_named(given, message):
    net = network("fc")
    with pytest.raises(InvalidInput, match=message):
        rc.radius(net, inputs(net, 1), method="bab", **given)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_attacks_lower_upper_ends_and_never_contradict_proofs(p):
    net = network("cnn", torch.float32)
    x = inputs(net, 4)
    alone = rc.radius(net, x, p=p, method="crown")
    helped = rc.radius(net, x, p=p, method="crown", attack="fab(steps=10)")
    assert bool((helped.upper <= alone.upper).all())
    assert bool(helped.upper.isfinite().all())
    assert torch.equal(helped.lower, torch.minimum(alone.lower, helped.upper))
    assert helped.witness is not None
    assert bool((net.predict(helped.witness) != net.predict(x)).all())
    with pytest.raises(InvalidInput, match="method must be one of"):
        rc.radius(net, x, p=p, attack="pgd")


def test_a_proof_beyond_a_witness_is_refused(monkeypatch):
    net = network("fc deep", torch.float32)
    x = inputs(net, 4)

    def wrong(self, query, budget):
        found = Outcome.nothing(query.wide)
        found.proved |= True
        return found.decisions(range(len(query)), "bab", query.x.dtype)

    # The witness is moved in between the rounds: what was proved then holds a point of another class.
    real = narrowing.refuse_contradictions
    monkeypatch.setattr(BaB, "decide", wrong)
    monkeypatch.setattr(narrowing, "refuse_contradictions", lambda low, high, *rest: real(low, 0.99 * high, *rest))
    with pytest.raises(Contradiction, match=r"bab.* certifies the radius"):
        rc.radius(net, x, p=2, method="bab", tol=1e-4)
