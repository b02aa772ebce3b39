"""Distances of x to the hyperplanes of its region and to the decision hyperplanes (Lemmas 3.1 and 3.2 of the paper).

    d_B(x) = min_j |V_j x + a_j| / ||V_j||_q,      d_D(x) = min_(s != c) (f_c(x) - f_s(x)) / ||V_c - V_s||_q

Both are differentiable in the weights, with the activation pattern held fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import check_p, dual
from relucert.core.results import Distances, concatenate
from relucert.geometry.hyperplane import HyperplaneDistance, hyperplane_distance
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import BUDGET, decision_norms, hyperplane_norms, row_norms
from relucert.networks.network import Network, as_network

Rows = Callable[[Tensor, Tensor], Tensor]


def distances(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"] | None = None,
    p: float = 2,
    box: Any = None,
    budget: int = BUDGET,
) -> Distances:
    """The paper's d_B (`region`) and d_D (`decision`), signed if labels are given, else for the predicted class.

    Without a box they are differentiable in the weights; with one they are the distances to the parts of the hyperplanes
    inside the box (appendix A.1). A network without ReLUs has d_B = inf.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> distances(net, data.x_test[:5], data.y_test[:5], p=2).region.shape
    torch.Size([5])
    """
    p, net = check_p(p), as_network(net, x)
    net.check(x, y)
    net.require_eval("distances")
    net.require_classes("distances")
    if box is not None:
        Ball(p, math.inf, box).check(x)
    if torch.is_grad_enabled() and any(weight.requires_grad for weight in net.parameters()):
        return _distances(net, x, y, p, box, budget)
    # Without gradients, split the batch by the budget.
    numbers = sum(math.prod(node.shape) for node in net.graph) + 4 * net.classes * x[:1].numel()
    pieces = torch.arange(len(x), device=x.device).split(max(1, budget // (16 * max(1, numbers))))
    ball = Ball(p, math.inf, box)
    parts = [
        _distances(
            net,
            x[part],
            None if y is None else y[part],
            p,
            None if box is None else ball.restrict(part).bounds(x[part]),
            budget,
        )
        for part in pieces
    ]
    return concatenate(parts) if parts else Distances(x.new_zeros(0), x.new_zeros(0))


def _distances(
    net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"] | None, p: float, box: Any, budget: int
) -> Distances:
    region, values, logits = LinearRegion.evaluated(net, x)
    labels = net.predict(x) if y is None else y
    margins = region.margins_of(values, x)
    hyperplanes, classes = free_distances(region, margins, logits, labels, p, budget)
    if box is None:
        nearest = hyperplanes.amin(1) if hyperplanes.shape[1] else x.new_full((len(x),), math.inf)
        return Distances(nearest, classes.amin(1))
    with torch.no_grad():
        nearest, _ = nearest_in_box(x, hyperplanes, margins, hyperplane_rows(region), p, box, budget)
        decision = class_distances_in_box(region, x, logits, labels, p, box, budget).distance
        lead = logits.gather(1, labels[:, None]) - logits
        signed = torch.where(lead < 0, -decision, decision)
    return Distances(nearest, signed.amin(1))


def free_distances(
    region: LinearRegion,
    margins: Float[Tensor, " batch hyperplanes"],
    logits: Float[Tensor, " batch classes"],
    y: Int[Tensor, " batch"],
    p: float,
    budget: int = BUDGET,
) -> tuple[Float[Tensor, " batch hyperplanes"], Float[Tensor, " batch classes"]]:
    """The distances to all hyperplanes of the region and the signed distances to all decision hyperplanes, without a box."""
    hyperplanes, classes = hyperplane_norms(region, y, dual(p), budget)
    return margin_distances(margins, hyperplanes), class_distances(logits, y, classes)


def boundary_distances(
    region: LinearRegion, margins: Float[Tensor, " batch hyperplanes"], p: float, budget: int = BUDGET
) -> Float[Tensor, " batch hyperplanes"]:
    """|V_j x + a_j| / ||V_j||_q of every hyperplane; inf for a zero row, without NaN in the gradient."""
    return margin_distances(margins, row_norms(region, dual(p), budget))


def decision_distances(
    region: LinearRegion,
    logits: Float[Tensor, " batch classes"],
    y: Int[Tensor, " batch"],
    p: float,
    budget: int = BUDGET,
) -> Float[Tensor, " batch classes"]:
    """(f_y - f_s) / ||V_y - V_s||_q for every class s, inf for s = y.

    For classes with equal rows the distance is +inf, -inf or 0, by the sign of the constant margin.
    """
    return class_distances(logits, y, decision_norms(region, y, dual(p), budget))


def margin_distances(margins: Float[Tensor, " *any"], norms: Float[Tensor, " *any"]) -> Float[Tensor, " *any"]:
    """|m_j| / ||V_j||_q from margins and norms; inf for a zero row."""
    void = (norms == 0) | margins.isinf()
    safe = torch.where(void, torch.ones_like(norms), norms)
    return torch.where(void, math.inf, torch.where(void, torch.zeros_like(margins), margins).abs() / safe)


def class_distances(
    logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"], norms: Float[Tensor, " batch classes"]
) -> Float[Tensor, " batch classes"]:
    """(f_y - f_s) / ||V_y - V_s||_q for every class s from the norms, inf for s = y."""
    lead = logits.gather(1, y[:, None]) - logits
    void = norms == 0
    found = torch.where(void, torch.zeros_like(lead), lead) / torch.where(void, torch.ones_like(norms), norms)
    constant = torch.where(lead == 0, torch.zeros_like(lead), lead.detach().sign() * math.inf)
    found = torch.where(void, constant, found)
    return found.masked_fill(torch.nn.functional.one_hot(y, logits.shape[1]).bool(), math.inf)


def nearest_hyperplanes(
    region: LinearRegion, margins: Float[Tensor, " batch hyperplanes"], p: float, k: int, budget: int = BUDGET
) -> tuple[Float[Tensor, " batch k"], Int[Tensor, " batch k"]]:
    """The k smallest distances d_B^1 <= ... <= d_B^k (equation 4 of the paper) and the numbers of their hyperplanes."""
    found = boundary_distances(region, margins, p, budget)
    if not 1 <= k <= found.shape[1]:
        raise InvalidInput(f"k must lie in 1..{found.shape[1]}, the number of hyperplanes, got {k}")
    nearest, places = found.topk(k, largest=False, sorted=True)
    return nearest, places


def class_distances_in_box(
    region: LinearRegion, x: Float[Tensor, " batch *input"], logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"],
    p: float, box: Any, budget: int = BUDGET,
) -> HyperplaneDistance:  # fmt: skip
    """The distances (batch, classes) to all decision hyperplanes within the box, inf for y itself."""
    lead = logits.gather(1, y[:, None]) - logits
    found = hyperplane_distance(x, region.decision_rows(y), lead, p, box, budget=budget)
    own = torch.nn.functional.one_hot(y, logits.shape[1]).bool()
    return replace(
        found, distance=found.distance.masked_fill(own, math.inf), free=found.free.masked_fill(own, math.inf)
    )


def hyperplane_rows(region: LinearRegion) -> Rows:
    """A function that computes the rows of some hyperplanes of some examples of a region."""
    return lambda index, places: region.restrict(index).rows(places)


def nearest_in_box(
    x: Float[Tensor, " batch *input"],
    free: Float[Tensor, " batch hyperplanes"],
    margins: Float[Tensor, " batch hyperplanes"],
    rows: Rows,
    p: float,
    box: Any,
    budget: int = BUDGET,
) -> tuple[Float[Tensor, " batch"], Int[Tensor, " batch"]]:
    """The smallest distance to a hyperplane within the box, and the number of that hyperplane (appendix A.1 of the paper).

    The box only increases distances. So hyperplanes are solved in the order of their free distances, in blocks, and an example
    is done when its smallest distance is at most the next free distance. `rows(index, places)` computes the rows (n, k, *input)
    of the hyperplanes `places` (n, k) of the examples `index` (n,).
    """
    best = x.new_full((len(x),), math.inf)
    winner = torch.zeros(len(x), dtype=torch.long, device=x.device)
    if free.shape[1] == 0:
        return best, winner
    lower, upper = Ball(p, math.inf, box).bounds(x)
    sorted_free, order = free.detach().sort(1)
    start, step = 0, 4
    while start < free.shape[1]:
        open_ = (sorted_free[:, start] < best).nonzero()[:, 0]
        stop = min(start + step, free.shape[1])
        for index in open_.split(max(1, budget // (8 * 4 * (stop - start) * max(1, x[0].numel())))):
            places = order[index, start:stop]
            made, ahead = rows(index, places).detach(), margins[index].gather(1, places).detach()
            known = (lower[index], upper[index])
            found = hyperplane_distance(x[index], made, ahead, p, known, budget=budget).distance
            # A zero row has no hyperplane, even if the margin is 0.
            found = found.masked_fill(sorted_free[index, start:stop].isinf(), math.inf)
            smallest, which = found.min(1)
            better = smallest < best[index]
            best[index] = torch.where(better, smallest, best[index])
            winner[index] = torch.where(better, places.gather(1, which[:, None])[:, 0], winner[index])
        if len(open_) == 0:
            break
        start, step = stop, min(2 * step, 64)
    return best, winner
