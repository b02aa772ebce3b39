"""Kolter-Wong margins estimated by random projections, for training larger networks (Wong et al., NeurIPS 2018).

A bound needs sums sum_i |V_ji| r_i over the pixels and over the unstable units of every layer, for all units j. With
independent Cauchy numbers c_ik, the number sum_i V_ji r_i c_ik has the Cauchy distribution of scale sum_i |V_ji| r_i, so that

    sum_i |V_ji| r_i  is about  median_k |sum_i V_ji r_i c_ik|,      k = 1, ..., projections,

and all units are done by `projections` columns that go forward through the network. For p = 2 the columns of the input are
normal numbers, and ||V_j||_2 is about the root of their mean square. The estimate trains; it proves nothing.

A unit on [l, u] lies between s z and s z + o: the centre of both lines goes on as s z + o / 2, and o / 2 is the reach of a new
set of columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, ReLU
from relucert.networks.traversal import ForwardRule, Node, propagate

Columns = dict[int, Float[Tensor, " batch projections *shape"]]


@dataclass(frozen=True, eq=False)
class Spread:
    """The centre (batch, *shape) of a node's values, its exact reach before any ReLU, and columns by the node they start at."""

    centre: Tensor
    reach: Tensor | None
    columns: Columns


def projected_margins(
    net: Network, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property, projections: int,
    generator: torch.Generator,
) -> Float[Tensor, " batch specs"]:  # fmt: skip
    """Estimates of the lower bounds on a property's margins, differentiable in the weights."""
    if ball.p not in (2.0, math.inf):
        raise InvalidInput(f"p must be 2 or inf where margins are estimated by random projections, got {ball.p:g}")
    rule = _Projected(ball, projections, generator)
    logits = propagate(net.graph, rule, {0: rule.start(x)})[len(net.graph) - 1]
    centre = (prop.rows @ logits.centre.unsqueeze(2)).squeeze(2)
    reach = torch.zeros_like(centre)
    for index, columns in logits.columns.items():
        reach = reach + rule.estimate(index, (prop.rows @ columns.mT).mT)
    return centre - reach + prop.offsets


class _Projected(ForwardRule[Spread]):
    """Centres and columns of all nodes."""

    def __init__(self, ball: Ball, projections: int, generator: torch.Generator):
        self.ball, self.projections, self.generator = ball, projections, generator

    def start(self, x: Tensor) -> Spread:
        """The pixels: centre and reach of the box around the ball; for p = 2 the ball itself, without a box."""
        if math.isinf(self.ball.p):
            low, high = self.ball.hull(x)
            centre, reach = (low + high) / 2, (high - low) / 2
            return Spread(centre, reach, {0: reach.unsqueeze(1) * self._cauchy(x)})
        normal = torch.randn(1, self.projections, *x.shape[1:], generator=self.generator, dtype=x.dtype)
        eps = self.ball.reach(x).reshape(-1, *(1,) * x.dim())
        return Spread(x, None, {0: eps * normal.to(x.device)})

    def affine(self, node: Node[Affine], inputs: list[Spread]) -> Spread:
        centre = node.op.apply(*(given.centre for given in inputs))
        reaches = [given.reach for given in inputs if given.reach is not None]
        reach = node.op.absolute(*reaches) if len(reaches) == len(inputs) else None
        columns: Columns = {}
        for index in sorted({index for given in inputs for index in given.columns}):
            parts = [self._column(given, index) for given in inputs]
            made = node.op.linear(*(part.flatten(0, 1) for part in parts))
            columns[index] = made.unflatten(0, parts[0].shape[:2])
        return Spread(centre, reach, columns)

    def relu(self, node: Node[ReLU], value: Spread) -> Spread:
        reach = value.reach
        if reach is None:
            reach = sum((self.estimate(*each) for each in value.columns.items()), torch.zeros_like(value.centre))
        lines = relax(node.op, Interval(value.centre - reach, value.centre + reach), "parallel")
        assert isinstance(lines, ReLURelaxation)
        half = lines.offset / 2
        columns = {index: given * lines.above.unsqueeze(1) for index, given in value.columns.items()}
        columns[node.index] = half.unsqueeze(1) * self._cauchy(half)
        return Spread(lines.above * value.centre + half, None, columns)

    def estimate(
        self, index: int, columns: Float[Tensor, " batch projections *shape"]
    ) -> Float[Tensor, " batch *shape"]:
        """The sums of absolute values, or the norm, from the columns that start at a node."""
        if index == 0 and self.ball.p == 2.0:
            return (columns.square().mean(1) + torch.finfo(columns.dtype).tiny).sqrt()
        return columns.abs().median(1).values

    def _cauchy(self, like: Tensor) -> Float[Tensor, " 1 projections *shape"]:
        """Cauchy numbers, the same for all examples of a batch."""
        uniform = torch.rand(1, self.projections, *like.shape[1:], generator=self.generator, dtype=torch.float64)
        return torch.tan(math.pi * (uniform - 0.5)).to(like)

    def _column(self, given: Spread, index: int) -> Tensor:
        if index in given.columns:
            return given.columns[index]
        return given.centre.new_zeros(len(given.centre), self.projections, *given.centre.shape[1:])
