"""Branch and bound over inputs: sound clipping, and the verdicts of branch and bound over ReLUs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.core.verdict import Verdict
from relucert.networks.architectures import mlp
from relucert.networks.network import Network, in_double
from relucert.verification.bab._boxes import Boxes, BoxFrontier, clipped
from relucert.verification.bab._confirming import falsifying
from relucert.verification.bab.bab import BaB
from relucert.verification.bab.input_splitting import BoxSearch, InputSplitting
from relucert.verification.verifier import Budget, Query


def test_clipping_keeps_every_point_whose_bound_is_not_positive() -> None:
    generator = torch.Generator().manual_seed(0)
    n, rows, free = 200, 3, 4
    lower = torch.rand(n, free, generator=generator, dtype=torch.float64) - 1
    upper = lower + torch.rand(n, free, generator=generator, dtype=torch.float64)
    a = torch.randn(n, rows, free, generator=generator, dtype=torch.float64)
    offset = torch.randn(n, rows, generator=generator, dtype=torch.float64)
    least = torch.where(a > 0, a * lower[:, None], a * upper[:, None]).sum(2) + offset
    low, high = clipped(lower, upper, a, least)
    share = torch.rand(n, 500, free, generator=generator, dtype=torch.float64)
    points = lower[:, None] + share * (upper - lower)[:, None]
    values = points @ a.mT + offset[:, None]
    inside = ((points[:, :, None] >= low[:, None]) & (points[:, :, None] <= high[:, None])).all(3)
    assert bool((inside | (values > 0)).all())
    assert bool((low > high).all(2)[least > 0].all())
    # It does cut: where a bound is negative by little, most of the box goes.
    assert bool(((high - low).clamp(min=0) < (upper - lower)[:, None]).any(2).float().mean() > 0.5)


def test_the_frontier_is_a_stack() -> None:
    def boxes(count: int, owner: int) -> Boxes:
        side = torch.arange(count, dtype=torch.float64)[:, None]
        return Boxes(
            side, side + 1, torch.full((count,), owner), torch.ones(count, 1, dtype=torch.bool), torch.zeros(count)
        )

    frontier = BoxFrontier()
    frontier.add(boxes(3, 0))
    frontier.add(boxes(2, 1))
    assert frontier.take(3).owner.tolist() == [1, 1, 0]
    assert len(frontier) == 2
    frontier.keep(torch.tensor([False, True]))
    assert len(frontier) == 0
    halves = boxes(1, 0).halves(torch.tensor([0]))
    assert halves.lower.tolist() == [[0.0], [0.5]]
    assert halves.upper.tolist() == [[0.5], [1.0]]


def _query(seed: int, eps: float, prop: Property | None = None) -> Query:
    torch.manual_seed(seed)
    net = in_double(Network(mlp((3,), 3, [10, 10]), (3,)).eval())
    x = torch.rand(4, 3, dtype=torch.float64)
    return Query.of(net, x, net(x).argmax(1), Ball(math.inf, eps))


@pytest.mark.parametrize("eps", [0.05, 0.3])
def test_verdicts_are_those_of_splits_of_relus(eps: float) -> None:
    for seed in range(4):
        query = _query(seed, eps)
        verdicts = []
        for method in (InputSplitting(), BaB()):
            found = {one.index: one for one in method.decide(query, Budget(seconds=20.0))}
            verdicts.append([found[place].verdict for place in range(len(query))])
            for one in found.values():
                if one.verdict is Verdict.VULNERABLE:
                    assert one.witness is not None
                    own = torch.tensor([one.index])
                    assert bool(query.ball.restrict(own).contains(query.x[own], one.witness[None]))
                    assert not bool(query.prop.restrict(own).holds(query.net(one.witness[None])))
        assert verdicts[0] == verdicts[1]
        assert Verdict.UNKNOWN not in verdicts[0]


def test_a_clause_holds_where_one_of_its_rows_does() -> None:
    """z > 0.5 or z < 0.5 + h holds everywhere for h > 0, by no row alone; for h < 0 it fails near 0.5."""
    net = in_double(Network(torch.nn.Sequential(torch.nn.Linear(1, 1)), (1,)).eval())
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), (1.0, 0.0), strict=True):
            parameter.fill_(value)
    x, y = torch.full((1, 1), 0.5, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    rows = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    for h, verdict in ((0.01, Verdict.ROBUST), (-0.01, Verdict.VULNERABLE)):
        offsets = torch.tensor([[-0.5, 0.5 + h]], dtype=torch.float64)
        prop = Property(rows, offsets, torch.tensor([0, 0]))
        query = Query(net, net, x, y, Ball(math.inf, 0.5), prop, torch.ones(1, dtype=torch.bool), False)
        (found,) = InputSplitting().decide(query, Budget(seconds=10.0))
        assert found.verdict is verdict


def test_other_norms_and_wrong_parameters_are_refused() -> None:
    query = _query(0, 0.1)
    other = Query.of(query.net, query.x, query.y, Ball(2, 0.1))
    endless = Query.of(query.net, query.x, query.y, Ball(math.inf, math.inf, box=None))
    for wrong in (other, endless):
        with pytest.raises(InvalidInput, match="ball must be a finite one of l_inf"):
            list(InputSplitting().decide(wrong, Budget()))
    with pytest.raises(InvalidInput, match="arithmetic must be real for the method inputs, got executed"):
        list(InputSplitting().decide(replace(query, strict=True), Budget()))
    with pytest.raises(InvalidInput, match="batch of inputs must be at least 1, got 0"):
        InputSplitting(batch=0)


def test_linear_bounds_in_float32_hold_for_the_boxes_in_float64() -> None:
    """Sides that float32 does not have, boxes of all sizes: the linear bound from its least corner lies below the margin."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    single = Network(mlp((3,), 3, [16, 16, 16]), (3,)).eval()
    net = in_double(single)
    x = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    query = Query.of(net, x, net(x).argmax(1), Ball(math.inf, 0.3))
    query = replace(query, prop=Property(query.prop.rows, torch.tensor([[0.1, -1 / 7]], dtype=torch.float64)))
    search = BoxSearch(query, InputSplitting(), falsifying(query))
    assert search.single is not None
    for size, dtype in ((0.3, torch.float32), (1e-2, torch.float32), (1e-3, torch.float32), (1e-6, torch.float64)):
        lower = search.low + (0.6 - size) * torch.rand(50, 3, generator=generator, dtype=torch.float64)
        upper = lower + size
        boxes = Boxes(
            lower, upper, torch.zeros(50, dtype=torch.long), torch.ones(50, 2, dtype=torch.bool), torch.zeros(50)
        )
        prop = query.prop.restrict(boxes.owner)
        with torch.no_grad():
            units, rows, margins = search._linear_bounds(boxes, prop)
            assert units.logits.lower.dtype == dtype
            points = lower + size * torch.rand(200, 50, 3, generator=generator, dtype=torch.float64).round(decimals=1)
            points = torch.minimum(points, upper)
            values = prop.margins(net(points.flatten(0, 1)).reshape(200, 50, 3))
        corner = torch.where(rows > 0, lower[:, None, None], upper[:, None, None])
        bound = margins + (rows * (points[:, :, None, None] - corner)).sum(-1)
        assert bool((bound <= values[:, :, None] + 1e-14).all())


