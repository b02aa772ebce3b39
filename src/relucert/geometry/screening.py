"""The nearest hyperplanes of a region, without the rows of those that cheap bounds rule out.

A regulariser needs the k smallest distances d_j = |m_j| / ||V_j||_q as far as they lie below a limit. With bounds
l_j <= ||V_j||_q <= u_j, at least k hyperplanes lie within

    T = min(limit, k-th smallest of |m_j| / l_j),

so a hyperplane with |m_j| / u_j > T is not needed, and its row is never made. The rows that are left are made exactly, and
are differentiable in the weights. Signed distances to decision hyperplanes go the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.norms import dual
from relucert.core.rounding import gamma_above
from relucert.geometry.distances import class_distances, free_distances, margin_distances
from relucert.geometry.region import LinearRegion, UnitHyperplanes
from relucert.geometry.row_norms.chain_rows import first_norms, with_own
from relucert.geometry.row_norms.chosen_norms import (
    chosen_class_norms,
    chosen_norms,
    known_second_norms,
    one_layer_class_norms,
)
from relucert.geometry.row_norms.column_norms import with_column_norms
from relucert.geometry.row_norms.norm_bounds import (
    Bounds,
    convolution_norms,
    sums_are_safe,
    upper_norms,
)
from relucert.geometry.row_norms.row_norms import BUDGET, shared_norms
from relucert.networks.affine_map import Step, chain
from relucert.networks.local_norms import LocalNorms


@dataclass(frozen=True)
class Nearest:
    """The `k` smallest distances, as far as they lie below `limit`; with `smallest`, the smallest one in any case."""

    k: int
    limit: float
    smallest: bool = True

    def needed(
        self, margins: Float[Tensor, " batch n"], norms: Bounds
    ) -> tuple[Bool[Tensor, " batch n"], Float[Tensor, " batch n"]]:
        """Which distances of signed margins may be needed, and lower bounds on all distances."""
        below, above = _quotients(margins, norms)
        reach = kth_smallest(above, self.k).clamp(max=self.limit)
        if self.smallest:
            reach = torch.maximum(reach, above.amin(1))
        slack = gamma_above(64, margins.dtype) * reach.abs()
        return below <= (reach + slack)[:, None], below


def kth_smallest(values: Float[Tensor, " batch n"], k: int) -> Float[Tensor, " batch"]:
    """The k-th smallest value of every example, by numpy where it can: it takes a quarter of torch's time."""
    if values.device.type != "cpu":
        return values.kthvalue(k, 1).values
    return torch.from_numpy(np.partition(values.numpy(), k - 1, axis=1)[:, k - 1])


def smallest(values: Float[Tensor, " batch n"], k: int) -> Float[Tensor, " batch k"]:
    """The k smallest values of every example in any order, differentiable; by numpy where it can."""
    if values.device.type != "cpu":
        return values.topk(k, largest=False, sorted=False).values
    places = np.argpartition(values.detach().numpy(), k - 1, axis=1)[:, :k]
    return values.gather(1, torch.from_numpy(places))


def screened_distances(
    region: LinearRegion,
    margins: Float[Tensor, " batch hyperplanes"],
    logits: Float[Tensor, " batch classes"],
    y: Int[Tensor, " batch"],
    p: float,
    wanted: tuple[Nearest, Nearest],
    budget: int = BUDGET,
) -> tuple[Float[Tensor, " batch hyperplanes"], Float[Tensor, " batch classes"]]:
    """The distances of `free_distances`, with larger than wanted ones in the place of those that bounds rule out.

    These are inf for hyperplanes of units, and lower bounds for decision hyperplanes.

    `wanted` says which distances to hyperplanes of units are needed, and which to decision hyperplanes.
    """
    q, steps = dual(p), chain(region.net.graph)
    if not region.hyperplanes or (steps is not None and steps[0].conv is None and len(steps) > 2):
        return free_distances(region, margins, logits, y, p, budget)
    exact = _exact_norms(region, steps, q, budget)
    counts = [hyperplanes.count for hyperplanes in region.hyperplanes]
    with torch.no_grad():
        bounds, classes, behind = _norm_bounds(region, steps, exact, q, y)
        every = Bounds(*(torch.cat([getattr(b, end) for b in bounds], 1) for end in ("lower", "upper")))
        needed, _ = wanted[0].needed(margins.abs(), every)
    if behind is not None and steps is not None:
        rows = int(needed.split(counts, 1)[1].sum())
        exact[1] = known_second_norms(region, steps, behind, q, rows)
    near: list[Tensor] = []
    places: list[Tensor] = []
    start = 0
    for place, (known, use) in enumerate(zip(exact, needed.split(counts, 1), strict=True)):
        batch, units = use.nonzero(as_tuple=True)
        if len(batch):
            if known is not None:
                norms = known.flatten().index_select(0, units if len(known) == 1 else batch * counts[place] + units)
            else:
                given = behind.rows if behind is not None and place == 2 else None
                norms = chosen_norms(region, place, batch, units, q, given)
            places.append(batch * margins.shape[1] + start + units)
            near.append(margin_distances(margins.flatten().index_select(0, places[-1]), norms))
        start += counts[place]
    found = torch.full_like(margins, math.inf)
    if near:
        found = found.flatten().index_copy(0, torch.cat(places), torch.cat(near)).view_as(margins)
    made = None if behind is None or behind.classes is None else with_own(behind.classes, y)
    return found, _class_distances(region, logits, y, q, wanted[1], (classes, made))


