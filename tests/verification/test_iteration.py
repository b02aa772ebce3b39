"""Answers while they come: iterators give what `certify` and `radius` return, and an interrupted call keeps what it has."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.core.errors import Interrupted, InvalidInput
from relucert.core.results import Verdict
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification import _incomplete as incomplete
from relucert.verification import _narrowing as narrowing
from relucert.verification import _radii
from relucert.verification import _search as search
from zoo import inputs, network, randomised

BALL = rc.Ball(math.inf, 0.05)


@pytest.fixture(scope="module")
def case():
    net = Network(randomised(mlp((6,), 3, [12, 8]), 1), (6,)).eval()
    x = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    return net, x, net.predict(x)


def interrupt(monkeypatch, owner, name: str, call: int) -> None:
    """Let a function be interrupted when it is called for the n-th time."""
    function, calls = getattr(owner, name), []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("method", ["crown", "region", "bab(nodes=50)", "auto(nodes=50, restarts=2)"])
def test_decisions_are_those_of_the_certificate(case, method):
    net, x, y = case
    y = torch.where(torch.arange(6) == 4, (y + 1) % 3, y)
    whole = rc.certify(net, x, y, BALL, method, batch=4)
    found = {decision.index: decision for decision in rc.decisions(net, x, y, BALL, method, batch=4)}
    assert sorted(found) == list(range(6))
    assert [found[i].verdict for i in range(6)] == whole.verdict
    assert [found[i].margin for i in range(6)] == whole.margin.tolist()
    assert [found[i].arithmetic for i in range(6)] == whole.arithmetic
    for i, decision in found.items():
        assert (decision.witness is not None) == (decision.verdict is Verdict.VULNERABLE)
        if decision.witness is not None:
            assert whole.witness is not None
            assert torch.equal(decision.witness, whole.witness[i])


def test_a_loop_that_is_left_costs_nothing_more(case, monkeypatch):
    net, x, y = case
    interrupt(monkeypatch, incomplete, "proved_margins", 3)
    steps = rc.decisions(net, x, y, BALL, "crown", batch=2)
    assert sorted(next(steps).index for _ in range(4)) == [0, 1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        next(steps)


def test_the_first_radii_by_auto_come_before_the_others_are_begun(case, monkeypatch):
    net, x, y = case
    whole = rc.radius(net, x, y, method="auto(nodes=20)", tol=0.2)
    interrupt(monkeypatch, _radii, "_crown", 2)
    steps = rc.intervals(net, x, y, method="auto(nodes=20)", tol=0.2)
    first = dict(next(steps) for _ in range(4))
    assert sorted(first) == [0, 1, 2, 3]
    for i, found in first.items():  # which depend on the clock
        assert 0 < float(found.lower) <= float(whole.upper[i])
        assert float(whole.lower[i]) <= float(found.upper)
    with pytest.raises(KeyboardInterrupt):
        next(steps)


def test_arguments_are_checked_before_the_first_step(case):
    net, x, y = case
    with pytest.raises(InvalidInput, match="batch must be at least 1"):
        rc.decisions(net, x, y, BALL, "crown", batch=0)
    with pytest.raises(InvalidInput, match="tol must be above 0"):
        rc.intervals(net, x, tol=2.0)
    with pytest.raises(InvalidInput, match="arithmetic must be 'real' for a radius by region"):
        rc.intervals(net, x, method="region", arithmetic="executed")
    with pytest.raises(InvalidInput, match="arithmetic must be 'real' or 'executed'"):
        rc.intervals(net, x, method="crown", arithmetic="float")  # type: ignore[arg-type]


def test_an_interrupted_certificate_keeps_its_decisions(case, monkeypatch):
    net, x, y = case
    whole = rc.certify(net, x, y, BALL, "crown")
    interrupt(monkeypatch, incomplete, "proved_margins", 2)
    with pytest.raises(KeyboardInterrupt, match="interrupted: 4 of 6 inputs are decided") as stopped:
        rc.certify(net, x, y, BALL, "crown", batch=4)
    assert isinstance(stopped.value, Interrupted)
    kept = stopped.value.result
    assert len(kept) == 6
    assert kept.verdict == [*whole.verdict[:4], Verdict.UNKNOWN, Verdict.UNKNOWN]
    assert torch.allclose(kept.margin[:4], whole.margin[:4], atol=1e-6)
    assert kept.margin[4:].tolist() == [-math.inf] * 2
    assert kept.reason[4:] == ["interrupted"] * 2


@pytest.mark.parametrize("method", ["region", "crown", "bab(nodes=10)"])
def test_intervals_are_those_of_the_radius(case, method):
    net, x, _ = case
    whole = rc.radius(net, x, p=math.inf, method=method, tol=0.2)
    found = dict(rc.intervals(net, x, p=math.inf, method=method, tol=0.2))
    assert sorted(found) == list(range(6))
    for name in ("lower", "upper", "exact"):
        assert torch.equal(torch.cat([getattr(found[i], name) for i in range(6)]), getattr(whole, name)), name
    assert [found[i].arithmetic[0] for i in range(6)] == whole.arithmetic


def test_an_interrupted_radius_keeps_its_intervals(case, monkeypatch):
    net, x, _ = case
    whole = rc.radius(net, x, method="crown")
    monkeypatch.setattr(search, "BATCH", 4)
    interrupt(monkeypatch, search, "theorem", 2)
    with pytest.raises(KeyboardInterrupt, match="interrupted: 4 of 6 intervals are known") as stopped:
        rc.radius(net, x, method="crown")
    kept = stopped.value.result  # type: ignore[attr-defined]
    assert torch.allclose(kept.lower[:4], whole.lower[:4])
    assert (kept.lower[4:].tolist(), kept.upper[4:].tolist()) == ([0.0] * 2, [math.inf] * 2)
    assert [name.startswith("interrupted: crown") for name in kept.method] == [False] * 4 + [True] * 2


def test_narrow_intervals_come_before_wide_ones(case, monkeypatch):
    """Branch and bound yields an interval when it is narrow, and an interruption later loses the others alone."""
    net, x, y = case
    y = torch.where(torch.arange(6) == 3, (y + 1) % 3, y)
    interrupt(monkeypatch, narrowing.Narrowing, "_trial", 1)
    with pytest.raises(Interrupted) as stopped:
        rc.radius(net, x, y, p=math.inf, method="bab(nodes=10)", tol=1e-3)
    kept = stopped.value.result
    assert float(kept.upper[3]) == 0.0, "a misclassified input needs no search"
    assert "interrupted: " in "".join(kept.method)


@pytest.mark.parametrize("p", [1.0, math.inf])
def test_what_splits_prove_says_what_rounding_was_charged(p):
    """The charge of a point that branch and bound proves by splitting is that of its subproblems."""
    net = network("fc deep")
    x = inputs(net, 2)
    eps = rc.radius(net, x, p=p, method="bab(nodes=500)", tol=0.1).lower * 0.98
    for method in ("bab(nodes=500)", "auto"):
        found = rc.certify(net, x, net.predict(x), rc.Ball(p, eps), method)
        assert found.computed is not None
        robust = found.which(Verdict.ROBUST)
        assert bool(robust.any())
        assert bool((found.computed >= found.margin)[robust].all())
        charged = found.rounding[robust]
        assert bool(((charged >= 0) & (charged < 1e-6)).all()), charged


@pytest.mark.parametrize(
    ("method", "p"),
    [
        ("crown", 2.0), pytest.param("alpha", math.inf, marks=pytest.mark.slow),
        pytest.param("bab(nodes=10)", math.inf, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_radii_say_what_their_proofs_cover(case, method, p):
    """A radius that is proved for the executed network is one that a strict certificate confirms."""
    net, x, y = case
    found = rc.radius(net, x, p=p, method=method, tol=0.2)
    strict = rc.radius(net, x, p=p, method=method, tol=0.2, arithmetic="executed")
    assert set(strict.arithmetic) == {"executed"}
    assert "executed" in found.arithmetic
    for radii in (found, strict):
        which = torch.tensor([name == "executed" for name in radii.arithmetic])
        ball = rc.Ball(p, radii.lower[which] * (1 - 1e-6))
        proved = rc.certify(net, x[which], y[which], ball, "auto", arithmetic="executed")
        assert set(proved.verdict) == {Verdict.ROBUST}


def test_a_lead_of_one_bit_has_a_radius_in_real_arithmetic_alone():
    """Logits z + 1 + 2^-23 and 1 + z: no rounding of real arithmetic loses the lead; that of float32 may."""
    last = torch.nn.Linear(1, 2)
    with torch.no_grad():
        last.weight.fill_(1.0)
        last.bias.copy_(torch.tensor([1 + 2.0**-23, 1.0]))
    net = Network(last, (1,)).eval()
    x, y = torch.tensor([[0.0]]), torch.tensor([0])
    for method in ("crown", "bab"):
        found = rc.radius(net, x, y, p=2, method=method)
        assert (found.lower.tolist(), found.arithmetic) == ([math.inf], ["real"])
        strict = rc.radius(net, x, y, p=2, method=method, arithmetic="executed")
        assert (strict.lower.tolist(), strict.arithmetic) == ([0.0], ["real"])
