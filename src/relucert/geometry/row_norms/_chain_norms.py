"""Row norms of plain chains by few large products (the paper's networks are such chains).

- First step: the rows are the weights, a convolution's cut off at the border; no example is involved.
- A convolution behind a convolution, and a matrix behind both: blocks of pixels (`networks.local_rows`).
- A matrix behind a matrix: forward, V_l = W diag(g) V_(l-1).
- The decision hyperplanes: (W_y - W_s) diag(g) times the rows of the last hidden layer.

All of it is differentiable in the weights, with the gates g of the pattern as constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms._product_norms import SharedProductNorms, TailNorms, inner_norms
from relucert.networks.chains import Step, chain
from relucert.networks.local_rows import LocalRows, plan
from relucert.networks.patches import axes


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
    first = _first_norms(steps[0], q, region.net.input_shape).expand(len(region), -1)
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


def _first_norms(step: Step, q: float, input_shape: tuple[int, ...]) -> Float[Tensor, " 1 units"]:
    """The rows are the weights; at the border a filter keeps only the taps that see a pixel."""
    weight = step.weight()
    if step.conv is None:
        return norm(weight, q)[None]
    conv = step.conv
    seen = torch.ones(1, *input_shape, dtype=weight.dtype, device=weight.device)
    # Positions at the border see fewer taps, but of all positions few differ: a norm for every set of taps.
    taps = F.unfold(seen, weight.shape[2:], conv.dilation, conv.padding, conv.stride)[0].T  # (positions, taps)
    kinds, kind = taps.unique(dim=0, return_inverse=True)
    found = norm(weight.flatten(1)[:, None] * kinds, q, 2)  # (maps, kinds)
    return found[:, kind].reshape(1, -1)


def _deeper_norms(
    region: LinearRegion, steps: list[Step], q: float, y: Tensor | None
) -> tuple[list[Tensor | None], Tensor | None]:
    """The norms of all hidden layers but the first, and of the decision hyperplanes."""
    hidden, last = steps[:-1], steps[-1]
    missing: list[Tensor | None] = [None] * (len(hidden) - 1)
    if hidden[0].conv is None:
        return _dense_norms(region, hidden[0].weight(), 1, steps, q, y)
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
        third, classes = TailNorms.apply(rows, _coefficients(region, last, y), q)  # type: ignore[misc]
        return [norms, third], _with_own(classes, y)
    if consumer is hidden[-1] and not rows.requires_grad:
        return [norms, inner_norms(rows, q).T], None
    dense = rows.permute(2, 1, 0).contiguous()
    deeper, classes = _dense_norms(region, dense, 3, steps, q, y)
    return [norms, norm(dense, q, 2), *deeper], classes


def _dense_norms(
    region: LinearRegion, dense: Tensor, place: int, steps: list[Step], q: float, y: Tensor | None
) -> tuple[list[Tensor | None], Tensor | None]:
    """The norms from hidden layer `place` on; `dense` has the rows below, (units, inputs) or (batch, units, inputs)."""
    hidden, last = steps[:-1], steps[-1]
    found: list[Tensor | None] = []
    for index in range(place, len(hidden)):
        if hidden[index].conv is not None:
            return [*found, *[None] * (len(hidden) - index)], None
        gated = hidden[index].weight() * _gate(region, index - 1).flatten(1)[:, None, :]
        if dense.dim() == 2:
            dense = (gated.flatten(0, 1) @ dense).unflatten(0, gated.shape[:2])
        else:
            dense = gated @ dense
        found.append(norm(dense, q, 2))
    if y is None or last.conv is not None:
        return found, None
    coefficients = _coefficients(region, last, y)
    if dense.dim() == 2:
        classes = SharedProductNorms.apply(coefficients, dense, q)
    else:
        classes = norm(coefficients @ dense, q, 2)
    return found, _with_own(classes, y)  # type: ignore[arg-type]


def _coefficients(region: LinearRegion, last: Step, y: Int[Tensor, " batch"]) -> Float[Tensor, " batch others n"]:
    """What the decision hyperplanes between y and the other classes take of every unit of the last hidden layer."""
    weight = last.weight()
    gate = _gate(region, len(region.hyperplanes) - 1).flatten(1)
    return (weight[y][:, None] - weight[_others(y, len(weight))]) * gate[:, None]


def _others(y: Int[Tensor, " batch"], classes: int) -> Int[Tensor, " batch others"]:
    """All classes but the own."""
    every = torch.arange(classes - 1, device=y.device).expand(len(y), -1)
    return every + (every >= y[:, None])


def _with_own(norms: Float[Tensor, " batch others"], y: Int[Tensor, " batch"]) -> Float[Tensor, " batch classes"]:
    """The norms in the order of the classes, with 0 for the own one."""
    classes = norms.shape[1] + 1
    return norms.new_zeros(len(y), classes).scatter(1, _others(y, classes), norms)


def _gate(region: LinearRegion, place: int) -> Tensor:
    """The slopes of a hidden layer's ReLUs under the pattern, (batch, *shape)."""
    return region.net.relus[place].op.gate(region.patterns[place], region.net.dtype)


def _local_norms(
    region: LinearRegion, first: Step, second: Step, consumer: Step | None, q: float
) -> tuple[Float[Tensor, " batch units"], Float[Tensor, " inputs rows batch"] | None]:
    """The norms of a convolution behind a convolution, and the rows of a matrix behind both."""
    shape = region.net.input_shape
    layout = plan(*axes(first, second, shape), shape[0])
    matrix = None if consumer is None else consumer.weight().reshape(-1, *second.shape)
    near, far = (_gate(region, place).reshape(len(region), *step.shape) for place, step in enumerate((first, second)))
    norms, rows = LocalRows.apply(first.weight(), second.weight(), matrix, (near, far), q, layout)  # type: ignore[misc]
    return norms.flatten(1), rows
