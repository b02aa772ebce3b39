"""The dual norms ||V_j||_q of all faces of a region: what distances are divided by (Lemma 3.1 of the paper).

Exact for every network, within a memory budget, by the cheapest way there is: closed form where no switch lies below a
face, a few large products for plain chains (`chain_norms`), else rows pulled back through the graph, some at a time.
The gradient pulls back only the rows that it needs: those with a weight in the loss.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.geometry.region import Hyperplanes, LinearRegion, UnitHyperplanes
from relucert.geometry.row_norms._chain_norms import chain_norms

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
    return _face_norms(region, found.hidden, q, budget), classes


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
