"""Subproblems with pre-activation bounds of their own: they cover the ball, bounds hold, and verdicts are those of programs."""

from __future__ import annotations

import math
import time

import pytest
import torch

import relucert as rc
from relucert.bounding.methods.alpha import Alpha
from relucert.core.results import Verdict
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification.bab import _rebounding
from relucert.verification.bab._rebounding import RegionTree, rebounds
from relucert.verification.bab.bab import BaB
from relucert.verification.verifier import Query
from zoo import inputs, network, randomised


def deep(seed: int, dtype: torch.dtype = torch.float64, width: int = 6) -> Network:
    return Network(randomised(mlp((3,), 3, [width] * 4), seed).to(dtype), (3,)).eval()


def question(net: Network, p: float, eps: float, seed: int = 0, count: int = 4) -> Query:
    x = inputs(net, count, seed)
    return Query.of(net, x, net.predict(x), rc.Ball(p, eps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_verdicts_are_those_of_mixed_integer_programs(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one subproblem of `bab` the others have bounds of their own; some points are proved by these."""
    monkeypatch.setattr(_rebounding, "FEW", 1)
    closed, grow = [], RegionTree.grow

    def noted(self, nodes, deadline):
        tree = grow(self, nodes, deadline)
        closed.append(tree.closed and tree.nodes > 1)
        return tree

    monkeypatch.setattr(RegionTree, "grow", noted)
    for seed in range(3):
        net = deep(seed, dtype)
        x = inputs(net, 3, seed)
        y, ball = net.predict(x), rc.Ball(math.inf, 0.1)
        truth = rc.certify(net, x, y, ball, "mip").verdict
        assert Verdict.UNKNOWN not in truth
        assert rc.certify(net, x, y, ball, BaB()).verdict == truth
        assert rc.certify(net, x, y, ball, "auto").verdict == truth
    assert any(closed)


@pytest.mark.parametrize(
    ("p", "dtype"), [(1.0, torch.float64), (2.0, torch.float32), (math.inf, torch.float32), (math.inf, torch.float64)]
)
def test_margins_of_closed_trees_hold_at_samples(p: float, dtype: torch.dtype) -> None:
    split = 0
    for seed in range(2):
        net = deep(seed, dtype, width=8)
        query = question(net, p, {1.0: 0.3, 2.0: 0.2, math.inf: 0.12}[p], seed, count=2)
        generator = torch.Generator().manual_seed(seed)
        for place in range(len(query)):
            one = query.restrict(torch.tensor([place]))
            tree = RegionTree(one).grow(12, math.inf)
            z = torch.cat([one.ball.sample(one.x, generator) for _ in range(300)])
            many = one.prop.restrict(torch.zeros(300, dtype=torch.long))
            with torch.no_grad():
                real, executed = many.margins(one.double(z.double())), many.margins(net(z).double())
            assert bool((real.amin(0) >= tree.margins[:, 1]).all())
            assert bool((executed.amin(0) >= tree.margins[:, 2]).all())
            if tree.closed:
                assert bool((tree.margins[:, 1] > 0).all())
            split += tree.nodes > 1
    assert split > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_children_cover_their_subproblem_and_their_bounds_hold(dtype: torch.dtype) -> None:
    """Samples lie in the child of the sign that the split unit has when executed, within its intervals; margins only grow."""
    gained = 0.0
    for seed in range(2):
        net = deep(seed, dtype, width=8)
        query = question(net, math.inf, 0.25, seed, count=1)
        tree = RegionTree(query)
        method = Alpha()
        with torch.no_grad():
            known = method.start(net, query.x, query.ball, dtype)
            root, margins = method.prove(net, known, query.x, query.ball, tree.prop)
            row = margins.real[0].argmin()[None]
            node, unit = tree._chosen(root, tree.prop, row)
            before = margins.stacked()[0].double()
            bounds, after = tree._split(root, tree.prop, [(root.inputs, before)], math.inf)
            assert bool(root.inputs[int(node)].unstable.flatten()[unit].all())
            assert bool((after >= before).all())
            generator = torch.Generator().manual_seed(seed)
            z = torch.cat([query.ball.sample(query.x, generator) for _ in range(500)])
            values = dict(zip([one.index for one in net.relus], net.preactivations(z), strict=True))
            side = values[int(node)].flatten(1)[:, int(unit)] >= 0
            assert bool(side.any())
            assert bool((~side).any())
            for child, mask in enumerate((side, ~side)):
                for index, value in values.items():
                    within = bounds.inputs[index]
                    assert bool(((value[mask] >= within.lower[child]) & (value[mask] <= within.upper[child])).all())
            behind = [(root.inputs[index], bounds.inputs[index]) for index in values if index > int(node)]
            gained += sum(float((was.upper - now.upper + now.lower - was.lower).sum()) for was, now in behind)
    assert gained > 0


def test_the_clock_and_the_number_of_subproblems_end_a_tree() -> None:
    query = question(deep(1, width=12), math.inf, 0.4, count=1)
    late, few = RegionTree(query).grow(1000, time.monotonic()), RegionTree(query).grow(5, math.inf)
    assert not late.closed
    assert late.nodes == 1
    assert not few.closed
    assert few.nodes <= 10 + 2 * _rebounding._TOGETHER
    assert bool((few.margins >= late.margins).all())


def test_only_deep_networks_of_relus_are_bounded_again() -> None:
    assert rebounds(question(deep(0), math.inf, 0.1))
    for name in ("fc", "fc deep", "max pool", "residual"):
        assert not rebounds(question(network(name), math.inf, 0.1))


def test_memory_limits_how_many_subproblems_are_split_at_once() -> None:
    """Without room for one nothing is split; the answer is that of the root."""
    query = question(deep(1, width=12), math.inf, 0.4, count=1)
    some, none = RegionTree(query, budget=2**20), RegionTree(query, budget=2**12)
    assert none.grow(20, math.inf).nodes == 1
    assert some.grow(20, math.inf).nodes > 1
