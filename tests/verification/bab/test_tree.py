"""What a larger ball has left open is all that a smaller one must look at: the same verdicts, from fewer leaves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import relucert as rc
from relucert.core.ball import Ball
from relucert.core.properties import class_stays
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification import narrowing
from relucert.verification.bab.bab import BaB, branch_and_bound
from relucert.verification.bab.tree import Tree
from relucert.verification.outcome import Outcome
from zoo import inputs, network, randomised


def asked_of(net: Network, x: Tensor, eps: Tensor, p: float, method: BaB, **given) -> Outcome:
    """Branch and bound about the predicted class."""
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    return branch_and_bound(net, net, x, Ball(p, eps, (0.0, 1.0)), prop, method, **given)


@pytest.mark.parametrize(
    ("name", "p"),
    [("fc", 1.0), ("fc", 2.0), ("fc deep", math.inf), pytest.param("leaky", 2.0, marks=pytest.mark.slow),
     ("cnn", math.inf), ("zero bias", math.inf), ("residual", 2.0)],
)  # fmt: skip
def test_verdicts_of_smaller_balls_are_the_same_from_a_tree(name, p):
    """Also where the larger ball was left early, by a witness or by its nodes: nothing that is open gets lost."""
    net = network(name)
    x = inputs(net, 3)
    reach = rc.radius(net, x, p=p, method="crown", attack="fab(steps=20)")
    upper = reach.upper.clamp(max=4.0)
    fresh_of = {factor: asked_of(net, x, factor * upper, p, BaB(nodes=60)) for factor in (1.02, 0.9)}
    for nodes in (1, 12):
        wide = asked_of(net, x, 1.3 * upper, p, BaB(nodes=nodes))
        trees = wide.trees
        for factor, fresh in fresh_of.items():
            grown = asked_of(net, x, factor * upper, p, BaB(nodes=60), trees=trees)
            assert not bool((grown.proved & fresh.falsified).any())
            assert not bool((grown.falsified & fresh.proved).any())
            assert not bool((grown.proved & (upper * factor > reach.upper * (1 + 1e-9))).any())
            points = (~grown.proved).nonzero()[:, 0].tolist()
            assert set(grown.trees) <= set(points)
            trees = {**trees, **grown.trees}


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
        found = branch_and_bound(net, net, x, ball, prop, BaB(nodes=nodes, descent=0))
        for _ in range(200):
            z = ball.sample(x, generator)
            margins = prop.margins(net(z))
            pattern = torch.cat([part.flatten(1) for part in net.pattern(z)], 1)
            for point, row in (margins < 0).nonzero().tolist():
                tree = found.trees[point]
                signs = tree.signs[tree.row == row]
                side = torch.where(pattern[point][tree.units], 1, -1).to(torch.int8)
                assert bool(((signs == 0) | (signs == side)).all(1).any())
                seen += 1
    assert seen > 50


def test_a_tree_saves_nodes():
    net = Network(randomised(mlp((6,), 4, [16, 12]), 2).double(), (6,)).eval()
    x = inputs(net, 8)
    eps = rc.radius(net, x, p=math.inf, method="bab(nodes=600)", tol=0.02).lower
    # The larger ball is left in the middle of its proof; what was closed until then is not looked at again.
    wide = asked_of(net, x, eps, math.inf, BaB(nodes=12, width=2, descent=0))
    known = torch.tensor(sorted(wide.trees))
    assert len(known) > 0
    fresh = asked_of(net, x, 0.999 * eps, math.inf, BaB(nodes=600, descent=0))
    grown = asked_of(net, x, 0.999 * eps, math.inf, BaB(nodes=600, descent=0), trees=wide.trees)
    assert bool(fresh.proved.all())
    assert bool(grown.proved.all())
    assert int(grown.nodes[known].sum()) < int(fresh.nodes[known].sum())


def test_rows_that_are_known_are_not_asked_again():
    net = network("fc deep")
    x = inputs(net, 4)
    eps = rc.radius(net, x, p=2, method="bab(nodes=500)", tol=0.02).lower * 0.98
    fresh = asked_of(net, x, eps, 2.0, BaB(nodes=500))
    assert bool(fresh.proved.all())
    known = torch.full((4, net.classes - 1), -math.inf, dtype=torch.float64)
    known[:, 0] = 0.5
    some = asked_of(net, x, eps, 2.0, BaB(nodes=500), known=known)
    known[:] = 0.25
    every = asked_of(net, x, eps, 2.0, BaB(nodes=500), known=known)
    assert bool(some.proved.all())
    assert int(some.nodes.sum()) <= int(fresh.nodes.sum())
    assert bool(every.proved.all())
    assert int(every.nodes.sum()) == 0
    assert bool((every.margin >= 0.25).all())


def test_leaves_of_networks_without_units_are_the_whole_ball():
    tree = Tree(torch.zeros(2, dtype=torch.long), torch.zeros(0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.int8))
    none = torch.zeros(0, dtype=torch.bool)
    assert tree.leaves(0, none, none, none).shape == (1, 0)
    assert tree.leaves(1, none, none, none).shape == (0, 0)


def test_trees_serve_smaller_balls_only(monkeypatch):
    """Radii that were not proved are asked about again only below, and a tree is handed on to no larger ball."""
    net = network("fc deep", torch.float32)
    x = inputs(net, 3)
    seen: list[tuple[float, float]] = []
    real = narrowing.branch_and_bound

    def watched(net, double, x, ball, prop, method, *, limit, trees):
        found = real(net, double, x, ball, prop, method, limit=limit, trees=trees)
        radii = ball.radii(x)
        for place, tree in trees.items():
            seen.append((float(radii[place]), made[id(tree)]))
        made.update({id(tree): float(radii[place]) for place, tree in found.trees.items()})
        kept.extend(found.trees.values())
        return found

    made: dict[int, float] = {}
    kept: list[Tree] = []
    monkeypatch.setattr(narrowing, "branch_and_bound", watched)
    rc.radius(net, x, p=2, method="bab(nodes=3)", tol=1e-3)
    assert seen
    assert all(radius <= grown for radius, grown in seen)