def _class_distances(
    region: LinearRegion,
    logits: Tensor,
    y: Tensor,
    q: float,
    wanted: Nearest,
    given: tuple[Bounds | None, Tensor | None],
) -> Float[Tensor, " batch classes"]:
    """The signed distances to decision hyperplanes, inf for the own class, lower bounds for those that bounds rule out.

    `given` are bounds on the norms, and the norms where they are known. Without bounds all rows are made, but the gradient goes
    back through those alone that the regulariser uses.
    """
    bounds, known = given
    steps = chain(region.net.graph)
    if bounds is None and steps is not None and len(steps) == 2 and steps[0].conv is None:
        return class_distances(logits, y, one_layer_class_norms(region, steps, y, q))
    own = torch.nn.functional.one_hot(y, logits.shape[1]).bool()
    with torch.no_grad():
        needed, beyond = ~own, torch.full_like(logits, math.inf)
        if bounds is not None:
            lead = (logits.gather(1, y[:, None]) - logits).masked_fill(own, math.inf)
            use, beyond = wanted.needed(lead, bounds)
            needed &= use
        batch, other = needed.nonzero(as_tuple=True)
    norms = torch.ones_like(logits)
    if len(batch):
        norms = norms.index_put((batch, other), chosen_class_norms(region, y[batch], batch, other, q, known))
    return torch.where(needed, class_distances(logits, y, norms), beyond)


def _exact_norms(region: LinearRegion, steps: list[Step] | None, q: float, budget: int) -> list[Tensor | None]:
    """The norms (1 or batch, units) of nodes that cost less than their bounds would save, differentiable in the weights.

    Those are nodes whose rows are the same for all examples, and nodes whose norms come from columns.
    """
    if steps is not None:
        first = first_norms(steps[0], q, region.net.input_shape)
        return with_column_norms(region, [first, *[None] * (len(region.hyperplanes) - 1)], steps, q, budget)
    exact = [
        shared_norms(region, place, q, budget)
        if isinstance(hyperplanes, UnitHyperplanes) and not region.map.depends_on_pattern(hyperplanes.source)
        else None
        for place, hyperplanes in enumerate(region.hyperplanes)
    ]
    return with_column_norms(region, exact, steps, q, budget)


def _norm_bounds(
    region: LinearRegion, steps: list[Step] | None, exact: list[Tensor | None], q: float, y: Tensor
) -> tuple[list[Bounds], Bounds | None, LocalNorms | None]:
    """Bounds on the norms of all hyperplanes of units, and of decision hyperplanes where these are cheap.

    Then the norms behind two convolutions, where these are computed on the way.
    """
    behind = None
    uppers = upper_norms(region, exact)
    bounds = [
        Bounds(torch.zeros_like(upper), upper) if known is None else Bounds(*[known.expand(len(region), -1)] * 2)
        for known, upper in zip(exact, uppers, strict=True)
    ]
    classes = None
    if (
        steps is not None
        and len(steps) > 2
        and exact[1] is None
        and _two_convolutions(steps)
        and sums_are_safe(steps, q)
    ):
        behind, found, classes = convolution_norms(region, steps, q, uppers[1:3], y)
        bounds[1 : 1 + len(found)] = found
    return bounds, classes, behind


def _two_convolutions(steps: list[Step]) -> bool:
    """Whether a chain begins with two convolutions."""
    return steps[0].conv is not None and steps[1].conv is not None


def _quotients(margins: Tensor, norms: Bounds) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds on signed distances; inf for a zero row and where the margin is."""
    void = (norms.upper == 0) | (margins.abs() == math.inf)
    near, far = norms.upper, norms.lower
    if not bool((margins < 0).any()):
        # 0 / 0: a margin of zero with a row that is, or may be, zero.
        return (margins / near).masked_fill_(void, math.inf), (margins / far).masked_fill_(far == 0, math.inf)
    ahead = margins >= 0
    near, far = torch.where(ahead, near, far), torch.where(ahead, far, near)
    below = (margins / near).nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf)
    above = (margins / far).nan_to_num_(nan=math.inf, posinf=math.inf, neginf=-math.inf)
    return below.masked_fill_(void, math.inf), above.masked_fill_(void, math.inf)
