"""Cheap bounds on the norms of all rows of V, by which most rows are ruled out before they are made exactly.

- Rows of a node without a switching node before it are the same for all examples: their norms are exact.
- Behind it, ||sum_u w_u V_u||_q <= sum_u |w_u| ||V_u||_q: one forward pass with absolute weights.
- Behind two convolutions norms are known (`networks.local_norms`). Every entry of a row is off by at most a few unit roundoffs
  times the sum of its absolute terms, and a norm by that many times the upper bound of the pass above.

Nothing here has a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.rounding import gamma_above
from relucert.geometry.region import LinearRegion, UnitHyperplanes
from relucert.geometry.row_norms.chain_rows import class_coefficients, gate, with_own
from relucert.networks.affine_map import Step
from relucert.networks.local_norms import Behind, LocalNorms, local_norms
from relucert.networks.local_rows import plan, squares_are_safe
from relucert.networks.nodes import Affine, Switching
from relucert.networks.patches import axes
from relucert.networks.traversal import ForwardRule, Node, propagate


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lower and upper bounds on norms, (batch, hyperplanes) or (batch, classes)."""

    lower: Tensor
    upper: Tensor

    @staticmethod
    def around(estimate: Tensor, error: Tensor) -> Bounds:
        """The interval of an estimate with its error."""
        return Bounds((estimate - error).clamp_(min=0), estimate + error)


@torch.no_grad()
def upper_norms(region: LinearRegion, exact: list[Tensor | None]) -> list[Float[Tensor, " batch hyperplanes"]]:
    """Upper bounds on the norms of every node's hyperplanes, by absolute weights.

    `exact` has the norms (1 or batch, hyperplanes) where they are known; those of ReLUs are the norms of the nodes they read.
    """
    if all(known is not None for known in exact):
        return [known.detach().expand(len(region), -1) for known in exact if known is not None]
    rule = _UpperNorms(region, exact)
    one = torch.ones(1, *region.net.input_shape, dtype=region.net.dtype, device=region.net.device)
    propagate(region.net.graph, rule, {0: one})
    return rule.found


class _UpperNorms(ForwardRule[Tensor]):
    """Upper bounds on the norms of the rows of every node; a coordinate of the input has norm 1."""

    def __init__(self, region: LinearRegion, exact: list[Tensor | None]):
        self.region, self.exact = region, exact
        self.found: list[Tensor] = []

    def affine(self, node: Node[Affine], inputs: list[Tensor]) -> Tensor:
        count = max(len(value) for value in inputs)
        return node.op.absolute(*(value.expand(count, *value.shape[1:]) for value in inputs))

    def preactivation(self, node: Node[Switching], value: Tensor) -> Tensor:
        place = len(self.found)
        known = self.exact[place]
        if known is not None and isinstance(self.region.hyperplanes[place], UnitHyperplanes):
            value = known.detach().reshape(-1, *value.shape[1:])
        # Products and sums of this pass are rounded; a hair more makes up for it.
        value = value * (1 + gamma_above(16, value.dtype))
        wide = value.expand(len(self.region), *value.shape[1:])
        self.found.append(self.region.hyperplanes[place].errors(wide, self.region.patterns[place]))
        return wide

    def switching(self, node: Node[Switching], value: Tensor) -> Tensor:
        return node.op.linear(value, self.region.patterns[len(self.found) - 1])


@torch.no_grad()
def sums_are_safe(steps: list[Step], q: float) -> bool:
    """Whether norms behind two convolutions are sums of |entries|^q that neither overflow nor vanish: q = 1, inf, mostly 2."""
    if q != 2:
        return q == 1 or math.isinf(q)
    sizes = [weight[weight > 0] for weight in (step.weight().abs() for step in steps[:2])]
    if any(len(size) == 0 for size in sizes):
        return True
    smallest, largest = (sizes[0].min() * sizes[1].min(), sizes[0].max() * sizes[1].max())
    return bool(smallest > 0) and squares_are_safe([torch.stack([smallest, largest])])


@torch.no_grad()
def convolution_norms(
    region: LinearRegion, steps: list[Step], q: float, uppers: list[Tensor], y: Int[Tensor, " batch"]
) -> tuple[LocalNorms, list[Bounds], Bounds | None]:
    """The norms behind the two convolutions at the start of a chain, and bounds that count their rounding.

    Those are the norms of the second convolution, of a hidden matrix behind it, and of the decision hyperplanes where these
    follow. `uppers` are the upper bounds by absolute weights on the norms of the second convolution and of what is behind it.
    """
    first, second, third = steps[:3]
    gates = (gate(region, 0).reshape(-1, *first.shape), gate(region, 1).reshape(-1, *second.shape))
    behind, classes = None, None
    if third.conv is None and len(steps) > 3:
        if len(steps) == 4:
            classes = class_coefficients(region, steps[3], y)
        behind = Behind(third.weight().reshape(-1, *second.shape), classes)
    layout = plan(*axes(first, second, region.net.input_shape), region.net.input_shape[0])
    found = local_norms((first.weight(), second.weight()), behind, gates, q, layout)
    norms, inputs = found.units.flatten(1), math.prod(region.net.input_shape)
    error = _rounding(region, first.weight()[0].numel() * second.weight()[0].numel()) * uppers[0]
    bounds = [Bounds.around(norms, error)]
    if found.rows is None:
        return found, bounds, None
    error = error + _rounding(region, third.weight().shape[1] + inputs) * (norms + error)
    error = (gates[1].flatten(1) * error) @ third.weight().abs().T
    bounds.append(Bounds.around(found.rows, error))
    if found.classes is None or classes is None:
        return found, bounds, None
    # Functionals of rows with errors, and the rounding of their own products and sums.
    error = error + _rounding(region, classes.shape[2] + inputs) * uppers[1]
    error = (classes.abs() @ error[:, :, None]).squeeze(2)
    own = Bounds.around(found.classes, error)
    return found, bounds, Bounds(with_own(own.lower, y), with_own(own.upper, y))


def _rounding(region: LinearRegion, terms: int) -> float:
    """The relative error of a sum of so many products, with some more operations."""
    return gamma_above(terms + 64, region.net.dtype)
