"""A training scheme: its parameters, and the loss that it makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from relucert.core.errors import InvalidInput
from relucert.core.methods import Method
from relucert.training.recipes import ATTACK_STEPS, OWN_STEPS, Setting, default_training_eps

if TYPE_CHECKING:
    from relucert.core.ball import Ball
    from relucert.training.losses.loss import Loss

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Scheme(Method):
    """A training scheme: a frozen dataclass that holds the parameters of the scheme and makes its loss.

    A parameter that is None takes the recipe's value for the run (`filled`). The text of a scheme reads like that of a
    method: `mmr(lam=2.0, gamma_b=0.1)`.
    """

    #: The last share of a run over which the learning rate falls; None for the paper's schedule.
    decay: ClassVar[float | None] = None
    #: Defaults of the run's fields of the same names: how first weights are drawn, batch norm that is folded into layers, the
    #: largest length of gradients (0: any), the share of the run, at its end, whose weights are averaged.
    start: ClassVar[str] = "he"
    batch_norm: ClassVar[bool] = False
    clip: ClassVar[float] = 0.0
    average: ClassVar[float] = 0.0

    def filled(self, setting: Setting) -> Self:
        """The scheme with the recipe's values for all parameters that are None; raises where the recipe has none."""
        return self

    def loss(self, setting: Setting) -> Loss:
        """The loss of a scheme whose parameters are filled."""
        raise NotImplementedError

    def require(self, rules: list[tuple[str, bool, str]]) -> None:
        """Raise for the first `(parameter, holds, rule)` that does not hold."""
        for parameter, holds, rule in rules:
            if not holds:
                raise InvalidInput(f"{parameter} must {rule}, got {getattr(self, parameter)!r}")


@dataclass(frozen=True, kw_only=True)
class BallScheme(Scheme):
    """A scheme that trains against a ball: eps is its radius, by default the run's."""

    eps: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([("eps", self.eps is None or 0 < self.eps < math.inf, "be a positive number")])

    def filled(self, setting: Setting) -> Self:
        scheme = super().filled(setting)
        if scheme.eps is not None:
            return scheme
        radius = default_training_eps(setting)
        if radius is None:
            raise InvalidInput(
                f"eps must be given for p={setting.p:g}: the paper has no radius for {setting.data} in that norm"
            )
        return replace(scheme, eps=radius * self.widening(setting.data))

    def widening(self, data: str) -> float:
        """The factor between the default radius of training and the radius of evaluation."""
        return 1.0

    def ball(self, setting: Setting) -> Ball:
        """The ball of training of a filled scheme."""
        from relucert.core.ball import Ball

        return Ball(setting.p, given("eps", self.eps))


@dataclass(frozen=True, kw_only=True)
class AttackScheme(BallScheme):
    """A scheme that trains on points found by PGD: attack_steps is the number of its steps, by default the paper's."""

    attack_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([("attack_steps", self.attack_steps is None or self.attack_steps >= 1, "be at least 1")])

    def filled(self, setting: Setting) -> Self:
        scheme = super().filled(setting)
        return replace(scheme, attack_steps=scheme.attack_steps or ATTACK_STEPS.get(setting.data, OWN_STEPS))


def given(parameter: str, value: Value | None) -> Value:
    """A parameter that must have a value by now."""
    if value is None:
        raise InvalidInput(f"{parameter} must be given, got None")
    return value
