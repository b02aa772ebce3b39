"""The affine parts of a network as sparse matrices: from the input and the switching nodes' outputs to what is read next.

Between switching nodes a network is affine, whatever lies there: convolutions, normalisations, residual sums. `wires` has
for the input of every switching node, and for the logits, one matrix for each source. They do not depend on a point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array, vstack

from relucert.networks.affine import Affine, Linear
from relucert.networks.graph import Graph, Node
from relucert.networks.switching import Switching
from relucert.networks.traversal import ForwardRule, propagate

Array = NDArray[np.float64]
PROBES = 2**22  # numbers of one batch of probes


@dataclass(frozen=True, eq=False)
class Wire:
    """`sum of matrix @ source + offset`: matrices (units, units of the source) by the source's index, 0 for the input."""

    parts: dict[int, csr_array]
    offset: Array


@torch.no_grad()
def wires(graph: Graph) -> dict[int, Wire]:
    """What every switching node reads, by its index, and at len(graph) the logits; the graph is one of float64."""
    rule = _Composition()
    logits = propagate(graph, rule, {0: _source(graph[0])})[len(graph) - 1]
    return rule.read | {len(graph): logits}


def _source(node: Node) -> Wire:
    size = math.prod(node.shape)
    return Wire({node.index: csr_array(eye_array(size))}, np.zeros(size))


class _Composition(ForwardRule[Wire]):
    """Affine nodes multiplied out; every switching node is a new source. `read` has what each of them reads."""

    def __init__(self):
        self.read: dict[int, Wire] = {}

    def affine(self, node: Node[Affine], inputs: list[Wire]) -> Wire:
        zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in node.op.in_shapes]
        offset = node.op.apply(*zeros).flatten().numpy().copy()
        parts: dict[int, list[csr_array]] = {}
        for place, wire in enumerate(inputs):
            own = _matrix(node.op, place, zeros)
            offset += own @ wire.offset
            for source, matrix in wire.parts.items():
                parts.setdefault(source, []).append(csr_array(own @ matrix))
        return Wire({source: csr_array(reduce(lambda a, b: a + b, every)) for source, every in parts.items()}, offset)

    def switching(self, node: Node[Switching], value: Wire) -> Wire:
        self.read[node.index] = value
        return _source(node)


def _matrix(op: Affine, place: int, zeros: list[torch.Tensor]) -> csr_array:
    """The matrix of one input of an affine node, column by column: exact, since all but one number is zero."""
    shape = op.in_shapes[place]
    if isinstance(op, Linear) and len(shape) == 1:
        return csr_array(op.weight.value.numpy())
    size = math.prod(shape)
    out = math.prod(op.linear(*zeros).shape[1:])
    blocks = []
    for units in torch.arange(size).split(max(1, PROBES // max(size, out))):
        probes = torch.zeros(len(units), size, dtype=torch.float64)
        probes[torch.arange(len(units)), units] = 1.0
        inputs = [zero.expand(len(units), *zero.shape[1:]) for zero in zeros]
        inputs[place] = probes.reshape(-1, *shape)
        blocks.append(csr_array(op.linear(*inputs).flatten(1).numpy()))
    return csr_array(vstack(blocks).T)
