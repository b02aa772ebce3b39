"""The paper's settings for every data set, norm and architecture: the defaults of a run.

Sources: section 5 and appendix B of the paper, and the authors' released code for what both leave open (`TABLE_1`, the
networks of Table 1). The networks of Tables 2 and 3 and of the l2 appendix have other settings (`TABLES_2_3`): the paper
gives their schedule and the grids that were searched, not the chosen values. The digits are not in the paper; their
values are ours.

MMR-Universal has another source: Croce and Hein, "Provable robustness against all adversarial l_p-perturbations for p >= 1"
(ICLR 2020), and the code and the networks that its authors have released (`UNIVERSAL`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from relucert.training._schedules import Count, Schedule

#: The radius at which networks are evaluated, in l_inf and l2.
EPS = {
    "mnist": {math.inf: 0.1, 2.0: 0.3},
    "fmnist": {math.inf: 0.1, 2.0: 0.3},
    "gts": {math.inf: 4 / 255, 2.0: 0.2},
    "cifar10": {math.inf: 2 / 255, 2.0: 0.1},
    "digits": {math.inf: 0.1, 2.0: 0.3},
}

#: Steps of PGD in training; evaluation always takes 40.
ATTACK_STEPS = {"mnist": 40, "fmnist": 40, "gts": 7, "cifar10": 7, "digits": 10}

#: Steps of PGD in training on data of one's own, and what stands for data and network that are given as values.
OWN_STEPS = 10
OWN = "own"

#: The architectures that settings are known for by name; `fc-2x256` stands for all `fc-LAYERSxUNITS`.
MODELS = ("fc1", "fc10", "fc-2x256", "fc-4x256", "fc-6x256", "cnn", "cnn-wide", "resnet")

#: Zero-padding before random crops; other data sets are not augmented. Digits and signs are never mirrored.
CROP_PADDING = {"cifar10": 2}
MIRRORED = ("cifar10", "fmnist")

#: The families of settings.
RECIPES = ("table1", "tables23")


@dataclass(frozen=True)
class Setting:
    """The facts about a run that the defaults of a scheme depend on; `eps` is None where the run leaves it open."""

    data: str
    model: str
    p: float
    recipe: str = "table1"
    eps: float | None = None

    @property
    def own(self) -> bool:
        """Whether data or network are the user's own: the paper has no settings for them."""
        return self.data not in EPS or self.model not in MODELS

    def __str__(self) -> str:
        return f"data {self.data}, model {self.model} and p={self.p:g}"


@dataclass(frozen=True)
class Margin:
    """The weight lambda of MMR in the loss, and gamma = gamma_B = gamma_D."""

    lam: float
    gamma: float


@dataclass(frozen=True)
class Family:
    """A family of settings: `margins[p, data, model]` for `mmr` and for `mmr+at`, and the batch size."""

    margins: dict[tuple[float, str, str], tuple[Margin, Margin]]
    batch: int


def _margins(rows: str) -> dict[tuple[float, str, str], tuple[Margin, Margin]]:
    """Parse lines of: norm, data, model, lambda and gamma of mmr, lambda and gamma of mmr+at; fractions as a/b."""

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

#: Our values for the demo.
DIGITS = _margins("""
    inf digits  fc1  4.0  0.2    4.0  0.2
    inf digits  cnn  4.0  0.2    4.0  0.2
    2   digits  fc1  4.0  0.6    4.0  0.6
    2   digits  cnn  4.0  0.6    4.0  0.6
""")


@dataclass(frozen=True)
class Universal:
    """The weights of MMR in l_1 and in l_inf in the loss, and gamma = gamma_B = gamma_D of each."""

    lam_1: float
    gamma_1: float
    lam_inf: float
    gamma_inf: float


#: The four networks of MMR-Universal, all of them the CNN. The values stand in the names of the released networks; the authors'
#: README gives gamma_inf = 0.15 for MNIST in an example. Batch 128, 100 epochs, k_D = K as for Table 1. The authors' code lets
#: the union of the units that are near in l_1 and near in l_inf enter both terms; Definition 4.1 of their paper, and this
#: package, take the nearest of each norm. The digits are ours.
UNIVERSAL = {
    ("mnist", "cnn"): Universal(3.0, 1.0, 12.0, 0.175),
    ("fmnist", "cnn"): Universal(3.0, 1.0, 40.0, 0.15),
    ("gts", "cnn"): Universal(3.0, 6.0, 12.0, 6 / 255),
    ("cifar10", "cnn"): Universal(1.0, 6.0, 6.0, 6 / 255),
    ("digits", "fc1"): Universal(1.0, 1.0, 4.0, 0.2),
    ("digits", "cnn"): Universal(1.0, 1.0, 4.0, 0.2),
}
#: The share of the units that enters MMR-Universal, at the beginning and at the end of a run (the authors' code).
UNIVERSAL_SHARES = (0.20, 0.05)


@dataclass(frozen=True)
class Modern:
    """What training between adversarial points and intervals takes by default: `alpha` of cc-ibp and of mtl-ibp, the ratio of
    sabr, the steps of the attack and its radius in units of the radius of training, and the weight of the sum of |weights|.
    """

    alpha: tuple[float, float]
    ratio: float
    attack_steps: int
    attack_eps: float
    l1: float


