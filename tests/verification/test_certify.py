"""Verdicts and certified radii: a proof is never contradicted, in the network's own dtype, for every method and norm."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import relucert as rc
from asserts import assert_below_attack, assert_witness
from relucert.core.errors import Contradiction, InvalidInput
from relucert.core.properties import class_stays
from relucert.core.results import Verdict
from relucert.networks.network import Network
from relucert.networks.traversal import Graph
from relucert.verification import _search as search
from relucert.verification._incomplete import Attack
from relucert.verification.certify import certify
from relucert.verification.radius import radius
from relucert.verification.registry import BOUNDING
from relucert.verification.registry import METHODS as REGISTERED
from relucert.verification.verifier import Budget, Outcome, Query
from zoo import NETWORKS, inputs, network, randomised

SMALLER = {
    "sdp": "sdp(steps=2)", "moments": "moments(steps=10, rank=3)", "bab": "bab(nodes=60, steps=5)",
    "auto": "auto(nodes=20, restarts=2)",
}  # fmt: skip
LONGER = ("sdp", "moments")
METHODS = tuple(SMALLER.get(name, name) for name in REGISTERED if name != "mip")  # in l2 it needs an extra: test_mip
names = pytest.mark.parametrize("name", NETWORKS)


@pytest.mark.share(8)
@names
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_robust_is_not_broken(name: str, method: str, dtype: torch.dtype) -> None:
    net = network(name, dtype)
    x = inputs(net, 6)
    y = net.predict(x)
    for p, eps, box in ((1.0, 0.2, None), (2.0, 0.1, (0.0, 1.0)), (math.inf, 0.03, (0.0, 1.0))):
        ball = rc.Ball(p, eps * torch.tensor([0.01, 0.1, 0.5, 1.0, 2.0, 4.0]), box)
        found = certify(net, x, y, ball, method)
        falsified = rc.attack(net, x, y, ball, rc.PGD(steps=20, restarts=2)).success
        robust = found.which(Verdict.ROBUST)
        assert not bool((robust & falsified).any())
        assert bool((found.margin[robust] > 0).all())
        assert bool(robust[0]) or method in ("region", "universal")


@pytest.mark.parametrize(
    "box", [(0.0, 0.1), (0.7, 1.0), (torch.tensor([0.1] * 3), torch.tensor(0.3, dtype=torch.float64))]
)
@pytest.mark.parametrize("method", ["crown", "region", "bab(nodes=20)", "mip", "auto(nodes=20, restarts=2)"])
def test_sides_of_the_box_that_float32_rounds(box, method: str) -> None:
    """The box is that of x's dtype, also where bounds are computed in float64: x may lie on its sides."""
    net = network("fc", torch.float32)
    x = torch.stack([torch.as_tensor(side, dtype=torch.float32).expand(3) for side in box])
    ball = rc.Ball(math.inf, 0.05, box)
    found = certify(net, x, net.predict(x), ball, method)
    generator = torch.Generator().manual_seed(0)
    low, high = ball.hull(x)
    points = [low, high, *(ball.sample(x, generator) for _ in range(20))]
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    net = net.double()
    for z in points:
        assert bool((found.margin <= prop.margin(net(z.double()))).all())


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_networks_without_a_switch_are_decided(p: float) -> None:
    """Of an affine network branch and bound proves what holds at its minimiser and breaks the rest."""
    net = network("linear")
    x = inputs(net, 20)
    y = net.predict(x)
    ball = rc.Ball(p, 0.3)
    found = certify(net, x, y, ball, "bab")
    prop = class_stays(y, 3, dtype=torch.float64).rows
    matrix, offset = net.module[0].weight.detach(), net.module[0].bias.detach()  # type: ignore[operator]
    rows = prop @ matrix
    least = (ball.minimum(x, rows).value + (rows @ x[..., None])[..., 0] + prop @ offset).amin(1)
    assert [str(verdict) for verdict in found.verdict] == ["robust" if one > 0 else "vulnerable" for one in least]
    assert len(set(found.verdict)) == 2


def test_the_margin_is_that_of_the_nearest_class() -> None:
    """Two classes that are always the same, and a third that is nearly as near but rounded worse: the lead is zero."""
    first, last = nn.Linear(50, 1), nn.Linear(1, 3)
    with torch.no_grad():
        first.weight.fill_(0.02)
        first.bias.zero_()
        last.weight.copy_(torch.tensor([[1.0], [1.0], [0.5]]))
        last.bias.copy_(torch.tensor([0.0, 0.0, 0.5 - 1e-6]))
    net = Network(nn.Sequential(first, nn.ReLU(), last), (50,)).double().eval()
    for method in BOUNDING:
        found = certify(net, torch.ones(1, 50, dtype=torch.float64), torch.tensor([0]), rc.Ball(2, 0.0), method)
        assert -1e-9 < float(found.margin) <= 0


