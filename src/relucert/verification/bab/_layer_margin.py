"""A margin with one layer of ReLUs, and linear functions below it that are proved in boxes.

    F(x) = q + p x + sum_j v_j relu(z_j(x)),    z(x) = W x + b.

Where v_j > 0, every a in [0, 1] gives a line below: v_j relu(z) >= v_j a z. Where v_j < 0 lines above the ReLU are wanted, and
every slope d in x has one: relu(z(x)) <= d x + e over a set, with e the largest of -d x and of z(x) - d x there. The best
slopes at a point x* are those of the upper envelope of x -> relu(z(x)) over the box (Tjandraatmadja et al. 2020): go from the
corner where z is smallest to the one where it is largest, one coordinate after the other, those first that have gone farthest
in x*. The slope of a coordinate is what the ReLU gains in its step. The chord between the ends of z is the special case
d = k W_j, and much weaker in many dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.reduced_network import ReducedNetwork
from relucert.core.rounding import gamma
from relucert.networks.network import Network
from relucert.polytopes.certificates import Array

_TINY = 1e-300


class Region(NamedTuple):
    """A part of the input box: a smaller box, intervals of the units' inputs, and splits (1 active, -1 inactive, 0 none).

    It stands for the points of the box whose units lie in their intervals.
    """

    lower: Array
    upper: Array
    least: Array
    most: Array
    signs: NDArray[np.int8]


class Lower(NamedTuple):
    """F(x) >= rows x + offset for all x of a region, and the least value there, `margin`; all proved."""

    rows: Array
    offset: float
    margin: float


@dataclass(frozen=True, eq=False)
class LayerMargin:
    """F as above over a box, less all that rounding and stable units may cost: what is proved of F holds for the margin."""

    p: Float[np.ndarray, " inputs"]
    q: float
    v: Float[np.ndarray, " units"]
    w: Float[np.ndarray, "units inputs"]
    b: Float[np.ndarray, " units"]
    lower: Float[np.ndarray, " inputs"]
    upper: Float[np.ndarray, " inputs"]

    @staticmethod
    def of(
        net: Network, bounds: UnitBounds, rows: torch.Tensor, offsets: torch.Tensor, box: tuple[Array, Array]
    ) -> list[LayerMargin] | None:
        """The margins of all rows of a property (rows, classes) for one input; None unless ReLUs have one layer."""
        reduced = ReducedNetwork.of(net, bounds, rows) if len(net.switches) == 1 else None
        if reduced is None:
            return None
        (node,) = net.relus
        last, inputs, leak = reduced.last, len(box[0]), float(node.op.slope)
        w, b, cost = np.zeros((0, inputs)), np.zeros(0), np.zeros(0)
        if node.index in reduced.layers:
            layer = reduced.layers[node.index]
            assert layer.cost is not None
            w, b, cost = layer.direct.numpy(), layer.offset.numpy(), layer.cost[:, 0].numpy()
        assert last.cost is not None
        found = []
        for row in range(len(rows)):
            v = last.inner[node.index][row].numpy() if len(b) else np.zeros(0)
            # A leaky ReLU is leak z + (1 - leak) relu(z); without a leak nothing is rounded.
            size = np.abs(v) * (1 + abs(leak))
            p, q = last.direct[row].numpy() + leak * v @ w, float(last.offset[row] + offsets[row]) + leak * float(v @ b)
            reach = np.maximum(np.abs(box[0]), np.abs(box[1]))
            terms = (
                abs(float(last.offset[row]))
                + abs(float(offsets[row]))
                + np.abs(last.direct[row].numpy()) @ reach
                + size @ (np.abs(w) @ reach + np.abs(b))
            )
            lost = float(last.cost[row, 0]) + float(size @ cost) + 2 * gamma(len(b) + 8) * float(terms)
            found.append(LayerMargin(p, q - 1.01 * lost, (1 - leak) * v, w, b, *box))
        return found

    def root(self) -> Region:
        """The whole box."""
        none = np.full(len(self.b), math.inf)
        return self.inside(Region(self.lower, self.upper, -none, none, np.zeros(len(self.b), dtype=np.int8)))

    def value(self, x: Float[np.ndarray, "points inputs"]) -> Float[np.ndarray, " points"]:
        """F at points, not exactly."""
        return self.q + x @ self.p + np.maximum(x @ self.w.T + self.b, 0.0) @ self.v

    def inside(self, region: Region) -> Region:
        """The region with the intervals that its box and its splits give to the units."""
        reach = np.maximum(np.abs(region.lower), np.abs(region.upper))
        slack = gamma(len(reach) + 8) * (np.abs(self.w) @ reach + np.abs(self.b)) + UNDERFLOW
        up, down = np.maximum(self.w, 0.0), np.minimum(self.w, 0.0)
        least = np.maximum(region.least, up @ region.lower + down @ region.upper + self.b - slack)
        most = np.minimum(region.most, up @ region.upper + down @ region.lower + self.b + slack)
        least = np.where(region.signs > 0, np.maximum(least, 0.0), least)
        most = np.where(region.signs < 0, np.minimum(most, 0.0), most)
        return region._replace(least=least, most=most)

    def envelope(self, region: Region, unit: Int[np.ndarray, " n"], x: Array) -> Float[np.ndarray, "n inputs"]:
        """The slopes of the upper envelopes of some units over the box of a region, at x."""
        w, width = self.w[unit], region.upper - region.lower
        share = np.clip((x - region.lower) / np.maximum(width, _TINY), 0.0, 1.0)
        gone = np.where(w >= 0, share, 1.0 - share)
        step = np.abs(w) * width
        order = np.argsort(-gone, axis=1, kind="stable")
        steps = np.take_along_axis(step, order, 1)
        start = (np.maximum(w, 0.0) @ region.lower + np.minimum(w, 0.0) @ region.upper + self.b[unit])[:, None]
        ends = np.maximum(start + np.cumsum(steps, 1), 0.0)
        gains = np.diff(ends, axis=1, prepend=np.maximum(start, 0.0))
        part = np.clip(gains / np.maximum(steps, _TINY), 0.0, 1.0)
        slopes = np.empty_like(part)
        np.put_along_axis(slopes, order, part, 1)
        return slopes * w

    def chord(self, region: Region) -> tuple[Array, Array]:
        """Slopes k and offsets h with relu(z) <= k z + h between the ends of z; exact for units that are stable there."""
        least, most = region.least, region.most
        k = np.where(least >= 0, 1.0, np.where(most <= 0, 0.0, most / np.maximum(most - least, _TINY)))
        k = np.clip(k, 0.0, 1.0)
        unstable = (least < 0) & (most > 0)
        return k, np.where(unstable, np.maximum(-k * least, (1.0 - k) * most), 0.0)

    def offsets(
        self, region: Region, unit: Int[np.ndarray, " n"], slopes: Float[np.ndarray, "n inputs"], weight: Array
    ) -> Float[np.ndarray, " n"]:
        """The least e with weight relu(z(x)) <= slopes x + e over the box of a region, not rounded."""
        rest = weight[:, None] * self.w[unit] - slopes
        low = -np.where(slopes > 0, slopes * region.lower, slopes * region.upper).sum(1)
        high = np.where(rest > 0, rest * region.upper, rest * region.lower).sum(1) + weight * self.b[unit]
        return np.maximum(low, high)

    def below(
        self, region: Region, shares: Array, weights: Array, slopes: Float[np.ndarray, "units inputs"], betas: Array
    ) -> Lower:
        """A linear function below F in a region, from any multipliers.

        For every unit: `shares` in [0, 1], the slope of the line below; of the line above `weights` in [0, 1] times the chord,
        the rest being a line with `slopes`; `betas` >= 0, the multiplier of its split.
        """
        k, h = self.chord(region)
        every = np.arange(len(self.b))
        above = self.v < 0
        k_below = np.where(region.least >= 0, 1.0, np.where(region.most <= 0, 0.0, shares))
        stable = (region.least >= 0) | (region.most <= 0)
        chord = np.where(stable, 1.0, weights)
        bent = np.where((above & ~stable)[:, None], slopes, 0.0)
        e = np.where(above & ~stable, self.offsets(region, every, bent, 1.0 - chord), 0.0)
        push = betas * region.signs
        slope_z = self.v * np.where(above, chord * k, k_below) - push
        rows = self.p + slope_z @ self.w + np.where(above, self.v, 0.0) @ bent
        constant = np.where(above, self.v * (chord * h + e), 0.0)
        offset = self.q + slope_z @ self.b + constant.sum()
        reach = np.maximum(np.abs(region.lower), np.abs(region.upper))
        sizes = np.abs(self.w) @ reach + np.abs(self.b)
        terms = abs(self.q) + np.abs(self.p) @ reach + (2 * np.abs(self.v) + betas) @ sizes
        terms += np.abs(self.v) @ (2 * np.abs(bent) @ reach + np.abs(h) + np.abs(e))
        lost = 4 * gamma(2 * len(self.p) + 2 * len(self.b) + 32) * float(terms)
        lost += UNDERFLOW * (1.0 + float(2 * np.abs(self.v).sum() + betas.sum()))
        offset = float(offset) - lost
        margin = offset + float(np.where(rows > 0, rows * region.lower, rows * region.upper).sum()) - lost
        return Lower(rows, offset, margin if math.isfinite(margin) else -math.inf)

    def cut(self, region: Region, lower: Lower) -> Region | None:
        """What a line below F leaves of a region: where the line is positive there is no counterexample. None: nothing."""
        if not (math.isfinite(lower.margin) and np.isfinite(lower.rows).all()):
            return region
        low, high = _cut_box(region, lower.rows[None], np.array([lower.margin]))
        if (low > high).any():
            return None
        split = region.signs != 0
        if split.any():
            # A split says s z >= 0, so -s z is not positive.
            side = -region.signs[split].astype(np.float64)
            rows, offset = side[:, None] * self.w[split], side * self.b[split]
            box = region._replace(lower=low, upper=high)
            reach = np.maximum(np.abs(low), np.abs(high))
            slack = gamma(len(reach) + 8) * (np.abs(rows) @ reach + np.abs(offset)) + UNDERFLOW
            least = np.where(rows > 0, rows * low, rows * high).sum(1) + offset - slack
            low, high = _cut_box(box, rows, least)
        if (low > high).any():
            return None
        smaller = self.inside(region._replace(lower=low, upper=high))
        smaller = self._cut_units(smaller, lower.rows, lower.offset)
        return None if (smaller.least > smaller.most).any() else smaller

    def split(self, region: Region, unit: int, sign: int) -> Region | None:
        """The part of a region where a unit is active or inactive; None where that is nothing."""
        signs = region.signs.copy()
        signs[unit] = sign
        part = self.inside(region._replace(signs=signs))
        part = self._cut_units(part, -sign * self.w[unit], -sign * float(self.b[unit]))
        return None if (part.least > part.most).any() else part

    def _cut_units(self, region: Region, g: Array, o: float) -> Region:
        """The intervals of units where g x + o is not positive.

        There z >= z + t (g x + o) for every t >= 0, whose least value over the box is an end; the best t is one of those where
        a coefficient of z + t g vanishes.
        """
        unit = ((region.least < 0) & (region.most > 0) & (self.v < 0)).nonzero()[0]
        if len(unit) * len(g) ** 2 > NUMBERS:
            return region
        centre, radius = (region.lower + region.upper) / 2, (region.upper - region.lower) / 2
        # Halves of the smallest numbers vanish.
        reach = np.maximum(np.abs(region.lower), np.abs(region.upper)) + UNDERFLOW
        at, size = float(g @ centre) + o, float(np.abs(g) @ reach) + abs(o)
        w, b = self.w[unit], self.b[unit]
        middle, sizes = w @ centre + b, np.abs(w) @ reach + np.abs(b)
        ends = []
        for sign in (1.0, -1.0):
            with np.errstate(divide="ignore", invalid="ignore"):
                t = -sign * w / g  # (units, inputs): one for each coefficient that vanishes
            t = np.where((t > 0) & np.isfinite(t), t, 0.0)
            wide = np.abs(sign * w[:, None, :] + t[:, :, None] * g) @ radius
            slack = 2 * gamma(len(reach) + 16) * (sizes[:, None] + t * size) + UNDERFLOW * (1.0 + t)
            ends.append((sign * middle[:, None] + t * at - wide - slack).max(1))
        least, most = region.least.copy(), region.most.copy()
        least[unit] = np.maximum(least[unit], ends[0])
        most[unit] = np.minimum(most[unit], -ends[1])
        return region._replace(least=least, most=most)


NUMBERS = 2**20  # of the largest tensor that cuts intervals of units
UNDERFLOW = 1e-290  # more than all products that vanish below the smallest float can add up to


def _cut_box(region: Region, rows: Array, margins: Array) -> tuple[Array, Array]:
    """The box around what several linear functions leave, with their proved least values over the box; crossed if nothing."""
    from relucert.verification.bab._boxes import clipped

    low, high = clipped(*(torch.from_numpy(part)[None] for part in (region.lower, region.upper, rows, margins)))
    return low[0].amax(0).numpy(), high[0].amin(0).numpy()
