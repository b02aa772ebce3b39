"""Proved distances to all intersections with one more half space at once, in l_2: the keys of sets with one more unit.

With the dual value G of some half spaces and its minimiser d (`_separation`), one more half space of residual r > 0 at d raises
the value by at least r^2 / (2 n). The sums n of squares over the coordinates that are not at a side of the box are matrix
products. They are computed in float32 of rows that are divided by their norms, and rounded up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.core.products import product
from relucert.core.rounding import gamma_above
from relucert.geometry.exploration._layer import Layer
from relucert.geometry.exploration._separation import BEYOND, Box, Dual, HalfSpaces, gain
from relucert.geometry.exploration.search import SAFETY

TINY = 1e-290  # added to sums of squares in float64 that may underflow
SMALL = 1e-30  # the same for sums of relative squares in float32


class Screen(NamedTuple):
    """The rows of a layer, the squares of their positive and negative parts divided by those of their norms, and the boxes."""

    layer: Layer
    box: Box
    norms: Float[Tensor, " units"]
    squares: Float[Tensor, " twice units"]

    @classmethod
    def of(cls, layer: Layer, box: Box) -> Screen:
        """The squares of a layer."""
        norms = norm(layer.rows, 2)
        relative = layer.rows / norms.clamp(min=TINY)[:, None]
        squares = torch.cat([relative.clamp(min=0).square(), relative.clamp(max=0).square()], 1).T
        return cls(layer, box, norms, squares.float().contiguous())

    def children(self, index: Int[Tensor, " n"], units: Int[Tensor, " n k"], found: Dual) -> Float[Tensor, " n k"]:
        """Proved distances to the intersections of some half spaces with that behind one of the units."""
        layer, box = self.layer, self.box.at(index)
        curved = [(found.step != side).float() for side in (-box.below, box.above)]
        along = product(torch.cat(curved, 1), self.squares)
        against = product(torch.cat(curved[::-1], 1), self.squares)
        signs, margins = layer.signs[index], layer.margins[index]
        raised = 1 + gamma_above(along.shape[1] + len(self.squares), torch.float32)
        squares = torch.where(signs > 0, along, against).double() * raised + SMALL
        squares = (squares * self.norms.square()).gather(1, units)
        residuals = (signs * (found.step @ layer.rows.T) + margins).gather(1, units)
        parts = (margins, layer.margin_errors[index], layer.row_errors[index], layer.sizes.expand_as(margins))
        return _raised(found, box, residuals, squares, [part.gather(1, units) for part in parts])

    def decisions(self, index: Int[Tensor, " n"], found: Dual, decisions: HalfSpaces) -> Float[Tensor, " n classes"]:
        """Proved distances to the intersections of some half spaces with those of the decisions."""
        box, (rows, *parts) = self.box.at(index), decisions
        squares = rows.clamp(min=0).square() @ (found.step != -box.below).double().unsqueeze(2)
        squares = squares + rows.clamp(max=0).square() @ (found.step != box.above).double().unsqueeze(2)
        residuals = (rows @ found.step.unsqueeze(2)).squeeze(2) + decisions.margins
        keys = _raised(found, box, residuals, squares.squeeze(2), parts)
        certain = (decisions.row_errors == 0) & (decisions.margins > decisions.margin_errors)
        return keys.masked_fill(certain & (rows == 0).all(2), math.inf)


def _raised(found: Dual, box: Box, residuals: Tensor, squares: Tensor, parts: list[Tensor]) -> Float[Tensor, " n k"]:
    """The distances sqrt(2 (G + gain)), with rounding charged; `parts` are those of `HalfSpaces` without the rows."""
    margins, margin_errors, row_errors, sizes = parts
    longest = found.step.abs().amax(1, keepdim=True)
    rounding = gamma_above(2 * found.step.shape[1] + 8)
    certain = residuals - margin_errors - rounding * (sizes * longest + margins.abs() + margin_errors)
    squares = squares * (1 + rounding) + TINY
    value, reached = found.value[:, None], box.reach[:, None]
    radius = torch.minimum(reached, BEYOND * (2 * (value + gain(certain, squares))).sqrt())
    blurred = torch.where(row_errors == 0, certain, certain - row_errors * radius)
    limit = torch.where((row_errors == 0) | (radius >= reached), math.inf, radius)
    keys = (2 * (value + gain(blurred, squares))).sqrt()
    keys = torch.minimum(torch.minimum(keys, limit), found.radius[:, None]) * (1 - SAFETY)
    return torch.where(keys > reached, math.inf, keys).nan_to_num(0.0, math.inf, 0.0)
