"""`auto` orders its verifiers by what they decide; verdicts stay what they are."""

from __future__ import annotations

import itertools
import math

import torch

import relucert as rc
from relucert.verification import registry
from relucert.verification._incomplete import Attack
from relucert.verification._order import merged, passes
from relucert.verification.registry import Auto, Cascade
from relucert.verification.verifier import Budget, Query
from zoo import inputs, network

STAGES = Auto().stages(2.0, single=True)[:-1]


def cost(order, decided, count=400):
    """The nominal cost of an order: a verifier pays for the inputs that those before it have not decided."""
    total = 0.0
    for stage in order:
        total += count * passes(stage, 9)
        count -= decided.get(stage.name, 0)
    return total


def test_the_order_costs_least_among_those_that_keep_attacks_and_bounds_in_order():
    names = [stage.name for stage in STAGES]
    for counts in itertools.islice(itertools.product((0, 1, 7, 40), repeat=len(names)), 0, None, 37):
        decided = dict(zip(names, counts, strict=True))
        order = merged(STAGES, decided, 9)
        kept = [
            [s for s in part if isinstance(s, Attack) is kind] for part in (STAGES, order) for kind in (True, False)
        ]
        assert kept[:2] == kept[2:]
        attacks = sum(isinstance(stage, Attack) for stage in STAGES)
        best = math.inf
        for places in itertools.combinations(range(len(STAGES)), attacks):
            first, second = iter(kept[0]), iter(kept[1])
            best = min(best, cost([next(first if i in places else second) for i in range(len(STAGES))], decided))
        assert cost(order, decided) <= best * (1 + 1e-12)


def test_attacks_go_first_where_they_decide_most():
    names = [stage.name for stage in merged(STAGES, {"pgd": 90}, 9)]
    assert names[0] == "pgd"
    names = [stage.name for stage in merged(STAGES, {"crown": 80, "pgd": 10, "alpha": 1}, 9)]
    assert names[:4] == ["crown", "pgd", "alpha", "apgd"]


def test_verdicts_do_not_depend_on_the_order(monkeypatch):
    net, ball, method = network("cnn", torch.float32), rc.Ball(math.inf, 0.06), Auto(restarts=1)
    x = inputs(net, 16)
    y = net.predict(x)
    fixed = rc.certify(net, x, y, ball, method)
    assert {rc.Verdict.ROBUST, rc.Verdict.VULNERABLE} <= set(fixed.verdict)
    monkeypatch.setattr(registry, "MEASURED", 8)
    cascade = Cascade(method)
    first, second = (Query.of(net, x[part], y[part], ball) for part in (slice(0, 8), slice(8, 16)))
    before = cascade.stages(first)
    found = [*cascade.decide(first, Budget()), *cascade.decide(second, Budget())]
    assert cascade.seen == 8
    assert sum(cascade.decided.values()) == sum(one.verdict is not rc.Verdict.UNKNOWN for one in found[:8])
    after = cascade.stages(second)
    assert sorted(map(repr, before)) == sorted(map(repr, after))
    assert after[-1] == before[-1]
    learnt = [one.verdict for part in (found[:8], found[8:]) for one in sorted(part, key=lambda one: one.index)]
    assert learnt == fixed.verdict
