"""Branch and bound: it agrees with exact distances, is never fooled by planted counterexamples, and minds nobody else."""

from __future__ import annotations

import math
from collections import deque

import pytest
import torch
from torch import nn

import relucert as rc
from asserts import outcome
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.split_bounds import AscentOptions, DualVariables, Problems, ascend
from relucert.core.properties import Property, class_stays
from relucert.core.results import Verdict
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification.bab import bab
from relucert.verification.bab._leaves import leaf_program
from relucert.verification.bab._subproblems import deep_bounds
from relucert.verification.bab.bab import BaB
from relucert.verification.verifier import Budget, Query
from zoo import inputs, network, randomised


def exact(net: Network, x, p: float):
    """The distances to the nearest change of decision, and which of them are exact."""
    found = rc.radius(net, x, p=p, method=rc.Region(regions=40))
    return found.lower, found.exact & found.upper.isfinite()


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ["fc", "fc deep", "zero bias", "cnn", "leaky", "dense"])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_verdicts_agree_with_exact_distances(name, p):
    net = network(name)
    x = inputs(net, 4)
    y = net.predict(x)
    distance, known = exact(net, x, p)
    x, y, distance = x[known], y[known], distance[known]
    if len(x) == 0:
        pytest.skip("no exact distance is known here")
    decided = 0
    for factor, truth in ((0.5, Verdict.ROBUST), (0.98, Verdict.ROBUST), (1.02, Verdict.VULNERABLE)):
        ball = rc.Ball(p, distance * factor)
        found = rc.certify(net, x, y, ball, BaB(nodes=300))
        assert set(found.verdict) <= {truth, Verdict.UNKNOWN}
        decided += sum(verdict is truth for verdict in found.verdict)
        falsified = found.which(Verdict.VULNERABLE)
        if bool(falsified.any()):
            assert found.witness is not None
            assert bool((net.predict(found.witness[falsified]) != y[falsified]).all())
            assert bool(ball.restrict(falsified).contains(x[falsified], found.witness[falsified]).all())
    if p != 2.0 and name in ("fc", "fc deep"):  # at the last leaves in l2 something may stay open, elsewhere nodes end
        assert decided == 3 * len(x)


@pytest.mark.share(2)
@pytest.mark.parametrize("depth", [[12], [10, 8]])
@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6, 1e-7])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_planted_counterexamples_are_never_called_robust(depth, size, p):
    """The network is shifted so that its decision changes at one point of the ball, by so little of its scale."""
    for seed in range(2):
        net = Network(randomised(mlp((4,), 3, depth), seed).double(), (4,)).eval()
        x = inputs(net, 1, seed)
        ball = rc.Ball(p, 0.15)
        y = net.predict(x)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            points = torch.cat([ball.sample(x, generator) for _ in range(400)])
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
        for method in ("bab(nodes=200)", "crown", "alpha"):
            assert rc.certify(net, x, y, ball, method).verdict[0] is not Verdict.ROBUST


def test_points_do_not_depend_on_who_shares_the_batch():
    net = network("fc deep")
    x = inputs(net, 6)
    y = net.predict(x)
    ball = rc.Ball(math.inf, torch.tensor([0.05, 0.1, 0.2, 0.3, 0.1, 0.4]).double())
    query, method = Query.of(net, x, y, ball), BaB(nodes=300, batch=16)
    together = outcome(method, query)
    for place in range(6):
        one = torch.tensor([place])
        alone = outcome(method, query.restrict(one))
        assert bool(alone.proved) == bool(together.proved[place])
        assert bool(alone.falsified) == bool(together.falsified[place])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deep_networks_are_decided_as_mixed_integer_programs_decide_them(dtype):
    """Roots have optimised inner bounds, in float32 where the network is; any number of candidates has the same verdict."""
    verdicts = set()
    for seed in range(3):
        net = Network(randomised(mlp((3,), 3, [6] * 4), seed).to(dtype), (3,)).eval()
        x = inputs(net, 4, seed)
        y = net.predict(x)
        ball = rc.Ball(math.inf, 0.12)
        truth = rc.certify(net, x, y, ball, "mip").verdict
        assert Verdict.UNKNOWN not in truth
        verdicts |= set(truth)
        for candidates in (1, 9):
            assert rc.certify(net, x, y, ball, BaB(candidates=candidates)).verdict == truth
    assert verdicts == {Verdict.ROBUST, Verdict.VULNERABLE}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_roots_hold_the_units_of_the_executed_network(dtype):
    """Pre-activations of samples, in float64 and as executed, lie within the bounds without any tolerance."""
    net = Network(randomised(mlp((6,), 3, [16] * 5), 4).to(dtype), (6,)).eval()
    x = inputs(net, 3)
    ball = rc.Ball(math.inf, 0.1)
    query = Query.of(net, x, net.predict(x), ball)
    with torch.no_grad():
        units, margins = deep_bounds(query, Alpha())
        crown = CROWN().units(query.double, query.wide, query.ball)
        generator = torch.Generator().manual_seed(0)
        z = torch.cat([ball.sample(x, generator) for _ in range(200)])
        for executed, real, node in zip(
            net.preactivations(z), query.double.preactivations(z.double()), net.relus, strict=True
        ):
            within, wider = units.inputs[node.index], crown.inputs[node.index]
            for value in (executed.double(), real):
                value = value.reshape(200, 3, -1)
                assert bool(((value.amin(0) >= within.lower) & (value.amax(0) <= within.upper)).all())
            assert float((within.upper - within.lower).sum()) < float((wider.upper - wider.lower).sum()) + 1e-3
        found = query.prop.margins(query.double(z.double()).reshape(200, 3, -1)[0])
        assert bool((found >= margins.real).all())
    assert units.inputs[net.relus[0].index].lower.dtype == torch.float64


