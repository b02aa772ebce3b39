"""Rows of V of a convolution behind a convolution, and of a matrix behind both, by products of small blocks.

A unit's row lives on its receptive field. The image is cut into blocks of a few pixels; a block is touched by few units of
the first convolution (the gates `g` of which are all that depends on the example) and these are seen from few positions of
the second. In a block the rows of all channels at all these positions are one product `F g`: `F` has the second filter
times the first, is the same for all examples, and the same for most blocks. The rows of the matrix are then one more
product, over the positions and channels of the second convolution, and nothing overlaps. The batch is the innermost axis,
so every product is a matrix of a good size with the batch as its columns.

The gradient goes the same way back, block by block, and makes the rows again instead of keeping them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.norms import norm_slope
from relucert.networks.patches import Axis

Taps = tuple[tuple[int, ...], ...]
Gates = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Stretch:
    """A block along one axis: pixels, the units that touch them, the positions that see these, each from lo to hi.

    `inner[pixel][unit]` is the tap of the first filter with which the unit sees the pixel, `outer[position][unit]` that of
    the second with which the position sees the unit; -1 where it does not.
    """

    pixels: tuple[int, int]
    units: tuple[int, int]
    positions: tuple[int, int]
    inner: Taps
    outer: Taps


@lru_cache(maxsize=64)
def stretches(axis: Axis) -> tuple[Stretch, ...]:
    """The blocks along an axis, aligned to the stride so that few units touch each; blocks that nothing sees are left out."""
    pixels, units, positions = axis.sizes
    stride, padding = axis.first.stride, axis.first.padding
    size = stride if stride > 1 else 2
    found = []
    for start in range(-padding, pixels, size):
        lo, hi = max(0, start), min(pixels, start + size)
        touching = [a for a in range(units) if any(axis.first.tap(y, a) >= 0 for y in range(lo, hi))]
        if not touching:
            continue
        near = (touching[0], touching[-1] + 1)
        seeing = [c for c in range(positions) if any(axis.second.tap(a, c) >= 0 for a in range(*near))]
        if not seeing:
            continue
        far = (seeing[0], seeing[-1] + 1)
        inner = tuple(tuple(axis.first.tap(y, a) for a in range(*near)) for y in range(lo, hi))
        outer = tuple(tuple(axis.second.tap(a, c) for a in range(*near)) for c in range(*far))
        found.append(Stretch((lo, hi), near, far, inner, outer))
    return tuple(found)


@dataclass(frozen=True)
class Block:
    """A block of pixels: its stretch down and across, where its pixels stand among all (block by block), and its kind."""

    down: Stretch
    across: Stretch
    start: int
    stop: int
    kind: int


@dataclass(frozen=True, eq=False)
class Plan:
    """The blocks of an image, and the taps of every kind of block: blocks of one kind have the same `F`."""

    blocks: tuple[Block, ...]
    kinds: tuple[tuple[Taps, ...], ...]

    @property
    def pixels(self) -> int:
        """How many pixels are in a block, times the channels."""
        return self.blocks[-1].stop if self.blocks else 0


@lru_cache(maxsize=64)
def plan(down: Axis, across: Axis, channels: int) -> Plan:
    """The blocks of an image under two convolutions."""
    found: list[Block] = []
    kinds: dict[tuple[Taps, ...], int] = {}
    start = 0
    for one in stretches(down):
        for other in stretches(across):
            count = channels * (one.pixels[1] - one.pixels[0]) * (other.pixels[1] - other.pixels[0])
            kind = kinds.setdefault((one.inner, one.outer, other.inner, other.outer), len(kinds))
            found.append(Block(one, other, start, start + count, kind))
            start += count
    return Plan(tuple(found), tuple(kinds))


def products(
    inner: Float[Tensor, " units channels kh kw"], outer: Float[Tensor, " maps units lh lw"], kind: tuple[Taps, ...]
) -> Float[Tensor, " rows columns"]:
    """`F` of a kind of block: rows (pixel, position, map), columns (unit); differentiable in both filters."""
    rows_in, rows_out, columns_in, columns_out = (torch.tensor(taps) for taps in kind)
    # A last tap of zero stands for every place that is not seen: -1 picks it.
    near = torch.nn.functional.pad(inner, (0, 1, 0, 1))[:, :, rows_in][..., columns_in]  # c g y a x e
    far = torch.nn.functional.pad(outer, (0, 1, 0, 1))[:, :, rows_out][..., columns_out]  # o c p a q e
    near = near.permute(1, 2, 4, 3, 5, 0).flatten(3).flatten(0, 2)  # g y x, a e c
    far = far.permute(2, 4, 0, 3, 5, 1).flatten(3).flatten(0, 2)  # p q o, a e c
    return (near[:, None] * far).flatten(0, 1)


class LocalRows(torch.autograd.Function):
    """The norms of the second convolution's rows, and the rows of a matrix behind it.

    `apply(inner, outer, matrix, gates, q, plan)` takes the filters (units, channels, kh, kw) and (maps, units, lh, lw), the
    matrix (rows, maps, height, width) or None, and the gates ((batch, units, ...), (batch, maps, ...)) of the ReLUs behind
    both, which are constants. It gives the norms (batch, maps, height, width) and the rows (pixels, rows, batch), pixels in the
    order of the plan.
    """

    @staticmethod
    def forward(
        ctx: Any, inner: Tensor, outer: Tensor, matrix: Tensor | None, gates: Gates, q: float, plan: Plan
    ) -> tuple[Tensor, Tensor | None]:
        ctx.work = _Work(inner, outer, matrix, gates, q, plan)
        ctx.norms, rows = ctx.work.forward()
        return ctx.norms.permute(3, 2, 0, 1).contiguous(), rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        norms, rows = gradients
        assert norms is not None
        return (*ctx.work.backward(ctx.norms, norms.permute(2, 3, 1, 0).contiguous(), rows), None, None, None)


class _Work:
    """The tensors of `LocalRows` laid out for its products, the batch innermost, and the two passes over the blocks."""

    def __init__(
        self, inner: Tensor, outer: Tensor, matrix: Tensor | None, gates: Gates, q: float, plan: Plan
    ):  # fmt: skip
        self.inner, self.outer, self.q, self.plan = inner, outer, q, plan
        self.near, self.far = (gate.permute(2, 3, 1, 0).contiguous() for gate in gates)
        self.matrix = None if matrix is None else matrix.permute(2, 3, 1, 0).contiguous()  # height, width, maps, rows
        self.filters = [products(inner, outer, kind) for kind in plan.kinds]

    def gates(self, block: Block) -> Float[Tensor, " columns batch"]:
        """The gates of the units that touch a block."""
        return _cut(self.near, block.down.units, block.across.units)

    def made(self, block: Block, gates: Tensor) -> Float[Tensor, " pixels n batch"]:
        """The rows of the second convolution in a block, n = positions x maps."""
        rows = torch.mm(self.filters[block.kind], gates)
        return rows.view(block.stop - block.start, -1, gates.shape[1])

    def forward(self) -> tuple[Tensor, Tensor | None]:
        batch = self.near.shape[3]
        largest: Tensor | None = None
        q = self.q
        if not (q == 1 or math.isinf(q) or (q == 2 and squares_are_safe(self.filters))):
            # Powers of entries divided by the largest one cannot overflow, nor vanish all of them.
            largest = torch.zeros_like(self.far)
            for block in self.plan.blocks:
                part = _part(largest, block)
                part.copy_(torch.maximum(part, self.made(block, self.gates(block)).abs().amax(0).view(part.shape)))
            largest.masked_fill_(largest == 0, 1.0)
        norms = torch.zeros_like(self.far)
        rows = None
        if self.matrix is not None:
            rows = self.near.new_empty(self.plan.pixels, self.matrix.shape[3], batch)
        for block in self.plan.blocks:
            made = self.made(block, self.gates(block))
            part = _part(norms, block)
            if math.isinf(q):
                part.copy_(torch.maximum(part, made.abs().amax(0).view(part.shape)))
            elif q == 1:
                part += made.abs().sum(0).view(part.shape)
            elif largest is None:
                part += made.square().sum(0).view(part.shape)
            else:
                ratio = made.abs() / _part(largest, block).reshape(1, -1, batch)
                part += ratio.pow_(q).sum(0).view(part.shape)
            if rows is not None:
                assert self.matrix is not None
                made *= _part(self.far, block).reshape(1, -1, batch)
                matrix = _part(self.matrix, block).reshape(made.shape[1], -1)
                torch.bmm(matrix.T.expand(len(made), -1, -1), made, out=rows[block.start : block.stop])
        if q != 1 and not math.isinf(q):
            norms = norms.pow_(1 / q) if largest is not None else norms.sqrt_()
            norms = norms if largest is None else norms * largest
        return norms, rows

    def backward(self, norms: Tensor, slopes: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradients with respect to both filters and the matrix, of what has gradients `slopes` and `rows`."""
        batch = self.near.shape[3]
        found = [torch.zeros_like(filters) for filters in self.filters]
        matrix = None if self.matrix is None else torch.zeros_like(self.matrix)
        slopes = slopes / self._ties(norms) if math.isinf(self.q) else slopes
        for block in self.plan.blocks:
            gates = self.gates(block)
            made = self.made(block, gates)
            total = norm_slope(made, _part(norms, block).reshape(1, -1, batch), self.q)
            total *= _part(slopes, block).reshape(1, -1, batch)
            if rows is not None:
                assert self.matrix is not None
                assert matrix is not None
                behind = _part(self.far, block).reshape(1, -1, batch)
                given = rows[block.start : block.stop]
                made *= behind
                here = _part(matrix, block)
                here += torch.addbmm(made.new_zeros(()), made, given.transpose(1, 2), beta=0).view(here.shape)
                back = torch.bmm(
                    _part(self.matrix, block).reshape(1, made.shape[1], -1).expand(len(made), -1, -1), given
                )
                total += back.mul_(behind)
            found[block.kind].addmm_(total.view(-1, batch), gates.T)
        with torch.enable_grad():
            inner, outer = self.inner.detach().requires_grad_(), self.outer.detach().requires_grad_()
            filters = [products(inner, outer, kind) for kind in self.plan.kinds]
            first, second = torch.autograd.grad(filters, [inner, outer], found)
        return first, second, None if matrix is None else matrix.permute(3, 2, 0, 1)

    def _ties(self, norms: Tensor) -> Tensor:
        """How many entries of a row are its largest: they share the gradient of the maximum."""
        ties = torch.zeros_like(norms)
        for block in self.plan.blocks:
            made, part = self.made(block, self.gates(block)), _part(norms, block)
            same = made.abs() == part.reshape(1, -1, made.shape[2])
            here = _part(ties, block)
            here += same.sum(0).view(here.shape)
        return ties.clamp_(min=1)


def squares_are_safe(filters: Sequence[Tensor]) -> bool:
    """Whether no square of a sum of products with 0 and 1 can overflow, nor vanish where the sum does not."""
    if not filters:
        return True
    info = torch.finfo(filters[0].dtype)
    reach = torch.cat([part.abs().flatten() for part in filters])
    reach = reach[reach > 0]
    if len(reach) == 0:
        return True
    return bool(reach.min() * info.eps > math.sqrt(info.tiny)) and bool(reach.max() < math.sqrt(info.max) * info.eps)


def _part(tensor: Tensor, block: Block) -> Tensor:
    """What belongs to the positions that see a block, of a tensor (height, width, ...); a view."""
    (top, bottom), (left, right) = block.down.positions, block.across.positions
    return tensor[top:bottom, left:right]


def _cut(tensor: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """A window of a tensor (height, width, units, batch) as a matrix with the batch as its columns."""
    return tensor[rows[0] : rows[1], columns[0] : columns[1]].reshape(-1, tensor.shape[3])