def test_what_is_not_a_number_proves_nothing() -> None:
    """A margin that is NaN counts as -inf, and one that is infinite as the largest there is."""
    rows = torch.tensor([[[math.nan, math.nan], [5.0, 4.0]], [[math.inf, math.inf], [2.0, -1.0]]], dtype=torch.float64)
    found = Outcome.nothing(torch.zeros(2, 1))
    query = Query.of(network("fc"), inputs(network("fc"), 2), torch.tensor([0, 0]), rc.Ball(2, 0.1))
    found.prove(query.proves(rows).all(1), rows)
    assert found.proved.tolist() == [False, True]
    assert found.margin.tolist() == [-math.inf, 2.0]
    assert found.executed.tolist() == [-math.inf, -1.0]


@pytest.mark.share(2)
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("lead", [0.8, 3.0])
def test_the_whole_box_of_a_network_with_a_unit_without_weights(p: float, lead: float) -> None:
    """The unit has a bound at every eps, also inf, and a program of linear regions does not need eps."""
    first, inner, last = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.5], [0.0, 0.0]]))
        first.bias.copy_(torch.tensor([-0.1, 5.0]))
        inner.weight.copy_(torch.eye(2))
        inner.bias.zero_()
        last.weight.copy_(torch.tensor([[0.0, 0.0], [2.0, 1.0]]))
        last.bias.copy_(torch.tensor([5.0 + lead, 0.0]))
    net = Network(nn.Sequential(first, nn.ReLU(), inner, nn.ReLU(), last).double(), (2,)).eval()
    x, ball = torch.zeros(1, 2).double(), rc.Ball(p, math.inf)
    for method in BOUNDING:
        for one in rc.bounds(net, x, ball, method).inputs.values():
            assert bool((one.lower <= one.upper).all())
        found = certify(net, x, torch.tensor([0]), ball, method)
        assert str(found.verdict[0]) == ("robust" if lead == 3.0 else "unknown")
        assert float(found.margin) == pytest.approx(lead - 2.8, rel=1e-6)  # at the corner (1, 1)
    for method in ("bab", "auto"):
        found = certify(net, x, torch.tensor([0]), ball, method)
        assert str(found.verdict[0]) == ("robust" if lead == 3.0 else "vulnerable")


def test_misclassified_points_are_called_so() -> None:
    net = network("fc")
    x = inputs(net, 5)
    y = (net.predict(x) + 1) % net.classes
    found = certify(net, x, y, rc.Ball(2, 0.01), "crown")
    assert found.verdict == [Verdict.MISCLASSIFIED] * 5
    assert bool((found.margin < 0).all())


def test_targets_ask_for_less() -> None:
    net = network("fc")
    x = inputs(net, 8)
    y = net.predict(x)
    ball = rc.Ball(2, 0.3)
    every = certify(net, x, y, ball, "crown").margin
    some = certify(net, x, y, ball, "crown", targets=((y + 1) % net.classes)[:, None]).margin
    assert bool((some >= every - 1e-12).all())
    assert bool((some > every + 1e-6).any())
    with pytest.raises(InvalidInput, match="targets must be left out for method region"):
        certify(net, x, y, ball, "region", targets=((y + 1) % net.classes)[:, None])


