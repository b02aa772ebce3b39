"""What a larger ball has left open is all that a smaller one must look at: the same verdicts, from fewer leaves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import relucert as rc
from asserts import outcome
from relucert.core.ball import Ball
from relucert.core.properties import class_stays
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification.bab.bab import BaB
from relucert.verification.verifier import Outcome, Query, SavedSubproblems
from zoo import inputs, network, randomised


def searched(net: Network, x: Tensor, eps: Tensor, p: float, method: BaB, **known) -> Outcome:
    """Branch and bound about the predicted class."""
    query = Query.of(net, x, net.predict(x), Ball(p, eps, (0.0, 1.0)))
    return outcome(method, replace(query, **known))


@pytest.mark.parametrize(
    ("name", "p"),
    [("fc", 1.0), ("fc", 2.0), ("fc deep", math.inf), pytest.param("leaky", 2.0, marks=pytest.mark.slow),
     ("cnn", math.inf), ("zero bias", math.inf), ("residual", math.inf),
     pytest.param("residual", 2.0, marks=pytest.mark.slow)],
)  # fmt: skip
def test_verdicts_of_smaller_balls_are_the_same_from_a_tree(name, p):
    """Also where the larger ball was left early, by a witness or by its nodes: nothing that is open gets lost."""
    net = network(name)
    x = inputs(net, 2)
    reach = rc.radius(net, x, p=p, method="crown", attack="fab(steps=20)")
    upper = reach.upper.clamp(max=4.0)
    fresh_of = {factor: searched(net, x, factor * upper, p, BaB(nodes=60)) for factor in (1.02, 0.9)}
    for nodes in (1, 12):
        wide = searched(net, x, 1.3 * upper, p, BaB(nodes=nodes))
        saved = wide.saved
        for factor, fresh in fresh_of.items():
            grown = searched(net, x, factor * upper, p, BaB(nodes=60), saved=saved)
            assert not bool((grown.proved & fresh.falsified).any())
            assert not bool((grown.falsified & fresh.proved).any())
            assert not bool((grown.proved & (upper * factor > reach.upper * (1 + 1e-9))).any())
            points = (~grown.proved).nonzero()[:, 0].tolist()
            assert set(grown.saved) <= set(points)
            saved = {**saved, **grown.saved}


def test_open_leaves_cover_all_that_is_not_proved():
    """Every point of the ball that violates the property lies in a leaf of the tree, whatever the search has seen."""
    net = Network(randomised(mlp((4,), 3, [12, 10]), 5).double(), (4,)).eval()
    x = inputs(net, 6)
    eps = rc.minimal_attack(net, x, p=math.inf, method="best").distance * 1.5
    y = net.predict(x)
    ball = Ball(math.inf, eps, (0.0, 1.0))
    prop = class_stays(y, net.classes, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    seen = 0
    for nodes in (1, 5, 30, 200):
        found = outcome(BaB(nodes=nodes, descent=0), Query.of(net, x, y, ball))
        for _ in range(200):
            z = ball.sample(x, generator)
            margins = prop.margins(net(z))
            pattern = torch.cat([part.flatten(1) for part in net.pattern(z)], 1)
            for point, row in (margins < 0).nonzero().tolist():
                tree = found.saved[point]
                splits = tree.splits[tree.row == row]
                side = torch.where(pattern[point][tree.units], 1, -1).to(torch.int8)
                assert bool(((splits == 0) | (splits == side)).all(1).any())
                seen += 1
    assert seen > 50


def test_a_tree_saves_nodes():
    net = Network(randomised(mlp((6,), 4, [16, 12]), 2).double(), (6,)).eval()
    x = inputs(net, 5)
    eps = rc.radius(net, x, p=math.inf, method="bab(nodes=600)", tol=0.02).lower
    # The larger ball is left in the middle of its proof; what was closed until then is not looked at again.
    wide = searched(net, x, eps, math.inf, BaB(nodes=12, width=2, descent=0))
    known = torch.tensor(sorted(wide.saved))
    assert len(known) > 0
    fresh = searched(net, x, 0.999 * eps, math.inf, BaB(nodes=600, descent=0))
    grown = searched(net, x, 0.999 * eps, math.inf, BaB(nodes=600, descent=0), saved=wide.saved)
    assert bool(fresh.proved.all())
    assert bool(grown.proved.all())
    assert int(grown.nodes[known].sum()) < int(fresh.nodes[known].sum())


def test_of_a_margin_that_a_larger_ball_has_closed_in_part_only_the_sign_is_known():
    """The subproblems that were closed at the larger ball are not bounded again, so no more than their sign may be reported."""
    net = network("fc deep")
    x = inputs(net, 4)
    eps = rc.radius(net, x, p=math.inf, method="bab(nodes=500)", tol=0.02).lower * 0.98
    larger = searched(net, x, eps * 1.02, math.inf, BaB(nodes=5))
    places = [place for place in larger.saved if not bool(larger.falsified[place])]
    assert places, "some search must end with open subproblems"
    smaller = searched(net, x, eps, math.inf, BaB(nodes=500), saved={place: larger.saved[place] for place in places})
    for place in places:
        assert bool(smaller.proved[place])
        assert float(smaller.margin[place]) <= math.ulp(0.0)
        assert not float(smaller.executed[place]) > 0


def test_rows_that_are_known_are_not_asked_again():
    net = network("fc deep")
    x = inputs(net, 2)
    eps = rc.radius(net, x, p=2, method="bab(nodes=500)", tol=0.02).lower * 0.98
    fresh = searched(net, x, eps, 2.0, BaB(nodes=500))
    assert bool(fresh.proved.all())
    known = torch.full((2, net.classes - 1, 2), -math.inf, dtype=torch.float64)
    known[:, 0] = 0.5
    some = searched(net, x, eps, 2.0, BaB(nodes=500), row_margins=known)
    known[:] = 0.25
    every = searched(net, x, eps, 2.0, BaB(nodes=500), row_margins=known)
    assert bool(some.proved.all())
    assert int(some.nodes.sum()) <= int(fresh.nodes.sum())
    assert bool(every.proved.all())
    assert int(every.nodes.sum()) == 0
    assert bool((every.margin >= 0.25).all())


def test_leaves_of_networks_without_units_are_the_whole_ball():
    rows, units = torch.zeros(2, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    tree = SavedSubproblems(rows, units, torch.zeros(2, 0, dtype=torch.int8))
    none = torch.zeros(0, dtype=torch.bool)
    assert tree.leaves(0, none, none, none).shape == (1, 0)
    assert tree.leaves(1, none, none, none).shape == (0, 0)


def test_trees_serve_smaller_balls_only(monkeypatch):
    """After an unproved radius only smaller radii are tried, and saved subproblems are used at no larger ball."""
    net = network("fc deep", torch.float32)
    x = inputs(net, 2)
    seen: list[tuple[float, float]] = []
    real = BaB.decide

    def watched(self, query, budget):
        radii = query.ball.radii(query.wide)
        for place, saved in query.saved.items():
            seen.append((float(radii[place]), made[id(saved)]))
        for found in real(self, query, budget):
            if found.saved is not None:
                made[id(found.saved)] = float(radii[found.index])
                kept.append(found.saved)
            yield found

    made: dict[int, float] = {}
    kept: list[SavedSubproblems] = []
    monkeypatch.setattr(BaB, "decide", watched)
    rc.radius(net, x, p=2, method="bab(nodes=3)", tol=1e-2)
    assert seen
    assert all(radius <= grown for radius, grown in seen)
