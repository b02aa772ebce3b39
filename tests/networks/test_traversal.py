"""Propagation: every node once and in order, values as the module computes them, adjoints, lifetimes, refusals."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from relucert.core.errors import UnsupportedLayer
from relucert.networks.linear_map import LinearMap
from relucert.networks.network import Network
from relucert.networks.traversal import (
    BackwardRule,
    Evaluation,
    ForwardRule,
    Graph,
    Node,
    affine_ancestors,
    propagate,
    propagate_back,
    read_later,
)
from zoo import NETWORKS, inputs, network


class ForwardVisits(ForwardRule[int]):
    """The number of paths from the input to every node; `seen` lists the nodes in the order of their visits."""

    def __init__(self):
        self.seen: list[int] = []

    def affine(self, node, inputs):
        self.seen.append(node.index)
        return sum(inputs)

    def switching(self, node, value):
        self.seen.append(node.index)
        return value


class BackwardVisits(BackwardRule[int]):
    """The number of paths from every node to the one where propagation starts; `seen` as above."""

    def __init__(self):
        self.seen: list[int] = []

    def affine(self, node, value):
        self.seen.append(node.index)
        return (value,) * len(node.inputs)

    def switching(self, node, value):
        self.seen.append(node.index)
        return value


def ancestors(graph: Graph, nodes: list[int]) -> set[int]:
    """The nodes that some depend on, themselves included: by fixed point, not by search."""
    found = set(nodes)
    while True:
        more = found | {source for index in found for source in graph[index].inputs}
        if more == found:
            return found
        found = more


@pytest.mark.parametrize("name", NETWORKS)
def test_every_node_is_visited_once_and_in_order(name):
    graph = network(name).graph
    rule = ForwardVisits()
    assert list(propagate(graph, rule, {0: 1})) == [len(graph) - 1]
    assert rule.seen == list(range(1, len(graph)))
    back = BackwardVisits()
    propagate_back(graph, back, len(graph) - 1, 1)
    assert back.seen == list(range(len(graph) - 1, 0, -1))


@pytest.mark.parametrize("name", NETWORKS)
def test_only_nodes_that_are_needed_are_visited(name):
    graph = network(name).graph
    for index in range(len(graph)):
        rule, back = ForwardVisits(), BackwardVisits()
        assert list(propagate(graph, rule, {0: 1}, [index])) == [index]
        assert rule.seen == sorted(ancestors(graph, [index]) - {0})
        propagate_back(graph, back, index, 1)
        assert back.seen == rule.seen[::-1]


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_and_backward_count_the_same_paths(name):
    graph = network(name).graph
    counts = propagate(graph, ForwardVisits(), {0: 1}, range(len(graph)))
    assert all(propagate_back(graph, BackwardVisits(), index, 1) == count for index, count in counts.items())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evaluation_gives_the_logits_of_the_module(name, dtype):
    net = network(name, dtype)
    x = inputs(net)
    logits = propagate(net.graph, Evaluation(), {0: x})[len(net.graph) - 1]
    torch.testing.assert_close(logits, net(x), rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_propagation_goes_on_from_any_cut_through_the_graph(name):
    net = network(name)
    graph, x = net.graph, inputs(net)
    logits = net.logits(x)
    for index in range(1, len(graph)):
        needed = read_later(graph, index)
        assert set(needed) == {i for i in range(index) if any(i in node.inputs for node in graph.nodes[index:])}
        first = propagate(graph, Evaluation(), {0: x}, needed)
        assert torch.equal(propagate(graph, Evaluation(), first)[len(graph) - 1], logits)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_backward_propagation_of_rows_is_the_adjoint(name, dtype, tolerance):
    net = network(name, dtype)
    x, graph = inputs(net, 3), net.graph
    linear = LinearMap(graph, net.pattern(x))
    generator = torch.Generator().manual_seed(1)
    moved = linear.push(x, range(len(graph)))
    for index in range(len(graph)):
        rows = torch.randn(3, 2, *graph[index].shape, generator=generator, dtype=torch.float64).to(dtype)
        forward = (rows * moved[index].unsqueeze(1)).double().flatten(2).sum(2)
        backward = (linear.pull_back(index, rows) * x.unsqueeze(1)).double().flatten(2).sum(2)
        torch.testing.assert_close(forward, backward, rtol=tolerance, atol=10 * tolerance)


class Held:
    """A value that can be watched."""


class Lifetimes(ForwardRule[Held]):
    """Makes fresh values, and compares those that are alive with those that some later node reads."""

    def __init__(self, graph: Graph, keep: set[int]):
        self.graph, self.keep, self.alive = graph, keep, weakref.WeakValueDictionary()

    def affine(self, node: Node, inputs: list[Held]) -> Held:
        return self._visit(node)

    def switching(self, node: Node, value: Held) -> Held:
        return self._visit(node)

    def _visit(self, node: Node) -> Held:
        later = {source for other in self.graph.nodes[node.index :] for source in other.inputs}
        assert {i for i in self.alive if i not in self.keep} <= later
        self.alive[node.index] = made = Held()
        return made


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kept", [False, True])
def test_no_value_lives_longer_than_its_last_use(name, kept):
    graph = network(name).graph
    keep = {1, len(graph) - 1} if kept else {len(graph) - 1}
    rule = Lifetimes(graph, keep)

    def start() -> dict[int, Held]:
        held = rule.alive[0] = Held()
        return {0: held}

    gc.disable()  # what is dropped must go at once, not when the collector comes
    try:
        found = propagate(graph, rule, start(), keep)
        assert set(rule.alive) == set(found) == keep
    finally:
        gc.enable()


class LaterReader(nn.Module):
    """The input of the ReLU is read again after it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        return torch.relu(z) + z


