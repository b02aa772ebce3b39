"""The paper's settings for every data set, norm and architecture, as defaults.

Sources: section 5 and appendix B of the paper, and the authors' released code for what they leave open (`TABLE_1`, the
networks of Table 1). The networks of Tables 2 and 3 and of the l2 appendix are others (`TABLES_2_3`): of them the paper's
source gives the schedule and the grids that were searched, not the values chosen. Digits are not in the paper: their values
are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from relucert.core.errors import InvalidInput

#: The radius at which each data set is judged, in l_inf and l2.
EPS = {
    "mnist": {math.inf: 0.1, 2.0: 0.3},
    "fmnist": {math.inf: 0.1, 2.0: 0.3},
    "gts": {math.inf: 4 / 255, 2.0: 0.2},
    "cifar10": {math.inf: 2 / 255, 2.0: 0.1},
    "digits": {math.inf: 0.1, 2.0: 0.3},
}

#: Steps of PGD while training; 40 are used everywhere in evaluation.
ATTACK_STEPS = {"mnist": 40, "fmnist": 40, "gts": 7, "cifar10": 7, "digits": 10}

#: Zero-padding before random crops; other data sets are not augmented. Digits and signs are never mirrored.
CROP_PADDING = {"cifar10": 2}
MIRRORED = ("cifar10", "fmnist")

#: How cross-Lipschitz is weighed where nothing is said: ours, it keeps the test error of FC1 on MNIST near plain training's.
CROSS_LIPSCHITZ = 0.01

#: Xiao et al.'s weights of the stability loss and of the sum of absolute weights, from their released settings for MNIST.
STABILITY = 1e-4
L1 = 2e-5

#: How much larger than eps the ball is against which intervals train: Gowal et al. (2018) for MNIST, where they train at 0.2
#: to be certified at 0.1, and for CIFAR-10.
WIDER = {("ibp", "mnist"): 2.0, ("crown-ibp", "mnist"): 2.0, ("ibp", "cifar10"): 1.1, ("crown-ibp", "cifar10"): 1.1}

#: The families of settings.
RECIPES = ("table1", "tables23")


@dataclass(frozen=True)
class Margin:
    """The weight of MMR in the loss, and gamma_B = gamma_D."""

    lam: float
    gamma: float


@dataclass(frozen=True)
class Schedule:
    """How many nearest hyperplanes enter MMR: faces from `first` to `last`, linearly over the run, and classes.

    Faces are shares of all faces if `shares`, else numbers. `classes` None stands for all K, where the K - 1 differences
    are divided by K. With `then_nearest` the second half of the run has only the nearest of each, equation 3.
    """

    first: float
    last: float
    shares: bool = True
    classes: int | None = None
    then_nearest: bool = False

    def counts(self, progress: float, faces: int, classes: int) -> tuple[int, int]:
        """k_B and k_D at a moment of the run.

        >>> Schedule(0.10, 0.02).counts(0.0, 4804, 10), Schedule(0.10, 0.02).counts(0.5, 4804, 10)
        ((480, 10), (288, 10))
        """
        if self.then_nearest and progress >= 0.5:
            return 1, 1
        wanted = (self.first + (self.last - self.first) * progress) * (faces if self.shares else 1)
        k_d = classes if self.classes is None else min(self.classes, classes)
        return min(max(1, round(wanted)), faces), k_d


@dataclass(frozen=True)
class Tightening:
    """How the ball of training against bounds grows: from `first` of eps at the share `begin` of the run to eps at `end`.

    The weight kappa of clean cross-entropy goes from `kappa[0]` to `kappa[1]` meanwhile.
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


@dataclass(frozen=True)
class Family:
    """One family of settings: `margins[p, data, model]` for `mmr` and for `mmr+at`, and how runs go."""

    margins: dict[tuple[float, str, str], tuple[Margin, Margin]]
    batch: int


def _margins(rows: str) -> dict[tuple[float, str, str], tuple[Margin, Margin]]:
    """Lines of: norm, data, model, lambda and gamma of mmr, lambda and gamma of mmr+at; fractions of pixels as a/b."""

    def number(text: str) -> float:
        top, _, bottom = text.partition("/")
        return float(top) / float(bottom or 1)

    table = {}
    for row in rows.strip().splitlines():
        p, data, model, *values = row.split()
        alone, mixed, *_ = [Margin(number(a), number(b)) for a, b in zip(values[::2], values[1::2], strict=True)]
        table[float(p), data, model] = (alone, mixed)
    return table


#: Table 1 of the paper: 14 pairs of networks, as the authors' code trains them.
TABLE_1 = Family(
    _margins("""
        inf mnist   fc1  2.0  0.1    1.0  0.1
        inf mnist   cnn  1.0  0.2    0.5  0.2
        inf fmnist  fc1  6.0  0.2    1.0  0.15
        inf fmnist  cnn  4.0  0.2    2.0  0.15
        inf gts     fc1 10.0  8/255  4.0  6/255
        inf gts     cnn  4.0  6/255  1.0  6/255
        inf cifar10 cnn  1.0  3/255  0.1  3/255
        2   mnist   fc1  1.5  0.6    0.5  0.45
        2   mnist   cnn  3.0  0.45   6.0  0.45
        2   fmnist  fc1 10.0  0.45   0.5  0.45
        2   fmnist  cnn  3.0  0.45   1.5  0.45
        2   gts     fc1 16.0  0.4    1.0  0.3
        2   gts     cnn 10.0  0.3    6.0  0.3
        2   cifar10 cnn  1.5  0.2    0.5  0.15
    """),
    batch=128,
)

