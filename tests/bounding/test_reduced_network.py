"""Reduced networks of one example: the same function over its ball, and the same bounds, as the whole network."""

from __future__ import annotations

import math

import pytest
import torch

from relucert.bounding.methods.crown import CROWN
from relucert.bounding.propagation import pull_back
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.bounding.relaxation import ReLURelaxation
from relucert.core.ball import Ball
from relucert.networks.nodes import ReLU
from zoo import NETWORKS, problem

BALLS = [Ball(math.inf, 0.05), Ball(2, 0.3), Ball(1, 0.5, box=None)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("ball", BALLS, ids=repr)
def test_walks_and_values_are_those_of_the_network(name: str, ball: Ball) -> None:
    net, x, prop = problem(name)
    bounds = CROWN().units(net, x, ball)
    for point in range(len(x)):
        here = torch.tensor([point])
        inputs = bounds.restrict(here).inputs
        small = ReducedNetwork.of(net, bounds.restrict(here), prop.rows[point])
        if any(not isinstance(node.op, ReLU) for node in net.switches):
            assert small is None
            return
        assert small is not None
        assert all(len(small.units[i]) == int(one.unstable.sum()) for i, one in inputs.items())
        lines = {}
        rows = torch.arange(prop.rows.shape[1])
        few = {}
        for index in small.units:
            part = bounds.relaxed(net, "adaptive")[index]
            assert isinstance(part, ReLURelaxation)
            lines[index] = ReLURelaxation(part.below[here], part.above[here], part.offset[here])
            picked = [side[here].flatten(1)[:, small.units[index]].expand(len(rows), -1)
                      for side in (part.below, part.above, part.offset)]  # fmt: skip
            few[index] = ReLURelaxation(*picked)
        whole = pull_back(net.graph, len(net.graph) - 1, prop.rows[here], lines)
        found = small.pull_back(rows, few, net.input_shape)
        torch.testing.assert_close(found.rows[:, 0], whole.rows[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.low[:, 0], whole.low[0], rtol=1e-9, atol=1e-11)
        z = ball.restrict(here).sample(x[here], torch.Generator().manual_seed(1), 20)[0]
        outputs: dict[int, torch.Tensor] = {}
        for index, layer in small.layers.items():
            value = z.flatten(1) @ layer.direct.T + layer.offset
            for other, weights in layer.inner.items():
                value = value + outputs[other] @ weights.T
            outputs[index] = net.graph[index].op.apply(value)  # type: ignore[union-attr]
        margin = z.flatten(1) @ small.last.direct.T + small.last.offset
        for other, weights in small.last.inner.items():
            margin = margin + outputs[other] @ weights.T
        expected = (net(z) @ prop.rows[point].T).detach()
        torch.testing.assert_close(margin, expected, rtol=1e-9, atol=1e-10)


def test_numbers_go_there_and_back() -> None:
    net, x, prop = problem("cnn", 1)
    small = ReducedNetwork.of(net, CROWN().units(net, x, Ball(math.inf, 0.05)), prop.rows[0])
    assert small is not None
    values = {node.index: torch.randn(2, *node.shape).double() for node in net.switches}
    back = small.spread({index: part + 1 for index, part in small.restrict(values).items()}, values)
    for index, units in small.units.items():
        moved = torch.zeros(values[index][0].numel(), dtype=torch.float64)
        moved[units] = 1.0
        torch.testing.assert_close(back[index].flatten(1), values[index].flatten(1) + moved)
