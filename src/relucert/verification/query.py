"""`Query`: a property to be decided over the balls around a batch of inputs. `Budget`: the time that may take."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.properties import Property, against, class_stays
from relucert.networks.network import Network, in_double
from relucert.verification.bab.frontier import SavedSubproblems


@dataclass(frozen=True, eq=False)
class Query:
    """Does C f(z) + c > 0 hold for all z in the ball around every input x?

    `net` is f in its own dtype, which is the dtype of `x`; `double` is its float64 copy, on which bounds are computed. `y` are
    the labels, `prop` has C and c in float64, and `holds` says where the network satisfies the property at x itself.
    `about_class` says that the property is "the class stays y". A proof must hold in real arithmetic; where `strict`, for the
    network as executed in its dtype as well.

    What is known already: `row_margins` has proved margins of single rows, for real arithmetic and for the executed network,
    or is None if no bound has been computed; `saved` has, by position in the batch, the subproblems that branch and bound at
    a larger ball left open.
    """

    net: Network
    double: Network
    x: Float[Tensor, " batch *input"]
    y: Int[Tensor, " batch"]
    ball: Ball
    prop: Property
    holds: Bool[Tensor, " batch"]
    about_class: bool = True
    strict: bool = False
    row_margins: Float[Tensor, " batch specs 2"] | None = None
    saved: Mapping[int, SavedSubproblems] = field(default_factory=dict)

    @classmethod
    @torch.no_grad()
    def of(
        cls, net: Network, x: Tensor, y: Tensor, ball: Ball, targets: Tensor | None = None, batch: int = 100
    ) -> Query:
        """The query "the class stays y", or "y stays ahead of `targets`" (batch, specs), about inputs that were checked.

        The network is evaluated at `batch` inputs at a time.
        """
        if targets is None:
            prop = class_stays(y, net.classes, dtype=torch.float64)
        else:
            prop = against(y, targets, net.classes, dtype=torch.float64)
        holds = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for part in torch.arange(len(x), device=x.device).split(batch):
            if targets is None:
                holds[part] = net.predict(x[part]) == y[part]
            else:
                holds[part] = prop.restrict(part).holds(net(x[part]).double())
        return cls(net, in_double(net), x, y, ball.beside(x), prop, holds, targets is None)

    def __len__(self) -> int:
        return len(self.x)

    def proves(self, margins: Float[Tensor, " *shape 2"]) -> Bool[Tensor, " *shape"]:
        """Which margins, proved for real arithmetic and for the executed network, decide the query; NaN proves nothing."""
        return margins[..., 1 if self.strict else 0] > 0

    @cached_property
    def wide(self) -> Float[Tensor, " batch *input"]:
        """x in float64."""
        return self.x.double()

    @property
    def p(self) -> float:
        """The norm of the ball."""
        return float(self.ball.p)

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor] | None:
        """The box as two tensors like x, None without a box."""
        return None if self.ball.box is None else self.ball.bounds(self.x)

    @property
    def wide_sides(self) -> tuple[Tensor, Tensor] | None:
        """The box in float64."""
        return None if self.sides is None else (self.sides[0].double(), self.sides[1].double())

    def restrict(self, index: Int[Tensor, " n"]) -> Query:
        """The query about some of the inputs, by their positions."""
        position = {old: new for new, old in enumerate(index.tolist())} if self.saved else {}
        return replace(
            self, x=self.x[index], y=self.y[index], ball=self.ball.restrict(index), prop=self.prop.restrict(index),
            holds=self.holds[index], row_margins=None if self.row_margins is None else self.row_margins[index],
            saved={position[old]: kept for old, kept in self.saved.items() if old in position},
        )  # fmt: skip

    def split(self, size: int) -> Iterator[Query]:
        """The same query in batches of at most `size` inputs, in order."""
        for part in torch.arange(len(self), device=self.x.device).split(size):
            yield self.restrict(part)

    def reach(self) -> Float[Tensor, " batch"]:
        """A radius at which the ball holds the whole box, in float64 and rounded up; infinite without a box."""
        if self.wide_sides is None:
            return torch.full((len(self),), math.inf, dtype=torch.float64)
        lower, upper = self.wide_sides
        return norm(torch.maximum(self.wide - lower, upper - self.wide), self.p) * (1 + 1e-9)


@dataclass(frozen=True, eq=False)
class Budget:
    """The time that a verifier may take.

    `seconds` that each input may cost, its share of its batch's, as one number or one for each input; at `deadline`, a moment
    of `time.monotonic`, everything ends.
    """

    seconds: float | Float[Tensor, " batch"] = math.inf
    deadline: float = math.inf

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    @property
    def left(self) -> float:
        """The seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def limited(self) -> bool:
        """Whether any clock can end the search."""
        return math.isfinite(self.deadline) or bool(torch.as_tensor(self.seconds).isfinite().any())

    def each(self, count: int) -> Float[Tensor, " batch"]:
        """The seconds of each of `count` inputs."""
        return torch.as_tensor(self.seconds, dtype=torch.float64).expand(count)

    def restrict(self, index: Int[Tensor, " n"]) -> Budget:
        """The budget of some of the inputs."""
        return Budget(self.seconds[index], self.deadline) if isinstance(self.seconds, Tensor) else self

    def after(self, spent: Float[Tensor, " batch"]) -> Budget:
        """What is left when every input has cost the seconds `spent`."""
        return Budget(self.each(len(spent)) - spent, self.deadline)
