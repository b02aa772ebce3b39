"""Mixed-integer programs: they agree with branch and bound and with exact distances, and no tolerance makes a proof."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import relucert as rc
from asserts import assert_witness, outcome
from oracles import TINY, mip_distance, tiny
from relucert.core.errors import InvalidInput
from relucert.core.results import Verdict
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification.mip._problem import Answer
from relucert.verification.mip._solver import HiGHS
from relucert.verification.mip.distortion import minimal_distortion
from relucert.verification.verifier import Budget, Query
from zoo import NETWORKS, inputs, network, randomised


def method(p: float, **parameters) -> rc.MIP:
    """Programs for a norm, skipped where the solver is an extra that is not there."""
    if p == 2:
        pytest.importorskip("pyscipopt")
    return rc.MIP(solver="scip" if p == 2 else "highs", **{"seconds": 10.0, **parameters})


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "p"),
    [(name, p) for p in (1.0, math.inf) for name in NETWORKS]
    + [(name, 2.0) for name in ("linear", "fc", "fc deep", "dead windows", "leaky", "dense", "zero bias", "grouped")],
)
def test_verdicts_agree_with_branch_and_bound(name, p):
    net = network(name, torch.float32 if name in ("fc", "dense") else torch.float64)
    x = inputs(net, 3)
    y = net.predict(x)
    size = {1.0: 0.8, 2.0: 0.35, math.inf: 0.1}[p]
    ball = rc.Ball(p, size * torch.tensor([0.1, 0.6, 1.2]))
    found = rc.certify(net, x, y, ball, method(p))
    other = rc.certify(net, x, y, ball, rc.BaB(nodes=60))
    for one, two in zip(found.verdict, other.verdict, strict=True):
        assert Verdict.UNKNOWN in (one, two) or one is two
    if p != 2:  # elsewhere the clock may end it
        assert Verdict.UNKNOWN not in found.verdict
    assert bool((found.margin[found.which(Verdict.ROBUST)] > 0).all())
    falsified = found.which(Verdict.VULNERABLE)
    if bool(falsified.any()):
        assert found.witness is not None
        assert bool((net.predict(found.witness[falsified]) != y[falsified]).all())
        assert bool(ball.restrict(falsified).contains(x[falsified], found.witness[falsified]).all())


@pytest.mark.parametrize("name", ["fc deep", "max pool"])
def test_bounds_may_come_from_anywhere(name):
    net = network(name)
    x = inputs(net, 4)
    y = net.predict(x)
    ball = rc.Ball(math.inf, torch.tensor([0.01, 0.05, 0.1, 0.2]))
    verdicts = [rc.certify(net, x, y, ball, rc.MIP(tighten=kind)).verdict for kind in ("crown", "alpha", "lp")]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert Verdict.UNKNOWN not in verdicts[0]


@pytest.mark.share(4)
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("p", [1.0, math.inf])
def test_distortions_are_the_exact_distances(name, p):
    net = tiny(name)
    x = inputs(net, 1)
    y = net.predict(x)
    box = torch.zeros_like(x), torch.ones_like(x)
    truth = mip_distance(net, x, int(y), p, (0.0, 1.0))
    whole = float(x.numel()) if p == 1 else 1.0
    start = x.new_full((1,), 1.3 * truth if math.isfinite(truth) else 1.01 * whole)
    claimed, witnesses, _ = minimal_distortion(Query.of(net, x, y, rc.Ball(p, math.inf, box)), rc.MIP(), start)
    found = rc.radius(net, x, y, p, method="mip")
    assert_witness(net, x, y, p, (0.0, 1.0), found)
    if math.isinf(truth):
        assert bool(found.upper.isinf())
        assert bool(found.lower.isinf())
        assert bool(claimed.isinf())
    else:
        # The oracle is a program too, with tolerances of its own.
        assert float(found.lower) <= truth * (1 + 1e-8)
        assert float(found.upper) >= truth * (1 - 1e-8)
        assert float(found.upper) <= float(found.lower) * (1 + 1e-4)
        assert float(witnesses.distance) >= truth * (1 - 1e-8)
        assert float(witnesses.distance) <= float(claimed) * (1 + 1e-4)


@pytest.mark.parametrize(("name", "p"), [("fc", 2.0), ("dead windows", 2.0), ("fc deep", 1.0)])
def test_radii_enclose_exact_distances(name, p):
    net = tiny(name)
    x = inputs(net, 2)
    y = net.predict(x)
    exact = rc.radius(net, x, p=p, method=rc.Region(regions=None))
    found = rc.radius(net, x, p=p, method=method(p))
    assert_witness(net, x, y, p, (0.0, 1.0), found)
    known = exact.exact
    assert bool(known.any())
    assert bool((found.lower[known] <= exact.upper[known]).all())
    assert bool((found.upper[known] >= exact.lower[known]).all())
    finite = known & exact.upper.isfinite()
    assert bool((found.upper[finite] <= found.lower[finite] * (1 + 1e-4)).all())


def test_radii_of_float32_cover_its_rounding():
    """Just inside the proved radius no point changes the decision as the network runs, nor is one called a witness."""
    net = network("fc", torch.float32)
    x = inputs(net, 3)
    found = rc.radius(net, x, p=math.inf, box=None, method="mip")
    assert_witness(net, x, net.predict(x), math.inf, None, found)
    assert bool((found.upper <= found.lower * (1 + 1e-3)).all())
    inside = rc.certify(net, x, net.predict(x), rc.Ball(math.inf, found.lower.double(), None), "bab(nodes=500)")
    assert Verdict.VULNERABLE not in inside.verdict


def test_a_start_that_nothing_is_within_is_a_bound():
    net = network("fc deep")
    x = inputs(net, 2)
    y = net.predict(x)
    truth = torch.tensor([mip_distance(net, x[i : i + 1], int(y[i]), math.inf, None) for i in range(2)]).double()
    query = Query.of(net, x, y, rc.Ball(math.inf, math.inf, None))
    near, witnesses, _ = minimal_distortion(query, rc.MIP(), truth / 2)
    assert bool(witnesses.distance.isinf().all())
    assert bool((near >= truth / 2 * (1 - 1e-9)).all())
    assert bool((near <= truth).all())
    far, witnesses, _ = minimal_distortion(query, rc.MIP(), truth * 2)
    torch.testing.assert_close(far, truth, rtol=1e-5, atol=0)
    torch.testing.assert_close(witnesses.distance, truth, rtol=1e-5, atol=0)


@pytest.mark.share(2)
@pytest.mark.parametrize("depth", [[12], [10, 8]])
@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6, 1e-7])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_planted_counterexamples_are_never_called_robust(depth, size, p):
    """The network is shifted so that its decision changes at one point of the ball, by so little of its scale."""
    for seed in range(2 if p != 2 else 1):
        net = Network(randomised(mlp((4,), 3, depth), seed).double(), (4,)).eval()
        x = inputs(net, 1, seed)
        ball = rc.Ball(p, 0.15)
        y = net.predict(x)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            points = ball.sample(x, generator, 400)[0]
            logits = net(points)
            lead = logits.gather(1, y.expand(400)[:, None]) - logits
            lead[:, y] = math.inf
            worst = lead.amin(1).argmin()
            other = int(lead[worst].argmin())
            last = [part for part in net.modules() if isinstance(part, nn.Linear)][-1]
            last.bias[other] += lead[worst, other] + size * logits.abs().max()
        if int(net.predict(x)) != int(y):
            continue
        assert int(net.predict(points[worst : worst + 1])) != int(y)
        found = rc.certify(net, x, y, ball, method(p, tighten="lp" if seed else "alpha"))
        assert found.verdict[0] is not Verdict.ROBUST
        if size >= 1e-4:
            assert found.verdict[0] is Verdict.VULNERABLE
        if p != 2:
            assert float(rc.radius(net, x, y, p, None, method(p)).lower) <= 0.15


@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-7, 1e-9])
def test_planted_minima_at_a_vertex_are_found_in_the_radius(size):
    """A network whose only change of decision is a corner of the ball, by so little: |a| + |b| beyond 2 eps - size."""
    net = Network(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).double(), (2,)).eval()
    eye = torch.eye(2)
    with torch.no_grad():
        net.module[0].weight.copy_(torch.cat([eye, -eye]))
        net.module[0].bias.zero_()
        net.module[2].weight.copy_(torch.tensor([[0.0] * 4, [1.0] * 4]))
        net.module[2].bias.copy_(torch.tensor([0.2 - size, 0.0], dtype=torch.float64))
    x, y = torch.zeros(1, 2).double(), torch.tensor([0])
    assert rc.certify(net, x, y, rc.Ball(math.inf, 0.1, None), "mip").verdict[0] is not Verdict.ROBUST
    found = rc.radius(net, x, y, math.inf, None, rc.MIP())
    assert float(found.lower) <= 0.1 - size / 2
    assert float(found.lower) >= 0.1 - size / 2 - 1e-5
    inside = rc.Ball(math.inf, 0.1 - size / 2 - 1e-5, None)
    assert rc.certify(net, x, y, inside, "mip").verdict[0] is Verdict.ROBUST


def test_no_time_means_unknown():
    net = Network(randomised(mlp((6,), 3, [30, 30]), 3).double(), (6,)).eval()
    x = inputs(net, 8)
    y = net.predict(x)
    ball = rc.Ball(math.inf, 0.1)
    query = Query.of(net, x, y, ball)
    late = outcome(rc.MIP(), query, Budget(deadline=0.0))
    whole = outcome(rc.MIP(), query)
    assert bool((whole.proved | whole.falsified).all())
    undecided = ~(late.proved | late.falsified)
    assert bool(undecided.any())
    assert bool((whole.nodes[undecided] > 0).any())
    none = rc.certify(net, x, y, ball, rc.MIP(), timeout=1e-9)
    assert all(verdict in (Verdict.UNKNOWN, Verdict.ROBUST) for verdict in none.verdict)
    assert Verdict.UNKNOWN in none.verdict
    short = outcome(rc.MIP(seconds=1e-9), query)
    assert not bool((short.proved & whole.falsified).any())
    assert bool((~(short.proved | short.falsified)).any())


def test_what_a_solver_does_not_say_is_not_believed(monkeypatch):
    """Whatever fails, and a point that is none, gives UNKNOWN; a radius falls back on what is known without it."""
    net = network("fc deep")
    x = inputs(net, 2)
    y = net.predict(x)
    ball = rc.Ball(math.inf, 0.3)
    query = Query.of(net, x, y, ball)
    nothing = outcome(rc.MIP(), query, Budget(deadline=0.0))
    unknown = ~nothing.proved
    assert bool(unknown.any())
    for status in ("failed", "target", "optimal"):
        for wild in (np.nan, 1e9, 0.0):
            monkeypatch.setattr(
                HiGHS, "minimise",
                lambda self, problem, status=status, wild=wild, **_: Answer(
                    status, -math.inf, np.full(len(problem.cost), wild)
                ),
            )  # fmt: skip
            found = outcome(rc.MIP(), query)
            assert not bool(found.proved[unknown].any())
            if wild != 1e9:  # far away, put back into the ball, is a point as good as any
                assert not bool(found.falsified.any())
            free = Query.of(net, x, y, rc.Ball(math.inf, math.inf, None))
            claimed, _, _ = minimal_distortion(free, rc.MIP(), x.new_full((2,), 0.3))
            assert bool((claimed[unknown] == 0).all())


@pytest.fixture(scope="module")
def decided_by_bab():
    """A network, inputs, a ball, and their verdicts and radii by branch and bound."""
    net = network("fc deep")
    x = inputs(net, 2)
    ball = rc.Ball(math.inf, 0.3)
    return net, x, ball, rc.certify(net, x, net.predict(x), ball, "bab"), rc.radius(net, x, p=math.inf, method="bab")


@pytest.mark.parametrize(("status", "bound"), [("optimal", 1.0), ("cutoff", 1e9), ("time", math.inf)])
def test_a_solver_that_is_wrong_proves_nothing(monkeypatch, decided_by_bab, status, bound):
    """A solver that claims everything is robust changes no verdict and no proved radius."""
    net, x, ball, truth, before = decided_by_bab
    y = net.predict(x)
    assert Verdict.VULNERABLE in truth.verdict
    monkeypatch.setattr(HiGHS, "minimise", lambda self, problem, **_: Answer(status, bound, None))
    assert rc.certify(net, x, y, ball, "mip").verdict == truth.verdict
    found = rc.radius(net, x, p=math.inf, method="mip")
    assert bool((found.lower <= before.upper).all())
    assert bool((found.upper >= before.lower).all())


def test_the_word_of_a_solver_is_noted_but_no_verdict():
    net = network("fc deep")
    x = inputs(net, 6)
    y = net.predict(x)
    ball = rc.Ball(math.inf, 0.05)
    proved = rc.certify(net, x, y, ball, "mip")
    noted = rc.certify(net, x, y, ball, rc.MIP(trust="solver", tighten="crown"))
    assert Verdict.ROBUST in proved.verdict
    claimed = [claim == "highs" for claim in noted.claim]
    assert any(claimed)
    for verdict, other, claim, reason in zip(proved.verdict, noted.verdict, claimed, noted.reason, strict=True):
        assert (other is Verdict.UNKNOWN) if claim else (other is verdict)
        assert reason == ("robust on the word of highs alone" if claim else "")
    assert "of the unknown robust on a solver's word" in repr(noted)
    with pytest.raises(InvalidInput, match=r"trust of mip must be 'proof' for a radius.*, got 'solver'"):
        rc.radius(net, x, p=math.inf, method=rc.MIP(trust="solver"))


def test_what_cannot_be_proved_anew_has_a_reason():
    net = Network(randomised(mlp((6,), 3, [30, 30]), 3).double(), (6,)).eval()
    x = inputs(net, 12)
    y = net.predict(x)
    found = rc.certify(net, x, y, rc.Ball(math.inf, 0.08), rc.MIP(nodes=1))
    reasons = [
        reason for verdict, reason in zip(found.verdict, found.reason, strict=True) if verdict is Verdict.UNKNOWN
    ]
    assert reasons
    assert all("highs claims that the point is robust, but" in reason for reason in reasons)


def test_norms_and_parameters_have_rules():
    net = network("fc")
    x = inputs(net, 2)
    y = net.predict(x)
    with pytest.raises(InvalidInput, match=r"p must be 1 or inf for method mip with solver 'highs', 'scip' takes 2"):
        rc.certify(net, x, y, rc.Ball(2, 0.1), "mip")
    with pytest.raises(InvalidInput, match=r"p must be 1, 2 or inf for method mip, got 3"):
        rc.radius(net, x, p=3, method="mip")
    for name in ("seconds", "bound_seconds"):
        with pytest.raises(InvalidInput, match=f"{name} of mip must be positive, got 0"):
            rc.MIP(**{name: 0.0})
    for name in ("solver", "tighten", "trust"):
        with pytest.raises(InvalidInput, match=f"{name} of mip must be one of"):
            rc.MIP(**{name: "magic"})
    assert len(rc.certify(net, x[:0], y[:0], rc.Ball(1, 0.1), "mip")) == 0
    assert len(rc.radius(net, x[:0], p=1, method="mip")) == 0


def test_targets_and_misclassified_points_and_boxes_alone():
    net = network("fc")
    x = inputs(net, 4)
    y = net.predict(x)
    wrong = rc.certify(net, x, (y + 1) % net.classes, rc.Ball(1, 0.1), "mip")
    assert set(wrong.verdict) == {Verdict.MISCLASSIFIED}
    zero = rc.radius(net, x, (y + 1) % net.classes, p=1, method="mip")
    assert bool((zero.upper == 0).all())
    ball = rc.Ball(math.inf, math.inf)
    targets = ((y + 1) % net.classes)[:, None]
    found, other = (rc.certify(net, x, y, ball, method, targets=targets) for method in ("mip", "bab"))
    assert found.verdict == other.verdict
    point = rc.certify(net, x, y, rc.Ball(1, 0.0), "mip")
    assert set(point.verdict) == {Verdict.ROBUST}