def test_weights_that_float32_does_not_have_stay_in_float64() -> None:
    query = _query(0, 0.1)
    with torch.no_grad():
        next(query.double.parameters())[0, 0] = 0.1
    assert BoxSearch(query, InputSplitting(), falsifying(query)).single is None


def _linear_query(weight: list[list[float]], offset: float, box: tuple[list[float], list[float]]) -> Query:
    """Whether y_0 = `offset` stays ahead of y_1 = relu(weight x) 1, over a box."""
    first, last = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2)
    with torch.no_grad():
        for parameter, value in zip(
            (first.weight, last.weight, last.bias), (weight, [[0.0, 0.0], [1.0, 0.0]], [offset, 0.0]), strict=True
        ):
            parameter.copy_(torch.tensor(value))
    net = in_double(Network(torch.nn.Sequential(first, torch.nn.ReLU(), last), (2,)).eval())
    low, high = (torch.tensor([side], dtype=torch.float64) for side in box)
    return Query.of(
        net, (low / 2 + high / 2).clamp(low, high), torch.tensor([0]), Ball(math.inf, math.inf, box=(low, high))
    )


def _verdict(query: Query) -> Verdict:
    (found,) = InputSplitting(nodes=1000).decide(query, Budget(seconds=10.0))
    return found.verdict


def test_a_side_that_underflows_beside_a_long_one_is_not_lost() -> None:
    """y_1 = 1e38 x_0 is 0.01 at the end of a side that is 1e-50 of the other side."""
    for offset, verdict in ((0.007, Verdict.VULNERABLE), (0.011, Verdict.ROBUST)):
        query = _linear_query([[1e38, 0.0], [0.0, 1e-15]], offset, ([0.0, -1e10], [1e-40, 1e10]))
        assert query.net(torch.tensor([[1e-40, 0.0]], dtype=torch.float64)).argmax(1).item() == (offset < 0.01)
        assert _verdict(query) is verdict


@pytest.mark.parametrize("ahead", [2.0**-43, 0.0, -(2.0**-43)])
def test_a_box_that_is_a_point_is_decided_without_halves(ahead: float) -> None:
    query = _linear_query([[1.0, 0.0], [0.0, 1.0]], 2.0**-20 + ahead, ([2.0**-20, 0.5], [2.0**-20, 0.5]))
    assert _verdict(query) is (Verdict.ROBUST if ahead > 0 else Verdict.VULNERABLE if ahead < 0 else Verdict.UNKNOWN)


@pytest.mark.parametrize("side", [5e-324, 2.0**-149, 1e39, 1e300])
def test_boxes_with_the_smallest_numbers_and_with_numbers_that_float32_does_not_have(side: float) -> None:
    query = _linear_query([[1.0, 0.0], [0.0, 1.0]], 0.7, ([side, -0.5], [side, 0.5]))
    assert _verdict(query) is (Verdict.ROBUST if side < 1 else Verdict.VULNERABLE)
