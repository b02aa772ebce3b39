"""Linear relaxations of switching nodes: a linear lower and a linear upper bound on the interval of each unit.

A ReLU max(z, s z) on [l, u] with l < 0 < u lies above a z for every a in [s, 1], and below the chord from (l, s l) to (u, u).
Methods differ in the lower slope a alone:

- `parallel`: the chord's, so that both bounds are parallel (Kolter and Wong's relaxation, Fast-Lin);
- `adaptive`: 1 if u > -l, else s, the smaller triangle (CROWN);
- `flat`: s, always (networks trained with intervals are certified best with it);
- given slopes, the same for all rows or one set for each row (alpha-CROWN).

A maximum over a window lies above each of its entries, in particular that with the largest lower bound, and below the chord of
max(z_i, c), where i has the largest upper bound and c is the largest upper bound of the others.

For rows c behind a layer of ReLUs with below z <= phi(z) <= above z + offset, in each unit

    c phi(z) >= back z + low,   back = below c+ + above c-,   low = offset c-,   c+ = max(c, 0), c- = min(c, 0).

These passes are bound by memory, so each block of examples goes through all of them while it is in the cache, and nothing but
the rows is kept for the gradient (`pull_through_relu`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.core.errors import UnsupportedLayer
from relucert.core.linear_minimum import blocks
from relucert.core.rounding import gamma_above
from relucert.networks.nodes import MaxPool2d, ReLU, Switching
from relucert.networks.patches import Filters

_BUDGET = 2**29  # bytes of temporaries on other devices than a CPU, whose blocks fit its cache

Rule = Literal["parallel", "adaptive", "flat"]


class Pulled(NamedTuple):
    """Functionals before a node, and what the lower bound adds; the upper bound, if it is known (batch, rows).

    `cost` (batch, rows, 2) is what rounding costs, as in `Charge`; None where rounding is not charged.
    """

    rows: Float[Tensor, " batch rows *shape"]
    low: Float[Tensor, " batch rows"]
    high: Float[Tensor, " batch rows"] | None = None
    cost: Float[Tensor, " batch rows 2"] | None = None


@dataclass(frozen=True, eq=False)
class ReLURelaxation:
    """`below z <= node(z) <= above z + offset` for a ReLU; slopes (batch, *shape), or (batch, rows, *shape) if by row.

    `charge` (batch, 2, units) is what rounding costs a functional of the output, times the absolute value of its entries.
    """

    below: Tensor
    above: Tensor
    offset: Tensor
    by_row: bool = False
    charge: Tensor | None = None

    @property
    def parallel(self) -> bool:
        """Whether both slopes are the same, so that one backward propagation serves lower and upper bounds."""
        return self.below is self.above

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> Pulled:
        """Functionals behind the node as functionals before it, with what must be added for a lower bound.

        For parallel bounds also what must be added for an upper bound.
        """
        if self.parallel:
            if not torch.is_grad_enabled():
                return _pull_parallel(rows, self.above, self.offset, self.charge)
            low, high = (_dot(part, self.offset) for part in (rows.clamp(max=0), rows.clamp(min=0)))
            return Pulled(rows * self.above.unsqueeze(1), low, high, charged(rows, self.charge))
        below = self.below.flatten(2) if self.by_row else self.below.flatten(1).unsqueeze(1)
        above, offset = (part.flatten(1).unsqueeze(1) for part in (self.above, self.offset))
        back, low, cost = pull_through_relu(rows.flatten(2), below, above, offset, self.charge)
        return Pulled(back.reshape(rows.shape), low, None, cost)

    def parallel_lines(self) -> ReLURelaxation:
        """The relaxation with the chord's slope below as well: one backward propagation serves both ends of a unit."""
        return ReLURelaxation(self.above, self.above, self.offset, charge=self.charge)

    def hull(self, within: Interval) -> Interval:
        """The values between both lines on an interval of the input, up to rounding."""
        return Interval(self.below * within.lower, self.above * within.upper + self.offset)

    def restrict(self, batch: Int[Tensor, " n"]) -> ReLURelaxation:
        """The relaxation of some examples."""
        above, charge = self.above[batch], None if self.charge is None else self.charge[batch]
        below = above if self.parallel else self.below[batch]
        return ReLURelaxation(below, above, self.offset[batch], self.by_row, charge)

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
    charge: Tensor | None = None
    parallel = False

    def restrict(self, batch: Int[Tensor, " n"]) -> MaxPoolRelaxation:
        """The relaxation of some examples."""
        places, charge = (self.first[batch], self.second[batch]), None if self.charge is None else self.charge[batch]
        return MaxPoolRelaxation(self.op, *places, self.slope[batch], self.offset[batch], charge)

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> Pulled:
        """As for `ReLURelaxation`."""
        positive, negative = rows.clamp(min=0), rows.clamp(max=0)
        shape = rows.shape[2:]
        back = self.op.transpose(positive, self.first.unflatten(2, shape[1:]))
        back = back + self.op.transpose(
            negative * self.slope.reshape(-1, 1, *shape), self.second.unflatten(2, shape[1:])
        )
        return Pulled(back, _dot(negative, self.offset), None, charged(rows, self.charge))


