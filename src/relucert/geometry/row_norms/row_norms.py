"""The dual norms ||V_j||_q of all faces of a region: what distances are divided by (Lemma 3.1 of the paper).

Exact for every network, within a memory budget. In general rows are pulled back through the graph, some at a time, and the
gradient pulls back only the rows that it needs: those with a weight in the loss. Plain chains, as the paper's networks are,
take a few large products (`chain_norms`):

- First step: the rows are the weights, a convolution's cut off at the border; no example is involved.
- A convolution behind a convolution, and a matrix behind both: blocks of pixels (`networks.local_rows`).
- A matrix behind a matrix: forward, V_l = W diag(g) V_(l-1); with gradients and q = 2 in few coordinates (`SquareRows`).
- The decision hyperplanes: (W_y - W_s) diag(g) times the rows of the last hidden layer.

All of it is differentiable in the weights, with the gates g of the pattern as constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relucert.core.norms import norm
from relucert.geometry.region import Hyperplanes, LinearRegion, UnitHyperplanes
from relucert.geometry.row_norms._gram_norms import SquareRows, rotation_pays
from relucert.geometry.row_norms._product_norms import SharedProductNorms, TailNorms, inner_norms
from relucert.geometry.row_norms.chain_rows import class_coefficients, first_norms, gate, with_own
from relucert.geometry.row_norms.column_norms import column_norms, with_column_norms
from relucert.networks.affine_map import Step, chain
from relucert.networks.local_rows import LocalRows, plan
from relucert.networks.patches import axes

BUDGET = 2**30  # bytes of temporaries


def row_norms(region: LinearRegion, q: float, budget: int = BUDGET) -> Float[Tensor, " batch faces"]:
    """||V_j||_q of every face of every example, differentiable in the weights with the patterns held fixed."""
    return _face_norms(region, chain_norms(region, q, budget).hidden, q, budget)


def hyperplane_norms(
    region: LinearRegion, y: Int[Tensor, " batch"], q: float, budget: int = BUDGET
) -> tuple[Float[Tensor, " batch faces"], Float[Tensor, " batch classes"]]:
    """||V_j||_q of every face, and ||V_y - V_s||_q of every class s (0 for y itself): from the same products where possible."""
    found = chain_norms(region, q, budget, y)
    classes = norm(region.decision_rows(y), q, 2) if found.classes is None else found.classes
    hidden = with_column_norms(region, found.hidden, chain(region.net.graph), q, budget)
    return _face_norms(region, hidden, q, budget), classes


def decision_norms(
    region: LinearRegion, y: Int[Tensor, " batch"], q: float, budget: int = BUDGET
) -> Float[Tensor, " batch classes"]:
    """||V_y - V_s||_q of every class s alone (0 for y itself)."""
    # With one hidden layer the chain's way makes no other rows; with more, pulling K rows is less than making all.
    found = chain_norms(region, q, budget, y).classes if len(region.hyperplanes) == 1 else None
    return norm(region.decision_rows(y), q, 2) if found is None else found


def _face_norms(region: LinearRegion, known: list[Tensor | None], q: float, budget: int) -> Tensor:
    """The norms of all faces: those that are known, and those of pulled rows."""
    weights = [weight for weight in region.net.parameters() if weight.requires_grad]
    parts: list[Tensor] = []
    for place, (hyperplanes, norms) in enumerate(zip(region.hyperplanes, known, strict=True)):
        if norms is not None:
            parts.append(norms)
        elif torch.is_grad_enabled() and weights:
            parts.append(_PulledNorms.apply(region, place, q, budget, *weights))  # type: ignore[arg-type]
        else:
            with torch.no_grad():
                parts.append(_pulled_norms(region, hyperplanes, q, budget))
    like = torch.zeros(len(region), 0, dtype=region.net.dtype, device=region.net.device)
    return torch.cat(parts, 1) if parts else like


def shared_norms(region: LinearRegion, place: int, q: float, budget: int = BUDGET) -> Float[Tensor, " 1 faces"]:
    """The norms of a node whose rows do not depend on the pattern, so that they are the same for all examples."""
    one = region.restrict(torch.zeros(1, dtype=torch.long, device=region.net.device))
    found = column_norms(one, [place], q, budget)
    if found:
        return found[place]
    weights = [weight for weight in region.net.parameters() if weight.requires_grad]
    if torch.is_grad_enabled() and weights:
        return _PulledNorms.apply(one, place, q, budget, *weights)  # type: ignore[return-value]
    with torch.no_grad():
        return _pulled_norms(one, one.hyperplanes[place], q, budget)


def _pulled_norms(
    region: LinearRegion, hyperplanes: Hyperplanes, q: float, budget: int
) -> Float[Tensor, " batch faces"]:
    """The norms of a node's faces from rows pulled back through the graph, as many at a time as the budget allows."""
    place = region.hyperplanes.index(hyperplanes)
    if (
        not region.map.depends_on_pattern(hyperplanes.source)
        and len(region) > 1
        and isinstance(hyperplanes, UnitHyperplanes)
    ):
        one = region.restrict(torch.zeros(1, dtype=torch.long, device=region.net.device))
        return _pulled_norms(one, hyperplanes, q, budget).expand(len(region), -1)
    widest = max(math.prod(node.shape) for node in region.net.graph)
    size = torch.finfo(region.net.dtype).bits // 8
    at_once = max(1, budget // (4 * widest * size))
    examples = max(1, min(len(region), at_once // min(hyperplanes.count, at_once)))
    rows = max(1, at_once // examples)
    found = torch.empty(len(region), hyperplanes.count, dtype=region.net.dtype, device=region.net.device)
    for batch in torch.arange(len(region), device=region.net.device).split(examples):
        part = region.restrict(batch)
        for units in torch.arange(hyperplanes.count, device=region.net.device).split(rows):
            chosen = units.expand(len(batch), -1)
            functionals = hyperplanes.functionals(part.patterns[place], chosen, found.dtype)
            found[batch[:, None], units] = norm(part.map.pull_back(hyperplanes.source, functionals), q, 2)
    return found


class _PulledNorms(torch.autograd.Function):
    """The norms of a node's faces; backward pulls again only the rows with a gradient."""

    @staticmethod
    def forward(ctx: Any, region: LinearRegion, place: int, q: float, budget: int, *weights: Tensor) -> Tensor:
        ctx.question = (region, place, q, budget, weights)
        return _pulled_norms(region, region.hyperplanes[place], q, budget)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        region, place, q, budget, weights = ctx.question
        (gradient,) = gradients
        totals = [torch.zeros_like(weight) for weight in weights]
        start = sum(hyperplanes.count for hyperplanes in region.hyperplanes[:place])
        hyperplanes = region.hyperplanes[place]
        if not region.map.depends_on_pattern(hyperplanes.source) and isinstance(hyperplanes, UnitHyperplanes):
            # The rows are the same for all examples: one of them stands for all.
            region = region.restrict(torch.zeros(1, dtype=torch.long, device=gradient.device))
            gradient = gradient.sum(0, keepdim=True)
        _accumulate(region, start, gradient, q, budget, weights, totals)
        return (None, None, None, None, *totals)


def _accumulate(
    region: LinearRegion,
    start: int,
    gradient: Tensor,
    q: float,
    budget: int,
    weights: tuple[Tensor, ...],
    totals: list[Tensor],
) -> None:
    """Add the gradients of sum(gradient * norms) with respect to the weights, rows with a zero gradient left out."""
    wide = int((gradient != 0).sum(1).max()) if gradient.numel() else 0
    if wide == 0:
        return
    chosen = (gradient != 0).to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :wide]
    widest = max(math.prod(node.shape) for node in region.net.graph)
    size = torch.finfo(gradient.dtype).bits // 8
    at_once = max(1, budget // (12 * widest * size))  # values and their gradients, on the way and back
    examples = max(1, min(len(region), at_once // min(wide, at_once)))
    rows = max(1, at_once // examples)
    for batch in torch.arange(len(region), device=gradient.device).split(examples):
        part = region.restrict(batch)
        for places in chosen[batch].split(rows, 1):
            with torch.enable_grad():
                norms = norm(part.rows(places + start), q, 2)
                loss = (norms * gradient[batch].gather(1, places)).sum()
                if loss.requires_grad:
                    found = torch.autograd.grad(loss, weights, allow_unused=True)
                    for total, one in zip(totals, found, strict=True):
                        if one is not None:
                            total += one


@dataclass(frozen=True)
class ChainNorms:
    """The norms (batch, units) of every hidden layer, and (batch, classes) of the decision hyperplanes, on request.

    None stands where a chain has no fast way. The own class has norm 0.
    """

    hidden: list[Tensor | None]
    classes: Tensor | None


def chain_norms(region: LinearRegion, q: float, budget: int, y: Int[Tensor, " batch"] | None = None) -> ChainNorms:
    """The norms of all that has a fast way."""
    nothing = ChainNorms([None] * len(region.hyperplanes), None)
    steps = chain(region.net.graph)
    if steps is None or not region.hyperplanes:
        return nothing
    first = first_norms(steps[0], q, region.net.input_shape).expand(len(region), -1)
    per_example = _bytes_per_example(steps, region.net.input_shape, region.net.dtype)
    pieces = torch.arange(len(region), device=region.net.device).split(max(1, budget // per_example))
    if len(pieces) < 2:
        found = [_deeper_norms(region, steps, q, y)]
    else:
        parts = [(region.restrict(piece), None if y is None else y[piece]) for piece in pieces]
        if torch.is_grad_enabled():  # what does not fit is made again for the gradient
            found = [checkpoint(_deeper_norms, part, steps, q, label, use_reentrant=False) for part, label in parts]
        else:
            found = [_deeper_norms(part, steps, q, label) for part, label in parts]
    hidden = [_joined([one[0][place] for one in found]) for place in range(len(steps) - 2)]
    return ChainNorms([first, *hidden], _joined([one[1] for one in found]))


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known and len(known) == len(parts) else None


def _bytes_per_example(steps: list[Step], input_shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Dense rows of the two widest neighbouring matrices, with room for a copy."""
    dense = [math.prod(step.shape) for step in steps[1:] if step.conv is None]
    return 3 * max(dense, default=1) * math.prod(input_shape) * (torch.finfo(dtype).bits // 8)


def _deeper_norms(
    region: LinearRegion, steps: list[Step], q: float, y: Tensor | None
) -> tuple[list[Tensor | None], Tensor | None]:
    """The norms of all hidden layers but the first, and of the decision hyperplanes."""
    hidden, last = steps[:-1], steps[-1]
    missing: list[Tensor | None] = [None] * (len(hidden) - 1)
    if hidden[0].conv is None:
        return _dense_norms(region, _first_rows(region, steps, q), 1, steps, q, y)
    if len(hidden) < 2 or hidden[1].conv is None:
        return missing, None
    consumer = steps[2] if steps[2].conv is None else None
    norms, rows = _local_norms(region, hidden[0], hidden[1], consumer, q)
    if rows is None:
        return [norms, *missing[1:]], None
    if consumer is last:
        made = rows.permute(2, 1, 0)
        return [norms], None if y is None else norm(made[torch.arange(len(made)), y][:, None] - made, q, 2)
    if consumer is hidden[-1] and y is not None:
        third, classes = TailNorms.apply(rows, class_coefficients(region, last, y), q)  # type: ignore[misc]
        return [norms, third], with_own(classes, y)
    if consumer is hidden[-1] and not rows.requires_grad:
        return [norms, inner_norms(rows, q).T], None
    dense = rows.permute(2, 1, 0).contiguous()
    deeper, classes = _dense_norms(region, dense, 3, steps, q, y)
    return [norms, norm(dense, q, 2), *deeper], classes


def _first_rows(region: LinearRegion, steps: list[Step], q: float) -> Float[Tensor, " units inputs"]:
    """The rows of the first matrix; in training with q = 2, in few coordinates where these have the same lengths."""
    rows = steps[0].weight()
    if q == 2 and rows.requires_grad and torch.is_grad_enabled():
        behind = sum(math.prod(step.shape) for step in steps[1:])
        if rotation_pays(len(region) * behind, *rows.shape):
            return SquareRows.apply(rows)  # type: ignore[return-value]
    return rows


def _dense_norms(
    region: LinearRegion, dense: Tensor, place: int, steps: list[Step], q: float, y: Tensor | None
) -> tuple[list[Tensor | None], Tensor | None]:
    """The norms from hidden layer `place` on; `dense` has the rows below, (units, inputs) or (batch, units, inputs)."""
    hidden, last = steps[:-1], steps[-1]
    found: list[Tensor | None] = []
    for index in range(place, len(hidden)):
        if hidden[index].conv is not None:
            return [*found, *[None] * (len(hidden) - index)], None
        gated = hidden[index].weight() * gate(region, index - 1).flatten(1)[:, None, :]
        if dense.dim() == 2:
            dense = (gated.flatten(0, 1) @ dense).unflatten(0, gated.shape[:2])
        else:
            dense = gated @ dense
        found.append(norm(dense, q, 2))
    if y is None or last.conv is not None:
        return found, None
    coefficients = class_coefficients(region, last, y)
    if dense.dim() == 2:
        classes = SharedProductNorms.apply(coefficients, dense, q)
    else:
        classes = norm(coefficients @ dense, q, 2)
    return found, with_own(classes, y)  # type: ignore[arg-type]


def _local_norms(
    region: LinearRegion, first: Step, second: Step, consumer: Step | None, q: float
) -> tuple[Float[Tensor, " batch units"], Float[Tensor, " inputs rows batch"] | None]:
    """The norms of a convolution behind a convolution, and the rows of a matrix behind both."""
    shape = region.net.input_shape
    layout = plan(*axes(first, second, shape), shape[0])
    matrix = None if consumer is None else consumer.weight().reshape(-1, *second.shape)
    near, far = (gate(region, place).reshape(len(region), *step.shape) for place, step in enumerate((first, second)))
    norms, rows = LocalRows.apply(first.weight(), second.weight(), matrix, (near, far), q, layout)  # type: ignore[misc]
    return norms.flatten(1), rows
