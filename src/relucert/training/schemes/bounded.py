"""Schemes `kw`, `ibp` and `crown-ibp`: training against bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from relucert.core.errors import InvalidInput
from relucert.training._schedules import Tightening
from relucert.training.recipes import Setting
from relucert.training.schemes.scheme import AttackScheme, given

if TYPE_CHECKING:
    from relucert.training.losses.bounded import Bounded
    from relucert.training.losses.loss import Loss


@dataclass(frozen=True, kw_only=True)
class BoundedTraining(AttackScheme):
    """Training against a bound: kappa * cross-entropy + (1 - kappa) * worst-case cross-entropy over a ball that grows.

    kappa is the weight of cross-entropy when the ball has its full radius eps; with `adversarial` the cross-entropy is
    that of points that PGD finds in attack_steps steps.
    """

    #: How the ball grows. The shares of the run are ours: the authors' are for runs of 60 to 200 epochs.
    growth: ClassVar[Tightening]

    kappa: float = 0.0
    adversarial: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([("kappa", 0 <= self.kappa <= 1, "be a number from 0 to 1")])
        if self.adversarial and self.kappa == 0:
            raise InvalidInput("kappa must be positive where adversarial is True, got 0.0")

    def filled(self, setting: Setting) -> Self:
        scheme = super().filled(setting)
        return scheme if self.adversarial else replace(scheme, attack_steps=None)

    @property
    def tightening(self) -> Tightening:
        """How the ball grows, with kappa at the end."""
        return replace(self.growth, kappa=(max(self.growth.kappa[0], self.kappa), self.kappa))

    def loss(self, setting: Setting) -> Loss:
        return self._bounded(setting, 1.0)

    def _bounded(self, setting: Setting, intervals: float) -> Bounded:
        from relucert.training.losses.bounded import Bounded

        return Bounded(
            method=self.name, ball=self.ball(setting), tightening=self.tightening, intervals=intervals,
            attack_steps=given("attack_steps", self.attack_steps) if self.adversarial else 0,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KWTraining(BoundedTraining):
    """Worst-case cross-entropy by the relaxation of Wong and Kolter (2018).

    The ball grows from a tenth of eps, as theirs does. Bounds are exact by default; with `projections` they are estimated by so
    many random projections (Wong et al., NeurIPS 2018), for networks whose exact bounds are too slow: the estimate trains,
    verification stays exact.
    """

    name = "kw"
    growth = Tightening(0.0, 0.4, first=0.1)
    projections: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([("projections", self.projections is None or self.projections >= 1, "be a number of at least 1")])

    def loss(self, setting: Setting) -> Loss:
        return replace(self._bounded(setting, 1.0), projections=self.projections)


@dataclass(frozen=True, kw_only=True)
class IBPTraining(BoundedTraining):
    """Worst-case cross-entropy by interval bounds (Gowal et al. 2018).

    The ball grows from nothing after a warm-up; the learning rate falls after the ball has grown.
    """

    name = "ibp"
    growth = Tightening(0.05, 0.5, kappa=(1.0, 0.0))
    decay = 1 - growth.end

    def widening(self, data: str) -> float:
        """Gowal et al. train at 0.2 on MNIST to be certified at 0.1, and at 1.1 times the radius on CIFAR-10."""
        return {"mnist": 2.0, "cifar10": 1.1}.get(data, 1.0)


@dataclass(frozen=True, kw_only=True)
class CROWNIBPTraining(IBPTraining):
    """Worst-case cross-entropy by intervals for the units and CROWN for the margins (Zhang et al. 2020).

    `intervals` is the weight of interval margins when the ball has its full radius; the rest is CROWN's.
    """

    name = "crown-ibp"
    intervals: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require([("intervals", 0 <= self.intervals <= 1, "be a number from 0 to 1")])

    def loss(self, setting: Setting) -> Loss:
        return self._bounded(setting, self.intervals)
