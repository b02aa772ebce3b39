"""`Verifier`: the interface of everything that decides a query, and `RadiusMethod`, of everything that finds radii.

A verifier makes a `Decision` for every input of a `Query`. An `Outcome` is what it knows of its batch so far, and the only
place where verdicts of `certify` other than MISCLASSIFIED are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.core.results import RadiusInterval, Verdict
from relucert.verification.bab.frontier import SavedSubproblems
from relucert.verification.query import Budget, Query

CLOCK = "stopped by the clock: "


@dataclass(frozen=True, eq=False)
class Decision:
    """What was found out about the input at position `index` of a query.

    `margin` is a proved lower bound of the property's margin over the ball, -inf without one, `executed` the same for the
    network as executed in its dtype, `computed` the bound before rounding was charged. `witness` is given if and only if the
    verdict is VULNERABLE; `method` is the text of the method that decided, or of the last one that tried; `seconds` is the
    input's share of the time. `reason` says why the input is UNKNOWN, `claim` names the solver that claims without proof that
    it is robust, `timed` says that a clock ended the search.

    For a verifier that carries on: `row_margins` are proved margins of single rows of the property, for real arithmetic and for
    the executed network, None without any bound; `saved` are the subproblems that branch and bound left open; `nodes` counts
    its subproblems.
    """

    index: int
    verdict: Verdict
    margin: float
    method: str
    seconds: float
    executed: float = -math.inf
    computed: float = -math.inf
    witness: Float[Tensor, " *input"] | None = None
    reason: str = ""
    claim: str = ""
    timed: bool = False
    row_margins: Float[Tensor, " specs 2"] | None = None
    saved: SavedSubproblems | None = None
    nodes: int = 0

    @property
    def by(self) -> str:
        """The method, after a note where a clock ended the search."""
        return f"{CLOCK}{self.method}" if self.timed else self.method


class Verifier(Protocol):
    """Decides whether the property of a query holds all over the balls."""

    def decide(self, query: Query, budget: Budget) -> Iterator[Decision]:
        """One decision for every input, each yielded as soon as it is made; inputs that stay open are UNKNOWN, at the end.

        The property holds at the inputs themselves. ROBUST is a proof: the margin, less what the bound may have been rounded
        by, is positive, in a strict query for the network as executed in its dtype. VULNERABLE needs a witness in ball and
        box that was run through the network again.
        """
        ...


class RadiusMethod(Protocol):
    """Finds intervals around the distance to the nearest change of decision."""

    def radius(self, query: Query, budget: Budget, tol: float) -> RadiusInterval:
        """The interval of every input; the ball of the query is its norm and box with an infinite radius.

        `tol` is the relative width at which a method that narrows intervals may stop.
        """
        ...


@dataclass(eq=False)
class Outcome:
    """What a verifier knows of a batch: inputs are proved, falsified by a witness (NaN for others), or open.

    `margin` is proved for real arithmetic, `executed` for the network in its dtype, `computed` is the bound before rounding was
    charged; `seconds` is the input's share of the time, `nodes` counts its subproblems, `timed` says that a clock
    ended its search; `row_margins`, `saved`, `reasons` and `claims`, the last three by position, are those of `Decision`.
    """

    proved: Bool[Tensor, " batch"]
    falsified: Bool[Tensor, " batch"]
    witness: Float[Tensor, " batch *input"]
    margin: Float[Tensor, " batch"]
    executed: Float[Tensor, " batch"]
    computed: Float[Tensor, " batch"]
    seconds: Float[Tensor, " batch"]
    nodes: Int[Tensor, " batch"]
    timed: Bool[Tensor, " batch"]
    row_margins: Float[Tensor, " batch specs 2"] | None = None
    saved: dict[int, SavedSubproblems] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    claims: dict[int, str] = field(default_factory=dict)

    @classmethod
    def nothing(cls, x: Float[Tensor, " batch *input"]) -> Outcome:
        """What is known before the search."""
        none = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        numbers = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        margin, executed, computed = (torch.full_like(numbers, -math.inf) for _ in range(3))
        return cls(
            none, none.clone(), torch.full_like(x, math.nan), margin, executed, computed, numbers,
            torch.zeros(len(x), dtype=torch.long, device=x.device), none.clone(),
        )  # fmt: skip

    def prove(
        self,
        proved: Bool[Tensor, " batch"],
        rows: Float[Tensor, " batch specs 2"],
        computed: Float[Tensor, " batch specs"] | None = None,
    ) -> None:
        """Take note of proved margins of all rows, and of the inputs that they prove; NaN proves nothing."""
        least = rows.nan_to_num(-math.inf, math.inf, -math.inf).amin(1).double()
        self.proved, self.row_margins = proved, rows
        self.margin, self.executed = least.unbind(1)
        if computed is not None:
            self.computed = computed.detach().nan_to_num(-math.inf, math.inf, -math.inf).amin(1).double()

    @property
    def decided(self) -> Bool[Tensor, " batch"]:
        """Which inputs are proved or falsified."""
        return self.proved | self.falsified

    def decisions(self, places: Iterable[int], method: str, dtype: torch.dtype) -> Iterator[Decision]:
        """The decisions about the inputs at some positions, with witnesses in `dtype`."""
        for place in places:
            falsified, proved = bool(self.falsified[place]), bool(self.proved[place])
            margins = [float(part[place]) for part in (self.margin, self.executed)]
            # A proof and a witness exclude each other; the margin of a bound that proves nothing says nothing either.
            most = 0.0 if falsified else math.inf
            margin, executed = (-math.inf if math.isnan(part) else min(part, most) for part in margins)
            verdict = Verdict.VULNERABLE if falsified else Verdict.ROBUST if proved else Verdict.UNKNOWN
            open_ = verdict is Verdict.UNKNOWN
            yield Decision(
                index=place,
                verdict=verdict,
                margin=margin,
                executed=executed,
                computed=float(self.computed[place]),
                method=method,
                seconds=float(self.seconds[place]),
                witness=self.witness[place].to(dtype) if falsified else None,
                reason=self.reasons.get(place, "") if open_ else "",
                claim=self.claims.get(place, "") if open_ else "",
                timed=open_ and bool(self.timed[place]),
                row_margins=None if self.row_margins is None else self.row_margins[place],
                saved=self.saved.get(place),
                nodes=int(self.nodes[place]),
            )

    def finish(self, done: Bool[Tensor, " batch"], method: str, dtype: torch.dtype) -> Iterator[Decision]:
        """The decisions about all inputs but those of the mask `done`."""
        return self.decisions((~done).nonzero()[:, 0].tolist(), method, dtype)
