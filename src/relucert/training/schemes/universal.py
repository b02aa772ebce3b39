"""Scheme `mmr-universal`: MMR in l_1 and in l_inf, for radii in every l_p (Croce and Hein, ICLR 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

from relucert.core.errors import InvalidInput
from relucert.training._schedules import Count, Schedule
from relucert.training.recipes import UNIVERSAL_SHARES, Setting, default_universal
from relucert.training.schemes.scheme import Scheme, given

if TYPE_CHECKING:
    from relucert.training.losses.loss import Loss


@dataclass(frozen=True, kw_only=True)
class MMRUniversalTraining(Scheme):
    """Cross-entropy + lam_1 * MMR in l_1 + lam_inf * MMR in l_inf.

    Hyperplanes of units and decisions within gamma_1 in l_1, or gamma_inf in l_inf, are penalised. Of the hyperplanes of units
    the nearest share share_b=(first, last) enters, which changes linearly over the run; of the decisions all enter. What is
    not given is the recipe's, which has values for the CNN on every data set. The norm of the run plays no part.
    """

    name = "mmr-universal"

    lam_1: float | None = None
    lam_inf: float | None = None
    gamma_1: float | None = None
    gamma_inf: float | None = None
    share_b: tuple[float, float] = UNIVERSAL_SHARES

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lam_1", "lam_inf"):
            value = getattr(self, name)
            self.require([(name, value is None or 0 <= value < math.inf, "be a number >= 0")])
        for name in ("gamma_1", "gamma_inf"):
            value = getattr(self, name)
            self.require([(name, value is None or 0 < value < math.inf, "be a positive number")])
        shares = self.share_b
        self.require([("share_b", min(shares) >= 0 and max(shares) <= 1, "be two shares from 0 to 1")])

    def filled(self, setting: Setting) -> Self:
        scheme, published = super().filled(setting), default_universal(setting)
        for field in fields(scheme):
            if getattr(scheme, field.name) is not None:
                continue
            if published is None:
                raise InvalidInput(f"{field.name} must be given: no recipe has one for scheme {self.name}, {setting}")
            scheme = replace(scheme, **{field.name: getattr(published, field.name)})
        return scheme

    def loss(self, setting: Setting) -> Loss:
        from relucert.training.losses.universal import UniversalMargin

        return UniversalMargin(
            lam_1=given("lam_1", self.lam_1), lam_inf=given("lam_inf", self.lam_inf),
            gamma_1=given("gamma_1", self.gamma_1), gamma_inf=given("gamma_inf", self.gamma_inf),
            schedule=Schedule(Count(*self.share_b, shares=True), Count(1.0, 1.0, shares=True)),
        )  # fmt: skip
