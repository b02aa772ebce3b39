"""`Tree`: what is left open of one point's branch and bound, to go on from at a smaller radius.

A leaf that is proved in a ball is proved in every smaller one, so there only the open leaves need be looked at again, and of
the rows of the property only those that have one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tree:
    """Open leaves of one point: the `row` of the property that each is about, and its splits at `units`.

    Units are numbered over all ReLUs in the order of the nodes; 1 on, -1 off, 0 open. What no leaf covers is proved.
    """

    row: Int[Tensor, " leaves"]
    units: Int[Tensor, " units"]
    signs: Int8[Tensor, " leaves units"]

    def leaves(
        self, row: int, on: Bool[Tensor, " all"], off: Bool[Tensor, " all"], unstable: Bool[Tensor, " all"]
    ) -> Int8[Tensor, " leaves all"]:
        """The leaves of one row where units are known to be `on`, `off` or `unstable`, each once.

        A leaf whose split contradicts what is known is empty. Splits of other units that can not switch are dropped: leaves
        become larger by that, never smaller.

        >>> tree = Tree(torch.zeros(3, dtype=torch.long), torch.tensor([0, 2]),
        ...             torch.tensor([[1, 1], [-1, 1], [1, -1]], dtype=torch.int8))
        >>> on = torch.tensor([True, False, False])
        >>> tree.leaves(0, on, ~on & False, ~on).tolist()
        [[0, 0, -1], [0, 0, 1]]
        """
        signs = self.signs[self.row == row]
        empty = ((signs < 0) & on[self.units]) | ((signs > 0) & off[self.units])
        kept = signs[~empty.any(1)] * unstable[self.units]
        found = torch.zeros(len(kept), len(unstable), dtype=torch.int8)
        found[:, self.units] = kept
        # Without units all leaves are the same one.
        return found.unique(dim=0) if found.numel() else found[:1]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.numel() * part.element_size() for part in (self.row, self.units, self.signs))

    @staticmethod
    def joined(parts: list[Tree]) -> Tree:
        """The leaves of several, at the same units."""
        return Tree(torch.cat([part.row for part in parts]), parts[0].units, torch.cat([part.signs for part in parts]))
