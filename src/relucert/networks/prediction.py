"""Predictions, and when a point counts as one at which the decision is another.

A counterexample must hold twice. The network as executed, in its own dtype, must prefer another class by more than `slack`,
in the batch of all points and on the point alone: sums are added up in another order there, and where weights cancel the
logits of one and the same point can be far apart. The network of real arithmetic must prefer another class, too: in float32,
weights that cancel can change the executed decision where the real one stays (`confirmed`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import steepest
from relucert.core.properties import Property, class_stays
from relucert.core.results import Adversarial
from relucert.core.rounding import DECISION_EPSILONS, cast_up, gamma, gamma_above, length_up
from relucert.networks.network import Network, in_double
from relucert.networks.nodes import Affine, MaxPool2d, ReLU
from relucert.networks.traversal import ForwardRule, Node, propagate

PIECE = 1000


@torch.no_grad()
def predictions(net: Network, x: Float[Tensor, " batch *input"]) -> Int[Tensor, " batch"]:
    """The predicted class of every input, a piece of the batch at a time so that memory stays small."""
    net.check(x)
    return torch.cat([net.predict(piece) for piece in x.split(PIECE)]) if len(x) else x.new_zeros(0, dtype=torch.long)


def descended(
    net: Network, x: Float[Tensor, " batch *input"], prop: Property, eps: Float[Tensor, " batch"], p: float, steps: int
) -> Bool[Tensor, " batch"]:
    """Which inputs have a point within eps in l_p where the property fails, by a few steps of steepest descent on its one row.

    Each step ends on the boundary of the ball. Nothing is checked beyond the sign of the margin.
    """
    point, found = x, torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(steps):
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            margin = prop.margins(net(point))[:, 0]
            (slope,) = torch.autograd.grad(margin.sum(), point)
        found |= margin.detach() < 0
        point = x - eps.reshape(-1, *[1] * (slope.dim() - 1)) * steepest(slope, p)
    return found | (prop.margins(net(point))[:, 0] < 0)


def error(net: Network, x: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"]) -> float:
    """The share of inputs whose predicted class is not their label."""
    if len(x) == 0:
        raise InvalidInput("x must hold at least one example to have an error, got none")
    net.check(x, y)
    net.require_eval("measuring an error")
    return int((predictions(net, x) != y).sum()) / len(y)


def slack(logits: Float[Tensor, " batch classes"]) -> Float[Tensor, " batch"]:
    """The margin with which a class must win to win in every batch: 32 machine epsilons of the largest absolute logit."""
    return gamma_above(DECISION_EPSILONS, logits.dtype) * logits.abs().amax(1)


def changed(logits: Float[Tensor, " batch classes"], y: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """Where another class than y wins by more than `slack`."""
    own = logits.gather(1, y[:, None])[:, 0]
    other = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return other - own > slack(logits)


@torch.no_grad()
def falsified(
    net: Network, double: Network, points: Float[Tensor, " batch *input"], prop: Property
) -> Bool[Tensor, " batch"]:
    """Where a property fails for the network as executed, by more than `slack`, and for the network of real arithmetic.

    `points` have the dtype of `net`; `double` is the network in float64, `prop` a property in float64.
    """
    fails = _fails(net(points), prop)
    places = fails.nonzero()[:, 0]
    if len(places):
        fails[places] = confirmed(double, points[places], prop.restrict(places))
    places = fails.nonzero()[:, 0]
    if len(places) and len(points) > 1:
        alone = torch.cat([net(points[place : place + 1]) for place in places.tolist()])
        fails[places] = _fails(alone, prop.restrict(places))
    return fails


def _fails(logits: Float[Tensor, " batch classes"], prop: Property) -> Bool[Tensor, " batch"]:
    """Where a property fails at computed logits by more than `slack`."""
    return prop.margin(logits.double()) < -slack(logits).double()


@torch.no_grad()
def class_changes(
    net: Network, double: Network, points: Float[Tensor, " batch *input"], y: Int[Tensor, " batch"]
) -> Bool[Tensor, " batch"]:
    """Where the class is another than y, for the network as executed, by more than `slack`, and in real arithmetic."""
    return falsified(net, double, points, class_stays(y, net.classes, dtype=torch.float64))


@torch.no_grad()
def adversarial(
    net: Network,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    points: Float[Tensor, " batch *input"],
    ball: Ball,
) -> Adversarial:
    """Verify adversarial points by running the network again; if y is not predicted at x, x itself is the point.

    A failure has x as its point and an infinite distance; points that are not finite are failures. With eps = inf in the ball
    only the box limits the points.
    """
    already = net(x).argmax(1) != y
    kept = already.reshape(-1, *(1,) * (x.dim() - 1))
    points = torch.where(kept | ~points.isfinite(), x, points)
    success = already | (class_changes(net, in_double(net), points, y) & ball.contains(x, points))
    points = torch.where(success.reshape(kept.shape), points, x)
    # The distance in the dtype of x, rounded up.
    distance = cast_up(length_up(x, points, ball.p), x.dtype)
    return Adversarial(points, success, torch.where(success, distance, torch.inf))


@torch.no_grad()
def confirmed(double: Network, points: Float[Tensor, " batch *input"], prop: Property) -> Bool[Tensor, " batch"]:
    """Where a property is proved to fail in real arithmetic: all margins of some clause are negative by more than rounding."""
    logits, errors = logits_with_errors(double, points.double())
    # The sum of a row is rounded once for every logit and for the offset.
    sizes = errors + gamma_above(prop.classes + 2) * logits.abs()
    off = (prop.rows.abs() @ sizes.unsqueeze(2)).squeeze(2) + gamma_above(4) * prop.offsets.abs()
    # What is not a number fails nothing.
    margins = (prop.margins(logits) + off).nan_to_num(torch.inf, torch.inf, -torch.inf)
    return (prop.by_clause(margins) < 0).any(1)


@torch.no_grad()
def logits_with_errors(
    double: Network, x: Float[Tensor, " batch *input"]
) -> tuple[Float[Tensor, " batch classes"], Float[Tensor, " batch classes"]]:
    """The logits in float64, and bounds on how far rounding has taken each of them from real arithmetic.

    An affine node of n terms is off by at most gamma_n (|A| |z| + |b|), gamma_n = n u / (1 - n u), in any order of
    summation, and passes on |A| times the error of its input. A ReLU or a maximum passes on no more than it is given.
    """
    last = len(double.graph) - 1
    logits, error = propagate(double.graph, _Errors(x.dtype), {0: (x, torch.zeros_like(x))})[last]
    return logits, 2 * error  # doubled: the bound itself is computed with rounding


Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class _Errors(ForwardRule[Pair]):
    """The value of every node, and half the bound on its rounding error."""

    dtype: torch.dtype

    def affine(self, node: Node[Affine], inputs: list[Pair]) -> Pair:
        given = [value for value, _ in inputs]
        passed = node.op.absolute(*(off for _, off in inputs))
        own = gamma(node.op.terms, self.dtype) * node.op.magnitude(*(part.abs() for part in given))
        return node.op.apply(*given), passed + own + torch.finfo(self.dtype).tiny

    def relu(self, node: Node[ReLU], value: Pair) -> Pair:
        z, error = node.op.apply(value[0]), value[1]
        if node.op.slope:  # the product with the slope is rounded
            error = error + gamma_above(1, self.dtype) * z.abs() + torch.finfo(self.dtype).tiny
        return z, error

    def max_pool(self, node: Node[MaxPool2d], value: Pair) -> Pair:
        return node.op.apply(value[0]), node.op.apply(value[1])
