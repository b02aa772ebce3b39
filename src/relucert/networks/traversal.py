"""The graph of a network, and forward and backward propagation through it, given a rule for each kind of node.

`Graph` has the nodes in topological order, input first, logits last. A method that goes through a network is a rule: what an
affine node, a ReLU and a max pool make of the values of their inputs. `propagate` goes from the input to the logits,
`propagate_back` from a node to the input. The order of the nodes, the kinds of nodes and the lifetime of values are known to
this module alone. A rule that lacks a kind refuses it by name.

Forward rules are evaluation, affine maps of a fixed pattern, intervals, rounding errors, Lipschitz constants; backward rules
are the adjoint and the propagation of linear bounds. A value may be anything: a tensor, an interval, a pair, a matrix.

Nearly all that takes time goes through here, so here is the clock, too: inside `ending(deadline)` propagation ends with
`OutOfTime` at the first node after the deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from torch import Tensor

from relucert.core.errors import OutOfTime, UnsupportedLayer
from relucert.networks.nodes import Affine, MaxPool2d, ReLU, Shape, Switching

Value = TypeVar("Value")
Op = TypeVar("Op", bound=Affine | Switching | None, covariant=True)
Kind = TypeVar("Kind", bound=Affine | Switching)

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextmanager
def ending(deadline: float) -> Iterator[None]:
    """What runs inside raises `OutOfTime` soon after `deadline`, a time of `time.monotonic`; an earlier one around it counts.

    >>> with ending(time.monotonic() + 60):
    ...     look()
    """
    token = _deadline.set(min(deadline, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def regardless() -> Iterator[None]:
    """What runs inside is not ended by any deadline around it: for work that is so little that no clock needs to end it.

    >>> with ending(time.monotonic() - 1), regardless():
    ...     look()
    """
    token = _deadline.set(math.inf)
    try:
        yield
    finally:
        _deadline.reset(token)


def look() -> None:
    """Raise `OutOfTime` if the deadline has passed: to be called wherever a computation may take long."""
    deadline = _deadline.get()
    if deadline < math.inf and time.monotonic() >= deadline:
        raise OutOfTime


@dataclass(frozen=True, eq=False)
class Node(Generic[Op]):
    """One value of the network: an operation, the nodes it reads and the shape it makes (without the batch).

    `name` is where it stands in the module, for messages; `op` is None for the input alone.
    """

    index: int
    name: str
    op: Op
    inputs: tuple[int, ...]
    shape: Shape

    @property
    def kind(self) -> str:
        """The operation's word: linear, conv2d, relu, ..."""
        return "input" if self.op is None else self.op.kind

    @property
    def is_affine(self) -> bool:
        """Whether the value is `A z + b` of the nodes it reads, whatever they are: of all but the input and switching nodes."""
        return isinstance(self.op, Affine)


AnyNode = Node[Affine | Switching | None]


class ForwardRule(Generic[Value]):
    """What each kind of node makes of the values of its inputs.

    A rule overrides `affine`, and either `switching` for all piecewise linear nodes or `relu` and `max_pool` one by one.
    """

    def affine(self, node: Node[Affine], inputs: list[Value]) -> Value:
        """The value of an affine node."""
        raise _refusal(self, node)

    def relu(self, node: Node[ReLU], value: Value) -> Value:
        """The value of a ReLU or leaky ReLU."""
        return self.switching(node, value)

    def max_pool(self, node: Node[MaxPool2d], value: Value) -> Value:
        """The value of a max pool."""
        return self.switching(node, value)

    def switching(self, node: Node[Switching], value: Value) -> Value:
        """The value of a ReLU or a max pool, for rules that do not tell the two apart."""
        raise _refusal(self, node)

    def preactivation(self, node: Node[Switching], value: Value) -> Value:
        """The value of a switching node's input, for that node and for every later one that reads the same input.

        Rules that tighten bounds override it; the general case leaves the value as it is.
        """
        return value


class BackwardRule(Generic[Value]):
    """What each kind of node makes of the value of its output, for its inputs.

    A rule overrides `affine`, and either `switching` for all piecewise linear nodes or `relu` and `max_pool` one by one.
    Propagation ends at a node for whose input a rule answers None.
    """

    def affine(self, node: Node[Affine], value: Value) -> tuple[Value, ...]:
        """The values for the inputs of an affine node, one for each."""
        raise _refusal(self, node)

    def relu(self, node: Node[ReLU], value: Value) -> Value | None:
        """The value for the input of a ReLU or leaky ReLU."""
        return self.switching(node, value)

    def max_pool(self, node: Node[MaxPool2d], value: Value) -> Value | None:
        """The value for the input of a max pool."""
        return self.switching(node, value)

    def switching(self, node: Node[Switching], value: Value) -> Value | None:
        """The value for the input of a ReLU or a max pool, for rules that do not tell the two apart."""
        raise _refusal(self, node)

    def add(self, one: Value, other: Value) -> Value:
        """The value of a node that several nodes read; `one` came first, from the later node."""
        return cast(Any, one) + other


