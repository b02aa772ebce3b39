"""`mmr`, `mmr-dd`, `mmr+at`: cross-entropy plus the maximum margin regulariser (section 4 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch.nn.functional as F
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.mmr import MMRParameters, mmr_terms
from relucert.training.recipes import Setting, default_margin, default_schedule
from relucert.training.schedules import Count, Schedule, ramp
from relucert.training.schemes.adversarial import Adversarial
from relucert.training.schemes.scheme import (
    AttackScheme,
    Loss,
    Scheme,
    StepContext,
    Terms,
    depends_on_mode,
    given,
)

Mix = Callable[[Network, Tensor, Tensor, StepContext], Tensor]


@dataclass(frozen=True, kw_only=True)
class MaximumMargin:
    """Minimise cross-entropy + lam * MMR, both on the same batch; `mix` replaces half of it by adversarial points.

    Without gamma_b the region term is left out (MMR-DD, Table 2 of the paper).
    """

    p: float
    lam: float
    gamma_b: float | None
    gamma_d: float
    schedule: Schedule
    mix: Mix | None = None

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        clean = len(x) if self.mix is None else len(x) - len(x) // 2
        x = x if self.mix is None else self.mix(net, x, y, context)
        region, values, logits = LinearRegion.evaluated(net, x)
        margins = region.margins_of(values, x)
        # The regulariser is about the network in eval mode; layers that depend on the mode need a second pass.
        outputs = net(x) if depends_on_mode(net) else logits
        loss = F.cross_entropy(outputs, y)
        k_b, k_d = self.schedule.counts(context.progress, region.count, net.classes)
        parameters = MMRParameters(p=self.p, gamma_b=self.gamma_b, gamma_d=self.gamma_d, k_b=k_b, k_d=k_d)
        terms = mmr_terms(region, margins, logits, y, parameters)
        parts = {"cross-entropy": loss.detach(), "decision": terms.decision.detach().mean()}
        if self.gamma_b is not None:
            parts["region"] = terms.region.detach().mean()
            parts["exact"] = (terms.d_d <= terms.d_b).to(logits.dtype).mean()
        total = loss + ramp(context.progress) * self.lam * terms.total.mean()
        return Terms(total, parts, outputs[:clean].detach(), y[:clean])


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
        decision = count_of("k_d", self.k_d, self.share_d)
        after = given("nearest_after", self.nearest_after)
        return MaximumMargin(
            p=setting.p, lam=given("lam", self.lam), gamma_b=None, gamma_d=given("gamma_d", self.gamma_d),
            schedule=Schedule(Count(1, 1), decision, after),
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
        return self._margins(setting, None)

    def _margins(self, setting: Setting, mix: Mix | None) -> MaximumMargin:
        schedule = Schedule(
            count_of("k_b", self.k_b, self.share_b),
            count_of("k_d", self.k_d, self.share_d),
            given("nearest_after", self.nearest_after),
        )
        return MaximumMargin(
            p=setting.p, lam=given("lam", self.lam), gamma_b=given("gamma_b", self.gamma_b),
            gamma_d=given("gamma_d", self.gamma_d), schedule=schedule, mix=mix,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MMRATTraining(MMRTraining, AttackScheme):
    """Cross-entropy + lam * MMR on batches of which half is replaced by PGD points."""

    name = "mmr+at"

    def loss(self, setting: Setting) -> Loss:
        return self._margins(setting, Adversarial(self.ball(setting), given("attack_steps", self.attack_steps)).mix)


def count_of(parameter: str, numbers: tuple[int, int] | None, shares: tuple[float, float] | None) -> Count:
    """The count that a pair of numbers or a pair of shares describes."""
    return Count(*given(parameter, numbers)) if shares is None else Count(*shares, shares=True)