def test_limits_end_the_search_and_say_so():
    net = Network(randomised(mlp((6,), 3, [30, 30]), 3).double(), (6,)).eval()
    x = inputs(net, 8)
    y = net.predict(x)
    ball = rc.Ball(math.inf, 0.1)
    query = Query.of(net, x, y, ball)
    few = outcome(BaB(nodes=1), query)
    undecided = ~(few.proved | few.falsified)
    assert bool(undecided.any())
    late = outcome(BaB(), query, Budget(deadline=0.0))
    assert not bool(late.proved[undecided].any())
    found = rc.certify(net, x, y, ball, "bab(nodes=1)")
    assert all((found.verdict[i] is Verdict.UNKNOWN) == bool(undecided[i]) for i in range(8))
    whole = outcome(BaB(), query)
    assert bool((whole.proved | whole.falsified).all())
    assert int(whole.nodes.sum()) > int(few.nodes.sum())


def test_weights_are_not_frozen_while_a_decision_is_looked_at():
    net = network("fc deep")
    x = inputs(net, 6)
    ball = rc.Ball(math.inf, torch.tensor([0.05, 0.1, 0.2, 0.3, 0.1, 0.4]).double())
    query = Query.of(net, x, net.predict(x), ball)
    before = [weight.requires_grad for weight in query.double.parameters()]
    assert any(before)
    for _ in BaB(nodes=300).decide(query, Budget()):
        assert [weight.requires_grad for weight in query.double.parameters()] == before


@pytest.mark.parametrize(
    "given", [{"nodes": 0}, {"batch": 0}, {"steps": -1}, {"candidates": 0}, {"width": 0}, {"descent": -1}]
)
def test_parameters_have_rules(given):
    name, value = next(iter(given.items()))
    with pytest.raises(ValueError, match=f"{name} of bab .* {value}"):
        BaB(**given)


def test_a_timeout_must_be_positive():
    net = network("fc")
    x = inputs(net, 1)
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds, got 0"):
        rc.certify(net, x, net.predict(x), rc.Ball(2, 0.1), timeout=0)


def test_starts_that_were_rounded_give_bounds_all_the_same():
    """A slope below the leak is no line below a leaky ReLU: where half precision has put one there, it is put right."""
    net = network("leaky")
    x = inputs(net, 3)
    y = net.predict(x)
    ball = rc.Ball(math.inf, 0.3)
    prop = class_stays(y, net.classes, dtype=torch.float64).restrict(slice(None))
    one = Property(prop.rows[:, :1], prop.offsets[:, :1])
    units = CROWN().units(net, x, ball)
    relus = [node for node in net.switches if node.kind == "relu"]
    splits = {node.index: torch.zeros(3, *node.shape, dtype=torch.int8) for node in relus}
    problems = Problems(x, ball, one, units, splits)

    def margin(slope):
        slopes = {node.index: torch.full((3, *node.shape), slope(node.op.slope)).double() for node in relus}
        betas = {index: torch.zeros_like(value) for index, value in slopes.items()}
        return ascend(
            net, problems, DualVariables(slopes, betas), AscentOptions(steps=0, rate=0.1, candidates=1)
        ).margin

    torch.testing.assert_close(margin(lambda leak: leak - 0.05), margin(lambda leak: leak), rtol=0, atol=1e-7)
    generator = torch.Generator().manual_seed(0)
    low = margin(lambda leak: -1.0)
    with torch.no_grad():
        for _ in range(200):
            assert bool((one.margins(net(ball.sample(x, generator)))[:, 0] >= low - 1e-9).all())