class Evaluation(ForwardRule[Tensor]):
    """The value of every node, (batch, *shape)."""

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        return node.op.apply(*inputs)

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        return node.op.apply(value)


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a network."""

    nodes: tuple[AnyNode, ...]

    def __iter__(self) -> Iterator[AnyNode]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> AnyNode:
        return self.nodes[index]

    @cached_property
    def switches(self) -> tuple[Node[Switching], ...]:
        """The switching nodes, in order."""
        return self._of(Switching)

    @cached_property
    def affine_nodes(self) -> tuple[Node[Affine], ...]:
        """The affine nodes, in order."""
        return self._of(Affine)

    def values(self, x: Tensor, keep: Sequence[int]) -> dict[int, Tensor]:
        """The values of the nodes in `keep` at inputs `(batch, *input)`."""
        return propagate(self, Evaluation(), {0: x}, keep)

    def hidden_units(self) -> int:
        """The number of piecewise linear units: every ReLU, and every window of a max pool."""
        return sum(math.prod(node.shape) for node in self.switches)

    @cached_property
    def multiplications(self) -> int:
        """Those of a pass forward with one input."""
        return sum(node.op.terms * math.prod(node.shape) for node in self.affine_nodes)

    @cached_property
    def one_layer(self) -> bool:
        """Whether no switching node lies before another: all read the input through affine nodes alone."""
        return all(affine_ancestors(self, node.inputs[0])[1] == [0] for node in self.switches)

    @cached_property
    def max_pools(self) -> tuple[Node[MaxPool2d], ...]:
        """The max pools, in order."""
        return self._of(MaxPool2d)

    @cached_property
    def windows(self) -> tuple[Any, ...]:
        """The windows of the input that units of each switching node read (`networks.colouring.windows`)."""
        from relucert.networks.colouring import windows

        return windows(self)

    @cached_property
    def relus(self) -> tuple[Node[ReLU], ...]:
        """The ReLU and leaky ReLU nodes, in order."""
        return self._of(ReLU)

    def _of(self, kind: type[Kind]) -> tuple[Node[Kind], ...]:
        """The nodes with an operation of a kind, in order."""
        return tuple(cast(Node[Kind], node) for node in self.nodes if isinstance(node.op, kind))


def propagate(
    graph: Graph, rule: ForwardRule[Value], start: Mapping[int, Value], keep: Collection[int] | None = None
) -> dict[int, Value]:
    """The values of the nodes in `keep`, by default the logits, from those of the nodes in `start`, mostly the input.

    Only nodes that these values depend on are visited, each once and in topological order. A value is dropped after its last
    use, unless it is kept.

    >>> import torch
    >>> import relucert as rc
    >>> net = rc.build("fc1", (1, 4, 4), 10)
    >>> {node: tuple(value.shape) for node, value in propagate(net.graph, Evaluation(), {0: torch.ones(2, 1, 4, 4)}).items()}
    {4: (2, 10)}
    """
    kept = {len(graph) - 1} if keep is None else set(keep)
    live = dict(start)
    del start  # so that what is dropped below is dropped altogether, if the caller does not hold it
    order, last_use = _plan(graph, live, kept)
    for index in order:
        look()
        node = graph[index]
        if node.is_affine:
            live[index] = rule.affine(cast(Node[Affine], node), [live[source] for source in node.inputs])
        else:
            source = node.inputs[0]
            live[source] = rule.preactivation(cast(Node[Switching], node), live[source])
            live[index] = cast(Value, _switch(rule, node, live[source]))
        for source in set(node.inputs):
            if last_use[source] == index and source not in kept:
                del live[source]
    return {index: live[index] for index in (kept if keep is None else keep)}


def propagate_back(graph: Graph, rule: BackwardRule[Value], node: int, start: Value) -> Value | None:
    """The value at the input from that of a node, or None where propagation does not reach the input.

    Nodes are visited from the last to the first, each once, when the values from all nodes that read it are added up.
    """
    waiting: dict[int, Value] = {node: start}
    del start
    for index in range(node, 0, -1):
        if index in waiting:
            look()
            for source, value in _values_back(rule, graph[index], waiting.pop(index)):
                waiting[source] = rule.add(waiting[source], value) if source in waiting else value
    return waiting.get(0)


def affine_ancestors(graph: Graph, node: int) -> tuple[list[Node[Affine]], list[int]]:
    """The affine nodes that a node is made of, itself included, and the roots they read: the input and switching nodes."""
    inside: dict[int, Node[Affine]] = {}
    roots: set[int] = set()
    stack = [node]
    while stack:
        current = graph[stack.pop()]
        if not current.is_affine:
            roots.add(current.index)
        elif current.index not in inside:
            inside[current.index] = cast(Node[Affine], current)
            stack.extend(current.inputs)
    return [inside[index] for index in sorted(inside)], sorted(roots)


def read_later(graph: Graph, index: int) -> list[int]:
    """The nodes before `index` whose values that node or a later one reads: all that is needed to go on from there."""
    return sorted({source for node in graph.nodes[index:] for source in node.inputs if source < index})


def _plan(graph: Graph, known: Collection[int], wanted: Collection[int]) -> tuple[list[int], dict[int, int]]:
    """The nodes to visit, in order, and for every node that is read the last one of these that reads it."""
    needed: set[int] = set()
    stack = [index for index in wanted if index not in known]
    while stack:
        index = stack.pop()
        if index not in needed:
            needed.add(index)
            stack.extend(source for source in graph[index].inputs if source not in known)
    order = sorted(needed)
    return order, {source: index for index in order for source in graph[index].inputs}


def _values_back(rule: BackwardRule[Value], node: Node, value: Value) -> list[tuple[int, Value]]:
    """The inputs of a node that propagation goes on to, and their values."""
    if node.is_affine:
        return list(zip(node.inputs, rule.affine(node, value), strict=True))
    back = _switch(rule, node, value)
    return [] if back is None else [(node.inputs[0], back)]


def _switch(rule: ForwardRule[Value] | BackwardRule[Value], node: Node, value: Value) -> Value | None:
    """The value that a rule computes at a switching node, by the method that the node names."""
    method = getattr(rule, getattr(node.op, "rule", ""), None)
    if method is None:
        raise _refusal(rule, node)
    return method(node, value)


def _refusal(rule: object, node: Node) -> UnsupportedLayer:
    return UnsupportedLayer(f"{type(rule).__name__} has no rule for {node.kind} ({node.name})")
