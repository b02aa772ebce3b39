"""Bounds of subproblems hold on the splits' side of the ball, over boxes and over balls, and splits never make them worse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from oracles import enumerate_distance, small_fc
from relucert.bounding import split_bounds
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.sdp import UnitBalls
from relucert.bounding.split_bounds import AscentResult
from relucert.core.ball import Ball
from relucert.networks.network import Network
from relucert.networks.traversal import ForwardRule, propagate
from relucert.networks.unpooled import unpooled
from relucert.verification.bab._subproblems import Leaves, SubProblems
from relucert.verification.bab.bab import BaB
from relucert.verification.verifier import Budget, Query
from zoo import inputs, network

ZOO = ("fc", "fc deep", "fc1", "cnn", "cnn colour", "residual", "leaky", "grouped", "dense", "max pool", "zero bias")
MODES = pytest.mark.parametrize("over_balls", [False, True], ids=["boxes", "balls"])


def problems(net: Network, p: float, eps: float, over_balls: bool, box: bool = True) -> SubProblems:
    """The first row of two inputs as problems of branch and bound, from CROWN's bounds of the units; ReLUs only."""
    x, net = inputs(net, 2), unpooled(net)
    query = Query.of(net, x, net.predict(x), Ball(p, eps, (0.0, 1.0) if box else None))
    bounds = CROWN().start(query.double, query.wide, query.ball, net.dtype)
    owner, row = torch.arange(2), torch.zeros(2, dtype=torch.long)
    balls = UnitBalls.around(query.double, query.wide, query.ball, bounds, owner)
    parts = SubProblems(query, balls, owner, row, 0.1, 4)
    parts.over_balls[:] = over_balls
    return parts


def start(parts: SubProblems, splits: Tensor) -> Leaves:
    """Subproblems before any ascent; over balls slopes are to be filled in."""
    leaves = parts.start(torch.arange(len(splits)), splits)
    if bool(parts.over_balls.any()):
        leaves = leaves._replace(slopes={i: torch.full_like(value, math.nan) for i, value in leaves.slopes.items()})
    return leaves


def preactivations(net: Network, z: Tensor) -> Tensor:
    """The inputs of all ReLUs at points (n, *input), one after the other, (n, units)."""
    seen: list[Tensor] = []
    propagate(net.graph, Recorder(seen), {0: z})
    return torch.cat(seen, 1)


class Recorder(ForwardRule[Tensor]):
    """Evaluates a network and keeps the inputs of its ReLUs."""

    def __init__(self, seen: list[Tensor]):
        self.seen = seen

    def affine(self, node, inputs):
        return node.op.apply(*inputs)

    def preactivation(self, node, value):
        self.seen.append(value.flatten(1))
        return value

    def switching(self, node, value):
        return node.op.apply(value)


@pytest.mark.share(8)
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@MODES
def test_no_point_on_the_side_of_the_splits_has_a_smaller_margin(name: str, p: float, over_balls: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = problems(network(name), p, {1.0: 0.8, 2.0: 0.4, math.inf: 0.2}[p], over_balls)
    query, net = parts.query, parts.net
    points = query.ball.sample(query.wide, generator, 200)
    for which in range(2):
        signs = preactivations(net, points[which]).sign().to(torch.int8)
        values = query.prop.restrict(torch.tensor([which])).rows[0, 0] @ net(points[which]).detach().T
        unstable = parts.known(which)[2]
        for count in (1, 3, 8):
            # Splits that one of the points satisfies, and slopes and multipliers that nobody has optimised.
            some = unstable.nonzero()[:, 0][torch.randperm(int(unstable.sum()), generator=generator)[:count]]
            splits = torch.zeros(1, len(unstable), dtype=torch.int8)
            splits[0, some] = signs[count, some]
            inside = ((splits == 0) | (signs == splits)).all(1)
            leaves = start(parts, splits)
            wild = leaves._replace(
                slopes={i: torch.rand(value.shape, generator=generator).double() for i, value in leaves.slopes.items()},
                betas={i: torch.randn(value.shape, generator=generator).double() for i, value in leaves.betas.items()},
            )
            for leaf, steps in ((wild, 0), (leaves, 3)):
                found = parts.ascend(torch.tensor([which]), leaf, steps)
                assert float(found.margin) <= float(values[inside].min()) + 1e-12


def children(parts: SubProblems, found: AscentResult, leaves: Leaves, sign: int) -> AscentResult:
    """Subproblems with the best candidate of each split, bounded at the variables of their parents."""
    parents = Leaves(leaves.splits, found.slopes, found.betas)
    return parts.ascend(torch.arange(2), parts.split(parents, found.units[:, 0].clamp(min=0), sign), 0)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ZOO)
