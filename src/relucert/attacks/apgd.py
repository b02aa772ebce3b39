"""Auto-PGD: projected gradient ascent that finds its own step sizes (Croce and Hein 2020), in every norm.

Steps have momentum: `z' = P(z_k + step)`, then `z_(k+1) = P(z_k + 3/4 (z' - z_k) + 1/4 (z_k - z_(k-1)))`. They begin with
the length 2 eps. At checkpoints that come ever more often an example's step is halved, and its search goes on from its best
point, if less than three quarters of the steps since the last checkpoint raised the loss, or if neither step nor best loss
changed.

For p = 1 the direction of steepest ascent is a single coordinate, which leads nowhere fast; as in Croce and Hein (2021) a
step moves as many of the largest coordinates of the gradient as the best point so far suggests, and shrinks as long as that
number does not. In every norm, coordinates that a step would only push against the box do not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.attacks.base import FixedAttack, adversarial
from relucert.attacks.losses import Loss, ascent, cross_entropy, ratio
from relucert.attacks.within import Within
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import steepest
from relucert.core.results import Adversarial
from relucert.networks.network import Network
from relucert.networks.prediction import changed

MOMENTUM = 0.75
ENOUGH = 0.75  # the share of steps that must raise the loss
FIRST, LESS, LEAST = 0.22, 0.03, 0.06  # periods between checkpoints, as parts of all steps
SPARSE, THINNER, SHRINK, SHORTEST = 0.2, 1.5, 1.5, 0.1  # p = 1: first share of coordinates, and what follows


@dataclass(frozen=True, kw_only=True)
class APGD(FixedAttack):
    """Auto-PGD with a number of steps (gradients) from each of some random starts, a loss, a seed.

    `loss`: "ce", "dlr", "targeted" (starts take the other classes in turn, the nearest first) or "mixed" (starts take the three
    in turn).
    """

    name = "apgd"
    steps: int = 100
    restarts: int = 3
    loss: Literal["ce", "dlr", "targeted", "mixed"] = "mixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "restarts"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} of apgd must be at least 1, got {getattr(self, name)}")

    def attack(self, net: Network, x: Tensor, y: Tensor, ball: Ball, generator: torch.Generator) -> Adversarial:
        """Search every ball for a point of another class; an example that is broken is left in peace."""
        best = x.clone()
        with torch.no_grad():
            logits = net(x)
        ranked = logits.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)
        open_ = (~changed(logits, y)).nonzero()[:, 0]
        for turn in range(self.restarts):
            if len(open_) == 0:
                break
            kind, rank = (("ce", "dlr", "targeted")[turn % 3], turn // 3) if self.loss == "mixed" else (self.loss, turn)
            target = ranked[open_, rank % (net.classes - 1)]
            ascend = _Climb(net, x[open_], y[open_], target, ball.restrict(open_), kind, self.steps)
            points, done = ascend.run(generator, self.alike)
            best[open_[done]] = points[done]
            open_ = open_[~done]
        return adversarial(net, x, y, best, ball)


def checkpoints(steps: int) -> list[int]:
    """The steps after which step sizes are judged."""
    places, last, place = [], 0.0, FIRST
    while place <= 1:
        places.append(max(1, math.ceil(place * steps - 1e-9)))
        last, place = place, place + max(place - last - LESS, LEAST)
    return sorted(set(places))


class _Climb:
    """One start of the attack for a batch; examples that are broken leave it."""

    def __init__(self, net: Network, x: Tensor, y: Tensor, target: Tensor, ball: Ball, kind: str, steps: int):
        self.net, self.x, self.ball, self.kind, self.steps = net, x, ball, kind, steps
        self.labels, self.targets = y, target
        self.open = torch.arange(len(x), device=x.device)
        self.within = Within(x, ball)

    def run(
        self, generator: torch.Generator, independent: bool
    ) -> tuple[Float[Tensor, " batch *input"], Bool[Tensor, " batch"]]:
        """Points, and which of them change the decision."""
        self.points = self.ball.sample(self.x, generator, independent=independent)
        self.done = torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        sparse = self.within.p == 1.0
        # What every open example has: the offsets now and before, the best one with its gradient, its loss and more.
        now = self.within.offset(self.points)
        count = torch.full_like(self.within.eps, SPARSE * now.shape[1])
        self.state: dict[str, Tensor] = {
            "now": now,
            "before": now.clone(),
            "best": now.clone(),
            "top": torch.full_like(self.within.eps, -torch.inf),
            "last": torch.full_like(self.within.eps, -torch.inf),
            "length": (1.0 if sparse else 2.0) * self.within.eps,
            "raised": torch.zeros_like(self.within.eps),
            "count": count,
            "thin": count / SPARSE,
            "top at check": torch.full_like(self.within.eps, -torch.inf),
            "halved": torch.ones_like(self.within.eps),
        }
        judged = (
            {max(1, round(0.04 * self.steps)) * i for i in range(1, 26)} if sparse else set(checkpoints(self.steps))
        )
        since = 0
        for step in range(self.steps):
            gradient = self._look()
            if gradient is None:
                break
            since += 1
            if step in judged:
                (self._thin if sparse else self._halve)(since)
                since = 0
            self._move(gradient, first=step == 0)
        else:
            with torch.no_grad():
                logits = self.net(self._at(self.state["now"]))
            self._leave(changed(logits, self.labels[self.open]))
        return self.points, self.done

    def _at(self, offset: Tensor) -> Tensor:
        return (self.within.centre + offset).reshape(-1, *self.x.shape[1:])

    def _loss(self) -> Loss:
        y = self.labels[self.open]
        if self.kind == "ce":
            return partial(cross_entropy, y=y)
        return partial(ratio, y=y, target=self.targets[self.open] if self.kind == "targeted" else None)

    def _look(self) -> Tensor | None:
        """Take the gradient, let go what is broken, and keep what is better; None if nothing is left."""
        gradient, value, logits = ascent(self.net, self._at(self.state["now"]), self._loss())
        kept = self._leave(changed(logits, self.labels[self.open]))
        if len(self.open) == 0:
            return None
        state, gradient, value = self.state, gradient.flatten(1)[kept], value[kept]
        state["raised"] += value > state["last"]
        better = value > state["top"]
        state["best"] = torch.where(better[:, None], state["now"], state["best"])
        slope = state.get("slope", gradient)
        state["slope"] = torch.where(better[:, None], gradient, slope)
        state["top"] = torch.maximum(state["top"], value)
        state["last"] = value
        return gradient

    def _leave(self, hit: Bool[Tensor, " open"]) -> Int[Tensor, " kept"]:
        """Examples that are broken go; rounding into the set may undo a narrow win: what counts is the rounded point."""
        if bool(hit.any()):
            found = self.open[hit]
            self.points[found] = self.ball.restrict(found).project(self.x[found], self._at(self.state["now"])[hit])
            with torch.no_grad():
                self.done[found] = changed(self.net(self.points[found]), self.labels[found])
        kept = (~self.done[self.open]).nonzero()[:, 0]
        if len(kept) < len(self.open):
            self.open, self.within = self.open[kept], self.within.restrict(kept)
            self.state = {name: values[kept] for name, values in self.state.items()}
        return kept

    def _halve(self, since: int) -> None:
        """Halve the steps that do not help, and go back to the best points there."""
        state = self.state
        few = state["raised"] < ENOUGH * since
        stuck = (state["halved"] == 0) & (state["top"] <= state["top at check"])
        short = few | stuck
        state["length"] = torch.where(short, state["length"] / 2, state["length"])
        state["halved"] = short.to(state["length"].dtype)
        state["top at check"] = state["top"].clone()
        state["raised"].zero_()
        self._return(short)

    def _thin(self, since: int) -> None:
        """p = 1: as many coordinates as the best point moves, less a third; shorter steps where these do not get fewer."""
        state = self.state
        moved = (state["best"] != 0).sum(1).to(state["count"])
        fewer = moved < 0.95 * state["thin"]
        state["count"] = (moved / THINNER).clamp(min=1)
        shorter = torch.maximum(state["length"] / SHRINK, SHORTEST * self.within.eps)
        state["length"] = torch.where(fewer, self.within.eps, shorter)
        state["thin"] = moved
        self._return(fewer)

    def _return(self, which: Bool[Tensor, " open"]) -> None:
        state = self.state
        state["now"] = torch.where(which[:, None], state["best"], state["now"])
        state["before"] = torch.where(which[:, None], state["best"], state["before"])
        state["returned"] = which

    def _move(self, gradient: Tensor, first: bool) -> None:
        """One step along the gradient, with momentum but for the first."""
        state, within = self.state, self.within
        if (returned := state.pop("returned", None)) is not None:
            gradient = torch.where(returned[:, None], state["slope"], gradient)
        now = state["now"]
        gradient = within.useful(now, gradient)
        direction = _largest(gradient, state["count"]) if within.p == 1.0 else steepest(gradient, within.p)
        aim = within.back(now + state["length"][:, None] * direction)
        if not first:
            aim = within.back(now + MOMENTUM * (aim - now) + (1 - MOMENTUM) * (now - state["before"]))
        state["before"], state["now"] = now, aim


def _largest(gradient: Float[Tensor, " batch size"], count: Float[Tensor, " batch"]) -> Float[Tensor, " batch size"]:
    """The signs of the `count` largest entries, divided by how many they are."""
    places = count.round().long().clamp(1, gradient.shape[1])[:, None] - 1
    least = gradient.abs().sort(1, descending=True).values.gather(1, places)
    sign = gradient.sign() * (gradient.abs() >= least)
    return sign / sign.abs().sum(1, keepdim=True).clamp(min=1)
