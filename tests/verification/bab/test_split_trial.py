"""The trial of both kinds of splits: which is chosen, that the choice is always the same, and that its margins are proved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.core.verdict import Verdict
from relucert.networks.architectures import mlp
from relucert.networks.network import Network, in_double
from relucert.verification.bab._confirming import falsifying
from relucert.verification.bab.bab import BaB
from relucert.verification.bab.envelopes import Envelopes
from relucert.verification.bab.input_splitting import BoxSearch, InputSplitting
from relucert.verification.bab.split_trial import NODES, Search, SplitTrial
from relucert.verification.verifier import Budget, Decision, Query


def _search(margins: Callable[[int], list[float]], counts: list[int]) -> Search:
    """A search whose cases have some margins after so many subproblems; inf is a proof."""

    def run(open_: Tensor, budget: Budget, nodes: int) -> Iterator[Decision]:
        del budget
        counts.append(nodes)
        for case, margin in zip(open_.tolist(), margins(nodes), strict=True):
            verdict = Verdict.ROBUST if margin == math.inf else Verdict.UNKNOWN
            yield Decision(case, verdict, margin, "a search", 0.0)

    return run


@pytest.mark.parametrize(
    ("boxes", "relus", "chosen", "tried"),
    [
        ([-5.0], [-3.0], True, True),
        ([-3.0], [-5.0], False, True),
        ([-3.0], [-3.0], False, True),
        ([-9.99], [-9.98], True, False),  # boxes gain nearly nothing: ReLUs need no trial
        ([math.inf], [-1.0], False, False),  # proved on the way
        ([-3.0], [math.inf], True, True),
        ([-5.0, -3.0, -5.0], [-4.0, -9.0, -4.0], True, True),  # in two of three cases
        ([-5.0, -3.0, -5.0], [-4.0, -9.0, -6.0], False, True),
        ([-math.inf], [-9.0], True, False),
    ],
)
def test_the_larger_margin_is_chosen(boxes: list[float], relus: list[float], chosen: bool, tried: bool) -> None:
    counts: list[int] = []
    by_boxes = _search(lambda nodes: boxes if nodes > 1 else [-10.0] * len(boxes), [])
    trial = SplitTrial(by_boxes, _search(lambda nodes: relus, counts), Budget())
    cases = torch.arange(7, 7 + len(boxes))
    decisions = list(trial.run(cases))
    assert trial.relus == chosen
    assert counts == [NODES] * tried
    proved = {one.index for one in decisions if one.verdict is Verdict.ROBUST}
    assert proved == {7 + place for place, both in enumerate(zip(boxes, relus, strict=True)) if math.inf in both}


def _query(inputs: int, hidden: list[int], eps: float, seed: int = 0) -> Query:
    torch.manual_seed(seed)
    net = in_double(Network(mlp((inputs,), 3, hidden), (inputs,)).eval())
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(3.0)
    x = torch.rand(2, inputs, dtype=torch.float64)
    query = Query.of(net, x, net(x).argmax(1), Ball(math.inf, eps))
    # Offsets that leave little: a share of what the margin moves by.
    values = query.prop.margins(_values(query))
    low, high = values.amin(0), values.amax(0)
    return replace(query, prop=Property(query.prop.rows, query.prop.offsets - low + SLACK * (high - low)))


SLACK = 0.15


@torch.no_grad()
def _values(query: Query) -> Float[Tensor, "points batch classes"]:
    """The outputs of a network at points of the balls."""
    low, high = query.ball.hull(query.x)
    points = low + torch.rand(2000, *low.shape, dtype=torch.float64) * (high - low)
    return query.double(points.flatten(0, 1)).reshape(2000, len(query), -1)


def _boxes(query: Query) -> Search:
    return lambda open_, budget, nodes: InputSplitting(nodes=nodes, width=nodes * len(open_)).decide(
        query.restrict(open_), budget
    )


def _relus(query: Query) -> Search:
    return lambda open_, budget, nodes: BaB(nodes=nodes, batch=nodes, width=nodes, steps=4).decide(
        query.restrict(open_), budget
    )


@pytest.mark.parametrize(("inputs", "hidden", "relus"), [(2, [12] * 4, False), (40, [16, 16], True)])
def test_few_inputs_are_split_and_of_many_the_relus(inputs: int, hidden: list[int], relus: bool) -> None:
    query = _query(inputs, hidden, 0.5)
    chosen, margins = [], []
    for _ in range(2):
        trial = SplitTrial(_boxes(query), _relus(query), Budget())
        margins.append([(one.index, one.margin) for one in trial.run(torch.arange(2))])
        chosen.append(trial.relus)
    assert chosen == [relus, relus]
    assert margins[0] == margins[1]


@pytest.mark.parametrize("method", [InputSplitting(nodes=1), InputSplitting(nodes=40, width=40), Envelopes(nodes=1)])
def test_margins_of_what_is_open_are_proved(method: InputSplitting | Envelopes) -> None:
    query = _query(6, [40], 0.5, seed=3)
    least = query.prop.margin(_values(query)).amin(0)
    found = {one.index: one for one in method.decide(query, Budget())}
    open_ = [place for place, one in found.items() if one.verdict is Verdict.UNKNOWN]
    assert open_
    for place in open_:
        assert -math.inf < found[place].margin <= float(least[place])
    more = {one.index: one for one in replace(method, nodes=4 * method.nodes).decide(query, Budget())}
    for place in open_:
        assert more[place].verdict is not Verdict.UNKNOWN or more[place].margin >= found[place].margin


def test_a_search_over_boxes_goes_on_where_it_was() -> None:
    query = _query(3, [10, 10], 0.3)
    whole = {one.index: one for one in InputSplitting().decide(query, Budget())}
    search = BoxSearch(query, InputSplitting(), falsifying(query))
    first = {one.index: one.verdict for one in search.run(Budget(deadline=0.0))}
    assert set(first.values()) == {Verdict.UNKNOWN}
    parts = {one.index: one for one in search.run(Budget())}
    assert [(parts[i].verdict, parts[i].nodes) for i in range(2)] == [
        (whole[i].verdict, whole[i].nodes) for i in range(2)
    ]
    dropped = BoxSearch(query, InputSplitting(), falsifying(query))
    dropped.drop(torch.tensor([True, False]))
    after = {one.index: one.verdict for one in dropped.run(Budget())}
    assert after == {0: Verdict.UNKNOWN, 1: whole[1].verdict}