#: Ours, for the demo.
DIGITS = _margins("""
    inf digits  fc1  4.0  0.2    4.0  0.2
    inf digits  cnn  4.0  0.2    4.0  0.2
    2   digits  fc1  4.0  0.6    4.0  0.6
    2   digits  cnn  4.0  0.6    4.0  0.6
""")

#: The grids of Tables 2 and 3: the values of gamma, all with a lambda of `GRID_LAMBDAS`; and the radius of `at`.
GRID_GAMMAS = {
    "mnist": (1.0, 1.5, 2.0), "fmnist": (0.25, 0.5, 1.0), "gts": (0.25, 0.5, 0.75), "cifar10": (0.25, 0.5, 0.75),
}  # fmt: skip
GRID_LAMBDAS = (0.1, 0.25, 0.5, 1.0, 2.0)
GRID_EPS = {"mnist": 2.0, "fmnist": 1.0, "gts": 0.5, "cifar10": 0.5}

#: Tables 2 and 3: the middle of each grid, as the paper does not say which values were chosen.
TABLES_2_3 = Family(
    {
        (2.0, data, model): (Margin(GRID_LAMBDAS[2], gammas[1]), Margin(GRID_LAMBDAS[2], gammas[1]))
        for data, gammas in GRID_GAMMAS.items()
        for model in ("fc1", "fc10", "cnn")
    },
    batch=100,
)


def default_eps(data: str, p: float, recipe: str = "table1", *, training: bool = False) -> float | None:
    """The paper's radius, or None where it has none; Tables 2 and 3 train against a larger one than they are judged at."""
    if recipe == "tables23" and training:
        return GRID_EPS.get(data) if p == 2.0 else None
    return EPS.get(data, {}).get(p)


def default_margin(data: str, model: str, scheme: str, p: float, recipe: str) -> Margin | None:
    """The paper's lambda and gamma for a scheme of the MMR family, or None where it has none."""
    table = TABLES_2_3.margins if recipe == "tables23" else TABLE_1.margins | DIGITS
    pair = table.get((p, data, model))
    return None if pair is None else pair[scheme == "mmr+at"]


def default_rate(data: str, scheme: str, p: float, recipe: str) -> float:
    """Adam's learning rate: 1e-3, less for MMR in l2 on MNIST and Fashion-MNIST (and more for MMR on the few digits)."""
    if data == "digits" and scheme in ("mmr", "mmr-dd", "mmr+at"):
        return 3e-3
    slow = {"mmr": 1e-4, "mmr-dd": 1e-4, "mmr+at": 5e-5}
    return slow.get(scheme, 1e-3) if recipe == "table1" and p == 2.0 and data in ("mnist", "fmnist") else 1e-3


def tightening(scheme: str, kappa: float | None = None) -> Tightening:
    """How the ball grows: from a tenth of eps for kw, as Wong and Kolter do, from nothing after a warm-up for intervals.

    Shares of the run are ours: the authors' are for runs of 60 to 200 epochs. In the end `kappa` is left to cross-entropy.
    """
    found = {
        "kw": Tightening(0.0, 0.4, first=0.1),
        "ibp": Tightening(0.05, 0.5, kappa=(1.0, 0.0)),
        "crown-ibp": Tightening(0.05, 0.5, kappa=(1.0, 0.0)),
        "spectral": Tightening(0.0, 0.3, first=0.1),
    }[scheme]
    if kappa is None:
        return found
    return replace(found, kappa=(max(found.kappa[0], kappa), kappa))


def default_decay(scheme: str) -> float | None:
    """The last share of a run over which the rate falls: intervals are learned while the ball grows, and refined after that."""
    return 1 - tightening(scheme).end if scheme in ("ibp", "crown-ibp") else None


def rate_factor(decay: float | None, step: int, total: int) -> float:
    """What the learning rate is multiplied with: the paper's schedule is a tenth of it for the last tenth of the run.

    With a `decay` it falls to a fiftieth over that share of the run instead.

    >>> rate_factor(None, 89, 100), rate_factor(None, 90, 100), rate_factor(0.5, 50, 100), rate_factor(0.5, 100, 100)
    (1.0, 0.1, 1.0, 0.02)
    """
    if decay is None:
        return 0.1 if 10 * step >= 9 * total else 1.0
    return 0.02 ** max(0.0, (step / total - (1 - decay)) / decay)


def default_batch(recipe: str) -> int:
    """Examples in a step."""
    return {"table1": TABLE_1, "tables23": TABLES_2_3}[recipe].batch


def default_epochs(model: str, recipe: str) -> int:
    """Passes over the training set: 100, and 300 for fully connected networks of Tables 2 and 3."""
    return 300 if recipe == "tables23" and model in ("fc1", "fc10") else 100


def schedule(model: str, recipe: str) -> Schedule:
    """How many hyperplanes enter MMR: 10 % to 2 % of the units; Tables 2 and 3: ten, then one, or 400 to 100 for a CNN."""
    if recipe == "table1":
        return Schedule(0.10, 0.02)
    if recipe != "tables23":
        raise InvalidInput(f"recipe must be one of {', '.join(RECIPES)}, got {recipe!r}")
    if model in ("fc1", "fc10"):
        return Schedule(10, 10, shares=False, classes=10, then_nearest=True)
    return Schedule(400, 100, shares=False, classes=10)


def ramp(progress: float) -> float:
    """What share of lambda counts: from a tenth to all of it over the first tenth of the run.

    >>> ramp(0.0), ramp(0.1), ramp(0.9)
    (0.1, 1.0, 1.0)
    """
    return min(1.0, 0.1 + 9.0 * progress)