@singledispatch
def relax(
    op: Switching, within: Interval, rule: Rule | Tensor, drift: Float[Tensor, " batch 2 units"] | None = None
) -> ReLURelaxation | MaxPoolRelaxation:
    """The linear relaxation of a node whose inputs stay within an interval; a tensor gives the lower slopes of a ReLU.

    Slopes by row are (batch, rows, *shape); slopes of stable units are ignored. `drift` is what rounding does to the inputs,
    None where it is not charged. Lines hold in real arithmetic for slopes as computed: offsets are rounded up.
    """
    raise UnsupportedLayer(f"{op.kind} has no linear relaxation")


@relax.register
def _relu(op: ReLU, within: Interval, rule: Any, drift: Tensor | None = None) -> ReLURelaxation:
    low, high, slope = within.lower, within.upper, op.slope
    unstable = within.unstable
    width = torch.where(unstable, high - low, torch.ones_like(low))
    chord = torch.where(unstable, (high - slope * low) / width, torch.where(low >= 0, torch.ones_like(low), slope))
    chord = chord.clamp(min(slope, 1.0), max(slope, 1.0))
    # The line a z + o lies above both ends, and so above the convex function between them.
    ends = torch.maximum(high * (1 - chord), (slope - chord) * low)
    offset = torch.where(unstable, _rounded_up(ends), torch.zeros_like(high))
    by_row = False
    if isinstance(rule, Tensor):
        by_row = rule.dim() > low.dim()
        mask, stable = (unstable.unsqueeze(1), chord.unsqueeze(1)) if by_row else (unstable, chord)
        below = torch.where(mask, rule, stable)
    elif rule == "parallel":
        below = chord
    else:
        free = (
            torch.where(high > -low, torch.ones_like(low), slope) if rule == "adaptive" else torch.full_like(low, slope)
        )
        below = torch.where(unstable, free, chord)
    charge = None
    if drift is not None:
        # Functionals before the node have at most `most` times the entries of those behind it.
        most = torch.where(unstable, torch.ones_like(chord), chord) if by_row else torch.maximum(below, chord)
        most = most.detach().flatten(1).unsqueeze(1)
        charge = torch.where(most == 0, torch.zeros_like(drift), most * drift)
    return ReLURelaxation(below, chord, offset, by_row, charge)


@relax.register
def _max_pool(op: MaxPool2d, within: Interval, rule: Any, drift: Tensor | None = None) -> MaxPoolRelaxation:
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
    # The line lies above the largest upper bound, and above `rest` at the other end.
    ends = torch.maximum(top[..., 0] * (1 - slope), rest - slope * least)
    size = torch.maximum(top[..., 0].abs(), torch.maximum(rest.abs(), least.abs()))
    offset = torch.where(sure, torch.zeros_like(least), ends + gamma_above(4, ends.dtype) * size.detach())
    place = torch.arange(len(windows), device=windows.device)
    charge = None
    if drift is not None:  # a functional of a maximum becomes one of an entry of its window
        charge = op.apply(drift.unflatten(2, op.in_shape).flatten(0, 1)).unflatten(0, drift.shape[:2]).flatten(2)
        # Offsets have either sign: what rounds their sum is a share of the absolute values.
        size = gamma_above(math.prod(offset.shape[1:]), offset.dtype) * offset.detach().abs().flatten(1)
        charge = torch.stack([charge[:, 0] + size, charge[:, 1]], 1)
    return MaxPoolRelaxation(op, windows[place, floor], windows[place, order[..., 0]], slope, offset, charge)


def _rounded_up(offset: Tensor) -> Tensor:
    """A positive number above its value in real arithmetic, after at most three operations."""
    return offset * (1 + gamma_above(3, offset.dtype)) + torch.finfo(offset.dtype).tiny


def charged(
    rows: Float[Tensor, " batch rows *shape"], charge: Float[Tensor, " batch 2 units"] | None
) -> Float[Tensor, " batch rows 2"] | None:
    """What rounding costs functionals: the absolute values of their entries times the charges."""
    if charge is None:
        return None
    with torch.no_grad():
        return rows.detach().abs().flatten(2) @ charge.mT


def _dot(
    rows: Float[Tensor, " batch rows *shape"], other: Float[Tensor, " batch *any_shape"]
) -> Float[Tensor, " batch rows"]:
    """The products <rows, other> of flattened values: a max pool's windows may come as one axis."""
    return (rows.flatten(2) @ other.flatten(1).unsqueeze(2)).squeeze(2)


