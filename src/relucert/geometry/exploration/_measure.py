"""Margins, rows and their rounding errors for the hyperplanes of a new region, and distances that hold despite the errors.

Everything is computed in float64. Margins are reduced by a bound on their rounding errors. Distances account for the errors of
the rows: a row that is off by E in the dual norm changes a margin by at most E R within distance R of x.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.core.rounding import gamma_above
from relucert.geometry.region import LinearRegion
from relucert.networks.layers.linear import Linear
from relucert.networks.prediction import logits_with_errors

SAFETY = 1e-9  # relative reduction of distances in addition to the error bounds
RESOLVED = 1e-9  # largest relative error of a row at which the search crosses hyperplanes of the region
UNDERFLOW = 1e-290  # an error bound below this comes from underflow alone: the value is a sum of zeros


class Measured(NamedTuple):
    """New regions of some examples: the margins at x and the rows of V, with bounds on their rounding errors.

    `margins` and `lead` are the margins of the region's hyperplanes and of the decision hyperplanes, reduced by their error
    bounds; `raw_margins` and `raw_lead` are the computed values; `class_rows` (batch, classes, *input). `row_errors` and
    `class_errors` bound the errors of rows in every l_q; `margin_errors` and `lead_errors` bound the errors of margins.
    `certain`: whether the class at x is y in real arithmetic (checked for the region of x only).
    """

    region: LinearRegion
    raw_margins: Float[Tensor, " batch hyperplanes"]
    margins: Float[Tensor, " batch hyperplanes"]
    raw_lead: Float[Tensor, " batch classes"]
    lead: Float[Tensor, " batch classes"]
    class_rows: Float[Tensor, " batch classes *input"]
    row_errors: Float[Tensor, " batch hyperplanes"]
    class_errors: Float[Tensor, " batch classes"]
    margin_errors: Float[Tensor, " batch hyperplanes"]
    lead_errors: Float[Tensor, " batch classes"]
    certain: Bool[Tensor, " batch"]


def measure(region: LinearRegion, x: Tensor, y: Tensor, of_x: bool) -> Measured:
    """The margins and rows of regions at x; `of_x` says that they are the regions of x itself."""
    sources = [hyperplanes.source for hyperplanes in region.hyperplanes]
    last = len(region.net.graph) - 1
    values, errors = region.map.values_with_errors(x, [*sources, last])
    margins = region.margins_of([values[source] for source in sources], x)
    margin_errors = _hyperplane_errors(region, [errors[source] for source in sources], x)
    logits = values[last]
    lead = logits.gather(1, y[:, None]) - logits
    lead_errors = errors[last].gather(1, y[:, None]) + errors[last]
    inner, ahead = margins, lead
    if of_x:  # x lies in its own region and has its own class: a negative margin is a rounding error
        inner, ahead = margins.clamp(min=0), lead.clamp(min=0)
    inner = inner.sign() * (inner.abs() - margin_errors).clamp(min=0)
    ahead = ahead.sign() * (ahead.abs() - lead_errors).clamp(min=0)
    errors_of_rows, class_errors = _row_errors(region, sources, x, y)
    certain = torch.ones(len(x), dtype=torch.bool)
    if of_x:  # independent of the pattern, which rounding may have chosen wrongly
        values_at, off_at = logits_with_errors(region.net, x)
        least = values_at.gather(1, y[:, None]) - values_at - off_at.gather(1, y[:, None]) - off_at
        certain = ((least > 0) | own_class(y, region.net.classes)).all(1)
    return Measured(
        region, margins, inner, lead, ahead, region.decision_rows(y),
        _hyperplane_errors(region, errors_of_rows, x), class_errors, margin_errors, lead_errors, certain,
    )  # fmt: skip


def own_class(y: Int[Tensor, " rows"], classes: int) -> Bool[Tensor, " rows classes"]:
    """The mask of the class y of every example."""
    return torch.nn.functional.one_hot(y, classes).bool()


def resolved(norms: Float[Tensor, " batch rows"], errors: Float[Tensor, " batch rows"]) -> Bool[Tensor, " batch"]:
    """Whether the errors of all rows are at most `RESOLVED` times their norms."""
    return (errors <= RESOLVED * norms).all(1)


def reach(x: Tensor, p: float, box: tuple[Tensor, Tensor]) -> Float[Tensor, " batch"]:
    """A radius at which the ball contains the whole box, rounded up; inf without a box."""
    return norm(torch.maximum(x - box[0], box[1] - x), p) * (1 + SAFETY)


def names(patterns: list[Tensor], count: int) -> list[bytes]:
    """The activation patterns of `count` regions as byte strings, for sets of regions."""
    if not patterns:
        return [b""] * count
    flat = [p.flatten(1).to(torch.uint8 if p.dtype == torch.bool else torch.int32).numpy() for p in patterns]
    packed = [np.packbits(part, axis=1) if part.dtype == np.uint8 else part.view(np.uint8) for part in flat]
    return [b"".join(part[i].tobytes() for part in packed) for i in range(count)]


def _row_errors(
    region: LinearRegion, sources: list[int], x: Tensor, y: Tensor
) -> tuple[list[Tensor], Float[Tensor, " batch classes"]]:
    """Bounds on the errors of the rows of nodes, and of the decision rows V_y - V_s, in every l_q.

    If the last node is a linear layer, the difference of two of its rows is computed first, with one rounding per entry: equal
    rows cancel without an error.
    """
    last = region.net.graph[-1]
    source = last.inputs[0]
    errors, sizes = region.map.row_errors([*sources, source, last.index], x)
    if isinstance(last.op, Linear):
        weight = last.op.weight.value
        apart = (weight[y][:, None] - weight).abs()
        each = errors[source].flatten(1) + gamma_above(2, x.dtype) * sizes[source].flatten(1)
        class_errors = (apart @ each.unsqueeze(2)).squeeze(2)
    else:
        class_errors = errors[last.index].gather(1, y[:, None]) + errors[last.index]
    return [errors[node] for node in sources], class_errors.masked_fill(own_class(y, region.net.classes), 0.0)


def _hyperplane_errors(region: LinearRegion, errors: list[Tensor], x: Tensor) -> Float[Tensor, " batch hyperplanes"]:
    """The errors of all hyperplanes from the errors of their nodes."""
    every = zip(region.hyperplanes, errors, region.patterns, strict=True)
    parts = [
        hyperplanes.errors(error.expand(len(x), *error.shape[1:]), pattern) for hyperplanes, error, pattern in every
    ]
    return torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)
