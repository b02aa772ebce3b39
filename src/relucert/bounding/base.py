"""What every bounding method promises: bounds of all units over a ball and, from these, of a property's margins."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from relucert.bounding.preactivations import UnitBounds
from relucert.core.ball import Ball
from relucert.core.methods import Method
from relucert.core.properties import Property
from relucert.networks.network import Network


@dataclass(frozen=True, kw_only=True)
class Bounding(Method):
    """A method that bounds margins over a ball: it starts from bounds of the units, and goes on from there."""

    @property
    def contains(self) -> tuple[Bounding, ...]:
        """Cheaper methods that prove no more; each can go on from the units' bounds of the one before it."""
        return ()

    def units(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """Bounds of all units, as good as the method makes them."""
        raise NotImplementedError(self.name)

    def start(self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball) -> UnitBounds:
        """The bounds of the units that it starts from."""
        return self.units(net, x, ball)

    def proceed(
        self, net: Network, known: UnitBounds, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Float[Tensor, " batch specs"]]:
        """From known bounds of the units, whoever found them: its own, and lower bounds on the property's margins."""
        raise NotImplementedError(self.name)

    def solve(
        self, net: Network, x: Float[Tensor, " batch *input"], ball: Ball, prop: Property
    ) -> tuple[UnitBounds, Float[Tensor, " batch specs"]]:
        """Bounds of all units, and lower bounds on the property's margins over the ball."""
        return self.proceed(net, self.start(net, x, ball), x, ball, prop)