class Doubled(Evaluation):
    """Evaluation that doubles what switching nodes read."""

    def preactivation(self, node, value):
        return 2 * value


def test_what_a_rule_makes_of_a_preactivation_holds_for_all_later_nodes():
    net = Network(LaterReader().double(), (2,)).eval()
    x = inputs(net)
    z = net.module.first(x)
    found = propagate(net.graph, Doubled(), {0: x})[len(net.graph) - 1]
    torch.testing.assert_close(found, torch.relu(2 * z) + 2 * z)


class OnlyReLU(ForwardRule[Tensor]):
    """A rule for ReLUs alone."""

    def relu(self, node, value):
        return node.op.apply(value)


class NoMaxPool(Evaluation):
    """A rule that lacks max pools."""

    def switching(self, node, value):
        return ForwardRule.switching(self, node, value)

    def relu(self, node, value):
        return node.op.apply(value)


def test_a_rule_refuses_by_name_the_kinds_that_it_lacks():
    net = network("max pool")
    with pytest.raises(UnsupportedLayer, match=r"OnlyReLU has no rule for (scale|conv2d)"):
        propagate(net.graph, OnlyReLU(), {0: inputs(net)})
    with pytest.raises(UnsupportedLayer, match="NoMaxPool has no rule for max_pool2d"):
        propagate(net.graph, NoMaxPool(), {0: inputs(net)})
    with pytest.raises(UnsupportedLayer, match="BackwardRule has no rule for linear"):
        propagate_back(net.graph, BackwardRule(), len(net.graph) - 1, torch.ones(1))


@pytest.mark.parametrize("name", NETWORKS)
def test_affine_ancestors_end_at_the_input_and_at_switching_nodes(name):
    net = network(name)
    switching = {node.index for node in net.switches}
    for index in range(len(net.graph)):
        inside, roots = affine_ancestors(net.graph, index)
        affine = {node.index for node in inside}
        assert set(roots) <= switching | {0}
        assert not affine & (switching | {0})
        assert affine | set(roots) <= ancestors(net.graph, [index])
        assert all(source in affine or source in roots for node in inside for source in node.inputs)


def test_propagation_that_ends_on_the_way_does_not_reach_the_input():
    class ToSwitches(BackwardRule[int]):
        def affine(self, node, value):
            return (value,) * len(node.inputs)

        def switching(self, node, value):
            return None

    graph = network("fc deep").graph
    assert propagate_back(graph, ToSwitches(), len(graph) - 1, 1) is None