def test_more_candidates_than_units():
    """What is worth a split has a place for every candidate, however few units there are: points share what is kept."""
    net = network("fc")
    x = inputs(net, 2)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    one, ball = Property(prop.rows[:, :1], prop.offsets[:, :1]), rc.Ball(math.inf, 0.2)
    bounds = CROWN().units(net, x, ball)
    slopes = {node.index: torch.zeros(2, *node.shape).double() for node in net.switches}
    splits = {index: torch.zeros_like(value, dtype=torch.int8) for index, value in slopes.items()}
    options = AscentOptions(steps=0, rate=0.1, candidates=500)
    found = ascend(net, Problems(x, ball, one, bounds, splits), DualVariables(slopes, slopes), options)
    assert found.units.shape == (2, 500)
    open_ = torch.stack([one.unstable.flatten(1).sum(1) for one in bounds.inputs.values()]).sum(0)
    assert ((found.units >= 0).sum(1) == open_).all()


@pytest.mark.parametrize("p", [1.0, math.inf])
def test_regions_have_witnesses_that_minimisers_miss(p):
    """Just beyond a small perturbation: programs of linear regions find one at the root, minimisers not always."""
    found = {0: 0, 8: 0}
    for name in ("fc", "fc deep", "cnn"):
        net = network(name)
        x = inputs(net, 6)
        y = net.predict(x)
        upper = rc.minimal_attack(net, x, y, p=p, method="fab").distance
        for descent in found:
            ball = rc.Ball(p, upper * 1.002)
            verdicts = rc.certify(net, x, y, ball, f"bab(nodes=1, descent={descent})").verdict
            assert Verdict.ROBUST not in verdicts
            found[descent] += verdicts.count(Verdict.VULNERABLE)
    assert found[8] >= 14
    assert found[8] > found[0]


@torch.no_grad()
def test_programs_of_leaves_over_a_whole_box():
    """With eps = inf the set is the box in every norm, and the programs have the same optimum."""
    net = network("fc")
    x = inputs(net, 1)
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    one, margins = Property(prop.rows[:, :1], prop.offsets[:, :1]), []
    for p in (1.0, math.inf):
        ball = rc.Ball(p, math.inf)
        bounds = CROWN().units(net, x, ball)
        within = bounds.inputs
        patterns = zip(net.switches, net.pattern(x), strict=True)
        splits = {
            node.index: (torch.where(on, 1, -1) * within[node.index].unstable).to(torch.int8) for node, on in patterns
        }
        solved = leaf_program(net, Problems(x, ball, one, bounds, splits), 5.0)
        assert solved is not None
        assert ball.contains(x, solved[1]).all()
        margins.append(float(one.margin(net(solved[1]))))
    assert margins[0] == pytest.approx(margins[1], abs=1e-6)


