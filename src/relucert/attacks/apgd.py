"""Auto-PGD: projected gradient ascent with adaptive step sizes (Croce and Hein 2020), in every norm.

Steps have momentum: `z' = P(z_k + step)`, then `z_(k+1) = P(z_k + 3/4 (z' - z_k) + 1/4 (z_k - z_(k-1)))`. The first step has
the length 2 eps. At checkpoints, whose intervals get shorter, the step of an example is halved and its search continues from
its best point if less than three quarters of the steps since the last checkpoint raised the loss, or if neither the step nor
the best loss changed.

For p = 1 the direction of steepest ascent is a single coordinate, which makes progress slow. As in Croce and Hein (2021) a step
moves several of the largest coordinates of the gradient: their number follows the sparsity of the best point, and the step
gets shorter while that number does not fall. In every norm, coordinates of the gradient that point out of the box are ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relucert.attacks._ascent import Loss, Within, ascent, cross_entropy, ratio
from relucert.attacks.base import FixedAttack
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import steepest
from relucert.core.results import Adversarial
from relucert.networks.network import Network
from relucert.networks.prediction import adversarial, changed

MOMENTUM = 0.75
ENOUGH = 0.75  # the fraction of steps that must raise the loss
FIRST, LESS, LEAST = 0.22, 0.03, 0.06  # intervals between checkpoints, as fractions of all steps
SPARSE, THINNER, SHRINK, SHORTEST = 0.2, 1.5, 1.5, 0.1  # p = 1: first fraction of coordinates, and its changes


@dataclass(frozen=True, kw_only=True)
class APGD(FixedAttack):
    """Auto-PGD with `steps` gradients from each of `restarts` random starts.

    `loss`: "ce", "dlr", "targeted" (starts aim at the other classes in turn, the largest logit first) or "mixed" (starts use
    the three losses in turn).
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
        """Search every ball for a point of another class; examples with an adversarial point are skipped."""
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
            ascent_ = _Ascent(net, x[open_], y[open_], target, ball.restrict(open_), kind, self.steps)
            points, done = ascent_.run(generator, self.alike)
            best[open_[done]] = points[done]
            open_ = open_[~done]
        return adversarial(net, x, y, best, ball)


def checkpoints(steps: int) -> list[int]:
    """The steps after which step sizes are adapted."""
    places, last, place = [], 0.0, FIRST
    while place <= 1:
        places.append(max(1, math.ceil(place * steps - 1e-9)))
        last, place = place, place + max(place - last - LESS, LEAST)
    return sorted(set(places))


class _Ascent:
    """One start of the attack for a batch; examples with an adversarial point leave the batch."""

    def __init__(self, net: Network, x: Tensor, y: Tensor, target: Tensor, ball: Ball, kind: str, steps: int):
        self.net, self.x, self.ball, self.kind, self.steps = net, x, ball, kind, steps
        self.labels, self.targets = y, target
        self.open = torch.arange(len(x), device=x.device)
        self.within = Within(x, ball)

    def run(
        self, generator: torch.Generator, independent: bool
    ) -> tuple[Float[Tensor, " batch *input"], Bool[Tensor, " batch"]]:
        """Run all steps; return points, and which of them change the decision."""
        self.points = self.ball.sample(self.x, generator, independent=independent)
        self.done = torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        sparse = self.within.p == 1.0
        # State of every open example: current, previous and best offset, losses, step length and counters.
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
            gradient = self._evaluate()
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

    def _evaluate(self) -> Tensor | None:
        """Compute gradients, drop examples with an adversarial point, update the best points; None if no example is open."""
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
        """Drop examples whose point, rounded into the set, still changes the decision; return the remaining positions."""
        if bool(hit.any()):
            which = self.open[hit]
            self.points[which] = self.ball.restrict(which).project(self.x[which], self._at(self.state["now"])[hit])
            with torch.no_grad():
                self.done[which] = changed(self.net(self.points[which]), self.labels[which])
        kept = (~self.done[self.open]).nonzero()[:, 0]
        if len(kept) < len(self.open):
            self.open, self.within = self.open[kept], self.within.restrict(kept)
            self.state = {name: values[kept] for name, values in self.state.items()}
        return kept

    def _halve(self, since: int) -> None:
        """Halve the steps of examples without enough progress, and return to their best points."""
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
        """p = 1: move 2/3 as many coordinates as the best point does; shorten the step if that number does not fall."""
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
        """One step along the gradient, with momentum except for the first step."""
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
    """The signs of the `count` largest entries, divided by their number."""
    places = count.round().long().clamp(1, gradient.shape[1])[:, None] - 1
    least = gradient.abs().sort(1, descending=True).values.gather(1, places)
    sign = gradient.sign() * (gradient.abs() >= least)
    return sign / sign.abs().sum(1, keepdim=True).clamp(min=1)
