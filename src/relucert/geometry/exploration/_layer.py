"""The one hidden layer of a network whose regions differ in the class rows only.

If all ReLUs read the input through affine nodes and the logits read them through one linear layer, the hyperplanes of units
are the same in all regions. With the signs s_i of the region of x, let h_i(z) = s_i (W_i z + b_i) >= 0 in that region. In the
region where the units F are flipped, the lead of class y over class s is

    lead_s(z) + sum over i in F of c_si h_i(z),      c_si = -(1 - slope) (C_yi - C_si),

C the weights of the last layer: flipping a unit changes a decision row by a multiple of the unit's row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.norms import norm
from relucert.core.rounding import gamma_above
from relucert.geometry.exploration._separation import HalfSpaces
from relucert.geometry.exploration.search import Measured
from relucert.networks.layers.linear import Linear
from relucert.networks.layers.shapes import Reshape
from relucert.networks.network import Network


def last_weight(net: Network) -> Float[Tensor, " classes units"] | None:
    """The weights C from the units of the one ReLU node to the logits, without rounding; None for other networks."""
    if not len(net.switches) == len(net.relus) == 1:
        return None
    last = net.graph[-1]
    if not isinstance(last.op, Linear):
        return None
    node = net.graph[last.inputs[0]]
    while node.index != net.switches[0].index:
        # Only copies of the units in their order may lie between.
        if not isinstance(node.op, Reshape):
            return None
        node = net.graph[node.inputs[0]]
    weight = last.op.weight.value
    return weight if weight.shape[1] == math.prod(net.switches[0].shape) else None


class Layer(NamedTuple):
    """The hyperplanes of the units, and the decisions in the regions of some examples.

    `rows` (units, size) are the same for all examples, `signs` (batch, units) orient them; `margins`, `margin_errors` and
    `row_errors` as in `Measured`. `lead`, `lead_errors`, `class_rows`, `class_errors` belong to the regions of x,
    `sizes` and `class_sizes` are l_1 norms.
    """

    rows: Float[Tensor, " units size"]
    sizes: Float[Tensor, " units"]
    signs: Float[Tensor, " batch units"]
    margins: Float[Tensor, " batch units"]
    margin_errors: Float[Tensor, " batch units"]
    row_errors: Float[Tensor, " batch units"]
    lead: Float[Tensor, " batch classes"]
    lead_errors: Float[Tensor, " batch classes"]
    class_rows: Float[Tensor, " batch classes size"]
    class_errors: Float[Tensor, " batch classes"]
    class_sizes: Float[Tensor, " batch classes"]
    changes: Float[Tensor, " batch classes units"]

    @classmethod
    def of(cls, measured: Measured, weight: Float[Tensor, " classes units"], y: Int[Tensor, " batch"]) -> Layer:
        """The layer at the regions of x."""
        region = measured.region
        first = region.restrict(torch.zeros(1, dtype=torch.long))
        signs = region.patterns[0].flatten(1).double() * 2 - 1
        rows = first.rows(torch.arange(region.count)[None])[0].flatten(1) * signs[0][:, None]
        slope = region.net.switches[0].op.slope
        changes = -(1 - slope) * (weight[y][:, None] - weight)
        class_rows = measured.class_rows.flatten(2)
        return cls(
            rows, norm(rows, 1), signs, measured.raw_margins, measured.margin_errors, measured.row_errors,
            measured.raw_lead, measured.lead_errors, class_rows, measured.class_errors, norm(class_rows, 1, 2), changes,
        )  # fmt: skip

    def flipped(self, index: Int[Tensor, " n"], units: Int[Tensor, " n k"], inside: bool = False) -> HalfSpaces:
        """The half spaces h_i <= 0 behind units, or with `inside` h_i >= 0; -1 in `units` is no half space."""
        real, chosen = units >= 0, units.clamp(min=0)
        signs = self.signs[index].gather(1, chosen) * real * (-1 if inside else 1)
        return HalfSpaces(
            self.rows[chosen] * signs.unsqueeze(2),
            self.margins[index].gather(1, chosen) * (real * (-1 if inside else 1)),
            self.margin_errors[index].gather(1, chosen) * real,
            self.row_errors[index].gather(1, chosen) * real,
            self.sizes[chosen] * real,
        )

    def decisions(
        self, index: Int[Tensor, " n"], units: Int[Tensor, " n k"], behind: HalfSpaces, classes: Tensor | None = None
    ) -> HalfSpaces:
        """The half spaces where class s is ahead by the affine map with flipped units; all classes, or one of each case."""
        real, chosen = units >= 0, units.clamp(min=0)
        count = self.changes.shape[1]
        places = torch.arange(count).expand(len(index), -1) if classes is None else classes[:, None]
        at = index[:, None]
        change = self.changes[at.unsqueeze(2), places.unsqueeze(2), chosen.unsqueeze(1)] * real.unsqueeze(1)
        rows = self.class_rows[at, places] + change @ behind.rows
        margins = self.lead[at, places] + (change @ behind.margins.unsqueeze(2)).squeeze(2)
        size = change.abs()
        # The terms of a change have four roundings of their own.
        weight = gamma_above(units.shape[1] + 6)
        own = self.class_sizes[at, places]
        sizes = own + (size @ behind.sizes.unsqueeze(2)).squeeze(2)
        row_errors = self.class_errors[at, places] + (size @ behind.row_errors.unsqueeze(2)).squeeze(2)
        terms = self.lead[at, places].abs() + (size @ behind.margins.abs().unsqueeze(2)).squeeze(2)
        margin_errors = self.lead_errors[at, places] + (size @ behind.margin_errors.unsqueeze(2)).squeeze(2)
        return HalfSpaces(
            rows, margins, margin_errors * (1 + weight) + weight * terms,
            row_errors * (1 + weight) + torch.where(real.any(1)[:, None], weight * sizes, 0.0), sizes,
        )  # fmt: skip
