"""Schemes `mmr`, `mmr-dd` and `mmr+at`: the maximum margin regulariser (section 4 of the paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from relucert.core.errors import InvalidInput
from relucert.training._schedules import Count, Schedule
from relucert.training.recipes import Setting, default_margin, default_schedule
from relucert.training.schemes.scheme import AttackScheme, Scheme, given

if TYPE_CHECKING:
    from relucert.training.losses.loss import Loss
    from relucert.training.losses.maximum_margin import MaximumMargin, Mix


@dataclass(frozen=True, kw_only=True)
class MMRDDTraining(Scheme):
    """Cross-entropy + lam * the decision term of MMR (MMR-DD, Table 2 of the paper).

    lam is the weight of the regulariser, reached after a tenth of the run. Decision hyperplanes within the distance
    gamma_d are penalised, and the nearest k_d of them enter: k_d=(first, last) is a number that changes linearly over
    the run, share_d=(first, last) the same as shares of the number of classes. From the share `nearest_after` of the run
    on only the nearest hyperplane enters. What is not given is the recipe's.
    """

    name = "mmr-dd"
    #: The parameters that the table of the recipe has one number gamma for.
    gammas: ClassVar[tuple[str, ...]] = ("gamma_d",)

    lam: float | None = None
    gamma_d: float | None = None
    k_d: tuple[int, int] | None = None
    share_d: tuple[float, float] | None = None
    nearest_after: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([("lam", self.lam is None or 0 <= self.lam < math.inf, "be a number >= 0")])
        for name in self.gammas:
            value = getattr(self, name)
            self.require([(name, value is None or 0 < value < math.inf, "be a positive number")])
        after = self.nearest_after
        self.require([("nearest_after", after is None or 0 <= after <= 1, "be a share of the run, from 0 to 1")])
        self._check_counts("k_d", "share_d")

    def _check_counts(self, number: str, share: str) -> None:
        numbers, shares = getattr(self, number), getattr(self, share)
        if numbers is not None and shares is not None:
            raise InvalidInput(f"{share} must be left out where {number} is given, got {shares!r}")
        self.require(
            [
                (number, numbers is None or min(numbers) >= 1, "be two numbers of at least 1"),
                (share, shares is None or (min(shares) >= 0 and max(shares) <= 1), "be two shares from 0 to 1"),
            ]
        )

    def filled(self, setting: Setting) -> Self:
        scheme = super().filled(setting)
        margin, schedule = default_margin(setting, self.name), default_schedule(setting)
        for name in ("lam", *self.gammas):
            if getattr(scheme, name) is not None:
                continue
            if margin is None:
                raise InvalidInput(
                    f"{name} must be given: recipe {setting.recipe} has none for scheme {self.name}, {setting}"
                )
            scheme = replace(scheme, **{name: margin.lam if name == "lam" else margin.gamma})
        if scheme.nearest_after is None:
            scheme = replace(scheme, nearest_after=schedule.nearest_after)
        return scheme._with_counts(schedule.k_d, "k_d", "share_d")

    def _with_counts(self, count: Count, number: str, share: str) -> Self:
        """The scheme with the recipe's count, as numbers or as shares, unless one of them is given."""
        if getattr(self, number) is not None or getattr(self, share) is not None:
            return self
        if count.shares:
            return replace(self, **{share: (count.first, count.last)})
        return replace(self, **{number: (round(count.first), round(count.last))})

    def loss(self, setting: Setting) -> Loss:
        return self._margin_loss(setting, gamma_b=None, k_b=Count(1, 1))

    def _margin_loss(
        self, setting: Setting, gamma_b: float | None, k_b: Count, mix: Mix | None = None
    ) -> MaximumMargin:
        from relucert.training.losses.maximum_margin import MaximumMargin

        k_d = count_of("k_d", self.k_d, self.share_d)
        return MaximumMargin(
            p=setting.p, lam=given("lam", self.lam), gamma_b=gamma_b, gamma_d=given("gamma_d", self.gamma_d),
            schedule=Schedule(k_b, k_d, given("nearest_after", self.nearest_after)), mix=mix,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MMRTraining(MMRDDTraining):
    """Cross-entropy + lam * MMR: large linear regions, far decision hyperplanes (equation 4 of the paper).

    Hyperplanes of units within the distance gamma_b are penalised, and the nearest k_b of them enter, or the share share_b
    of all; gamma_d, k_d and share_d are the same for decision hyperplanes. Both pairs (first, last) change linearly over
    the run.
    """

    name = "mmr"
    gammas = ("gamma_b", "gamma_d")

    gamma_b: float | None = None
    k_b: tuple[int, int] | None = None
    share_b: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_counts("k_b", "share_b")

    def filled(self, setting: Setting) -> Self:
        return super().filled(setting)._with_counts(default_schedule(setting).k_b, "k_b", "share_b")

    def loss(self, setting: Setting) -> Loss:
        return self._mixed_loss(setting, None)

    def _mixed_loss(self, setting: Setting, mix: Mix | None) -> MaximumMargin:
        k_b = count_of("k_b", self.k_b, self.share_b)
        return self._margin_loss(setting, given("gamma_b", self.gamma_b), k_b, mix)


@dataclass(frozen=True, kw_only=True)
class MMRATTraining(MMRTraining, AttackScheme):
    """Cross-entropy + lam * MMR on batches of which half is replaced by PGD points."""

    name = "mmr+at"

    def loss(self, setting: Setting) -> Loss:
        from relucert.training.losses.adversarial import Adversarial

        return self._mixed_loss(setting, Adversarial(self.ball(setting), given("attack_steps", self.attack_steps)).mix)


def count_of(parameter: str, numbers: tuple[int, int] | None, shares: tuple[float, float] | None) -> Count:
    """The count that a pair of numbers or a pair of shares describes."""
    return Count(*given(parameter, numbers)) if shares is None else Count(*shares, shares=True)
