"""Norms of the rows of two convolutions, of all units at once, and of a matrix behind both; gradients of the former.

The rows are those of `networks._block_tables`: of blocks of pixels, once for every pattern in a block. A norm adds up what its
window has of every pattern. Rows of the matrix go a few blocks at a time, so that they stay in the cache, and the norms of the
decision hyperplanes come from them where nothing else is behind the matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.products import product
from relucert.networks._block_tables import KindTable, kind_tables, positions
from relucert.networks.local_rows import Gates, Plan, products

ENTRIES = 2**19  # of a temporary: some megabytes that stay in the cache
KEPT = 2**26  # entries of tables that are kept for the gradient; larger ones are made again


@dataclass(frozen=True, eq=False)
class Behind:
    """A matrix (rows, maps, height, width) behind two convolutions, and functionals (batch, others, rows) of it, if any.

    The functionals are the decision hyperplanes, where these are a combination of the matrix's rows.
    """

    matrix: Tensor
    classes: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LocalNorms:
    """The norms of the second convolution's rows, of the matrix's rows, and of the functionals of these.

    `patterns` says how many rows the tables have, which are None where they are too large to be kept.
    """

    units: Float[Tensor, " batch maps height width"]
    rows: Float[Tensor, " batch rows"] | None
    classes: Float[Tensor, " batch others"] | None
    tables: list[KindTable] | None
    patterns: int


@torch.no_grad()
def local_norms(
    filters: tuple[Tensor, Tensor], behind: Behind | None, gates: Gates, q: float, plan: Plan
) -> LocalNorms:
    """The norms of the second convolution's rows, q = 1, 2 or inf, and those of what is behind.

    `filters` are (units, channels, kh, kw) and (maps, units, lh, lw), `gates` are the slopes ((batch, units, ...), (batch,
    maps, ...)) of the ReLUs behind both. Sums over pixels are made in the dtype of the filters.
    """
    tables = kind_tables(filters, gates[0], plan)
    norms = gates[1].new_zeros(gates[1].permute(0, 2, 3, 1).shape)  # batch, height, width, maps
    rest = None if behind is None else _Behind(behind, gates[1], q)
    for table in tables:
        _gather(norms, table, _added(table.made, q), largest=math.isinf(q))
        if rest is not None:
            rest.add(table)
    kept = tables if sum(table.made.numel() for table in tables) <= KEPT else None
    lengths = _root(norms, q).permute(0, 3, 1, 2).contiguous()
    patterns = sum(len(table.gates) for table in tables)
    return LocalNorms(lengths, *((None, None) if rest is None else rest.norms()), kept, patterns)


def _gather(norms: Tensor, table: KindTable, found: Float[Tensor, " patterns places"], *, largest: bool) -> None:
    """Add what all positions have in the blocks of a kind to their sums, or compare with their maxima."""
    for number, block in enumerate(table.blocks):
        (top, bottom), (left, right) = block.down.positions, block.across.positions
        part = norms[:, top:bottom, left:right]
        here = table.spread(found, slice(number, number + 1), len(norms)).view(part.shape)
        if largest:
            torch.maximum(part, here, out=part)
        else:
            part += here


class _Behind:
    """Sums of powers, or maxima, of the rows of a matrix and of the decision hyperplanes, kind of blocks by kind."""

    def __init__(self, given: Behind, gates: Tensor, q: float):
        self.q = q
        self.far = gates.permute(2, 3, 0, 1).contiguous()  # height, width, batch, maps
        self.matrix = given.matrix.permute(2, 3, 1, 0).contiguous()  # height, width, maps, rows
        self.sums = gates.new_zeros(len(gates), self.matrix.shape[3])
        self.given = None if given.classes is None else given.classes.contiguous()
        self.classes = None if given.classes is None else gates.new_zeros(given.classes.shape[:2])

    def add(self, table: KindTable) -> None:
        """Count the blocks of a kind."""
        batch, pixels = len(self.sums), table.made.shape[1]
        at_once = max(1, ENTRIES // (table.made[0].numel() * batch))
        for start in range(0, len(table.blocks), at_once):
            some = slice(start, min(start + at_once, len(table.blocks)))
            blocks = table.blocks[some]
            made = table.spread(table.made, some, batch)
            far = positions(self.far, blocks).permute(0, 3, 1, 2, 4).reshape(len(blocks), batch, 1, -1)
            made = made * far if table.which is None else made.mul_(far)
            weights = positions(self.matrix, blocks).flatten(1, 3)
            rows = made.new_empty(batch, len(blocks), pixels, weights.shape[2])
            for number, (left, right) in enumerate(zip(made.flatten(1, 2), weights, strict=True)):
                rows[:, number] = product(left, right).unflatten(0, (batch, pixels))
            rows = rows.flatten(1, 2)
            if self.classes is not None and self.given is not None:
                self._join(self.classes, torch.bmm(self.given, rows.transpose(1, 2)), 2)
            self._join(self.sums, rows, 1)

    def _join(self, sums: Float[Tensor, " batch n"], rows: Tensor, pixels: int) -> None:
        """Count some more entries of rows, which are overwritten; `pixels` is their axis."""
        if math.isinf(self.q):
            torch.maximum(sums, rows.abs_().amax(pixels), out=sums)
        else:
            sums += (rows.abs_() if self.q == 1 else rows.square_()).sum(pixels)

    def norms(self) -> tuple[Tensor, Tensor | None]:
        """The norms of the rows, and of the decision hyperplanes."""
        return _root(self.sums, self.q), None if self.classes is None else _root(self.classes, self.q)


def _added(rows: Float[Tensor, " patterns pixels places"], q: float) -> Float[Tensor, " patterns places"]:
    """The sums of |entries|^q over pixels, or the largest |entries|, with one pass over each pixel."""
    found: Tensor | None = None
    for pixel in rows.unbind(1):
        part = pixel.square() if q == 2 else pixel.abs()
        if found is None:
            found = part
        else:
            found = torch.maximum(found, part, out=found) if math.isinf(q) else found.add_(part)
    assert found is not None
    return found


def _root(sums: Tensor, q: float) -> Tensor:
    return sums.sqrt() if q == 2 else sums


@torch.no_grad()
def block_gradients(
    filters: tuple[Tensor, Tensor], tables: list[KindTable], slopes: Float[Tensor, " batch maps height width"],
    norms: Float[Tensor, " batch maps height width"], q: float, plan: Plan,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients with respect to both filters of norms with gradients `slopes`, q = 1 or 2, once for every pattern.

    For q = 1 an entry of a row counts with its sign, which is the pattern's; for q = 2 with itself divided by the norm. So
    what the examples add are factors of the pattern's row, whose sum is all that is needed.
    """
    factors = slopes if q == 1 else slopes / norms.masked_fill(norms == 0, math.inf)
    factors = factors.permute(2, 3, 0, 1).contiguous()  # height, width, batch, maps
    found = []
    for table in tables:
        given = positions(factors, table.blocks).permute(0, 3, 1, 2, 4).flatten(2)
        total = table.made.sign() if q == 1 else table.made.clone()
        total *= table.gathered(given)[:, None]
        found.append(product(table.gates.T, total.flatten(1)).T)
    with torch.enable_grad():
        inner, outer = (weight.detach().requires_grad_() for weight in filters)
        made = [products(inner, outer, kind) for kind in plan.kinds]
        first, second = torch.autograd.grad(made, [inner, outer], found)
    return first, second


class BlockNorms(torch.autograd.Function):
    """`apply(inner, outer, slopes, known, q, plan)`: the known norms of the units, with gradients block by block.

    `inner` and `outer` are the filters, `slopes` those of the first convolution's ReLUs; q is 1 or 2.
    """

    @staticmethod
    def forward(
        ctx: Any, inner: Tensor, outer: Tensor, slopes: Tensor, known: LocalNorms, q: float, plan: Plan
    ) -> Float[Tensor, " batch maps height width"]:
        ctx.save_for_backward(inner, outer, slopes)
        ctx.work = known, q, plan
        return known.units.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        inner, outer, slopes = ctx.saved_tensors
        known, q, plan = ctx.work
        filters = (inner, outer)
        tables = kind_tables(filters, slopes, plan) if known.tables is None else known.tables
        return *block_gradients(filters, tables, gradients[0], known.units, q, plan), None, None, None, None
