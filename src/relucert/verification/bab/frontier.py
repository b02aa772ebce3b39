"""The frontier of branch and bound: its open subproblems while it runs, and what is saved of them for a smaller ball.

Of every point only the units that are unstable over its whole ball are stored. Any slopes and multipliers give sound bounds, so
half and single precision suffice for the values from which dual ascent starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from relucert.bounding.split_bounds import Numbers, Splits
from relucert.networks.graph import Node

KINDS = (("signs", torch.int8), ("slopes", torch.float16), ("betas", torch.float32))


class Leaves(NamedTuple):
    """Some subproblems by node: splits (1 active, -1 inactive, 0 open), lower slopes, and split multipliers."""

    splits: Splits
    slopes: Numbers
    betas: Numbers

    def restrict(self, index: Tensor | slice) -> Leaves:
        """Some of them, by a mask, positions or a slice; positions may repeat."""
        splits, slopes, betas = ({node: value[index] for node, value in part.items()} for part in self)
        return Leaves(splits, slopes, betas)


class Frontier:
    """The open subproblems by point and slot; the slot of one that was taken is used again."""

    def __init__(
        self,
        relus: Sequence[Node],
        unstable: dict[int, Bool[Tensor, " points *shape"]],
        points: int,
        dtype: torch.dtype,
    ):
        self.relus, self.dtype = relus, dtype
        self.sizes = [math.prod(node.shape) for node in relus]
        self.unstable = [row.nonzero()[:, 0] for row in self._flat(unstable, points)]
        self.rows: dict[int, _Rows] = {}

    def add(self, owner: Int[Tensor, " leaves"], leaves: Leaves, units: Int[Tensor, " leaves k"]) -> list[int]:
        """Store subproblems of the points `owner` with their candidate units for the next split; their slots."""
        slots = [0] * len(owner)
        every = {kind: self._flat(part, len(owner)) for (kind, _), part in zip(KINDS, leaves, strict=True)}
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            new = {kind: every[kind][places][:, self.unstable[point]].to(dtype) for kind, dtype in KINDS}
            found = self.rows.setdefault(point, _Rows()).add({**new, "units": units[places]})
            for place, slot in zip(places.tolist(), found, strict=True):
                slots[place] = slot
        return slots

    def take(
        self, owner: Int[Tensor, " leaves"], slots: Int[Tensor, " leaves"]
    ) -> tuple[Leaves, Int[Tensor, " leaves k"]]:
        """Remove subproblems; their splits, slopes and multipliers, and their candidate units."""
        every = {
            kind: torch.zeros(len(owner), sum(self.sizes), dtype=torch.int8 if kind == "signs" else self.dtype)
            for kind, _ in KINDS
        }
        units: list[Tensor | None] = [None] * len(owner)
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            stored = self.rows[point].take(slots[places])
            for kind, values in every.items():
                values[places[:, None], self.unstable[point][None]] = stored[kind].to(values.dtype)
            for place, row in zip(places.tolist(), stored["units"], strict=True):
                units[place] = row
        splits, slopes, betas = (self._by_node(every[kind]) for kind, _ in KINDS)
        return Leaves(splits, slopes, betas), torch.stack([row for row in units if row is not None])

    def saved(self, point: int, row: int, slots: Int[Tensor, " leaves"]) -> SavedSubproblems:
        """The splits of some subproblems of a point, all about one row of its property."""
        splits = self.rows[point].rows["signs"][slots]
        return SavedSubproblems(torch.full((len(slots),), row), self.unstable[point], splits)

    def forget(self, point: int) -> None:
        """Drop all subproblems of a point."""
        self.rows.pop(point, None)

    def size(self, point: int | None = None) -> int:
        """The bytes that subproblems take, all or those of a point."""
        chosen = self.rows.values() if point is None else [self.rows[point]] if point in self.rows else []
        return sum(rows.size for rows in chosen)

    def _flat(self, part: dict[int, Tensor], count: int) -> Tensor:
        """All units in a row; of a network without ReLUs none."""
        return torch.cat(
            [torch.zeros(count, 0, dtype=torch.bool), *(part[node.index].flatten(1) for node in self.relus)], 1
        )

    def _by_node(self, every: Tensor) -> dict[int, Tensor]:
        pieces = zip(self.relus, every.split(self.sizes, 1), strict=True)
        return {node.index: part.reshape(-1, *node.shape) for node, part in pieces}


class _Rows:
    """Rows of tensors that come and go; the slot of a row that has gone is used again."""

    def __init__(self) -> None:
        self.rows: dict[str, Tensor] = {}
        self.unused: list[int] = []

    def add(self, new: dict[str, Tensor]) -> list[int]:
        """Store rows and return their slots."""
        count = len(new["units"])
        if len(self.unused) < count:
            size = len(self.rows["units"]) if self.rows else 0
            more = max(count, size // 2, 16)
            for key, value in new.items():
                empty = value.new_empty(more, *value.shape[1:])
                self.rows[key] = torch.cat([self.rows[key], empty]) if key in self.rows else empty
            self.unused += range(size, size + more)
        slots = [self.unused.pop() for _ in range(count)]
        place = torch.tensor(slots)
        for key, value in new.items():
            self.rows[key][place] = value
        return slots

    def take(self, slots: Tensor) -> dict[str, Tensor]:
        """The rows of slots, which are free from then on."""
        self.unused += slots.tolist()
        return {key: value[slots] for key, value in self.rows.items()}

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(value.numel() * value.element_size() for value in self.rows.values())


@dataclass(frozen=True, eq=False)
class SavedSubproblems:
    """The open subproblems of one point: the `row` of the property that each is about, and its splits at `units`.

    Units are numbered over all ReLUs in the order of the nodes; 1 active, -1 inactive, 0 open. What no subproblem covers is
    proved, in this ball and in every smaller one: a search there needs these subproblems only.
    """

    row: Int[Tensor, " leaves"]
    units: Int[Tensor, " units"]
    splits: Int8[Tensor, " leaves units"]

    def leaves(
        self, row: int, on: Bool[Tensor, " all"], off: Bool[Tensor, " all"], unstable: Bool[Tensor, " all"]
    ) -> Int8[Tensor, " leaves all"]:
        """The subproblems of one row in a ball where units are known to be `on`, `off` or `unstable`, each once.

        A subproblem whose split contradicts what is known is empty. Splits of other units that are stable are dropped, which
        makes a subproblem larger, never smaller.

        >>> saved = SavedSubproblems(torch.zeros(3, dtype=torch.long), torch.tensor([0, 2]),
        ...                          torch.tensor([[1, 1], [-1, 1], [1, -1]], dtype=torch.int8))
        >>> on = torch.tensor([True, False, False])
        >>> saved.leaves(0, on, ~on & False, ~on).tolist()
        [[0, 0, -1], [0, 0, 1]]
        """
        splits = self.splits[self.row == row]
        empty = ((splits < 0) & on[self.units]) | ((splits > 0) & off[self.units])
        kept = splits[~empty.any(1)] * unstable[self.units]
        found = torch.zeros(len(kept), len(unstable), dtype=torch.int8)
        found[:, self.units] = kept
        # Without units all subproblems are the same one.
        return found.unique(dim=0) if found.numel() else found[:1]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.numel() * part.element_size() for part in (self.row, self.units, self.splits))

    @staticmethod
    def joined(parts: list[SavedSubproblems]) -> SavedSubproblems:
        """The subproblems of several, at the same units."""
        rows, splits = torch.cat([part.row for part in parts]), torch.cat([part.splits for part in parts])
        return SavedSubproblems(rows, parts[0].units, splits)
