"""Row norms of plain chains by few large products (the paper's networks are such chains).

- First step: the rows are the weights, a convolution's cut off at the border; no example is involved.
- A convolution behind a convolution: a unit's row lives on its receptive field. With `g` the 0/1 pattern that the unit's
  window sees, the rows of all channels at a position are `g` times one constant matrix (second filter times the first,
  shifted), so the whole batch is one product for each position.
- A matrix behind that: at each position the rows just made, times the columns of the matrix that belong there, added up
  where the receptive fields overlap.
- A matrix behind a matrix: forward, V_l = W diag(g) V_(l-1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relucert.core.norms import norm
from relucert.geometry.region import LinearRegion
from relucert.networks.chains import Step, chain
from relucert.networks.switching import ReLU


def chain_norms(region: LinearRegion, q: float, budget: int) -> list[Tensor | None]:
    """The norms (batch, units) of every hidden layer that has a fast way, None for the others."""
    found: list[Tensor | None] = [None] * len(region.faces)
    steps = chain(region.net.graph)
    if steps is None or not region.faces:
        return found
    hidden = steps[:-1] if steps[-1].slope is None else steps
    found[0] = _first_norms(hidden[0], q, region.net.input_shape).expand(len(region), -1)
    if len(hidden) == 1:
        return found
    per_example = _bytes_per_example(hidden, region.net.input_shape, region.net.dtype)
    batches = torch.arange(len(region), device=region.net.device).split(max(1, budget // per_example))
    pieces = [_deeper_norms(region.restrict(batch), hidden, q) for batch in batches]
    for place in range(1, len(hidden)):
        parts = [piece[place - 1] for piece in pieces]
        found[place] = None if parts[0] is None else torch.cat(parts)  # type: ignore[arg-type]
    return found


def _bytes_per_example(hidden: list[Step], input_shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Dense rows of the two widest neighbouring matrices, with room for a padded border and a copy."""
    dense = [math.prod(step.shape) for step in hidden[1:] if step.conv is None]
    local = [hidden[1].shape[0]] if hidden[1].conv is not None else []
    return 3 * max([*dense, *local]) * math.prod(input_shape) * (torch.finfo(dtype).bits // 8)


def _first_norms(step: Step, q: float, input_shape: tuple[int, ...]) -> Float[Tensor, " 1 units"]:
    """The rows are the weights; at the border a filter keeps only the taps that see a pixel."""
    weight = step.weight()
    if step.conv is None:
        return norm(weight, q)[None]
    conv = step.conv
    seen = torch.ones(1, *input_shape, dtype=weight.dtype, device=weight.device)
    if math.isinf(q):
        taps = F.unfold(seen, weight.shape[2:], conv.dilation, conv.padding, conv.stride)[0]  # (taps, positions)
        return (weight.abs().flatten(1)[:, :, None] * taps).amax(1).reshape(1, -1)
    # Scaled so that no power overflows; a sum over the taps that see a pixel is a convolution with ones.
    scale = weight.abs().amax()
    scale = scale if float(scale) > 0 else torch.ones_like(scale)
    sums = F.conv2d(seen, (weight / scale).abs() ** q, None, conv.stride, conv.padding, conv.dilation)
    return (sums ** (1 / q) * scale).flatten(1)


def _deeper_norms(region: LinearRegion, hidden: list[Step], q: float) -> list[Tensor | None]:
    """The norms of all layers but the first."""
    found: list[Tensor | None] = []
    dense: Tensor | None = None  # (batch, units, inputs), the rows of the layer below
    place = 1
    if hidden[0].conv is not None and hidden[1].conv is not None:
        consumer = hidden[2] if len(hidden) > 2 and hidden[2].conv is None else None
        norms, rows = _local_norms(region, hidden[0], hidden[1], consumer, q)
        found.append(norms)
        place = 2
        if rows is not None:
            found.append(_norm(rows.flatten(1, 3), q, 1).T)
            place = 3
            if len(hidden) > 3:
                dense = rows.permute(4, 0, 1, 2, 3).flatten(2)
    elif hidden[0].conv is None:
        dense = hidden[0].weight()[None]
    for index in range(place, len(hidden)):
        if hidden[index].conv is not None or dense is None:
            found.append(None)
            dense = None
            continue
        gated = hidden[index].weight() * _gate(region, index - 1).flatten(1)[:, None, :]
        if len(dense) == 1:
            dense = (gated.flatten(0, 1) @ dense[0]).reshape(*gated.shape[:2], -1)
        else:
            dense = gated @ dense
        found.append(norm(dense, q, 2))
    return found


def _gate(region: LinearRegion, place: int) -> Tensor:
    """The slopes of a hidden layer's ReLUs under the pattern, (batch, *shape)."""
    op = region.faces[place].node.op
    assert isinstance(op, ReLU)
    return op.gate(region.patterns[place], region.net.dtype)


@dataclass(frozen=True)
class _Fields:
    """Receptive fields of a convolution behind a convolution, in pixels: where they begin, how large they are."""

    tops: tuple[int, ...]
    lefts: tuple[int, ...]
    height: int
    width: int

    @classmethod
    def of(cls, first: Step, second: Step) -> _Fields:
        a, b = first.conv, second.conv
        assert a is not None
        assert b is not None
        kernels = a.weight.value.shape[2:], b.weight.value.shape[2:]

        def along(axis: int, count: int) -> tuple[tuple[int, ...], int]:
            size = (kernels[0][axis] - 1) * a.dilation[axis] + 1
            size += (kernels[1][axis] - 1) * b.dilation[axis] * a.stride[axis]
            begin = [(i * b.stride[axis] - b.padding[axis]) * a.stride[axis] - a.padding[axis] for i in range(count)]
            return tuple(begin), size

        (tops, height), (lefts, width) = along(0, second.shape[1]), along(1, second.shape[2])
        return cls(tops, lefts, height, width)

    def border(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """How far the fields reach beyond an image: left, right, top, bottom."""
        left, top = max(0, -min(self.lefts)), max(0, -min(self.tops))
        right = max(0, max(self.lefts) + self.width - size[1])
        bottom = max(0, max(self.tops) + self.height - size[0])
        return left, right, top, bottom


def _filters(first: Step, second: Step, fields: _Fields) -> Float[Tensor, " channels field taps"]:
    """The constant matrices: column (c1, i, j) of channel c2 is W2[c2, c1, i, j] times the filter c1 shifted to (i, j)."""
    inner, outer = first.weight(), second.weight()
    a, b = first.conv, second.conv
    assert a is not None
    assert b is not None
    rows, columns = outer.shape[2:]
    shifted = inner.new_zeros(inner.shape[0], rows, columns, inner.shape[1], fields.height, fields.width)
    (down, right), (high, wide) = (
        a.dilation,
        ((inner.shape[2] - 1) * a.dilation[0], (inner.shape[3] - 1) * a.dilation[1]),
    )
    for i in range(rows):
        for j in range(columns):
            top, left = i * b.dilation[0] * a.stride[0], j * b.dilation[1] * a.stride[1]
            shifted[:, i, j, :, top : top + high + 1 : down, left : left + wide + 1 : right] = inner
    taps = shifted.reshape(inner.shape[0] * rows * columns, -1).T
    return outer.flatten(1)[:, None, :] * taps


def _local_norms(
    region: LinearRegion, first: Step, second: Step, consumer: Step | None, q: float
) -> tuple[Float[Tensor, " batch units"], Float[Tensor, " rows channels height width batch"] | None]:
    """The norms of a convolution behind a convolution, and the dense rows of a matrix behind both.

    The batch is the innermost axis throughout, so that fields are added up in long runs of memory.
    """
    conv = second.conv
    assert conv is not None
    fields = _Fields.of(first, second)
    filters = _filters(first, second, fields)
    count, field = filters.shape[:2]
    filters = filters.flatten(0, 1)
    gates = F.unfold(_gate(region, 0), conv.weight.value.shape[2:], conv.dilation, conv.padding, conv.stride)
    gates = gates.permute(2, 1, 0).contiguous()  # (positions, taps, batch)
    channels, height, width = region.net.input_shape
    positions, _, batch = gates.shape
    norms = gates.new_empty(count, positions, batch)
    left, right, top, bottom = fields.border((height, width))
    total = weight = behind = product = None
    rows = gates.new_empty(count * field, batch)
    if consumer is not None:
        # The columns of the matrix by position: (positions, rows, channels).
        weight = consumer.weight().reshape(-1, count, positions).permute(2, 0, 1).contiguous()
        behind = _gate(region, 1).flatten(2).permute(2, 1, 0).contiguous()  # (positions, channels, batch)
        total = gates.new_zeros(weight.shape[1], channels, height + top + bottom, width + left + right, batch)
        product = gates.new_empty(weight.shape[1], field * batch)
    for place, y, x, mask in _positions(fields, (height, width), gates):
        torch.mm(filters, gates[place], out=rows)
        made = rows.view(count, field, batch)
        if mask is not None:
            made.mul_(mask.repeat(channels)[:, None])
        norms[:, place] = _norm(made, q, 1)
        if total is not None:
            assert weight is not None
            assert behind is not None
            assert product is not None
            made.mul_(behind[place][:, None])
            torch.mm(weight[place], rows.view(count, -1), out=product)
            part = total[:, :, y + top : y + top + fields.height, x + left : x + left + fields.width]
            part += product.view(-1, channels, fields.height, fields.width, batch)
    dense = None if total is None else total[:, :, top : top + height, left : left + width]
    return norms.permute(2, 0, 1).flatten(1), dense


def _positions(fields: _Fields, size: tuple[int, int], like: Tensor) -> Iterator[tuple[int, int, int, Tensor | None]]:
    """Every position with its field's corner, and a mask of the field's pixels that exist, None if all do."""
    place = 0
    for y in fields.tops:
        for x in fields.lefts:
            rows = torch.arange(y, y + fields.height, device=like.device)
            columns = torch.arange(x, x + fields.width, device=like.device)
            inside = ((rows >= 0) & (rows < size[0]))[:, None] & ((columns >= 0) & (columns < size[1]))
            yield place, y, x, None if bool(inside.all()) else inside.flatten().to(like.dtype)
            place += 1


def _norm(rows: Tensor, q: float, axis: int) -> Tensor:
    """The norm along an axis, in one pass where torch has one."""
    if q in (1.0, 2.0, math.inf):
        return torch.linalg.vector_norm(rows, q, dim=axis)
    return norm(rows.movedim(axis, -1), q, rows.dim() - 1)
