"""What every bounding method promises: bounds of all units over a ball and, from these, of a property's margins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.rounding import Margins
from relucert.core.ball import Ball
from relucert.core.methods import Method
from relucert.core.properties import Property
from relucert.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class Bounding(Method):
    """A method that bounds margins over a ball: it starts from bounds of the units, and goes on from there."""

    #: Whether the method is quick and sharp enough in float32 to be tried there first.
    single: ClassVar[bool] = False

    @property
    def contains(self) -> tuple[Bounding, ...]:
        """Cheaper methods that prove no more; each can go on from the units' bounds of the one before it."""
        return ()

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units, as good as the method makes them."""
        return self.start(net, x, ball)

    def start(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, executed: torch.dtype | None = None
    ) -> UnitBounds:
        """The bounds of the units that it starts from.

        With `executed`, the dtype that the network runs in, rounding is charged, here and in margins that go on from here.
        """
        raise NotImplementedError(self.name)

    def prove(
        self, net: Network, known: UnitBounds, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Margins]:
        """From known bounds of the units, whoever found them: its own, and lower bounds on the property's margins.

        Rounding is charged where the known bounds charge it.
        """
        raise NotImplementedError(self.name)

    def proceed(
        self, net: Network, known: UnitBounds, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Float[Tensor, " batch specs"]]:
        """As `prove`, with the margins as computed."""
        units, margins = self.prove(net, known, x, ball, prop)
        return units, margins.computed

    def solve(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Float[Tensor, " batch specs"]]:
        """Bounds of all units, and lower bounds on the property's margins over the ball."""
        return self.proceed(net, self.start(net, x, ball), x, ball, prop)
