"""The linear program below a margin with one layer of ReLUs in a region, tightened by upper envelopes where it is attained.

Variables are the inputs, an output y_j of every unstable unit, and one violation t >= 0 of all splits, which costs so much that
it is 0 where the region has points. So the program always has a point, and its multipliers always prove something: they are
handed to `LayerMargin.below`, which proves a linear function below the margin, whatever the solver says.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from relucert.polytopes.certificates import Array
from relucert.polytopes.highs import Highs, LinearProgram, Options, SparseRows
from relucert.verification.bab._layer_margin import LayerMargin, Lower, Region

OPTIONS = Options(tolerance=1e-7, smallest=1e-9, presolve=False, simplex=True)
COST = 1e3  # of a violation, in terms of the largest range of the margin over the region
GAIN = 0.05  # of what is missing to a proof: a round that gains less is the last
_PASSED = 1e-6  # of the range of a unit: an envelope that is passed by less is not added
_LEAST = 1e-300


class LinearRows(NamedTuple):
    """LinearRows above ReLUs: units and slopes; offsets depend on the region."""

    unit: Int[np.ndarray, " lines"]
    slopes: Float[np.ndarray, "lines inputs"]

    def restrict(self, which: NDArray[np.bool_]) -> LinearRows:
        """Some of them."""
        return LinearRows(self.unit[which], self.slopes[which])


class EnvelopeProgram:
    """One program, whose rows are added while it is solved again and again.

    `lines` are those of the region around, made valid for this one, and all that were added.
    """

    def __init__(self, margin: LayerMargin, region: Region, lines: LinearRows):
        self.margin, self.region = margin, region
        self.unstable = (region.least < 0) & (region.most > 0)
        self.lines = lines.restrict(self.unstable[lines.unit])
        self.column = len(margin.p) + np.cumsum(self.unstable) - 1
        self.size = len(margin.p) + int(self.unstable.sum()) + 1
        self.below = (self.unstable & (margin.v > 0)).nonzero()[0]
        self.above = (self.unstable & (margin.v < 0)).nonzero()[0]
        self.split = (region.signs != 0).nonzero()[0]
        self.x = np.zeros(0)
        self.highs = self._highs()

    def _highs(self) -> Highs:
        """The program with chords and the lines so far."""
        margin, region, inputs = self.margin, self.region, len(self.margin.p)
        active = (region.least >= 0) & ~self.unstable
        cost = np.zeros(self.size)
        cost[:inputs] = margin.p + np.where(active, margin.v, 0.0) @ margin.w
        cost[self.column[self.unstable]] = margin.v[self.unstable]
        width = region.upper - region.lower
        cost[-1] = COST * (1.0 + np.abs(cost[:inputs]) @ width + np.abs(margin.v) @ (np.abs(margin.w) @ width))
        lower, upper = np.zeros(self.size), np.full(self.size, math.inf)
        lower[:inputs], upper[:inputs] = region.lower, region.upper
        lower[self.column[self.above]] = -math.inf
        k, h = margin.chord(region)
        lines = (
            self._rows(self.below, -margin.w[self.below]),
            self._rows(self.above, -k[self.above, None] * margin.w[self.above]),
        )
        splits = np.zeros((len(self.split), self.size))
        splits[:, :inputs] = region.signs[self.split, None] * margin.w[self.split]
        splits[:, -1] = 1.0
        rows = np.concatenate([lines[0], lines[1], splits])
        low = np.concatenate(
            [
                margin.b[self.below],
                np.full(len(self.above), -math.inf),
                -region.signs[self.split] * margin.b[self.split],
            ]
        )
        high = np.full(len(rows), math.inf)
        high[len(self.below) : len(self.below) + len(self.above)] = (k * margin.b + h)[self.above]
        highs = Highs(LinearProgram(cost, lower, upper, SparseRows.of(rows), low, high), OPTIONS)
        self._add(highs, self.lines)
        return highs

    def _rows(self, unit: Int[np.ndarray, " n"], slopes: Float[np.ndarray, "n inputs"]) -> Float[np.ndarray, "n size"]:
        """Rows y_j + slopes x."""
        rows = np.zeros((len(unit), self.size))
        rows[:, : slopes.shape[1]] = slopes
        rows[np.arange(len(unit)), self.column[unit]] = 1.0
        return rows

    def _add(self, highs: Highs, lines: LinearRows) -> None:
        """Add lines above units, with the offsets that make them so in the region."""
        if len(lines.unit):
            e = self.margin.offsets(self.region, lines.unit, lines.slopes, np.ones(len(lines.unit)))
            highs.add_rows(SparseRows.of(self._rows(lines.unit, -lines.slopes)), np.full(len(e), -math.inf), e)

    def solve(self, seconds: float) -> Bounded | None:
        """A proved line below the margin, from the multipliers of a minimiser; None without a solution."""
        found = self.highs.optimum(seconds)
        if found is None:
            return None
        margin, every = self.margin, len(self.margin.b)
        below, above, split = self.below, self.above, self.split
        sizes = np.cumsum([len(below), len(above), len(split)])
        lambdas, chords, pushes, weights = np.split(found.multipliers, sizes)
        lambdas, pushes = np.maximum(-lambdas, 0.0), np.maximum(-pushes, 0.0)
        chords, weights = np.maximum(chords, 0.0), np.maximum(weights, 0.0)
        shares, betas, total = np.zeros(every), np.zeros(every), np.zeros(every)
        shares[below] = np.clip(lambdas / margin.v[below], 0.0, 1.0)
        betas[split] = pushes
        # Of the lines above a unit the multipliers make a mean.
        np.add.at(total, self.lines.unit, weights)
        total[above] += chords
        whole = np.ones(every)
        whole[above] = np.where(total[above] > 0, chords / np.maximum(total[above], _LEAST), 1.0)
        part = np.where(total[self.lines.unit] > 0, weights / np.maximum(total[self.lines.unit], _LEAST), 0.0)
        slopes = np.zeros(margin.w.shape)
        np.add.at(slopes, self.lines.unit, part[:, None] * self.lines.slopes)
        self.x = np.clip(found.x[: len(margin.p)], self.region.lower, self.region.upper)
        self.y = found.x[self.column[above]]
        gaps = np.zeros(every)
        z = margin.w[above] @ self.x + margin.b[above]
        gaps[above] = -margin.v[above] * np.maximum(self.y - np.maximum(z, 0.0), 0.0)
        line = margin.below(self.region, shares, whole, slopes, betas)
        return Bounded(line, self.x, gaps, self.lines.restrict(weights > 0))

    def tighten(self) -> bool:
        """Add the envelopes at the minimiser that it passes; whether there is any."""
        slopes = self.margin.envelope(self.region, self.above, self.x)
        e = self.margin.offsets(self.region, self.above, slopes, np.ones(len(self.above)))
        size = self.region.most[self.above] - self.region.least[self.above]
        passed = self.y > slopes @ self.x + e + _PASSED * size
        if passed.any():
            new = LinearRows(self.above[passed], slopes[passed])
            self._add(self.highs, new)
            self.lines = LinearRows(
                np.concatenate([self.lines.unit, new.unit]), np.concatenate([self.lines.slopes, new.slopes])
            )
        return bool(passed.any())


class Bounded(NamedTuple):
    """The best line below the margin in a region, a minimiser, how far each unit is from its ReLU there, and the lines above
    that the minimum rests on.
    """

    below: Lower
    x: Array
    gaps: Array
    lines: LinearRows


def bounded(margin: LayerMargin, region: Region, lines: LinearRows, rounds: int, deadline: float) -> Bounded:
    """Solve the program of a region again and again, with the envelopes at its minimisers; at worst the bound of chords."""
    program, most = EnvelopeProgram(margin, region, lines), len(margin.b)
    _, h = margin.chord(region)
    none = np.zeros(most)
    below = margin.below(region, 0.5 + none, 1.0 + none, np.zeros(margin.w.shape), none)
    corner = np.where(below.rows > 0, region.lower, region.upper)
    best = Bounded(below, corner, np.where(margin.v < 0, -margin.v * h, 0.0), lines)
    for place in range(rounds):
        solved = program.solve(max(0.0, deadline - time.monotonic()))
        if solved is None:
            break
        gain = solved.below.margin - best.below.margin
        best = solved if gain > 0 else best
        late = time.monotonic() >= deadline or (place > 0 and gain < GAIN * -best.below.margin)
        if best.below.margin > 0 or late or not program.tighten():
            break
    return best
