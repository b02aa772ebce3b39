"""The affine map of a network once its activation pattern is fixed: f(z) = V z + a (section 2 of the paper).

With the pattern of x held fixed every node is an affine function of the input, on the region Q(x) the network's own. The
map is never written out: values go forward through the graph, rows of V go backward from any node to the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.networks.affine import Affine, Source
from relucert.networks.graph import Graph
from relucert.networks.switching import Switching

Patterns = list[Tensor]
COPYING = ("reshape", "permute")  # every entry is one of the input, once: the adjoint of a gather adds repeated ones up


@dataclass(frozen=True, eq=False)
class LinearMap:
    """The affine map of a graph under one pattern for each example; `patterns` has an entry for every switching node."""

    graph: Graph
    patterns: Patterns

    def __len__(self) -> int:
        return len(self.patterns[0]) if self.patterns else 1

    def restrict(self, index: Tensor) -> LinearMap:
        """The maps of some of the examples; an index may occur more than once."""
        return LinearMap(self.graph, [pattern[index] for pattern in self.patterns])

    def values(self, z: Float[Tensor, " batch *input"], keep: Sequence[int]) -> dict[int, Tensor]:
        """The values V z + a of the nodes in `keep`, at inputs that need not lie in the region."""
        return self._forward(z, keep, offsets=True)

    def push(self, directions: Float[Tensor, " batch *input"], keep: Sequence[int]) -> dict[int, Tensor]:
        """How the nodes in `keep` change along a direction: V d."""
        return self._forward(directions, keep, offsets=False)

    def _forward(self, z: Tensor, keep: Sequence[int], *, offsets: bool) -> dict[int, Tensor]:
        live, wanted = {0: z}, set(keep)
        switch = {node.index: place for place, node in enumerate(self.graph.switches)}
        last = max(wanted)
        for node in self.graph.nodes[1 : last + 1]:
            inputs = [live[i] for i in node.inputs]
            if isinstance(node.op, Switching):
                live[node.index] = node.op.linear(inputs[0], self.patterns[switch[node.index]])
            else:
                assert isinstance(node.op, Affine)
                live[node.index] = node.op.apply(*inputs) if offsets else node.op.linear(*inputs)
            for source in set(node.inputs):
                if self.graph.last_use[source] <= node.index and source not in wanted:
                    del live[source]
        return {index: live[index] for index in keep}

    def values_with_errors(
        self, z: Float[Tensor, " batch *input"], keep: Sequence[int]
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """The values of nodes, and bounds on how far rounding has taken each of them from V z + a in real arithmetic.

        One operation of n rounded terms is off by at most `gamma_n (|A| |z| + |b|)`, `gamma_n = n u / (1 - n u)`, in any
        order of summation, and passes on `|A|` times the error it was given. The bound's own rounding is paid by doubling.
        """
        values, errors, wanted = {0: z}, {0: torch.zeros_like(z)}, set(keep)
        switch = {node.index: place for place, node in enumerate(self.graph.switches)}
        unit = torch.finfo(z.dtype).eps / 2
        for node in self.graph.nodes[1 : max(wanted) + 1]:
            given, off = [values[i] for i in node.inputs], [errors[i] for i in node.inputs]
            if isinstance(node.op, Switching):
                pattern = self.patterns[switch[node.index]]
                value, error = node.op.linear(given[0], pattern), node.op.linear(off[0], pattern)
                error = error + unit * value.abs()
            else:
                assert isinstance(node.op, Affine)
                gamma = node.op.terms * unit / (1 - node.op.terms * unit)
                value = node.op.apply(*given)
                offset = node.op.magnitude(*(torch.zeros_like(part) for part in given))
                error = node.op.magnitude(*off) - offset + gamma * node.op.magnitude(*(part.abs() for part in given))
                error = error.clamp_(min=0) + 4 * unit * offset + torch.finfo(z.dtype).tiny
            values[node.index], errors[node.index] = value, error
            for source in set(node.inputs):
                if self.graph.last_use[source] <= node.index and source not in wanted:
                    del values[source], errors[source]
        return {i: values[i] for i in keep}, {i: 2 * errors[i] for i in keep}

    def row_errors(self, keep: Sequence[int], like: Tensor) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Bounds on the rounding errors of rows of V that `pull` computes, in l_1 and so in every l_q, for the nodes in `keep`.

        Second, the sums of the absolute terms of the rows, both (batch, *shape).

        With s_l = |A_l| s_(l-1) from ones at the input, the sums of the absolute terms of every row, a node's rows are off by
        at most e_l = |A_l| e_(l-1) + gamma_n |A_l| s_(l-1). Both run through the pattern, so that a row of dead units has no
        error. Doubled for the rounding of the bound itself. `like` has the batch, the dtype and the device.
        """
        ones = like.new_ones(len(like), *self.graph[0].shape)
        sizes, errors, wanted = {0: ones}, {0: torch.zeros_like(ones)}, set(keep)
        switch = {node.index: place for place, node in enumerate(self.graph.switches)}
        unit, tiny = torch.finfo(like.dtype).eps / 2, torch.finfo(like.dtype).tiny
        # Entries that are copies of inputs: the rows of a layer behind them are its weights, without an error.
        copies = {0}
        # Products that vanish below the smallest number, each of them at most `tiny`.
        lost = like.new_zeros(len(like))
        hazard = any(_vanishing(source.value) for node in self.graph for source in _sources(node.op))
        for node in self.graph.nodes[1 : max(wanted) + 1]:
            given, off = [sizes[i] for i in node.inputs], [errors[i] for i in node.inputs]
            if isinstance(node.op, Switching):
                pattern = self.patterns[switch[node.index]]
                size, error = node.op.linear(given[0], pattern), node.op.linear(off[0], pattern)
                error = error + 2 * unit * size
            else:
                assert isinstance(node.op, Affine)
                count = max(node.op.terms, node.op.adjoint_terms)
                size = node.op.absolute(*given)
                error = node.op.absolute(*off)
                of_copies = copies.issuperset(node.inputs)
                if node.op.kind in COPYING:
                    copies |= {node.index} if of_copies else set()
                elif not (of_copies and node.op.kind in ("linear", "conv2d")):
                    error = error + count * unit / (1 - count * unit) * size
                lost = lost + tiny * count * sum(part.flatten(1).sum(1) for part in given)
            error = torch.where((size > 0) & (error > 0), error + _spread(lost, error), error)
            sizes[node.index], errors[node.index] = size, error + math.inf if hazard else error
            for source in set(node.inputs):
                if self.graph.last_use[source] <= node.index and source not in wanted:
                    del sizes[source], errors[source]
        return {i: 2 * errors[i] for i in keep}, {i: sizes[i] for i in keep}

    def pull(self, node: int, functionals: Float[Tensor, " batch rows *shape"]) -> Float[Tensor, " batch rows *input"]:
        """Rows of V: linear functionals on a node's value, as functionals on the input.

        `<pull(node, c), z> = <c, V_node z>`; with one-hot functionals these are rows of V themselves. Differentiable in
        the weights.
        """
        count, rows = functionals.shape[:2]
        gradients: dict[int, Tensor] = {node: functionals}
        switch = {other.index: place for place, other in enumerate(self.graph.switches)}
        for index in range(node, 0, -1):
            if index not in gradients:
                continue
            here, output = self.graph[index], gradients.pop(index)
            if isinstance(here.op, Switching):
                parts: tuple[Tensor, ...] = (here.op.transpose(output, self.patterns[switch[index]]),)
            else:
                assert isinstance(here.op, Affine)
                flat = here.op.transpose(output.flatten(0, 1))
                parts = tuple(part.reshape(count, rows, *part.shape[1:]) for part in flat)
            for source, part in zip(here.inputs, parts, strict=True):
                gradients[source] = gradients[source] + part if source in gradients else part
        if 0 not in gradients:  # nothing on the way depends on the input
            return functionals.new_zeros(count, rows, *self.graph[0].shape)
        return gradients[0]

    def depends_on_pattern(self, node: int) -> bool:
        """Whether a switching node lies between the input and this node; if none does, V is the same for all inputs."""
        stack, seen = [node], set()
        while stack:
            index = stack.pop()
            if isinstance(self.graph[index].op, Switching):
                return True
            if index not in seen:
                seen.add(index)
                stack.extend(self.graph[index].inputs)
        return False


def _sources(op: object) -> list[Source]:
    return list(op.sources().values()) if isinstance(op, Affine) else []


def _vanishing(value: Tensor) -> bool:
    """Whether weights are so small, and not zero, that their products may vanish altogether."""
    return value.is_floating_point() and bool(((value != 0) & (value.abs() < 1e-60)).any())


def _spread(numbers: Tensor, like: Tensor) -> Tensor:
    return numbers.reshape(-1, *(1,) * (like.dim() - 1))


def one_hot(places: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Functionals `(*places.shape, *shape)` that pick out the entries at flat `places`."""
    size = 1
    for axis in shape:
        size *= axis
    picked = torch.zeros(*places.shape, size, dtype=dtype, device=places.device)
    return picked.scatter_(-1, places.unsqueeze(-1), 1.0).reshape(*places.shape, *shape)
