"""The rows of two convolutions in blocks of pixels, made once for every pattern that is seen in blocks of one kind.

What a block has of the rows depends on the example only through the slopes of the few units that touch it (`local_rows`).
Images have the same patterns in many places, most of all where they are empty: equal patterns share one row of a table.
Patterns are compared exactly: two places share a row if and only if all their slopes are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from relucert.core.products import product
from relucert.networks.local_rows import Block, Plan, products

SHARED = 0.75  # the share of different patterns above which rows are made for every block and example
CODES = 2**62  # numbers that stand for patterns
BITS = 48  # slopes of a place that one exact float64 stands for


@lru_cache(maxsize=64)
def kinds(plan: Plan) -> tuple[tuple[Block, ...], ...]:
    """The blocks of each kind."""
    return tuple(tuple(block for block in plan.blocks if block.kind == kind) for kind in range(len(plan.kinds)))


def windows(
    table: Num[Tensor, " height width *rest"], rows: Sequence[tuple[int, int]], columns: Sequence[tuple[int, int]]
) -> Num[Tensor, " windows down across *rest"]:
    """Windows of equal size of a table, from their first and last rows and columns."""
    down = torch.tensor([list(range(*each)) for each in rows], device=table.device)
    across = torch.tensor([list(range(*each)) for each in columns], device=table.device)
    place = down[:, :, None] * table.shape[1] + across[:, None]
    return table.flatten(0, 1).index_select(0, place.flatten()).unflatten(0, place.shape)


def units(table: Tensor, blocks: Sequence[Block]) -> Num[Tensor, " blocks down across *rest"]:
    """What belongs to the units that touch blocks of one kind, of a table of the first convolution's units."""
    return windows(table, [block.down.units for block in blocks], [block.across.units for block in blocks])


def positions(table: Tensor, blocks: Sequence[Block]) -> Float[Tensor, " blocks down across *rest"]:
    """What belongs to the positions that see blocks of one kind, of a table of the second convolution's positions."""
    return windows(table, [block.down.positions for block in blocks], [block.across.positions for block in blocks])


@dataclass(frozen=True, eq=False)
class KindTable:
    """The rows of all blocks of one kind: `made` has those of every pattern, `which` the pattern of a block and example."""

    blocks: tuple[Block, ...]
    gates: Float[Tensor, " patterns columns"]
    made: Float[Tensor, " patterns pixels places"]
    which: Int[Tensor, " blocks batch"] | None

    def spread(self, values: Float[Tensor, " patterns *rest"], blocks: slice, batch: int) -> Tensor:
        """What belongs to the patterns of some blocks and of all examples: (blocks, batch, *rest)."""
        if self.which is None:
            return values.unflatten(0, (-1, batch))[blocks]
        chosen = self.which[blocks]
        return values.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)

    def gathered(self, values: Float[Tensor, " blocks batch n"]) -> Float[Tensor, " patterns n"]:
        """The sums of values over the blocks and examples with the same pattern."""
        if self.which is None:
            return values.flatten(0, 1)
        return values.new_zeros(len(self.gates), values.shape[2]).index_add_(
            0, self.which.flatten(), values.flatten(0, 1)
        )


@torch.no_grad()
def kind_tables(
    filters: tuple[Tensor, Tensor], slopes: Float[Tensor, " batch units height width"], plan: Plan
) -> list[KindTable]:
    """The rows of all blocks, kind by kind, for filters (units, channels, kh, kw) and (maps, units, lh, lw)."""
    near = slopes.permute(2, 3, 0, 1).contiguous()
    every = torch.arange(near.shape[:3].numel(), device=near.device).view(near.shape[:3])
    codes, near = place_codes(slopes), near.flatten(0, 2)
    found = []
    for blocks, taps in zip(kinds(plan), plan.kinds, strict=True):
        places = units(every, blocks).permute(0, 3, 1, 2).flatten(2).flatten(0, 1)  # blocks x examples, units' places
        which = None
        if codes is not None:
            which, first = _patterns(codes.index_select(0, places.flatten()).view(len(blocks), len(slopes), -1))
            places = places if first is None else places.index_select(0, first)
        gates = near.index_select(0, places.flatten()).view(len(places), -1)
        columns = products(*filters, taps).T
        pixels = blocks[0].stop - blocks[0].start
        found.append(KindTable(blocks, gates, product(gates, columns).unflatten(1, (pixels, -1)), which))
    return found


@torch.no_grad()
def place_codes(slopes: Float[Tensor, " batch units height width"]) -> Int[Tensor, " places"] | None:
    """A number for every place (down, across, example): equal ones have equal slopes, and others do not.

    None for slopes of more than two values, or of more units than a number has digits.
    """
    low, high = slopes.amin(), slopes.amax()
    if slopes.shape[1] > BITS or not bool(((slopes == low) | (slopes == high)).all()):
        return None
    digits = 2.0 ** torch.arange(slopes.shape[1], dtype=torch.float64, device=slopes.device)
    codes = (slopes == high).permute(2, 3, 0, 1).to(torch.float64) @ digits
    # Small numbers, so that those of several places fit into one.
    return codes.to(torch.long).unique(return_inverse=True)[1].flatten()


def _patterns(codes: Int[Tensor, " blocks batch places"]) -> tuple[Tensor | None, Tensor | None]:
    """The number (blocks, batch) of every pattern and where each is seen; None where too few are equal."""
    base = int(codes.amax()) + 1
    if base ** codes.shape[2] > CODES:
        return None, None
    powers = torch.tensor([base**place for place in range(codes.shape[2])], device=codes.device)
    different, which = (codes * powers).sum(2).unique(return_inverse=True)
    if len(different) > SHARED * which.numel():
        return None, None
    flat = which.flatten()
    first = flat.new_empty(len(different)).scatter_(0, flat, torch.arange(len(flat), device=flat.device))
    return which, first
