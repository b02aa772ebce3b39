"""The open leaves of branch and bound, kept small: of every point only at the units that its whole ball leaves open.

Any slopes and multipliers give bounds, so half and single precision will do for where to start from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from relucert.bounding.split_bounds import Numbers, Signs
from relucert.networks.graph import Node

KINDS = (("signs", torch.int8), ("slopes", torch.float16), ("betas", torch.float32))


class LeafStore:
    """Leaves by point and slot; the slot of a leaf that was taken is used again."""

    def __init__(
        self,
        relus: Sequence[Node],
        unstable: dict[int, Bool[Tensor, " points *shape"]],
        points: int,
        dtype: torch.dtype,
    ):
        self.relus, self.dtype = relus, dtype
        self.sizes = [math.prod(node.shape) for node in relus]
        self.open = [row.nonzero()[:, 0] for row in self._flat(unstable, points)]
        self.rows: dict[int, _Rows] = {}

    def add(
        self, owner: Int[Tensor, " leaves"], signs: Signs, slopes: Numbers, betas: Numbers,
        units: Int[Tensor, " leaves k"],
    ) -> list[int]:  # fmt: skip
        """Keep leaves of the points `owner`, with the units that are worth a split; their slots."""
        slots = [0] * len(owner)
        parts = {"signs": signs, "slopes": slopes, "betas": betas}
        every = {kind: self._flat(part, len(owner)) for kind, part in parts.items()}
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            new = {kind: every[kind][places][:, self.open[point]].to(dtype) for kind, dtype in KINDS}
            found = self.rows.setdefault(point, _Rows()).add({**new, "units": units[places]})
            for place, slot in zip(places.tolist(), found, strict=True):
                slots[place] = slot
        return slots

    def take(
        self, owner: Int[Tensor, " leaves"], slots: Int[Tensor, " leaves"]
    ) -> tuple[Signs, Numbers, Numbers, Int[Tensor, " leaves k"]]:
        """Signs, slopes, multipliers and units of leaves, which are forgotten here."""
        every = {
            kind: torch.zeros(len(owner), sum(self.sizes), dtype=torch.int8 if kind == "signs" else self.dtype)
            for kind, _ in KINDS
        }
        units: list[Tensor | None] = [None] * len(owner)
        for point in owner.unique().tolist():
            places = (owner == point).nonzero()[:, 0]
            stored = self.rows[point].take(slots[places])
            for kind, values in every.items():
                values[places[:, None], self.open[point][None]] = stored[kind].to(values.dtype)
            for place, row in zip(places.tolist(), stored["units"], strict=True):
                units[place] = row
        signs, slopes, betas = (self._parts(every[kind]) for kind, _ in KINDS)
        return signs, slopes, betas, torch.stack([row for row in units if row is not None])

    def forget(self, point: int) -> None:
        """Drop all leaves of a point."""
        self.rows.pop(point, None)

    def size(self, point: int | None = None) -> int:
        """The bytes that leaves take, all or those of a point."""
        chosen = self.rows.values() if point is None else [self.rows[point]] if point in self.rows else []
        return sum(rows.size for rows in chosen)

    def _flat(self, part: dict[int, Tensor], count: int) -> Tensor:
        """All units in a row, of a network without any none."""
        return torch.cat(
            [torch.zeros(count, 0, dtype=torch.bool), *(part[node.index].flatten(1) for node in self.relus)], 1
        )

    def _parts(self, every: Tensor) -> dict[int, Tensor]:
        pieces = zip(self.relus, every.split(self.sizes, 1), strict=True)
        return {node.index: part.reshape(-1, *node.shape) for node, part in pieces}


class _Rows:
    """Rows of tensors that come and go; the place of a row that has gone is used again."""

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
