"""Reduced networks: one example's network with everything that is linear over its ball multiplied out.

With h_k the outputs of the unstable ReLUs of the k-th layer, every other ReLU being linear over the ball,

    z_k = A_k x + sum over l < k of B_kl h_l + c_k,    margin = a x + sum over k of b_k h_k + c,

so backward propagation is a product with a small matrix for each layer, whatever layers the network has. Subproblems of branch
and bound are solved on it: a convolutional network of 5000 units of which 300 are unstable is a network of 300 units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.bounding.interval import Interval
from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import Functional, Relaxations, pull_back
from relucert.bounding.relaxation import Pulled, charged
from relucert.bounding.rounding import RAISED, Charge, absolute
from relucert.core.rounding import gamma
from relucert.networks.affine_map import one_hot
from relucert.networks.network import Network
from relucert.networks.nodes import ReLU
from relucert.networks.traversal import Node

ENTRIES = 2**23  # numbers of all matrices of one example


@dataclass(frozen=True, eq=False)
class Kept:
    """A relaxation that passes functionals on through stable units, and keeps them all for the unstable units."""

    on: Bool[Tensor, " batch *shape"]
    unstable: Bool[Tensor, " batch *shape"]
    leak: float
    seen: list[Tensor]
    charge: Float[Tensor, " batch 2 units"] | None
    parallel = False

    @staticmethod
    def of(node: Node[ReLU], within: Interval, drift: Float[Tensor, " batch 2 units"]) -> Kept:
        """For a node of ReLUs with known intervals, whose inputs rounding takes as far as `drift`."""
        most = torch.where(within.upper <= 0, node.op.slope, torch.ones_like(within.upper)).flatten(1).unsqueeze(1)
        charge = torch.where(most == 0, torch.zeros_like(drift), most * drift)
        return Kept(within.lower >= 0, within.unstable, node.op.slope, [], charge)

    @staticmethod
    def stable(node: Node[ReLU], within: Interval, drift: Float[Tensor, " batch 2 units"] | None) -> Kept:
        """The same, where only stable units are charged: unstable ones are variables, charged where they are bounded."""
        if drift is None:
            return Kept(within.lower >= 0, within.unstable, node.op.slope, [], None)
        unstable = within.unstable.flatten(1).unsqueeze(1)
        return Kept.of(node, within, torch.where(unstable, torch.zeros_like(drift), drift))

    def pull_back(self, rows: Float[Tensor, " batch rows *shape"]) -> Pulled:
        """As for `ReLURelaxation`, without the unstable units."""
        self.seen.append(rows)
        slopes = torch.where(self.on, torch.ones_like(rows[:, 0]), torch.full_like(rows[:, 0], self.leak))
        back = rows * torch.where(self.unstable, 0.0, slopes).unsqueeze(1)
        return Pulled(back, rows.new_zeros(rows.shape[:2]), None, charged(rows, self.charge))

    def taken(self) -> Tensor | None:
        """The functionals of the last backward propagation, None if it did not reach the node; they are kept once."""
        return self.seen.pop() if self.seen else None


@dataclass(frozen=True, eq=False)
class Part:
    """Functionals as `direct x + sum over nodes of inner[index] h_index + offset`.

    `cost` (rows, 2) is what rounding costs a functional with the coefficient 1, with the products that backward propagation
    through the reduced network takes; None where rounding is not charged.
    """

    direct: Float[Tensor, " rows inputs"]
    inner: dict[int, Float[Tensor, " rows units"]]
    offset: Float[Tensor, " rows"]
    cost: Float[Tensor, " rows 2"] | None

    @torch.no_grad()
    def charged(self, largest: Float[Tensor, " inputs"], outputs: dict[int, Tensor], terms: int) -> Part:
        """The part with the cost of products with its matrices, sums of `terms` terms: its units are at most `largest`."""
        if self.cost is None:
            return self
        size = self.direct.abs() @ largest + self.offset.abs()
        for index, weights in self.inner.items():
            size = size + weights.abs() @ outputs[index]
        own = torch.stack([gamma(terms, size.dtype) * size, torch.zeros_like(size)], 1)
        return replace(self, cost=RAISED * own + self.cost)


@dataclass(frozen=True, eq=False)
class ReducedNetwork:
    """The unstable `units` by node, the functionals that are their inputs (`layers`), and the property's rows (`last`)."""

    units: dict[int, Int[Tensor, " units"]]
    layers: dict[int, Part]
    last: Part

    @staticmethod
    @torch.no_grad()
    def of(net: Network, bounds: UnitBounds, rows: Float[Tensor, " rows classes"]) -> ReducedNetwork | None:
        """From the bounds of one example; None for a network with max pools, or where the matrices are too large."""
        if len(net.relus) < len(net.switches):
            return None
        inputs = bounds.inputs
        units = {node.index: inputs[node.index].unstable[0].flatten().nonzero()[:, 0] for node in net.relus}
        kept = {node.index: Kept.stable(node, inputs[node.index], bounds.drift(node.index)) for node in net.relus}
        size = math.prod(net.input_shape)
        total, before = 0, size
        for chosen in units.values():
            total, before = total + len(chosen) * before, before + len(chosen)
        if total > ENTRIES:
            return None
        outputs = {index: absolute(inputs[index])[0].flatten()[chosen] for index, chosen in units.items()}
        terms = max([len(chosen) for chosen in units.values()], default=0) + len(units) + 16

        def part(node: int, rows: Tensor, charge: Charge | None) -> Part:
            found = _part(net, node, rows, kept, units, charge)
            return found if charge is None else found.charged(charge.largest[0], outputs, terms)

        layers = {}
        for node in net.switches:
            if len(units[node.index]):
                picked = one_hot(units[node.index][None], net.graph[node.inputs[0]].shape, rows.dtype)
                layers[node.index] = part(node.inputs[0], picked, bounds.charge(node.index))
        return ReducedNetwork(units, layers, part(len(net.graph) - 1, rows[None], bounds.charge()))

    def drift(self, index: int, problems: int) -> Float[Tensor, " problems 2 units"] | None:
        """What rounding does to the unstable units of a node."""
        cost = self.layers[index].cost
        return None if cost is None else cost.T.expand(problems, -1, -1)

    def pull_back(
        self,
        row: Int[Tensor, " problems"],
        relaxations: Relaxations,
        shape: tuple[int, ...],
        charge: Charge | None = None,
    ) -> Functional:
        """Backward propagation of the property's rows, one for each problem, through relaxations of the unstable units.

        `charge` has what the last step is charged for rounding, None where rounding is not charged.
        """
        rows = {index: part[row].unsqueeze(1) for index, part in self.last.inner.items()}
        direct, low = self.last.direct[row].unsqueeze(1), self.last.offset[row].unsqueeze(1)
        cost = None
        if charge is not None:
            assert self.last.cost is not None
            cost = self.last.cost[row].unsqueeze(1)
        for index in reversed(self.layers):
            if index not in rows:
                continue
            back, below, _, lost = relaxations[index].pull_back(rows.pop(index))
            layer = self.layers[index]
            added = back @ layer.offset
            if cost is not None:
                assert lost is not None
                cost = cost + lost
                with torch.no_grad():
                    partial = gamma(4, low.dtype) * (low.abs() + added.abs())
                    cost[..., 0] += partial + gamma(back.shape[2] + 4, low.dtype) * below.abs()
            low = low + below + added
            direct = direct + back @ layer.direct
            for other, weights in layer.inner.items():
                rows[other] = rows[other] + back @ weights if other in rows else back @ weights
        return Functional(direct.unflatten(2, shape), low, None, cost, charge)

    def restrict(self, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """The numbers (n, units) of the unstable units, from numbers (n, *shape) for all units of each node."""
        return {index: values[index].flatten(1)[:, self.units[index]] for index in self.layers}

    def spread(self, small: dict[int, Tensor], values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Numbers for all units, with those of the unstable units replaced."""
        spread = {index: value.clone() for index, value in values.items()}
        for index, part in small.items():
            spread[index].flatten(1)[:, self.units[index]] = part
        return spread


def _part(
    net: Network,
    node: int,
    rows: Tensor,
    kept: dict[int, Kept],
    units: dict[int, Tensor],
    charge: Charge | None,
) -> Part:
    """Functionals (1, rows, *shape) of a node in terms of the input and of the unstable units below it."""
    found = pull_back(net.graph, node, rows, cast(Relaxations, kept), charge)
    seen = {index: kept[index].taken() for index in units}
    inner = {
        index: rows_of[0].flatten(1)[:, units[index]]
        for index, rows_of in seen.items()
        if rows_of is not None and len(units[index])
    }
    cost = None
    if found.cost is not None and charge is not None:
        cost = found.cost[0].clone()
        cost[:, 0] += charge.lost + gamma(8, found.low.dtype) * found.low[0].abs()
    return Part(found.rows[0].flatten(1), inner, found.low[0], cost)
