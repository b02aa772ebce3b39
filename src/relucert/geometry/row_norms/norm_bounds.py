"""Cheap bounds on the norms of all rows of V, by which most rows are ruled out before they are made exactly.

- Rows of a node without a switching node before it are the same for all examples: their norms are exact.
- Behind it, ||sum_u w_u V_u||_q <= sum_u |w_u| ||V_u||_q: one forward pass with absolute weights.
- Rows of the paper's networks are multiplied out with few digits, where the processor does that several times faster. Each
  factor and each result is rounded with the unit roundoff u of that dtype, so that every entry is off by at most a few u times
  the sum of its absolute terms, and a norm by that many u times the upper bound of the pass above.

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


def few_digits(dtype: torch.dtype, device: torch.device, q: float) -> torch.dtype | None:
    """A dtype in which this processor multiplies several times faster than in `dtype`; None if there is none."""
    fast = dtype == torch.float32 and device.type == "cpu" and q in (1.0, 2.0, math.inf)
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return torch.bfloat16 if fast and native() else None


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


@dataclass(frozen=True, eq=False)
class ConvolutionNorms:
    """The norms behind two convolutions: those of the second one, bounds of it and of a matrix behind it, and of the classes.

    `rows` and `classes` are the norms of the matrix's rows and of the decision hyperplanes where they are made in the dtype of
    the network.
    """

    second: LocalNorms
    bounds: list[Bounds]
    rows: Float[Tensor, " batch rows"] | None = None
    classes: Float[Tensor, " batch classes"] | None = None
    class_bounds: Bounds | None = None


@torch.no_grad()
def convolution_norms(
    region: LinearRegion, steps: list[Step], q: float, uppers: tuple[Tensor, Tensor | None], y: Int[Tensor, " batch"]
) -> ConvolutionNorms:
    """Norms and bounds behind the two convolutions at the start of a chain. The matrix must be a hidden layer.

    `uppers` are the upper bounds by absolute weights on the norms of the second convolution, and of the matrix.
    """
    dtype = few_digits(region.net.dtype, region.net.device, q) or region.net.dtype
    first, second, third = steps[:3]
    gates = (gate(region, 0).reshape(-1, *first.shape), gate(region, 1).reshape(-1, *second.shape))
    behind, tail = None, None
    if third.conv is None and len(steps) > 3:
        if dtype == region.net.dtype and len(steps) == 4:
            tail = class_coefficients(region, steps[-1], y)
        behind = Behind(third.weight().reshape(-1, *second.shape), dtype, tail)
    layout = plan(*axes(first, second, region.net.input_shape), region.net.input_shape[0])
    found = local_norms((first.weight(), second.weight()), behind, gates, q, layout)
    norms = found.units.flatten(1)
    sums = gamma_above(first.weight()[0].numel() * second.weight()[0].numel() + 64, region.net.dtype)
    error = sums * uppers[0]
    bounds = [Bounds.around(norms, error)]
    if found.rows is None:
        return ConvolutionNorms(found, bounds)
    # Rows of the second convolution, weights and results are rounded to few digits; sums in the dtype of the network.
    unit = gamma_above(3, dtype)
    sums = gamma_above(third.weight().shape[1] + math.prod(region.net.input_shape) + 64, region.net.dtype)
    passed = error + (unit + sums) * (norms + error)
    error = (gates[1].flatten(1) * passed) @ third.weight().abs().T * (1 + unit)
    bounds.append(Bounds.around(found.rows, error))
    exact = found.rows if dtype == region.net.dtype else None
    if found.functionals is None or tail is None:
        return ConvolutionNorms(found, bounds, exact)
    # Functionals of rows with errors, and the rounding of their own products and sums.
    assert uppers[1] is not None
    wide = error + gamma_above(tail.shape[2] + math.prod(region.net.input_shape) + 64, dtype) * uppers[1]
    error = (tail.abs() @ wide[:, :, None]).squeeze(2)
    own = Bounds.around(found.functionals, error)
    ends = Bounds(with_own(own.lower, y), with_own(own.upper, y))
    return ConvolutionNorms(found, bounds, exact, with_own(found.functionals, y), ends)


@torch.no_grad()
def one_layer_class_bounds(
    region: LinearRegion, steps: list[Step], q: float, upper: Tensor, y: Int[Tensor, " batch"]
) -> Bounds | None:
    """Bounds for the decision hyperplanes behind one hidden layer that is a matrix; None if few digits do not help."""
    dtype = few_digits(region.net.dtype, region.net.device, q)
    if dtype is None:
        return None
    tail = class_coefficients(region, steps[-1], y)
    made = tail.flatten(0, 1).to(dtype) @ steps[0].weight().to(dtype)
    estimate = _norms(made, q, tail.dtype).view(tail.shape[:2])
    error = (tail.abs() @ upper.reshape(-1, 1)).squeeze(2) * gamma_above(2, dtype)
    own = Bounds.around(estimate, error)
    return Bounds(with_own(own.lower, y), with_own(own.upper, y))


def _norms(rows: Tensor, q: float, dtype: torch.dtype) -> Tensor:
    """Norms of rows of few digits, added up in a better dtype."""
    if math.isinf(q):
        return rows.abs().amax(1).to(dtype)
    return rows.abs().sum(1, dtype=dtype) if q == 1 else rows.to(dtype).square_().sum(1).sqrt_()