#: The orders of magnitude of De Palma et al. (2024) and Mueller et al. (2023); none is tuned for the paper's networks.
MODERN = {
    "mnist": Modern((0.1, 0.02), 0.4, 1, 1.0, 1e-5),
    "fmnist": Modern((0.1, 0.02), 0.4, 1, 1.0, 1e-5),
    "cifar10": Modern((0.01, 0.004), 0.1, 1, 2.0, 3e-6),
    "gts": Modern((0.1, 0.02), 0.2, 1, 1.0, 3e-6),
}
OTHERWISE = Modern((0.1, 0.05), 0.4, 1, 1.0, 0.0)

#: The radii at which MMR-Universal is evaluated, for the union of l_1, l2 and l_inf (Table 1 of its paper).
UNION = {
    "mnist": {1.0: 1.0, 2.0: 0.3, math.inf: 0.1},
    "fmnist": {1.0: 1.0, 2.0: 0.3, math.inf: 0.1},
    "gts": {1.0: 3.0, 2.0: 0.2, math.inf: 4 / 255},
    "cifar10": {1.0: 2.0, 2.0: 0.1, math.inf: 2 / 255},
}

#: The grids of Tables 2 and 3: the values of gamma, each combined with every lambda of `GRID_LAMBDAS`; the radius of `at`.
GRID_GAMMAS = {
    "mnist": (1.0, 1.5, 2.0), "fmnist": (0.25, 0.5, 1.0), "gts": (0.25, 0.5, 0.75), "cifar10": (0.25, 0.5, 0.75),
}  # fmt: skip
GRID_LAMBDAS = (0.1, 0.25, 0.5, 1.0, 2.0)
GRID_EPS = {"mnist": 2.0, "fmnist": 1.0, "gts": 0.5, "cifar10": 0.5}

#: Tables 2 and 3: the middle of each grid, because the paper does not report the chosen values.
TABLES_2_3 = Family(
    {
        (2.0, data, model): (Margin(GRID_LAMBDAS[2], gammas[1]), Margin(GRID_LAMBDAS[2], gammas[1]))
        for data, gammas in GRID_GAMMAS.items()
        for model in ("fc1", "fc10", "cnn")
    },
    batch=100,
)


def default_eps(data: str, p: float) -> float | None:
    """The radius at which the paper evaluates, or None where it has none."""
    return EPS.get(data, {}).get(p)


def default_training_eps(setting: Setting) -> float | None:
    """The radius that a run trains against: its eps, else the paper's; Tables 2 and 3 train against a larger one."""
    if setting.eps is not None:
        return setting.eps
    if setting.recipe == "tables23":
        return GRID_EPS.get(setting.data) if setting.p == 2.0 else None
    return default_eps(setting.data, setting.p)


def default_margin(setting: Setting, scheme: str) -> Margin | None:
    """The paper's lambda and gamma for a scheme of the MMR family, or None where it has none.

    For data or networks of one's own: lambda 1, and gamma 1.5 times the radius, in the middle of what the paper has.
    """
    table = TABLES_2_3.margins if setting.recipe == "tables23" else TABLE_1.margins | DIGITS
    pair = table.get((setting.p, setting.data, setting.model))
    if pair is not None:
        return pair[scheme in ("mmr+at", "mmr+ibp")]
    radius = default_training_eps(setting)
    return None if radius is None or not setting.own else Margin(1.0, 1.5 * radius)


def default_universal(setting: Setting) -> Universal | None:
    """The published values of MMR-Universal, or None where there are none."""
    return UNIVERSAL.get((setting.data, setting.model)) if setting.recipe == "table1" else None


def default_modern(setting: Setting) -> Modern:
    """The parameters of mtl-ibp, cc-ibp and sabr that a data set has, or those for all others."""
    return MODERN.get(setting.data, OTHERWISE)


def default_schedule(setting: Setting) -> Schedule:
    """k_B and k_D of MMR. Table 1: 10 % to 2 % of the units, and K; Tables 2 and 3: 10, then 1 (CNN: 400 to 100, and 10)."""
    if setting.recipe == "table1":
        return Schedule(Count(0.10, 0.02, shares=True), Count(1.0, 1.0, shares=True))
    if setting.model in ("fc1", "fc10"):
        return Schedule(Count(10, 10), Count(10, 10), nearest_after=0.5)
    return Schedule(Count(400, 100), Count(10, 10))


def default_rate(setting: Setting, scheme: str) -> float:
    """Adam's learning rate: 1e-3; less for MMR in l2 on MNIST and Fashion-MNIST, more for MMR on the small digits.

    MMR-Universal: 5e-4 on MNIST and Fashion-MNIST. mtl-ibp, cc-ibp, sabr and mmr+ibp: 5e-4.
    """
    if setting.data == "digits" and scheme in ("mmr", "mmr-dd", "mmr+at", "mmr-universal"):
        return 3e-3
    if scheme in ("mtl-ibp", "cc-ibp", "sabr", "mmr+ibp"):
        return 5e-4
    if scheme == "mmr-universal" and setting.data in ("mnist", "fmnist"):
        return 5e-4
    slow = {"mmr": 1e-4, "mmr-dd": 1e-4, "mmr+at": 5e-5}
    if setting.recipe == "table1" and setting.p == 2.0 and setting.data in ("mnist", "fmnist"):
        return slow.get(scheme, 1e-3)
    return 1e-3


def default_batch(recipe: str) -> int:
    """Examples in a step."""
    return {"table1": TABLE_1, "tables23": TABLES_2_3}[recipe].batch


def default_epochs(model: str, recipe: str) -> int:
    """Passes over the training set: 100, and 300 for fully connected networks of Tables 2 and 3."""
    return 300 if recipe == "tables23" and model in ("fc1", "fc10") else 100
