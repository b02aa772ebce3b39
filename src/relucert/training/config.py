"""What a training run is: one dataclass for the library and for the command line."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relucert.core.errors import InvalidInput
from relucert.training.recipes import (
    ATTACK_STEPS,
    CROP_PADDING,
    CROSS_LIPSCHITZ,
    L1,
    RECIPES,
    STABILITY,
    WIDER,
    default_batch,
    default_decay,
    default_epochs,
    default_eps,
    default_margin,
    default_rate,
)

MARGIN_SCHEMES = ("mmr", "mmr-dd", "mmr+at")
ATTACKING_SCHEMES = ("at", "mmr+at", "rs")
BOUNDING_SCHEMES = ("kw", "ibp", "crown-ibp")
SCHEMES = ("plain", "at", *MARGIN_SCHEMES, "cross-lipschitz", *BOUNDING_SCHEMES, "rs", "spectral")
#: Schemes that need a radius to train against.
RADIUS_SCHEMES = (*ATTACKING_SCHEMES, *BOUNDING_SCHEMES, "spectral")
MODELS = ("fc1", "fc10", "cnn", "cnn-wide", "resnet")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The numbers of a run after the recipe has filled what was left open; None where a scheme has no use for one."""

    epochs: int
    batch: int
    rate: float
    decay: float | None
    lam: float | None
    gamma: float | None
    l1: float | None


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run; the paper's settings are the defaults."""

    data: str = "digits"
    """digits, mnist, fmnist, gts or cifar10."""
    model: str = "fc1"
    """Architecture: fc1, fc10, cnn, cnn-wide (twice the filters) or resnet."""
    scheme: str = "plain"
    """plain, at (half of each batch is replaced by PGD points), mmr, mmr-dd, mmr+at, cross-lipschitz; against bounds: kw,
    ibp, crown-ibp; rs (ReLU stability with adversarial points), or spectral (small spectral norms, l2)."""
    p: float = math.inf
    """The norm of the perturbations: a number >= 1, or inf."""
    eps: float | None = None
    """Their radius in pixels; by default the paper's for the data set and the norm."""
    train_eps: float | None = None
    """The radius of training where it is another one: by default eps, for ibp and crown-ibp on mnist twice that."""
    recipe: str = "table1"
    """Whose settings are the defaults: table1 (the paper's Table 1), or tables23 (its Tables 2 and 3, l2)."""
    epochs: int | None = None
    """Passes over the training set; by default the recipe's (100, or 300)."""
    batch: int | None = None
    """Examples in a step; by default the recipe's (128, or 100)."""
    rate: float | None = None
    """Learning rate of Adam, a tenth of it for the last tenth of the run; by default the recipe's (mostly 1e-3)."""
    decay: float | None = None
    """Over the last part of the run, this share of it, the rate falls to a fiftieth instead; by default 0.5 for ibp and
    crown-ibp, nothing of that kind for others."""
    lam: float | None = None
    """The paper's lambda, the weight of the regulariser, reached after a tenth of the run; by default the recipe's."""
    gamma: float | None = None
    """gamma_B = gamma_D of MMR: distances beyond it are large enough; by default the recipe's."""
    l1: float | None = None
    """The weight of the sum of absolute weights in rs; by default Xiao et al.'s."""
    intervals: float | None = None
    """The weight of interval margins against CROWN's in crown-ibp when the ball has grown; by default 1, intervals alone."""
    kappa: float | None = None
    """What kw, ibp and crown-ibp leave to cross-entropy when the ball has grown, a number from 0 to 1; by default 0."""
    adversarial: bool = False
    """Whether that is the cross-entropy of PGD points."""
    attack_steps: int | None = None
    """Steps of PGD in training; by default the paper's: 40 on mnist and fmnist, 7 on gts and cifar10 (10 on digits)."""
    augment: bool = True
    """Random crops and mirroring where the paper has them (cifar10), or where `crop` is given."""
    crop: int | None = None
    """Pixels by which random crops are moved at most; by default the paper's: 2 on cifar10, none elsewhere. Only cifar10 and
    fmnist are mirrored."""
    seed: int = 0
    """Everything random follows from it."""
    out: Path | None = None
    """The run's folder; by default runs/DATA-MODEL-SCHEME-P. A run that was stopped there goes on."""
    evaluate_every: int = 1
    """Epochs between evaluations on the test set; 0 for never."""
    evaluate_points: int = 1000
    """Test points that PGD attacks in these evaluations; 0 for none."""
    save_seconds: float = 60.0
    """At least this often the run is saved, besides after every epoch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", float(self.p))
        if self.recipe not in RECIPES:
            raise InvalidInput(f"recipe must be one of {', '.join(RECIPES)}, got {self.recipe!r}")
        rules = [
            ("model", self.model in MODELS, f"be one of {', '.join(MODELS)}"),
            ("scheme", self.scheme in SCHEMES, f"be one of {', '.join(SCHEMES)}"),
            ("data", self.data in ATTACK_STEPS, f"be one of {', '.join(ATTACK_STEPS)}"),
            ("p", self.p >= 1, "be a number >= 1 or inf"),
            ("eps", self.eps is None or 0 < self.eps < math.inf, "be a positive number"),
            ("train_eps", self.train_eps is None or 0 < self.train_eps < math.inf, "be a positive number"),
            ("l1", self.l1 is None or 0 <= self.l1 < math.inf, "be a number >= 0"),
            ("epochs", self.epochs is None or self.epochs >= 1, "be at least 1"),
            ("batch", self.batch is None or self.batch >= 1, "be at least 1"),
            ("rate", self.rate is None or 0 < self.rate < math.inf, "be a positive number"),
            ("decay", self.decay is None or 0 < self.decay <= 1, "be a share of the run, above 0 and at most 1"),
            ("intervals", self.intervals is None or 0 <= self.intervals <= 1, "be a number from 0 to 1"),
            ("kappa", self.kappa is None or 0 <= self.kappa <= 1, "be a number from 0 to 1"),
            ("lam", self.lam is None or 0 <= self.lam < math.inf, "be a number >= 0"),
            ("gamma", self.gamma is None or 0 < self.gamma < math.inf, "be a positive number"),
            ("crop", self.crop is None or self.crop >= 0, "be at least 0"),
            ("attack_steps", self.attack_steps is None or self.attack_steps >= 1, "be at least 1"),
            ("evaluate_every", self.evaluate_every >= 0, "be at least 0"),
            ("evaluate_points", self.evaluate_points >= 0, "be at least 0"),
            ("save_seconds", self.save_seconds >= 0, "be at least 0"),
        ]
        for name, holds, rule in rules:
            if not holds:
                raise InvalidInput(f"{name} must {rule}, got {getattr(self, name)!r}")
        for name in ("kappa", "adversarial"):
            if getattr(self, name) and self.scheme not in BOUNDING_SCHEMES:
                raise InvalidInput(f"{name} is for schemes {', '.join(BOUNDING_SCHEMES)}, got scheme {self.scheme!r}")
        if self.adversarial and not self.kappa:
            raise InvalidInput("kappa must be given and positive for adversarial, which is about its share, got none")
        if self.scheme == "spectral" and self.p != 2:
            raise InvalidInput(f"p must be 2 for scheme spectral, whose penalty is about l2, got {self.p:g}")
        if self.trained_radius is None and self.scheme in RADIUS_SCHEMES:
            raise InvalidInput(
                f"eps must be given for p={self.p:g}: the paper has no radius for {self.data} in that norm"
            )
        for name in ("lam", "gamma"):
            if self.scheme in MARGIN_SCHEMES and getattr(self.settings, name) is None:
                raise InvalidInput(
                    f"{name} must be given: recipe {self.recipe} has none for scheme {self.scheme}, data {self.data}, model "
                    f"{self.model} and p={self.p:g}"
                )

    @property
    def settings(self) -> Settings:
        """What is given, and the recipe's values where nothing is."""
        margin = None
        if self.scheme in MARGIN_SCHEMES:
            margin = default_margin(self.data, self.model, self.scheme, self.p, self.recipe)
        weights = {"cross-lipschitz": CROSS_LIPSCHITZ, "rs": STABILITY}
        lam = weights.get(self.scheme) if margin is None else margin.lam
        l1 = L1 if self.scheme == "rs" else None
        return Settings(
            epochs=default_epochs(self.model, self.recipe) if self.epochs is None else self.epochs,
            batch=default_batch(self.recipe) if self.batch is None else self.batch,
            rate=default_rate(self.data, self.scheme, self.p, self.recipe) if self.rate is None else self.rate,
            decay=default_decay(self.scheme) if self.decay is None else self.decay,
            lam=lam if self.lam is None else self.lam,
            gamma=(None if margin is None else margin.gamma) if self.gamma is None else self.gamma,
            l1=l1 if self.l1 is None else self.l1,
        )

    @property
    def radius(self) -> float | None:
        """The radius at which the run is judged; None where neither it nor the paper has one."""
        return default_eps(self.data, self.p) if self.eps is None else self.eps

    @property
    def trained_radius(self) -> float | None:
        """The radius of the balls of training: of adversarial points, and of bounds."""
        if self.train_eps is not None:
            return self.train_eps
        radius = default_eps(self.data, self.p, self.recipe, training=True) if self.eps is None else self.eps
        return None if radius is None else radius * WIDER.get((self.scheme, self.data), 1.0)

    @property
    def pgd_steps(self) -> int:
        """The steps of PGD in training."""
        return ATTACK_STEPS[self.data] if self.attack_steps is None else self.attack_steps

    @property
    def padding(self) -> int:
        """The zero-padding before random crops, 0 for none."""
        if not self.augment:
            return 0
        return CROP_PADDING.get(self.data, 0) if self.crop is None else self.crop

    @property
    def folder(self) -> Path:
        """Where the run lives."""
        return self.out or Path("runs") / f"{self.data}-{self.model}-{self.scheme}-{self.p:g}"

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the weights: what a run must have in common with one that goes on."""
        aside = {"out", "evaluate_every", "evaluate_points", "save_seconds"}
        values = {name: value for name, value in dataclasses.asdict(self).items() if name not in aside}
        values |= dataclasses.asdict(self.settings)
        values |= {"p": "inf" if math.isinf(self.p) else self.p, "eps": self.radius, "attack_steps": self.pgd_steps}
        if self.scheme in RADIUS_SCHEMES:
            values["train_eps"] = self.trained_radius
        else:
            del values["train_eps"]
        if self.scheme != "rs":
            del values["l1"]
        for name in ("decay", "intervals", "crop", "kappa"):
            if getattr(self, name) is None:
                del values[name]
        if not self.adversarial:
            del values["adversarial"]
        return values
