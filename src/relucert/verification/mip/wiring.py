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
    live: dict[int, Wire] = {0: _source(graph[0])}
    found: dict[int, Wire] = {}
    for node in graph.nodes[1:]:
        if isinstance(node.op, Switching):
            found[node.index] = live[node.inputs[0]]
            live[node.index] = _source(node)
        else:
            live[node.index] = _affine(node, [live[source] for source in node.inputs])
    found[len(graph)] = live[len(graph) - 1]
    return found


def _source(node: Node) -> Wire:
    size = math.prod(node.shape)
    return Wire({node.index: csr_array(eye_array(size))}, np.zeros(size))


def _affine(node: Node, given: list[Wire]) -> Wire:
    """One affine node behind others."""
    op = node.op
    assert isinstance(op, Affine)
    zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in op.in_shapes]
    offset = op.apply(*zeros).flatten().numpy().copy()
    parts: dict[int, list[csr_array]] = {}
    for place, wire in enumerate(given):
        own = _matrix(op, place, zeros)
        offset += own @ wire.offset
        for source, matrix in wire.parts.items():
            parts.setdefault(source, []).append(csr_array(own @ matrix))
    return Wire({source: csr_array(reduce(lambda a, b: a + b, every)) for source, every in parts.items()}, offset)


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
