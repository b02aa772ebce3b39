"""Proofs by trees: branch and bound that keeps the splits, slopes and multipliers of every subproblem that it closes.

The search starts from the intervals of the checker, so what it proves the checker can prove. A tree of one leaf is a bound with
optimised slopes, as `alpha` gives it. Any slopes give a bound, so that they are stored in 8 bits where that is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import Margins, rounding_over
from relucert.bounding.split_bounds import AscentResult
from relucert.checker.bounds import Bounds
from relucert.core.properties import Property
from relucert.verification.bab.bab import BaB, Leaves, Search
from relucert.verification.verifier import Budget, Query


@dataclass(frozen=True, eq=False)
class Leaf:
    """A closed subproblem of a row: the sign of every split unit and its multiplier, and slopes of the unstable units."""

    row: int
    splits: dict[int, tuple[int, float]]
    slopes: np.ndarray


def tree_proof(
    query: Query, bounds: Bounds, rows: list[int], slack: float, seconds: float
) -> dict[str, np.ndarray] | None:
    """The arrays of trees for some rows of the property of one input, or None if the search does not end with a proof.

    Slopes and multipliers are in float64.
    """
    prop = query.prop.select(torch.tensor([rows]))
    lowered = replace(query, prop=Property(prop.rows, prop.offsets - slack))
    search = Recording(lowered, bounds, seconds)
    decisions = list(search.run())
    if str(decisions[0].verdict) != "robust":
        return None
    units = np.concatenate([np.zeros(0, dtype=np.int32), *search.unstable()]).astype(np.int32)
    trees: list[int] = []
    order = [
        entry
        for row in range(len(rows))
        for entry in _preorder([leaf for leaf in search.leaves if leaf.row == row], trees)
    ]
    betas = [leaf.splits[unit][1] for leaf, path in order for unit in path]
    return {
        "tree": np.array(trees, dtype=np.int32),
        "units": units,
        "slopes": np.stack([leaf.slopes for leaf, _ in order]),
        "betas": np.array(betas, dtype=np.float64),
    }


def shortened(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of trees with slopes in 8 bits and multipliers in float32: other numbers, which give other bounds."""
    return arrays | {
        "slopes": np.rint(255 * arrays["slopes"]).astype(np.uint8), "betas": arrays["betas"].astype(np.float32),
    }  # fmt: skip


def _preorder(leaves: list[Leaf], tree: list[int]) -> list[tuple[Leaf, list[int]]]:
    """Append the tree whose leaves these are in preorder; the leaves in its order, each with the units on its path."""
    found: list[tuple[Leaf, list[int]]] = []
    waiting: list[tuple[list[Leaf], list[int]]] = [(leaves, [])]
    while waiting:
        some, path = waiting.pop()
        common = set.intersection(*(set(leaf.splits) for leaf in some)) - set(path)
        if not common:
            assert len(some) == 1, "leaves of a tree share the split of its root"
            tree.append(-1)
            found.append((some[0], path))
            continue
        unit = min(common, key=lambda u: abs(sum(leaf.splits[u][0] for leaf in some)))
        tree.append(unit)
        waiting += [([leaf for leaf in some if leaf.splits[unit][0] == sign], [*path, unit]) for sign in (-1, 1)]
    return found


@dataclass(frozen=True, kw_only=True)
class _Quiet(BaB):
    """Branch and bound that searches for no counterexamples: what it is given is robust."""

    name = "bab"
    descent: int = 0


class Recording(Search):
    """Branch and bound of one input over known intervals that keeps the leaves of its trees; every row has a tree."""

    recorded = True

    def __init__(self, query: Query, known: Bounds, seconds: float):
        super().__init__(query, _Quiet(), Budget(seconds))
        self.known, self.leaves = known, list[Leaf]()

    def whole(self) -> tuple[UnitBounds, Margins]:
        """The checker's intervals; no row counts as proved before its tree is."""
        net, query, inputs = self.double, self.query, {}
        for node, place in zip(net.relus, self.known.net.relus, strict=True):
            source = self.known.net.nodes[place].inputs[0]
            ends = (
                torch.from_numpy(side[source]).reshape(1, *node.shape) for side in (self.known.low, self.known.high)
            )
            inputs[node.index] = Interval(*ends)
        rounding = rounding_over(net, query.wide, query.ball, inputs, query.net.dtype)
        logits = Interval(*(torch.from_numpy(side[-1])[None] for side in (self.known.low, self.known.high)))
        unknown = torch.full((*query.prop.offsets.shape, 3), -math.inf, dtype=torch.float64)
        return UnitBounds(inputs, logits, rounding), Margins.unstacked(unknown)

    def proved(self, found: AscentResult, which: Tensor, leaves: Leaves) -> Tensor:
        done = super().proved(found, which, leaves)
        places = done.nonzero()[:, 0]
        if len(places) == 0:
            return done
        signs = self.parts.flat(leaves.splits, len(which))[places].numpy()
        betas, slopes = (self._flat(part)[places].double().numpy() for part in (found.betas, found.slopes))
        unstable = np.concatenate([np.zeros(0, dtype=int), *self.unstable()])
        for sign, beta, slope, place in zip(signs, betas, slopes, places.tolist(), strict=True):
            splits = {int(unit): (int(sign[unit]), float(beta[unit])) for unit in np.flatnonzero(sign)}
            row = self.problems[int(which[place])].row
            self.leaves.append(Leaf(row, splits, np.clip(slope[unstable], 0.0, 1.0)))
        return done

    def unstable(self) -> list[np.ndarray]:
        """The unstable units of all ReLUs, counted over all of them, layer by layer."""
        found, first = [], 0
        for place in self.known.net.relus:
            source = self.known.net.nodes[place].inputs[0]
            found.append(first + np.flatnonzero((self.known.low[source] < 0) & (self.known.high[source] > 0)))
            first += self.known.net.nodes[place].size
        return found

    def _flat(self, part: dict[int, Tensor]) -> Tensor:
        none = next(iter(part.values())).new_zeros(0) if part else torch.zeros(0)
        return torch.cat([part[node.index].flatten(1) for node in self.parts.relus], 1) if part else none