def _pull_parallel(
    rows: Float[Tensor, " batch rows *shape"],
    slope: Float[Tensor, " batch *shape"],
    offset: Float[Tensor, " batch *shape"],
    charge: Float[Tensor, " batch 2 units"] | None,
) -> Pulled:
    """`pull_back` through parallel lines, without gradients, block by block."""
    flat, slope = rows.flatten(2), slope.flatten(1).unsqueeze(1)
    # Offsets and charges side by side: one product serves all.
    each = offset.flatten(1).unsqueeze(1)
    each = (each if charge is None else torch.cat([each, charge], 1)).mT
    back = torch.empty_like(flat, memory_format=torch.contiguous_format)
    falls, rises = (flat.new_empty(*flat.shape[:2], each.shape[2]) for _ in range(2))
    for place in blocks(flat, _BUDGET, flat.dtype):
        c = flat[place]
        falling = c.clamp(max=0)
        falls[place] = falling @ each[place[0]]
        rises[place] = torch.sub(c, falling, out=falling) @ each[place[0]]
        torch.mul(c, slope[place[0]], out=back[place])
    cost = None
    if charge is not None:  # 0 times an infinite charge is not a number
        cost = (rises[..., 1:] - falls[..., 1:]).nan_to_num_(math.inf, math.inf)
    return Pulled(back.reshape(rows.shape), falls[..., 0], rises[..., 0], cost)


def pull_through_relu(
    rows: Float[Tensor, " batch rows units"],
    below: Float[Tensor, " batch #rows units"],
    above: Float[Tensor, " batch 1 units"],
    offset: Float[Tensor, " batch 1 units"],
    charge: Float[Tensor, " batch 2 units"] | None = None,
) -> tuple[Float[Tensor, " batch rows units"], Float[Tensor, " batch rows"], Float[Tensor, " batch rows 2"] | None]:
    """`back` and `low` of rows; lower slopes are given for all rows (batch, 1, units), or for each row.

    The last answer is |c| times the charges, without gradient; None without charges.

    >>> one = torch.ones(1, 1, 1)
    >>> back, low, cost = pull_through_relu(torch.tensor([[[2.0], [-2.0]]]), 0.0 * one, 0.5 * one, one)
    >>> back.flatten().tolist(), low.tolist(), cost
    ([0.0, -1.0], [[0.0, -2.0]], None)
    """
    back, low, cost = _Pull.apply(rows, below, above, offset, charge)  # pyright: ignore[reportGeneralTypeIssues]
    return back, low, None if charge is None else cost


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, below: Tensor, above: Tensor, offset: Tensor, charge: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(rows, below, above, offset)
        back, low = torch.empty_like(rows, memory_format=torch.contiguous_format), rows.new_empty(rows.shape[:2])
        cost = rows.new_empty(*rows.shape[:2], 0 if charge is None else charge.shape[1])
        for place in blocks(rows, _BUDGET, rows.dtype):
            c = rows[place]
            falling = c.clamp(max=0)
            rising = c - falling
            torch.mul(rising, _of(below, place), out=back[place])
            back[place].addcmul_(falling, _of(above, place))
            low[place] = (falling @ _of(offset, place).mT).squeeze(2)
            if charge is not None:
                cost[place] = rising.sub_(falling) @ charge[place[0]].mT
        ctx.mark_non_differentiable(cost)
        return back, low, cost

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, below, above, offset = ctx.saved_tensors
        to_back, to_low, _ = grads
        by_row = below.shape[1] == rows.shape[1] > 1
        wanted = ctx.needs_input_grad[:4]
        makers = (
            torch.empty_like,
            torch.empty_like if by_row else torch.zeros_like,
            torch.zeros_like,
            torch.zeros_like,
        )
        found = [
            make(like) if want else None for make, like, want in zip(makers, ctx.saved_tensors, wanted, strict=True)
        ]
        for place in blocks(rows, _BUDGET, rows.dtype):
            c, back, low = rows[place], to_back[place], to_low[place].unsqueeze(2)
            if found[0] is not None:
                # Where c < 0 its share is above * back + offset * low, elsewhere below * back.
                share = torch.addcmul(_of(offset, place) * low, _of(above, place), back)
                found[0][place] = torch.where(c > 0, _of(below, place) * back, share)
            falling = c.clamp(max=0)
            if found[1] is not None:
                part = (c - falling).mul_(back)
                if by_row:
                    found[1][place] = part
                else:
                    found[1][place[0]] += part.sum(1, keepdim=True)
            if found[3] is not None:
                found[3][place[0]] += low.mT @ falling
            if found[2] is not None:
                found[2][place[0]] += falling.mul_(back).sum(1, keepdim=True)
        return *found, None


def _of(slopes: Tensor, place: tuple[slice, slice]) -> Tensor:
    """The slopes of a block of rows; slopes are the same for all rows of an example or not."""
    return slopes[place[0]] if slopes.shape[1] == 1 else slopes[place]