@MODES
def test_a_split_never_makes_a_bound_worse(name: str, over_balls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        split_bounds, "ROUNDS", 60
    )  # the multiplier of the ball is as good for the child as for the parent
    parts = problems(network(name), 2.0, 0.3, over_balls)
    which = torch.arange(2)
    leaves = start(parts, torch.zeros(2, sum(parts.sizes), dtype=torch.int8))
    for steps in (0, 4, 4):
        found = parts.ascend(which, leaves, steps)
        last = parts.ascend(which, Leaves(leaves.splits, found.slopes, found.betas), 0)
        if over_balls:  # the variables of the best step are kept
            assert bool((last.margin >= found.margin - 1e-7).all())
        if bool((found.units[:, 0] < 0).any()):
            break
        for sign in (1, -1):
            assert bool((children(parts, last, leaves, sign).margin >= last.margin - 1e-7).all())
        leaves = parts.split(Leaves(leaves.splits, found.slopes, found.betas), found.units[:, 0], 1)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ZOO)
def test_over_balls_nothing_is_lost(name: str) -> None:
    margins = []
    for over_balls in (False, True):
        parts = problems(network(name), 2.0, 0.3, over_balls)
        splits = torch.zeros(2, sum(parts.sizes), dtype=torch.int8)
        margins.append(parts.ascend(torch.arange(2), start(parts, splits), 0).margin)
    assert bool((margins[1] >= margins[0] - 1e-9).all())


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("box", [None, (0.0, 1.0)])
def test_branch_and_bound_over_balls_finds_the_truth(seed: int, box: tuple[float, float] | None, monkeypatch) -> None:
    net = small_fc((3,), [5, 4], 3, seed)
    x = inputs(net, 1, seed + 5)
    y = net.predict(x)
    truth = enumerate_distance(net, x, int(y[0]), 2.0, box)

    def always(parts: SubProblems, which: Tensor, leaves: Leaves, steps: int) -> Leaves:
        parts.over_balls[which] = True
        return leaves._replace(slopes={i: torch.full_like(value, math.nan) for i, value in leaves.slopes.items()})

    monkeypatch.setattr(SubProblems, "compare", always)
    for factor, verdict in ((0.97, "ROBUST"), (1.03, "VULNERABLE")):
        if math.isfinite(truth):
            query = Query.of(net, x, y, Ball(2.0, factor * truth, box))
            (decision,) = BaB().decide(query, Budget())
            assert decision.verdict.name == verdict


def test_bounds_that_exclude_the_input_give_no_balls() -> None:
    net = network("fc deep")
    x = inputs(net, 2)
    query = Query.of(net, x, net.predict(x), Ball(2.0, 0.3))
    bounds = CROWN().start(query.double, query.wide, query.ball, net.dtype)
    first = net.relus[0].index
    values = preactivations(net, x)[0, : bounds.inputs[first].lower[0].numel()]
    unit = int((bounds.inputs[first].unstable[0].flatten() & (values > 0)).nonzero()[0])
    upper = bounds.inputs[first].upper.clone()
    upper[0].view(-1)[unit] = 0.0  # the part of the first ball where a unit is inactive that is active at x
    part = bounds.improved({**bounds.inputs, first: Interval(bounds.inputs[first].lower, upper)})
    balls = UnitBalls.around(query.double, query.wide, query.ball, part, torch.arange(2))
    assert not balls.known(0)
    assert balls.known(1)
    assert torch.equal(balls.bounds.inputs[first].upper[0], upper[0])


def test_an_open_point_has_the_margin_of_its_worst_subproblem() -> None:
    net = network("cnn")
    x = inputs(net, 2)
    query = Query.of(net, x, net.predict(x), Ball(2.0, 0.5))
    margins = []
    for nodes in (1, 12):
        found = {one.index: one for one in BaB(nodes=nodes, descent=0, candidates=1).decide(query, Budget())}
        margins.append(torch.tensor([found[point].margin for point in range(2)]))
        assert all(one.verdict.name != "ROBUST" for one in found.values())
    assert bool((margins[1] >= margins[0]).all())
    assert bool((margins[1] > margins[0] + 1e-4).any())
    points = query.ball.sample(query.wide, torch.Generator().manual_seed(0), 500).transpose(0, 1)
    truth = query.prop.margins(net(points.flatten(0, 1)).unflatten(0, points.shape[:2])).amin((0, 2))
    assert bool((margins[1] <= truth).all())


@pytest.mark.parametrize("name", ["fc", "cnn", "residual"])
def test_boxes_take_over_where_they_are_better(name: str) -> None:
    """In the second round of a problem, not in the first; bounds over boxes of subproblems that splits made linear are exact."""
    parts = problems(network(name), 2.0, 0.3, True)
    which = torch.arange(2)
    signs = torch.where(preactivations(parts.net, parts.x) > 0, 1, -1).to(torch.int8)
    leaves = start(parts, torch.where(parts.flat(unstable(parts), 2) != 0, signs, 0).to(torch.int8))
    parts.bound(which, leaves, 4)
    assert bool(parts.over_balls.all())
    balls = parts.ascend(which, leaves, 4)
    parts.over_balls[:] = False
    boxes = parts.ascend(which, leaves, 4)
    parts.over_balls[:] = True
    again = parts.bound(which, leaves, 4)
    assert torch.equal(again.margin, balls.margin)
    assert torch.equal(parts.over_balls, ~(boxes.margin > balls.margin))
    assert not bool(parts.over_balls.all())


def unstable(parts: SubProblems) -> dict[int, Tensor]:
    """Which units are unstable over the whole balls, by node."""
    return {node.index: parts.bounds.inputs[node.index].unstable for node in parts.relus}
