"""Affine maps between the switching nodes of a network as sparse matrices, for mixed-integer programs.

`sparse_maps` has the matrices A_r (`networks/affine_map.py`) of all nodes that switching nodes read, column by column, and
exactly where no terms are summed. The module stands alone because scipy's sparse matrices take a while to import.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array, vstack

from relucert.networks.nodes import Affine, Switching
from relucert.networks.traversal import ForwardRule, Graph, Node, propagate

Array = NDArray[np.float64]
PROBES = 2**22  # numbers of one batch of probes


@dataclass(frozen=True, eq=False)
class SparseMap:
    """`sum over roots r of matrices[r] z_r + offset`: matrices (units, size of the root) by the root's index."""

    matrices: dict[int, csr_array]
    offset: Array


@torch.no_grad()
def sparse_maps(graph: Graph) -> dict[int, SparseMap]:
    """The affine maps to the inputs of all switching nodes, by their index, and at len(graph) to the logits.

    The graph is one of float64. The maps do not depend on a point.
    """
    rule = _Composition()
    logits = propagate(graph, rule, {0: _root(graph[0])})[len(graph) - 1]
    return rule.read | {len(graph): logits}


def _root(node: Node) -> SparseMap:
    size = math.prod(node.shape)
    return SparseMap({node.index: csr_array(eye_array(size))}, np.zeros(size))


class _Composition(ForwardRule[SparseMap]):
    """Affine nodes multiplied out; every switching node is a new root. `read` has the maps to the inputs of these."""

    def __init__(self):
        self.read: dict[int, SparseMap] = {}

    def affine(self, node: Node[Affine], inputs: list[SparseMap]) -> SparseMap:
        offset = node.op.offset(torch.zeros((), dtype=torch.float64)).flatten().numpy().copy()
        parts: dict[int, list[csr_array]] = {}
        for place, given in enumerate(inputs):
            own = sparse_matrix(node.op, place)
            offset += own @ given.offset
            for root, matrix in given.matrices.items():
                parts.setdefault(root, []).append(csr_array(own @ matrix))
        total = {root: csr_array(reduce(lambda a, b: a + b, every)) for root, every in parts.items()}
        return SparseMap(total, offset)

    def switching(self, node: Node[Switching], value: SparseMap) -> SparseMap:
        self.read[node.index] = value
        return _root(node)


def sparse_matrix(op: Affine, place: int) -> csr_array:
    """The matrix of one input of a float64 affine node, column by column: exact, since all but one number is zero."""
    shape, matrix = op.in_shapes[place], op.matrix()
    if matrix is not None and len(shape) == 1:
        return csr_array(matrix.numpy())
    zeros = [torch.zeros(1, *each, dtype=torch.float64) for each in op.in_shapes]
    size, rows = math.prod(shape), math.prod(op.linear(*zeros).shape[1:])
    blocks = []
    for units in torch.arange(size).split(max(1, PROBES // max(size, rows))):
        probes = torch.zeros(len(units), size, dtype=torch.float64)
        probes[torch.arange(len(units)), units] = 1.0
        inputs = [zero.expand(len(units), *zero.shape[1:]) for zero in zeros]
        inputs[place] = probes.reshape(-1, *shape)
        blocks.append(csr_array(op.linear(*inputs).flatten(1).numpy()))
    return csr_array(vstack(blocks).T)