class LeakyPooled(nn.Module):
    """Leaky ReLUs before and behind an overlapping max pool with padding."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc, self.out = nn.Conv2d(1, 2, 2), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x):
        z = nn.functional.max_pool2d(nn.functional.leaky_relu(self.conv(x), 0.1), 3, 2, 1)
        return self.out(nn.functional.leaky_relu(self.fc(z.flatten(1)), 0.2))


def with_pools(name: str, dtype: torch.dtype = torch.float64) -> Network:
    if name == "leaky pool":
        return Network(randomised(LeakyPooled(), 4).to(dtype), (1, 4, 4)).eval()
    return network(name, dtype)


POOLED = ["max pool", "dead windows", "residual", "leaky pool"]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", [*POOLED, "leaky"])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_max_pools_and_leaky_units_are_decided_in_every_norm(name, p):
    """Nothing stays open, and no attack succeeds where a proof was found; in l_1 and l_inf programs say the same."""
    net = with_pools(name)
    x = inputs(net, 5)
    y = net.predict(x)
    size = {1.0: 0.8, 2.0: 0.35, 3.0: 0.25, math.inf: 0.1}[p] * (0.3 if name == "residual" else 1.0)
    ball = rc.Ball(p, size * torch.tensor([0.1, 0.4, 0.7, 1.0, 1.3]))
    found = rc.certify(net, x, y, ball, "bab")
    assert Verdict.UNKNOWN not in found.verdict
    falsified = found.which(Verdict.VULNERABLE)
    if bool(falsified.any()):
        assert found.witness is not None
        assert bool((net.predict(found.witness[falsified]) != y[falsified]).all())
        assert bool(ball.restrict(falsified).contains(x[falsified], found.witness[falsified]).all())
    attacked = rc.attack(net, x, y, ball, rc.APGD(steps=30, restarts=2)).success
    assert not bool((attacked & found.which(Verdict.ROBUST)).any())
    if p in (1.0, math.inf):
        assert rc.certify(net, x, y, ball, "mip").verdict == found.verdict


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["max pool", "dead windows"])
@pytest.mark.parametrize("p", [1.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_max_pools_are_decided_just_inside_and_just_outside_their_distance(name, p, dtype):
    net = with_pools(name, dtype)
    x = inputs(net, 2)
    y = net.predict(x)
    distance = rc.radius(net, x, p=p, method="mip")
    known = distance.upper.isfinite()
    x, y, lower, upper = x[known], y[known], distance.lower[known], distance.upper[known]
    assert bool((rc.certify(net, x, y, rc.Ball(p, lower * 0.995), "bab").which(Verdict.ROBUST)).all())
    assert bool((rc.certify(net, x, y, rc.Ball(p, upper * 1.005), "bab").which(Verdict.VULNERABLE)).all())


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_radii_of_networks_with_max_pools_are_narrow(p):
    net = network("max pool")
    x = inputs(net, 2)
    found = rc.radius(net, x, p=p, method="auto", tol=0.01, timeout=300)
    assert bool((found.upper <= found.lower * 1.0101).all())
    if p != 2:
        truth = rc.radius(net, x, p=p, method="mip")
        assert bool((found.lower <= truth.upper).all())
        assert bool((found.upper >= truth.lower).all())


@pytest.mark.share(3)
@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6, 1e-7])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_counterexamples_planted_behind_max_pools_are_never_called_robust(size, p):
    for seed in range(3):
        module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(8, 3))
        net = Network(randomised(module, seed).double(), (1, 4, 4)).eval()
        x = inputs(net, 1, seed)
        ball, y = rc.Ball(p, {1.0: 0.5, 2.0: 0.3, math.inf: 0.1}[p]), net.predict(x)
        with torch.no_grad():
            points = ball.sample(x, torch.Generator().manual_seed(seed), 400)[0]
            logits = net(points)
            lead = logits.gather(1, y.expand(400)[:, None]) - logits
            lead[:, y] = math.inf
            worst = lead.amin(1).argmin()
            other = int(lead[worst].argmin())
            module[-1].bias[other] += lead[worst, other] + size * logits.abs().max()
        if int(net.predict(x)) != int(y):
            continue
        assert int(net.predict(points[worst : worst + 1])) != int(y)
        for method in ("bab", "auto"):
            assert rc.certify(net, x, y, ball, method).verdict[0] is Verdict.VULNERABLE


def test_weights_stay_as_they_were_and_keep_their_gradients():
    net = network("max pool")
    x = inputs(net, 2)
    before = [(weight.clone(), weight.requires_grad) for weight in net.parameters()]
    rc.certify(net, x, net.predict(x), rc.Ball(math.inf, 0.05), "bab")
    for weight, (value, grad) in zip(net.parameters(), before, strict=True):
        assert torch.equal(weight, value)
        assert weight.requires_grad == grad
        assert weight.grad is None


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ["max pool", "dead windows", "fc deep", "leaky"])
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_margins_hold_for_the_network_that_runs(name, p):
    """Subproblems, in reduced networks and of networks whose max pools are ReLUs, prove margins of the executed network."""
    net = network(name, torch.float32)
    x = inputs(net, 3)
    y = net.predict(x)
    prop = class_stays(y, net.classes, dtype=torch.float64)
    eps = torch.tensor([0.9, 1.0, 1.05]) * rc.radius(net, x, p=p, method="alpha").lower.double()
    ball = rc.Ball(p, eps)
    found = rc.certify(net, x, y, ball, "bab(nodes=300)", arithmetic="executed")
    assert Verdict.ROBUST in found.verdict
    assert bool((found.executed <= found.margin).all())
    double, generator = network(name, torch.float32).double(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for z in (ball.sample(x, generator) for _ in range(100)):
            assert bool((found.executed <= prop.margin(net(z).double())).all())
            assert bool((found.margin <= prop.margin(double(z.double())) + 1e-12).all())


@torch.no_grad()
def test_a_point_is_not_given_up_among_its_chosen_subproblems(monkeypatch):
    torch.manual_seed(0)
    net = Network(mlp((1, 4, 4), 10, [30, 30, 30]), (1, 4, 4)).double().eval()
    x = torch.rand(1, 1, 4, 4, dtype=torch.float64)
    search = bab.Search(Query.of(net, x, net.predict(x), rc.Ball(math.inf, 0.2)), BaB(), Budget())
    search._roots()
    count = len(search.problems)
    assert count > 1, "the point needs several open rows"
    assert not bool(search.found.decided.any())
    # The time runs out after the first problem of the round: the other problems of the point have their turn all the same.
    looks = iter([math.inf] + [0.0] * count)
    monkeypatch.setattr(search, "_left", lambda point: next(looks))
    chosen = search._chosen(deque(range(count)))
    assert {key for key, _ in chosen} == set(range(count))
    assert not bool(search.given_up.any())
