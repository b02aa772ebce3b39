"""Dual ascent: gradient steps on the variables of a lower bound, which holds for every value of the variables.

`alpha` optimises lower slopes, `sdp` lower and upper slopes, branch and bound slopes and split multipliers (beta-CROWN). The
methods differ in variables, in the intervals that the variables are clamped to, and in the bound; the loop is the same.
Every evaluation proves a bound, and the best is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adam import adam

from relucert.bounding.preactivations import UnitBounds
from relucert.bounding.propagation import Relaxations, pull_back
from relucert.bounding.relaxation import ReLURelaxation, relax
from relucert.bounding.rounding import Charge, Margins
from relucert.core.ball import Ball
from relucert.networks.network import Network, frozen_weights

SPAN, REACH = 3, 6.0  # steps, and how many times their gain is hoped for

#: Evaluates a bound at the current variables: the objective to ascend, and what is proved, without gradient.
Bound = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Variables:
    """Tensors that are optimised at one initial `rate`, each clamped to [lower_i, upper] after a step; upper None: no limit."""

    tensors: Sequence[Tensor]
    lower: Sequence[float]
    upper: float | None
    rate: float

    def clamp(self) -> None:
        """Project every tensor onto its interval."""
        for tensor, lower in zip(self.tensors, self.lower, strict=True):
            tensor.clamp_(lower, self.upper)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """`steps` of Adam with the coefficients `averages`, the rates multiplied by `decay` after each, until `deadline`.

    `deadline` is a time of `time.monotonic`. `final`: whether the bound is evaluated once more after the last step.
    """

    steps: int
    decay: float = 0.9
    averages: tuple[float, float] = (0.9, 0.999)
    deadline: float = math.inf
    final: bool = True


class Watch:
    """Which rows are worth further steps, where all that counts is whether a bound (..., 3) exceeds its `goal`.

    A row is left once its bound for the executed network, the last one, exceeds the goal, or when `REACH` times what the last
    `SPAN` steps have gained would not take it there. Rates fall by a tenth with every step, so that later steps go three times
    as far in all as the last three. What a row has when it is left does not depend on other rows.
    """

    def __init__(self, goal: Float[Tensor, " *rows"]):
        self.goal = goal
        self.open = torch.ones_like(goal, dtype=torch.bool)
        self.seen: list[Float[Tensor, " *rows"]] = []

    @torch.no_grad()
    def better(self, best: Float[Tensor, " *rows 3"], proved: Float[Tensor, " *rows 3"]) -> Float[Tensor, " *rows 3"]:
        """The best bounds after a step."""
        best = torch.where(self.open.unsqueeze(-1), torch.fmax(best, proved), best)
        self.seen.append(best[..., 0])
        left = best[..., 2] > self.goal
        if len(self.seen) > SPAN + 1:
            gained = best[..., 0] - self.seen[-1 - SPAN]
            left |= ~(best[..., 0] + REACH * gained > self.goal)
        self.open = self.open & ~left
        return best


def dual_ascent(
    net: nn.Module,
    bound: Bound,
    variables: Sequence[Variables],
    best: Float[Tensor, " *bounds"],
    schedule: Schedule,
    goal: Float[Tensor, " *bounds"] | None = None,
    watch: Watch | None = None,
) -> Float[Tensor, " *bounds"]:
    """The best lower bounds seen while `variables` are optimised, at least `best`; ends early once all exceed `goal`.

    With a `watch` it ends once the watch has left all rows, and later steps do not count for a row that it has left.

    Entries of the objective that are not finite have no gradient. The weights of `net` are constants. Without variables the
    bound is evaluated once.
    """
    groups = [{"params": list(part.tensors), "lr": part.rate} for part in variables if part.tensors]
    steps = schedule.steps if groups else 0
    update = _adam(groups, schedule) if steps else None
    with frozen_weights(net):
        for step in range(steps + (schedule.final or not groups)):
            ascending = step < steps and time.monotonic() < schedule.deadline
            with torch.set_grad_enabled(ascending):
                objective, proved = bound()
                loss = -objective[objective.isfinite()].sum()
            best = torch.fmax(best, proved) if watch is None else watch.better(best, proved)
            if watch is not None and not bool(watch.open.any()):
                break
            if update is None or not loss.requires_grad or (goal is not None and bool((best > goal).all())):
                break
            update(loss)
            with torch.no_grad():
                for part in variables:
                    part.clamp()
    return best


def _adam(groups: list[dict[str, Any]], schedule: Schedule) -> Callable[[Tensor], None]:
    """A function that takes a step of Adam down the gradient of a loss.

    It calls torch's step itself: the optimiser around the step imports torch's compilers, which takes seconds.
    """
    states = [_State.of(group["params"], group["lr"]) for group in groups]
    first, second = schedule.averages

    def update(loss: Tensor) -> None:
        loss.backward()
        for state in states:
            state.step(first, second)
            state.rate *= schedule.decay

    return update


@dataclass(eq=False)
class _State:
    """The averages that Adam keeps of some tensors, and its rate for them."""

    tensors: list[Tensor]
    rate: float
    averages: tuple[list[Tensor], list[Tensor]]
    steps: list[Tensor]

    @staticmethod
    def of(tensors: list[Tensor], rate: float) -> _State:
        """Before the first step; the tensors are to have gradients from now on."""
        zeros = [torch.zeros_like(one, memory_format=torch.preserve_format) for one in tensors]
        steps = [torch.zeros((), dtype=torch.float32, device=one.device) for one in tensors]
        for one in tensors:
            one.requires_grad_()
            one.grad = None
        return _State(tensors, rate, (zeros, [one.clone() for one in zeros]), steps)

    @torch.no_grad()
    def step(self, first: float, second: float) -> None:
        """A step with the averages' factors; gradients are forgotten."""
        used = [place for place, one in enumerate(self.tensors) if one.grad is not None]
        own = [self.tensors[place] for place in used]
        if not own:
            return
        means, squares = ([part[place] for place in used] for part in self.averages)
        adam(
            own, [cast(Tensor, one.grad) for one in own], means, squares, [], [self.steps[place] for place in used],
            foreach=False, fused=all(one.device.type in FUSED for one in own),
            amsgrad=False, beta1=first, beta2=second, lr=self.rate, weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip
        for one in own:
            one.grad = None


FUSED = ("cpu", "cuda")  # devices for which torch has the fast step of Adam


@dataclass(frozen=True, eq=False)
class Functionals:
    """Linear functionals of the value of a node, (batch, rows, *shape), to be bounded below over a ball."""

    net: Network
    node: int
    rows: Float[Tensor, " batch rows *shape"]
    bounds: UnitBounds
    x: Float[Tensor, " batch *input"]
    ball: Ball
    charge: Charge | None

    def ascend(
        self, rate: float, schedule: Schedule, goal: Float[Tensor, " batch rows"] | None = None
    ) -> Float[Tensor, " batch rows 3"]:
        """The best lower bounds after steps at a `rate` on the slopes of all ReLUs on the way.

        Bounds are those of `Margins`: as computed, for real arithmetic, for the executed network. With a `goal` of each row,
        steps end when no row is worth any more (`Watch`).
        """
        slopes, fixed = self._start()

        def bound() -> tuple[Tensor, Tensor]:
            margins = self._margins(slopes, fixed)
            return margins.computed, margins.stacked()

        leaks = [self.net.graph[index].op.slope for index in slopes]  # type: ignore[attr-defined]
        unknown = self.rows.new_full((*self.rows.shape[:2], 3), -math.inf)
        variables = Variables(list(slopes.values()), leaks, 1.0, rate)
        watch = None if goal is None else Watch(goal)
        return dual_ascent(self.net, bound, [variables], unknown, schedule, watch=watch)

    def _start(self) -> tuple[dict[int, Tensor], Relaxations]:
        """CROWN's lower slopes of every ReLU on the way, one for each row, and the relaxations of all other nodes."""
        starts = self.bounds.relaxed(self.net, "adaptive")
        slopes = {}
        for relu in self.net.relus:
            if relu.index <= self.node:
                relaxation = starts[relu.index]
                assert isinstance(relaxation, ReLURelaxation)
                below = relaxation.below.detach().unsqueeze(1)
                slopes[relu.index] = below.expand(-1, self.rows.shape[1], *relu.shape).clone()
        return slopes, {i: other for i, other in starts.items() if i <= self.node and i not in slopes}

    def _margins(self, slopes: dict[int, Tensor], fixed: Relaxations) -> Margins:
        """The lower bounds for given slopes."""
        relaxations = dict(fixed)
        for index, slope in slopes.items():
            op, drift = self.net.graph[index].op, self.bounds.drift(index)
            relaxations[index] = relax(op, self.bounds.inputs[index], slope, drift)  # type: ignore[arg-type]
        return pull_back(self.net.graph, self.node, self.rows, relaxations, self.charge).margins(self.x, self.ball)
