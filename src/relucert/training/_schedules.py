"""How the quantities of a run change with its progress, the share of the steps that are done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """A number k that goes linearly from `first` to `last` over the run; with `shares`, both are shares of the total.

    >>> Count(0.10, 0.02, shares=True).at(0.5, 4804), Count(400, 100).at(0.5, 4804), Count(10, 10).at(0.5, 3)
    (288, 250, 3)
    """

    first: float
    last: float
    shares: bool = False

    def at(self, progress: float, total: int) -> int:
        """The number at a share of the run: rounded, at least 1 and at most `total`."""
        number = (self.first + (self.last - self.first) * progress) * (total if self.shares else 1)
        return min(max(1, round(number)), total)


@dataclass(frozen=True)
class Schedule:
    """The numbers k_B and k_D of nearest hyperplanes that enter MMR (equation 4 of the paper).

    From the share `nearest_after` of the run on both are 1 (equation 3); 1.0 stands for never. k_D may be the number K of
    classes: the K - 1 differences of logits are then divided by K.
    """

    k_b: Count
    k_d: Count
    nearest_after: float = 1.0

    def counts(self, progress: float, hyperplanes: int, classes: int) -> tuple[int, int]:
        """k_B and k_D at a share of the run, for a network with this many hyperplanes of units and classes.

        >>> shares = Schedule(Count(0.10, 0.02, shares=True), Count(1.0, 1.0, shares=True))
        >>> shares.counts(0.0, 4804, 10), shares.counts(0.5, 4804, 10)
        ((480, 10), (288, 10))
        """
        if self.nearest_after < 1 and progress >= self.nearest_after:
            return 1, 1
        return self.k_b.at(progress, hyperplanes), self.k_d.at(progress, classes)


@dataclass(frozen=True)
class Tightening:
    """How the ball grows in training against bounds: from the share `first` of eps, at the share `begin` of the run, to eps
    at the share `end`.

    The weight kappa of cross-entropy goes from `kappa[0]` to `kappa[1]` over the same steps.
    """

    begin: float
    end: float
    first: float = 0.0
    kappa: tuple[float, float] = (0.0, 0.0)

    def at(self, progress: float) -> tuple[float, float]:
        """The share of eps, and kappa.

        >>> Tightening(0.0, 0.5, kappa=(1.0, 0.5)).at(0.25), Tightening(0.0, 0.5, kappa=(1.0, 0.5)).at(0.75)
        ((0.5, 0.75), (1.0, 0.5))
        """
        way = min(1.0, max(0.0, (progress - self.begin) / (self.end - self.begin)))
        return self.first + (1 - self.first) * way, self.kappa[0] + (self.kappa[1] - self.kappa[0]) * way


def ramp(progress: float) -> float:
    """The factor of lambda: from 0.1 to 1 over the first tenth of the run.

    >>> ramp(0.0), ramp(0.1), ramp(0.9)
    (0.1, 1.0, 1.0)
    """
    return min(1.0, 0.1 + 9.0 * progress)


def rate_factor(decay: float | None, step: int, total: int) -> float:
    """The factor of the learning rate: 1, and 0.1 for the last tenth of the run (the paper's schedule).

    With a `decay` the factor falls exponentially to 0.02 over the last share `decay` of the run instead.

    >>> rate_factor(None, 89, 100), rate_factor(None, 90, 100), rate_factor(0.5, 50, 100), rate_factor(0.5, 100, 100)
    (1.0, 0.1, 1.0, 0.02)
    """
    if decay is None:
        return 0.1 if 10 * step >= 9 * total else 1.0
    return 0.02 ** max(0.0, (step / total - (1 - decay)) / decay)
