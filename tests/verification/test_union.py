"""The union of balls: ROBUST where every ball is, VULNERABLE where one is, with its witness and its position."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.core.results import Verdict
from zoo import inputs, network

BALLS = (rc.Ball(math.inf, 0.03), rc.Ball(2, 0.1), rc.Ball(1, 0.2))


@pytest.mark.parametrize("method", ["auto(nodes=100, restarts=2)", "crown", "bab(nodes=100)", "region", "universal"])
def test_the_verdict_of_the_union_follows_from_its_balls(method):
    net = network("fc deep", torch.float32)
    x = inputs(net, 8)
    y = net.predict(x)
    y[3] = (y[3] + 1) % net.classes
    union = rc.certify(net, x, y, BALLS, method, batch=3)
    each = [rc.certify(net, x, y, ball, method) for ball in BALLS]
    seen = set()
    for i, verdict in enumerate(union.verdict):
        single = [found.verdict[i] for found in each]
        decided = [v for v in (Verdict.MISCLASSIFIED, Verdict.VULNERABLE, Verdict.UNKNOWN) if v in single]
        assert verdict is (decided[0] if decided else Verdict.ROBUST)
        assert single[union.ball[i]] is verdict
        if verdict is Verdict.UNKNOWN:
            assert float(union.margin[i]) <= float(each[union.ball[i]].margin[i]) + 1e-6
        if verdict is Verdict.VULNERABLE:
            assert union.witness is not None
            ball = BALLS[union.ball[i]]
            assert bool(ball.contains(x[i : i + 1], union.witness[i : i + 1]))
            assert int(net.predict(union.witness[i : i + 1])) != int(y[i])
        if verdict is Verdict.ROBUST:
            assert float(union.margin[i]) == pytest.approx(min(float(found.margin[i]) for found in each), abs=1e-5)
            assert union.arithmetic[i] == "executed"
        seen.add(verdict)
    assert len(seen) >= 2


def test_later_balls_are_not_searched_after_a_counterexample():
    net = network("fc deep")
    x = inputs(net, 4)
    y = net.predict(x)
    found = rc.certify(net, x, y, [rc.Ball(math.inf, 0.9), rc.Ball(2, 1e-3)], "auto(nodes=100, restarts=2)")
    falsified = found.which(Verdict.VULNERABLE)
    assert bool(falsified.any())
    assert {found.ball[i] for i in falsified.nonzero()[:, 0].tolist()} == {0}


def test_decisions_of_the_union_come_one_by_one_and_in_inference_mode():
    net = network("fc")
    x = inputs(net, 4)
    with torch.inference_mode():
        found = {one.index: one for one in rc.decisions(net, x * 1.0, net.predict(x), BALLS, "bab(nodes=20)", batch=2)}
    assert sorted(found) == [0, 1, 2, 3]
    whole = rc.certify(net, x, net.predict(x), BALLS, "bab(nodes=20)", batch=2)
    assert [found[i].verdict for i in range(4)] == whole.verdict
    assert [found[i].ball for i in range(4)] == whole.ball


def test_one_ball_in_a_list_is_that_ball_and_none_is_refused():
    net = network("fc")
    x = inputs(net, 2)
    y = net.predict(x)
    one, alone = rc.certify(net, x, y, [BALLS[0]], "crown"), rc.certify(net, x, y, BALLS[0], "crown")
    assert torch.equal(one.margin, alone.margin)
    with pytest.raises(InvalidInput, match="ball must be a ball or several"):
        rc.certify(net, x, y, [], "crown")
    with pytest.raises(InvalidInput, match="ball must be bounded"):
        rc.certify(net, x, y, [BALLS[0], rc.Ball(2, math.inf, None)], "crown")


def test_the_clock_of_an_input_runs_over_all_balls():
    net = network("fc deep")
    x = inputs(net, 2)
    found = rc.certify(net, x, net.predict(x), BALLS, "bab", timeout=1e-9)
    assert set(found.verdict) <= {Verdict.UNKNOWN, Verdict.ROBUST}
    assert all(reason == "time" for reason, v in zip(found.reason, found.verdict, strict=True) if v is Verdict.UNKNOWN)
