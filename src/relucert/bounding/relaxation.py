"""Linear relaxations of switching nodes: a linear lower and a linear upper bound on the interval of each unit.

A ReLU max(z, s z) on [l, u] with l < 0 < u lies above a z for every a in [s, 1], and below the chord from (l, s l) to (u, u).
Methods differ in the lower slope a alone:

- `parallel`: the chord's, so that both bounds are parallel (Kolter and Wong's relaxation, Fast-Lin);
- `adaptive`: 1 if u > -l, else s, the smaller triangle (CROWN);
- `flat`: s, always (networks trained with intervals are certified best with it);
- given slopes, the same for all rows or one set for each row (alpha-CROWN).

A maximum over a window lies above each of its entries, in particular that with the largest lower bound, and below the chord of
max(z_i, c), where i has the largest upper bound and c is the largest upper bound of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding._relaxation_gradient import pull_through_relu
from relucert.bounding.interval import Interval
from relucert.core.errors import UnsupportedLayer
from relucert.networks.nodes import MaxPool2d, ReLU, Switching
from relucert.networks.patches import Filters

Rule = Literal["parallel", "adaptive", "flat"]


@dataclass(frozen=True, eq=False)
class ReLURelaxation:
    """`below z <= node(z) <= above z + offset` for a ReLU; slopes (batch, *shape), or (batch, rows, *shape) if by row."""

    below: Tensor
    above: Tensor
    offset: Tensor
    by_row: bool = False

    @property
    def parallel(self) -> bool:
        """Whether both slopes are the same, so that one backward propagation serves lower and upper bounds."""
        return self.below is self.above

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Functionals behind the node as functionals before it, with what must be added for a lower bound.

        For parallel bounds also what must be added for an upper bound.
        """
        if self.parallel:
            low, high = (_dot(part, self.offset) for part in (rows.clamp(max=0), rows.clamp(min=0)))
            return rows * self.above.unsqueeze(1), low, high
        below = self.below.flatten(2) if self.by_row else self.below.flatten(1).unsqueeze(1)
        above, offset = (part.flatten(1).unsqueeze(1) for part in (self.above, self.offset))
        back, low = pull_through_relu(rows.flatten(2), below, above, offset)
        return back.reshape(rows.shape), low, None

    def restrict(self, batch: Int[Tensor, " n"]) -> ReLURelaxation:
        """The relaxation of some examples."""
        above = self.above[batch]
        return ReLURelaxation(above if self.parallel else self.below[batch], above, self.offset[batch], self.by_row)

    def convolved(self, value: Tensor, filters: Filters) -> Interval:
        """The bounds of a convolution behind the node, from the bounds of the node at the value of its input."""
        below, above = self.below * value, self.above * value + self.offset
        up, down = filters.parts()
        return Interval(up.apply(below) + down.apply(above), up.apply(above) + down.apply(below))


@dataclass(frozen=True, eq=False)
class MaxPoolRelaxation:
    """`z_(first) <= max <= slope z_(second) + offset` for a max pool: places in a channel, (batch, channels, windows)."""

    op: MaxPool2d
    first: Tensor
    second: Tensor
    slope: Tensor
    offset: Tensor
    parallel = False

    def restrict(self, batch: Int[Tensor, " n"]) -> MaxPoolRelaxation:
        """The relaxation of some examples."""
        places = self.first[batch], self.second[batch]
        return MaxPoolRelaxation(self.op, *places, self.slope[batch], self.offset[batch])

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> tuple[Tensor, Tensor, Tensor | None]:
        """As for `ReLURelaxation`."""
        positive, negative = rows.clamp(min=0), rows.clamp(max=0)
        shape = rows.shape[2:]
        back = self.op.transpose(positive, self.first.unflatten(2, shape[1:]))
        back = back + self.op.transpose(
            negative * self.slope.reshape(-1, 1, *shape), self.second.unflatten(2, shape[1:])
        )
        return back, _dot(negative, self.offset), None


@singledispatch
def relax(op: Switching, within: Interval, rule: Rule | Tensor) -> ReLURelaxation | MaxPoolRelaxation:
    """The linear relaxation of a node whose inputs stay within an interval; a tensor gives the lower slopes of a ReLU.

    Slopes by row are (batch, rows, *shape); slopes of stable units are ignored.
    """
    raise UnsupportedLayer(f"{op.kind} has no linear relaxation")


@relax.register
def _relu(op: ReLU, within: Interval, rule: Any) -> ReLURelaxation:
    low, high, slope = within.lower, within.upper, op.slope
    unstable = within.unstable
    width = torch.where(unstable, high - low, torch.ones_like(low))
    chord = torch.where(unstable, (high - slope * low) / width, torch.where(low >= 0, torch.ones_like(low), slope))
    offset = torch.where(unstable, high * (1 - chord), torch.zeros_like(high))
    if isinstance(rule, Tensor):
        by_row = rule.dim() > low.dim()
        mask, stable = (unstable.unsqueeze(1), chord.unsqueeze(1)) if by_row else (unstable, chord)
        return ReLURelaxation(torch.where(mask, rule, stable), chord, offset, by_row)
    if rule == "parallel":
        return ReLURelaxation(chord, chord, offset)
    free = torch.where(high > -low, torch.ones_like(low), slope) if rule == "adaptive" else torch.full_like(low, slope)
    return ReLURelaxation(torch.where(unstable, free, chord), chord, offset)


@relax.register
def _max_pool(op: MaxPool2d, within: Interval, rule: Any) -> MaxPoolRelaxation:
    windows = op.windows().to(within.lower.device)
    empty = windows < 0

    def seen(values: Tensor, other: float) -> Tensor:
        return values.flatten(2)[:, :, windows.clamp(min=0)].masked_fill(empty, other)

    low, high = seen(within.lower, -torch.inf), seen(within.upper, -torch.inf)
    floor = low.argmax(-1)
    top, order = high.topk(min(2, high.shape[-1]), dim=-1)
    least = low.gather(-1, order[..., :1])[..., 0]
    # The largest of the others is at most `rest`; where that is not above `least`, the first always wins.
    rest = top[..., 1] if top.shape[-1] > 1 else torch.full_like(top[..., 0], -torch.inf)
    sure = rest <= least
    width = torch.where(sure, torch.ones_like(least), top[..., 0] - least)
    slope = torch.where(sure, torch.ones_like(least), (top[..., 0] - rest) / width)
    offset = torch.where(sure, torch.zeros_like(least), top[..., 0] * (1 - slope))
    place = torch.arange(len(windows), device=windows.device)
    return MaxPoolRelaxation(op, windows[place, floor], windows[place, order[..., 0]], slope, offset)


def _dot(
    rows: Float[Tensor, " batch rows *shape"], other: Float[Tensor, " batch *any_shape"]
) -> Float[Tensor, " batch rows"]:
    """The products <rows, other> of flattened values: a max pool's windows may come as one axis."""
    return (rows.flatten(2) @ other.flatten(1).unsqueeze(2)).squeeze(2)
