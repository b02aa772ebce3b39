"""Norms of the rows of two convolutions, of all units at once, and estimates for a matrix behind both; without gradients.

The blocks are those of `networks.local_rows`. Here the blocks of one kind in a row of blocks go together, and the batch is
outermost: the rows of all of them are one product, and the rows of the matrix one more, which may be made with few digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.products import product
from relucert.networks.local_rows import Block, Gates, Plan, products

ENTRIES = 2**19  # of a temporary: some megabytes that stay in the cache


@dataclass(frozen=True)
class Run:
    """Blocks of one kind, with the same units and positions down."""

    blocks: tuple[Block, ...]

    @property
    def pixels(self) -> int:
        """The pixels of each block, times the channels."""
        return self.blocks[0].stop - self.blocks[0].start

    def units(self, table: Float[Tensor, " height width *rest"]) -> Float[Tensor, " blocks down across *rest"]:
        """What belongs to the units that touch each block, of a table of the first convolution's units."""
        return _windows(table, self.blocks[0].down.units, [block.across.units for block in self.blocks])

    def positions(self, table: Float[Tensor, " height width *rest"]) -> Float[Tensor, " blocks down across *rest"]:
        """What belongs to the positions that see each block, of a table of the second convolution's positions."""
        return _windows(table, self.blocks[0].down.positions, [block.across.positions for block in self.blocks])

    def gather(self, table: Float[Tensor, " height width *rest"], found: Tensor, *, largest: bool) -> None:
        """Add the values (blocks, down, across, *rest) of all positions to a table, or compare with its maxima."""
        top, bottom = self.blocks[0].down.positions
        for place, block in enumerate(self.blocks):
            left, right = block.across.positions
            part = table[top:bottom, left:right]
            if largest:
                torch.maximum(part, found[place], out=part)
            else:
                part += found[place]


def _windows(table: Tensor, rows: tuple[int, int], columns: list[tuple[int, int]]) -> Tensor:
    every = torch.tensor([place for lo, hi in columns for place in range(lo, hi)], device=table.device)
    found = table[rows[0] : rows[1]].index_select(1, every)
    return found.unflatten(1, (len(columns), -1)).transpose(0, 1)


@lru_cache(maxsize=64)
def runs(plan: Plan, most: int) -> tuple[Run, ...]:
    """The blocks of a plan, grouped by row and kind, at most so many together."""
    groups: dict[tuple[tuple[int, int], int], list[Block]] = {}
    for block in plan.blocks:
        groups.setdefault((block.down.pixels, block.kind), []).append(block)
    return tuple(
        Run(tuple(blocks[start : start + most]))
        for blocks in groups.values()
        for start in range(0, len(blocks), max(1, most))
    )


@torch.no_grad()
def local_norms(
    filters: tuple[Tensor, Tensor], matrix: Tensor | None, gates: Gates, q: float, plan: Plan, dtype: torch.dtype
) -> tuple[Float[Tensor, " batch maps height width"], Float[Tensor, " batch rows"] | None]:
    """The norms of the second convolution's rows, q = 1, 2 or inf, and norms of the matrix's rows multiplied out in `dtype`.

    `filters` are (units, channels, kh, kw) and (maps, units, lh, lw), `matrix` is (rows, maps, height, width), `gates` are the
    slopes ((batch, units, ...), (batch, maps, ...)) of the ReLUs behind both. Sums over pixels are made in the dtype of the
    filters.
    """
    near, far = (gate.permute(2, 3, 0, 1).contiguous() for gate in gates)  # height, width, batch, channels
    made_of = [products(*filters, kind).T for kind in plan.kinds]
    batch, largest = near.shape[2], math.isinf(q)
    norms = torch.zeros_like(far)
    behind = None if matrix is None else matrix.permute(2, 3, 1, 0).to(dtype, memory_format=torch.contiguous_format)
    dense = None if behind is None else norms.new_zeros(batch, behind.shape[3])
    widest = max((columns.shape[1] for columns in made_of), default=1)
    for run in runs(plan, max(1, ENTRIES // (widest * batch))):
        units = run.units(near).permute(0, 3, 1, 2, 4).reshape(len(run.blocks) * batch, -1)
        made = product(units, made_of[run.blocks[0].kind])
        made = made.view(len(run.blocks), batch, run.pixels, -1)
        behind_run = run.positions(far).permute(0, 3, 1, 2, 4)  # blocks, batch, down, across, maps
        found = _added(made, q, 2).view(behind_run.shape).permute(0, 2, 3, 1, 4)
        run.gather(norms, found, largest=largest)
        if behind is not None and dense is not None:
            made *= behind_run.reshape(len(run.blocks), batch, 1, -1)
            weights = run.positions(behind).flatten(1, 3)
            rows = torch.bmm(made.flatten(1, 2).to(dtype), weights).to(norms.dtype).unflatten(1, (batch, -1))
            sums = _added(rows, q, 2)
            dense = torch.maximum(dense, sums.amax(0)) if largest else dense.add_(sums.sum(0))
    total = _root(norms, q).permute(2, 3, 0, 1).contiguous()
    return total, None if dense is None else _root(dense, q)


def _added(rows: Tensor, q: float, axis: int) -> Tensor:
    """The sums of |entries|^q along an axis, or the largest |entries|."""
    if math.isinf(q):
        return rows.abs().amax(axis)
    return (rows.abs() if q == 1 else rows.square()).sum(axis)


def _root(sums: Tensor, q: float) -> Tensor:
    return sums.sqrt() if q == 2 else sums