@pytest.mark.share(2)
@pytest.mark.parametrize("factor", [1e-2, 1e-4, 1e-6, 1e-7])
@pytest.mark.parametrize("method", METHODS)
def test_planted_counterexamples_are_never_robust(factor: float, method: str) -> None:
    """A bias is set so that the worst point on a segment in the ball loses by a small part of the logits' size."""
    for seed in range(4):
        for dtype in (torch.float32, torch.float64):
            module = randomised(
                nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2)), seed
            )
            net = Network(module.to(dtype), (5,)).eval()
            x = inputs(net, 1, seed)
            direction = torch.randn(1, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)
            ball = rc.Ball(2, 0.2, None)
            with torch.no_grad():
                steps = torch.linspace(0, 0.999, 50, dtype=dtype)[:, None]
                points = x + 0.2 * steps * direction / direction.norm()
                logits = net(points)
                lead = logits[:, 0] - logits[:, 1]
                scale = float(logits.abs().max())
                module[4].bias[0] -= lead.min() + factor * scale  # type: ignore[operator, index]
                logits = net(points)
                lost = logits[:, 0] < logits[:, 1]
            assert bool(lost.any())
            found = certify(net, x, torch.tensor([0]), ball, method)
            assert found.verdict[0] is not Verdict.ROBUST


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, "alpha(steps=4)" if method == "alpha" else method)
        for method in sorted(BOUNDING, key=lambda method: method not in LONGER)
        for name in (NETWORKS if method not in LONGER else ("fc", "max pool"))
    ],
)
def test_radii_are_certified_and_near_what_can_be(name: str, method: str) -> None:
    net = network(name)
    x = inputs(net, 3)
    y = net.predict(x)
    for p, box in ((2.0, (0.0, 1.0)), (math.inf, None)):
        found = radius(net, x, p=p, box=box, method=method)
        assert_witness(net, x, y, p, box, found)
        finite = found.lower.isfinite()
        ball = rc.Ball(p, torch.where(finite, found.lower, 1.0), box)
        # The region theorem's radius may be the larger one; otherwise the bound proves this radius again.
        theorem = rc.Region(regions=0).radius(net, x, y, p, box).lower
        verdicts = certify(net, x, y, ball, method).which(Verdict.ROBUST)
        assert bool((verdicts | (found.lower <= theorem * (1 + 1e-9)) | ~finite).all())
        assert_below_attack(found, rc.attack(net, x, y, rc.Ball(p, found.lower.clamp(max=10.0), box), rc.PGD(steps=20)))
        if method == "ibp":  # monotone: what is more than a hundredth beyond was seen to fail
            beyond = rc.Ball(p, torch.where(finite, found.lower * 1.02, 1.0), box)
            more = certify(net, x, y, beyond, method).which(Verdict.ROBUST)
            assert not bool((more & finite & (found.lower > theorem * (1 + 1e-9))).any())


@pytest.mark.parametrize("facets", [True, False])
def test_the_region_of_an_input_is_computed_once(monkeypatch, facets: bool) -> None:
    net = network("fc deep")
    x = inputs(net, 4)
    passes: list[int] = []
    values = Graph.values
    monkeypatch.setattr(Graph, "values", lambda self, z, keep: passes.append(len(keep)) or values(self, z, keep))
    found = certify(net, x, net.predict(x), rc.Ball(2, 1e-6), rc.Region(regions=0, facets=facets))
    assert set(found.verdict) == {Verdict.ROBUST}
    # All other passes keep the logits alone; the patterns of the region come from one pass.
    assert len([kept for kept in passes if kept > 1]) == 1


def test_a_witness_inside_a_certified_ball_is_an_error(monkeypatch) -> None:
    net = network("fc")
    x = inputs(net, 3)
    known = radius(net, x, p=2, method="region")
    assert bool(known.upper.isfinite().any())
    monkeypatch.setattr(search._Search, "run", lambda self, *_: self.query.wide.new_full((3,), 1e3))
    with pytest.raises(Contradiction, match=r"kw.* certifies the radius 1000\.0, but a witness is at"):
        radius(net, x, p=2, method="kw")


def test_a_box_that_is_robust_all_over_has_an_infinite_radius() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    randomised(module, 1)
    with torch.no_grad():
        module[2].bias.copy_(torch.tensor([50.0, 0.0]))  # type: ignore[operator]
    net = Network(module.double(), (2,)).eval()
    found = radius(net, inputs(net, 3), p=2, method="crown")
    assert bool(found.lower.isinf().all())


def test_unbounded_sets_are_refused() -> None:
    net = network("fc")
    x = inputs(net, 2)
    with pytest.raises(InvalidInput, match="ball must be bounded: eps or the box must be finite"):
        certify(net, x, net.predict(x), rc.Ball(2, math.inf, None), "crown")
    with pytest.raises(InvalidInput, match="method must be one of"):
        certify(net, x, net.predict(x), rc.Ball(2, 0.1), "magic")
    for method in METHODS:
        assert len(certify(net, x[:0], net.predict(x[:0]), rc.Ball(2, 0.1), method)) == 0
        if not method.startswith(("bab", "auto")):
            assert len(radius(net, x[:0], method=method)) == 0


def test_an_input_is_no_witness_against_its_own_decision(monkeypatch):
    """Where logits nearly tie, the class of an input in another batch can be another: an attack then succeeds at once."""
    net = network("fc1", torch.float32)
    x = inputs(net, 4)
    y = net.predict(x)
    forward = net.forward

    def near_tie(z):
        logits = forward(z)
        return logits if len(z) == 4 else logits - 1e3 * torch.nn.functional.one_hot(y[:1], net.classes)

    monkeypatch.setattr(net, "forward", near_tie)
    query = Query.of(net, x, y, rc.Ball(math.inf, 1e-6))
    verdicts = [
        decision.verdict for decision in Attack(rc.PGD(steps=2)).decide(query.restrict(torch.tensor([0])), Budget())
    ]
    assert Verdict.VULNERABLE not in verdicts
