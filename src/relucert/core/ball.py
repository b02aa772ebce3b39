"""`Ball`: the inputs within eps of x in l_p and inside a box, the set over which everything is proved."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.core.linear_minimum import BUDGET, LinearMinimum, linear_minimum, linear_range
from relucert.core.norms import ITERATIONS, check_p, norm
from relucert.core.offsets import projected_offset, random_offsets
from relucert.core.rounding import apart_up, cast_up, lost, relative_rounding, rounded_inwards, sum_up, within

#: The box of pixels, for inputs of which nothing else is known; a ball with this very object was given no box.
PIXELS = (0.0, 1.0)
Index = int | slice | Sequence[int] | Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Ball:
    """The set { z : ||z - x||_p <= eps, lower <= z <= upper } around every x of a batch.

    p: a number of at least 1, or inf. eps: a number, one number for each example, or inf for the box alone. box: None, two
    numbers, or two tensors that broadcast to x (batch, *input), taken in the dtype of x; eps is compared in float64. Lengths
    are in pixels. x itself must lie in the box. scale: one number of at least 0 for every entry of an input; then the set is
    { z : ||(z - x) / scale||_p <= eps } inside the box, and entries of scale 0 are fixed. Functions that take a ball with a
    scale say so; all others refuse it.

    >>> ball, x = Ball(2, 0.5), torch.tensor([[0.0, 0.5]])
    >>> ball.minimum(x, torch.tensor([[1.0, 1.0]])).value
    tensor([-0.5000])
    >>> ball.project(x, torch.tensor([[0.3, 0.9]])), ball.contains(x, torch.tensor([[0.3, 0.9]]))
    (tensor([[0.3000, 0.9000]]), tensor([True]))
    >>> ball.with_eps(0.1)
    Ball(2, 0.1, box=(0, 1))
    """

    p: float | int
    eps: float | int | Tensor
    box: tuple[float | int | Tensor, float | int | Tensor] | None = PIXELS
    # Restrictions of a box of tensors are applied once x is known: only then is it clear which sides have a batch dimension.
    _picks: tuple[Index, ...] = field(default=())
    scale: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_p(self.p))
        object.__setattr__(self, "eps", _checked_eps(self.eps))
        object.__setattr__(self, "box", _checked_box(self.box))
        object.__setattr__(self, "scale", _checked_scale(self.scale))

    def __repr__(self) -> str:
        box = None if self.box is None else f"({_short(self.box[0])}, {_short(self.box[1])})"
        scale = "" if self.scale is None else f", scale={_short(self.scale)}"
        return f"Ball({self.p:g}, {_short(self.eps)}, box={box}{scale})"

    def check(self, x: Float[Tensor, " batch *input"]) -> None:
        """Raise InvalidInput unless x is a batch of finite points inside the box, with one example for each entry of eps."""
        if x.ndim < 2 or x.dtype not in (torch.float32, torch.float64):
            raise InvalidInput(f"x must be a float32 or float64 tensor (batch, *input), got {x.dtype} {tuple(x.shape)}")
        self._radii(x)
        _refuse(~x.isfinite(), x, "x must be finite")
        lower, upper = self.bounds(x)
        _refuse((x < lower) | (x > upper), x, f"x must lie in the box of {self!r} (None for no box)")

    def radii(self, x: Float[Tensor, " batch *input"]) -> Float[Tensor, " batch"]:
        """Return eps as one number for each example, in the dtype of x."""
        return self._radii(x).to(x.dtype)

    def reach(self, x: Float[Tensor, " batch *input"]) -> Float[Tensor, " batch"]:
        """Return eps as one number for each example, rounded up to the dtype of x, so that bounds cover the whole ball."""
        return cast_up(self._radii(x), x.dtype)

    def bounds(self, x: Float[Tensor, " batch *input"]) -> tuple[Tensor, Tensor]:
        """Return the box as two tensors of the shape and dtype of x, infinite without a box."""
        lower, upper = (-math.inf, math.inf) if self.box is None else self.box
        return self._side(lower, x), self._side(upper, x)

    def slacks(self, x: Float[Tensor, " batch *input"]) -> tuple[Tensor, Tensor]:
        """Return the distances x - lower and upper - x to the box, rounded up to the dtype of x."""
        self.check(x)
        lower, upper = self.bounds(x)
        return cast_up(x.double() - lower.double(), x.dtype), cast_up(upper.double() - x.double(), x.dtype)

    def hull(self, x: Float[Tensor, " batch *input"]) -> tuple[Tensor, Tensor]:
        """Return the smallest box around the set, box intersected with [x - eps, x + eps], rounded outwards."""
        self.check(x)
        lower, upper = self.bounds(x)
        eps = self._radii(x).reshape(-1, *[1] * (x.ndim - 1))
        up = cast_up(sum_up(x.double(), eps), x.dtype)
        down = -cast_up(sum_up(-x.double(), eps), x.dtype)
        return torch.maximum(lower, down), torch.minimum(upper, up)

    def contains(
        self, x: Float[Tensor, " batch *input"], z: Float[Tensor, " batch ..."], slack: float = 0.0
    ) -> Bool[Tensor, " batch ..."]:
        """Return which z lie in the set, in real arithmetic: (batch,) for z like x, (batch, n) for z (batch, n, *input).

        eps and the sides of the box are widened by `slack`. If p is not an integer, points that rounding cannot decide count
        as outside.
        """
        lower, upper = self.bounds(x)
        eps, dims = self._radii(x) + slack, x.ndim - 1
        centre, lower, upper, points = x.double(), lower.double() - slack, upper.double() + slack, z.double()
        if z.ndim == x.ndim + 1:
            eps, centre, lower, upper = eps[:, None], centre[:, None], lower[:, None], upper[:, None]
        boxed = (points.isfinite() & (points >= lower) & (points <= upper)).flatten(-dims).all(-1)
        if math.isinf(self.p):
            # A difference rounded up exceeds eps only if the exact difference does.
            limit = eps.reshape(*eps.shape, *[1] * dims)
            return boxed & (apart_up(points, centre) <= limit).flatten(-dims).all(-1)
        length = norm(points - centre, self.p, z.ndim - dims)
        inside = boxed & (length <= eps)
        # Within rounding of eps, rational arithmetic decides; for other p the point counts as outside.
        count = math.prod(x.shape[1:])
        hair = 2.0 * relative_rounding(count, torch.float64) * eps + 2.0 * lost(count)
        close = boxed & (length > 0) & ((length - eps).abs() <= hair) & eps.isfinite()
        if slack > 0 or not bool(close.any()):
            return inside
        for place in close.nonzero().tolist():
            radius = float(self._radii(x)[place[0]])
            inside[tuple(place)] = within(x[place[0]].double(), points[tuple(place)], self.p, radius)
        return inside

    def project(
        self, x: Float[Tensor, " batch *input"], z: Float[Tensor, " batch *input"]
    ) -> Float[Tensor, " batch *input"]:
        """Return the Euclidean projection of z onto the set, rounded so that `contains` holds; points of the set are unchanged.

        The result has no gradient.
        """
        self.check(x)
        if z.shape != x.shape:
            raise InvalidInput(f"z must have the shape {tuple(x.shape)} of x, got {tuple(z.shape)}")
        _refuse(~z.isfinite(), z, "z must be finite")
        x, z = x.detach(), z.detach().to(x.dtype)
        outside = (~self.contains(x, z)).nonzero().squeeze(-1)
        if len(outside) == 0:
            return z
        ball, centre = self.restrict(outside), x[outside]
        eps, (lower, upper) = ball._radii(centre), ball.bounds(centre)
        middle = centre.double().flatten(1)
        below, above = middle - lower.double().flatten(1), upper.double().flatten(1) - middle
        offset = projected_offset(z[outside].double().flatten(1) - middle, self.p, eps, below, above)
        near = (middle + offset).reshape(centre.shape)
        return z.index_copy(0, outside, rounded_inwards(centre, near, self.p, eps, lower, upper))

    def sample(
        self, x: Float[Tensor, " batch *input"], generator: torch.Generator, count: int | None = None,
        *, independent: bool = False,
    ) -> Float[Tensor, " batch ..."]:  # fmt: skip
        """Return random points of the set, like x or with `count` as (batch, count, *input); `contains` holds exactly.

        Half of the points are scaled towards the boundary, see `random_offsets`. With `independent` the points of an example
        are independent of the batch composition.
        """
        self.check(x)
        many = 1 if count is None else count
        if many < 0:
            raise InvalidInput(f"count must be at least 0, got {count}")
        x, (lower, upper) = x.detach(), self.bounds(x)
        below, above = (x.double() - lower.double()).flatten(1), (upper.double() - x.double()).flatten(1)
        radius = torch.minimum(self._radii(x), norm(torch.maximum(below, above), self.p))
        _refuse(radius.isinf(), radius, "eps must be finite where the box is not, to sample from the set: the radius")
        step = random_offsets(below, above, radius, self.p, many, generator, independent=independent)
        # `rounded_inwards` takes one centre for each point.
        centre, low, high = (values.repeat_interleave(many, 0) for values in (x, lower, upper))
        points = centre.double() + step.reshape(centre.shape)
        points = rounded_inwards(centre, points, self.p, self._radii(x).repeat_interleave(many, 0), low, high)
        return points if count is None else points.reshape(len(x), many, *x.shape[1:])

    def range(
        self, x: Float[Tensor, " batch *input"], rows: Float[Tensor, " batch rows *input"], *, budget: int = BUDGET
    ) -> tuple[Float[Tensor, " batch rows"], Float[Tensor, " batch rows"]]:
        """Return lower bounds on the minimum and upper bounds on the maximum of <c, z - x> over the set; see `minimum`."""
        below, above = (None, None) if self.box is None else self.slacks(x)
        return linear_range(rows, self.p, cast_up(self._radii(x), x.dtype), below, above, budget=budget)

    def minimum(
        self,
        x: Float[Tensor, " batch *input"],
        rows: Float[Tensor, " batch ..."],
        *,
        point: bool = False,
        max_iterations: int = ITERATIONS,
        budget: int = BUDGET,
    ) -> LinearMinimum:
        """Return lower bounds on <c, z - x> over the set for rows c, (batch, rows, *input) or one for each example like x.

        With `point` also return the minimisers z, which lie in the set exactly. The value is -inf if the function is unbounded
        below on the set. See `linear_minimum` for the guarantee, the gradient and the memory.
        """
        self.check(x)
        single = rows.ndim == x.ndim
        many = rows.unsqueeze(1) if single else rows
        if many.shape[:1] + many.shape[2:] != x.shape or rows.dtype != x.dtype:
            raise InvalidInput(
                f"rows must be {x.dtype} (batch, rows, *input) for x {tuple(x.shape)}, got {rows.dtype} {tuple(rows.shape)}"
            )
        x, radii = x.detach(), self._radii(x)
        below, above = (None, None) if self.box is None else self.slacks(x)
        eps = cast_up(radii, x.dtype)
        value, minimisers = linear_minimum(
            many, self.p, eps, below, above, max_iterations=max_iterations, budget=budget
        )
        points = None
        if point:
            count = many.shape[1]
            centre, low, high, eps = (values.repeat_interleave(count, 0) for values in (x, *self.bounds(x), radii))
            points = rounded_inwards(centre, centre.double() + minimisers().flatten(0, 1), self.p, eps, low, high)
            points = points.reshape(rows.shape)
        return LinearMinimum(value=value.squeeze(1) if single else value, point=points)

    def restrict(self, index: Index) -> Ball:
        """Return the ball restricted to some examples: an integer (a batch of one), a slice, a mask or positions."""
        if isinstance(index, int):
            index = slice(index, index + 1 or None)
        elif not isinstance(index, slice):
            index = torch.as_tensor(index)
            if index.ndim != 1 or index.is_floating_point():
                raise InvalidInput(f"index must be an integer, a slice, a mask or positions (n,), got {index!r}")
        eps = _picked(self.eps, index) if isinstance(self.eps, Tensor) else self.eps
        tensors = self.box is not None and any(isinstance(side, Tensor) for side in self.box)
        return replace(self, eps=eps, _picks=(*self._picks, index) if tensors else ())

    def without_box(self) -> Ball:
        """Return the ball alone, without its box: a set that contains this one."""
        return replace(self, box=None, _picks=())

    def cut(self, x: Float[Tensor, " batch *input"]) -> Bool[Tensor, " batch"]:
        """Return which balls of finite radius the box makes smaller.

        >>> Ball(2, 0.2).cut(torch.tensor([[0.1, 0.5], [0.4, 0.5]]))
        tensor([ True, False])
        """
        lower, upper = self.bounds(x)
        low, high = self.without_box().hull(x)
        return self._radii(x).isfinite() & ((low < lower) | (high > upper)).flatten(1).any(1)

    def with_eps(self, eps: float | Sequence[float] | Tensor) -> Ball:
        """Return the ball with another eps."""
        return replace(self, eps=eps)

    def beside(self, x: Float[Tensor, " batch *input"]) -> Ball:
        """Return the ball with its box rounded to the dtype of x, so that it describes the same set for a float64 copy of x.

        >>> float(Ball(2, 0.5, box=(0, 0.1)).beside(torch.zeros(1, 2)).bounds(torch.zeros(1, 2).double())[1].max())
        0.10000000149011612
        """
        if self.box is None:
            return self
        lower, upper = (
            side.to(x.dtype) if isinstance(side, Tensor) else torch.tensor(side, dtype=x.dtype).item()
            for side in self.box
        )
        return replace(self, box=(lower, upper))

    def key(self, index: int = 0, x: Float[Tensor, " batch *input"] | None = None) -> dict[str, Any]:
        """Describe the ball of one example in JSON: {"p": ..., "eps": ..., "box": ...}, infinity as "inf"; without a scale.

        A box of two tensors needs x, which determines the entries of the example; unless constant it becomes a digest.

        >>> Ball(math.inf, torch.tensor([0.25, 0.5])).key(1)
        {'p': 'inf', 'eps': 0.5, 'box': [0.0, 1.0]}
        """
        if self.scale is not None:
            raise InvalidInput(f"ball must have no scale to be recorded, got {self!r}")
        eps = float(self.eps[index]) if isinstance(self.eps, Tensor) else self.eps
        box = None
        if self.box is not None:
            sides = self.box
            if any(isinstance(side, Tensor) for side in sides):
                if x is None:
                    raise InvalidInput(f"x must be given to describe a box of tensors, got None for {self!r}")
                sides = tuple(side[index] for side in self.bounds(x))
            box = [_described(side) for side in sides]
        return {"p": _described(self.p), "eps": _described(eps), "box": box}

    def _radii(self, x: Tensor) -> Tensor:
        """One eps for each example, in float64."""
        if self.scale is not None:
            raise InvalidInput(
                f"ball must have no scale here, got {self!r}: certify, attack, bounds and others take a scale"
            )
        if not isinstance(self.eps, Tensor):
            return torch.full((len(x),), self.eps, dtype=torch.float64, device=x.device)
        if len(self.eps) != len(x):
            raise InvalidInput(f"eps must be one number or one for each of the {len(x)} examples, got {len(self.eps)}")
        return self.eps.to(x.device, torch.float64)

    def _side(self, side: float | Tensor, x: Tensor) -> Tensor:
        """One side of the box, broadcast to the shape of x."""
        side = side.to(x.device, x.dtype) if isinstance(side, Tensor) else x.new_full((), side)
        if side.ndim == x.ndim and len(side) != 1:
            for pick in self._picks:
                side = _picked(side, pick)
        try:
            return side.expand(x.shape)
        except RuntimeError as error:
            raise InvalidInput(f"box must broadcast to x {tuple(x.shape)}, got {tuple(side.shape)}") from error


def _checked_eps(eps: Any) -> float | Tensor:
    """Check eps and return it as a float or a tensor (batch,)."""
    try:
        value = eps.detach() if isinstance(eps, Tensor) else torch.as_tensor(eps, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"eps must be a number or one number for each example, got {eps!r}") from error
    if value.ndim > 1:
        raise InvalidInput(f"eps must be a number or one number for each example, got the shape {tuple(value.shape)}")
    if not value.is_floating_point():
        value = value.double()
    if not bool((value >= 0).all()):  # also refuses NaN
        raise InvalidInput(
            f"eps must be at least 0, got {value[~(value >= 0)][0].item() if value.ndim else value.item()}"
        )
    return value if value.ndim else value.item()


def _checked_scale(scale: Any) -> Tensor | None:
    """Check the scale and return it as None or a float64 tensor."""
    if scale is None:
        return None
    try:
        value = torch.as_tensor(scale, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"scale must be numbers, one for every entry of an input, got {scale!r}") from error
    if not bool(((value >= 0) & value.isfinite()).all()):  # also refuses NaN
        raise InvalidInput(f"scale must be finite and at least 0, got {scale!r}")
    return value


def _checked_box(box: Any) -> tuple[float | Tensor, float | Tensor] | None:
    """Check the box and return it as None or two sides, each a float or a tensor."""
    if box is None or box is PIXELS:
        return box
    if not isinstance(box, tuple | list) or len(box) != 2:
        raise InvalidInput(f"box must be None, two numbers or two tensors, got {box!r}")
    try:
        sides = [side.detach() if isinstance(side, Tensor) else float(side) for side in box]
        lower, upper = (torch.as_tensor(side, dtype=torch.float64) for side in sides)
        wrong = ~(lower <= upper)  # also refuses NaN
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"box must be None, two numbers or two tensors that broadcast, got {box!r}") from error
    if bool(wrong.any()):
        low, high = (side.expand(wrong.shape)[wrong][0].item() for side in (lower, upper))
        raise InvalidInput(f"box must have lower <= upper, got lower {low} and upper {high}")
    return sides[0], sides[1]


def _refuse(wrong: Tensor, values: Tensor, rule: str) -> None:
    """Raise InvalidInput with the rule, the first value that breaks it, and its example."""
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        raise InvalidInput(f"{rule}, got {values[tuple(place)].item()} in example {place[0]}")


def _picked(values: Tensor, index: Index) -> Tensor:
    return values[index.to(values.device) if isinstance(index, Tensor) else index]


def _short(value: float | Tensor) -> str:
    if not isinstance(value, Tensor) or value.dim() == 0:
        return f"{float(value):g}"
    return f"<{' x '.join(map(str, value.shape))} numbers>"


def _described(value: float | Tensor) -> float | str:
    """A side as JSON: a number, "inf" or "-inf", or the digest of a tensor that is not constant."""
    if isinstance(value, Tensor):
        if not bool((value == value.flatten()[0]).all()):
            return "sha256:" + hashlib.sha256(value.double().cpu().contiguous().numpy().tobytes()).hexdigest()
        value = value.flatten()[0].item()
    return str(float(value)) if math.isinf(value) else float(value) + 0.0


def as_ball(ball: object, box: tuple[float, float] | None = PIXELS) -> Ball:
    """The ball, with another box if it was given none; a clear error for anything that is no ball, such as eps alone.

    >>> as_ball(Ball(2, 0.5), None), as_ball(Ball(2, 0.5, (0, 1)), None)
    (Ball(2, 0.5, box=None), Ball(2, 0.5, box=(0, 1)))
    """
    if isinstance(ball, Ball):
        return replace(ball, box=box) if ball.box is PIXELS else ball
    raise InvalidInput(f"ball must be a Ball, such as Ball(inf, 0.1) or Ball(2, 0.5, box=None), got {ball!r}")
