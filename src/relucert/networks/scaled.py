"""Balls with a scale: a question about ||(z - x) / scale||_p <= eps as one about an ordinary ball.

With v = z / scale the question is about the network v -> f(scale v) and the ball around x / scale. x / scale is rounded, so the
ball is widened by what rounding may have moved its centre, and its box is rounded outwards: it holds the images of all points
of the original ball, and a proof holds for all of them. Points come back by z = scale v; they count if they lie in the original
ball for certain and change the decision of the original network. Entries of scale 0 are held fixed by the box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.core.properties import Property
from relucert.core.results import Adversarial
from relucert.core.rounding import apart_up, cast_up, relative_rounding, sum_up, unit_roundoff
from relucert.networks.network import Network, in_double
from relucert.networks.prediction import class_changes, falsified

#: Points that rounding has taken out of the ball are moved towards x by the first of these factors that takes them back.
_SHRUNK = (1.0, 1 - 1e-12, 1 - 1e-6, 1 - 1e-3)


class _Multiplied(nn.Module):
    """A network of inputs that are multiplied by constants first."""

    mean: Tensor | None
    std: Tensor | None
    factor: Tensor

    def __init__(self, net: Network, factor: Tensor):
        super().__init__()
        self.module = net.module
        self.register_buffer("factor", factor)
        self.register_buffer("mean", net.mean)
        self.register_buffer("std", net.std)

    def forward(self, v: Tensor) -> Tensor:
        z = v * self.factor
        if self.mean is not None:
            z = z - self.mean
        if self.std is not None:
            z = z / self.std
        return self.module(z)


@dataclass(frozen=True, eq=False)
class ScaledQuestion:
    """Network, inputs and ball without a scale, and those with a scale that they stand for.

    `shift` bounds how far rounding has moved the centres, in units of the scale.
    """

    net: Network
    x: Float[Tensor, " batch *input"]
    ball: Ball
    original: Network
    centre: Float[Tensor, " batch *input"]
    given: Ball
    shift: Float[Tensor, " batch"]

    @property
    def _plain(self) -> Ball:
        """The ball that was given, without its scale: its radii and its box are those of the scaled ball."""
        return replace(self.given, scale=None)

    @property
    def _factor(self) -> Tensor:
        assert isinstance(self.net.module, _Multiplied)
        return self.net.module.factor

    @property
    def _fixed(self) -> Tensor:
        assert self.given.scale is not None
        return (self.given.scale == 0).to(self.centre.device).expand(self.centre.shape)

    def restrict(self, index: Int[Tensor, " n"]) -> ScaledQuestion:
        """The question about some of the inputs, by their positions."""
        return replace(
            self, x=self.x[index], ball=self.ball.restrict(index), centre=self.centre[index],
            given=self.given.restrict(index), shift=self.shift[index],
        )  # fmt: skip

    def lengths(self, points: Float[Tensor, " batch *input"]) -> Float[Tensor, " batch"]:
        """||(z - x) / scale||_p, rounded up; infinite where a fixed entry moved."""
        away = apart_up(points.double(), self.centre.double())
        share = away / self._factor
        share = torch.where(away == 0, 0.0, torch.nextafter(share, torch.full_like(share, math.inf)))
        share = torch.where(self._fixed & (away > 0), math.inf, share)
        length = norm(share, self.given.p)
        if math.isinf(self.given.p):
            return length
        return length * (1 + 4 * relative_rounding(math.prod(self.centre.shape[1:]), torch.float64))

    def inside(self, points: Float[Tensor, " batch *input"]) -> Bool[Tensor, " batch"]:
        """Which points lie in the original ball and box for certain."""
        lower, upper = self._plain.bounds(self.centre)
        boxed = ((points >= lower) & (points <= upper)).flatten(1).all(1)
        return boxed & (self.lengths(points) <= self._plain.radii(self.centre.double()))

    def back(self, points: Float[Tensor, " batch *input"]) -> Float[Tensor, " batch *input"]:
        """Points of the ball without a scale as points of the original ball; x where none is found."""
        lower, upper = self._plain.bounds(self.centre)
        step = torch.where(self._fixed, 0.0, points * self._factor - self.centre.double())
        found, open_ = self.centre.clone(), torch.ones(len(points), dtype=torch.bool, device=points.device)
        for share in _SHRUNK:
            moved = (self.centre.double() + share * step).to(self.centre.dtype)
            moved = torch.minimum(torch.maximum(moved, lower), upper)
            taken = open_ & self.inside(moved)
            found[taken], open_ = moved[taken], open_ & ~taken
        return found

    def counterexamples(
        self, points: Float[Tensor, " batch *input"], prop: Property
    ) -> tuple[Float[Tensor, " batch *input"], Bool[Tensor, " batch"]]:
        """Points as inputs of the original network, and which of them violate the property there."""
        back = self.back(points)
        return back, falsified(self.original, in_double(self.original), back, prop)

    @torch.no_grad()
    def adversarial(self, points: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"]) -> Adversarial:
        """Points as adversarial examples of the original network; distances are in units of the scale."""
        back = self.back(points)
        already = self.original(self.centre).argmax(1) != y
        kept = already.reshape(-1, *(1,) * (back.dim() - 1))
        back = torch.where(kept, self.centre, back)
        success = already | class_changes(self.original, in_double(self.original), back, y)
        back = torch.where(success.reshape(kept.shape), back, self.centre)
        distance = cast_up(self.lengths(back), self.centre.dtype)
        return Adversarial(back, success, torch.where(success, distance, torch.inf))


def scaled(net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> ScaledQuestion:
    """The question without a scale that a question about a ball with a scale becomes."""
    net.check(x)
    factor, middle, shift, plain = _divided(x, ball)
    inner = Network(_Multiplied(in_double(net), factor), net.input_shape)
    return ScaledQuestion(inner, middle, plain, net, x, ball, shift)


def scaled_in_training(
    net: Network, x: Float[Tensor, " batch *input"], ball: Ball
) -> tuple[Network, Float[Tensor, " batch *input"], Ball, Float[Tensor, " *input"]]:
    """Network, inputs and ball without a scale in the network's dtype, and the factor of inputs: z = factor v.

    The network has the weights and the mode of the given one, and gradients reach these. Nothing is proved with it.
    """
    factor, middle, _, plain = _divided(x, ball)
    factor, middle = factor.to(x.dtype), middle.to(x.dtype)
    if isinstance(plain.box, tuple):
        plain = replace(plain, box=tuple(torch.as_tensor(side).to(x) for side in plain.box))
    module = _Multiplied(net, factor)
    module.training = net.training
    return Network(module, net.input_shape), middle, plain, factor


def _divided(x: Tensor, ball: Ball) -> tuple[Tensor, Tensor, Tensor, Ball]:
    """The scale with 1 for 0, inputs divided by it, what rounding has moved these at most, and the ball around them."""
    plain, scale = replace(ball, scale=None), ball.scale
    assert scale is not None
    plain.check(x)
    try:
        scale = scale.to(x.device).expand(x.shape[1:])
    except RuntimeError as error:
        raise InvalidInput(
            f"scale must broadcast to one input {tuple(x.shape[1:])}, got shape {tuple(scale.shape)}"
        ) from error
    fixed = scale == 0
    factor = torch.where(fixed, 1.0, scale).contiguous()
    wide = x.double()
    middle = torch.where(fixed, wide, wide / factor)
    # Division is off by at most u of its result; doubled for this line's own rounding.
    off = torch.where(fixed, 0.0, 2 * unit_roundoff() * middle.abs() + torch.finfo(torch.float64).tiny)
    shift = norm(off, ball.p) * (1 + 1e-9)
    eps = sum_up(plain.radii(wide), shift)
    box = None
    if ball.box is not None or bool(fixed.any()):
        lower, upper = (side.double() / factor for side in plain.bounds(x))
        lower = torch.where(fixed, wide, torch.nextafter(lower, torch.full_like(lower, -math.inf)))
        upper = torch.where(fixed, wide, torch.nextafter(upper, torch.full_like(upper, math.inf)))
        box = (lower, upper)
    return factor, middle, shift, Ball(ball.p, eps, box)
