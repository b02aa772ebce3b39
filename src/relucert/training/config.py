"""What a training run is: one dataclass for the library and for the command line."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relucert.core.errors import InvalidInput
from relucert.training.recipes import ATTACK_STEPS, default_eps

SCHEMES = ("plain", "at")
MODELS = ("fc1", "fc10", "cnn", "resnet")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run; the paper's settings are the defaults."""

    data: str = "digits"
    """digits, mnist, fmnist, gts or cifar10."""
    model: str = "fc1"
    """Architecture: fc1, fc10, cnn or resnet."""
    scheme: str = "plain"
    """plain, or at (half of each batch is replaced by PGD points)."""
    p: float = math.inf
    """The norm of the perturbations: a number >= 1, or inf."""
    eps: float | None = None
    """Their radius in pixels; by default the paper's for the data set and the norm."""
    epochs: int = 100
    """Passes over the training set."""
    batch: int = 128
    """Examples in a step."""
    rate: float = 1e-3
    """Learning rate of Adam; a tenth of it for the last tenth of the run."""
    attack_steps: int | None = None
    """Steps of PGD in training; by default the paper's: 40 on mnist and fmnist, 7 on gts and cifar10 (10 on digits)."""
    augment: bool = True
    """Random crops and mirroring where the paper has them (cifar10)."""
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
        rules = [
            ("model", self.model in MODELS, f"be one of {', '.join(MODELS)}"),
            ("scheme", self.scheme in SCHEMES, f"be one of {', '.join(SCHEMES)}"),
            ("data", self.data in ATTACK_STEPS, f"be one of {', '.join(ATTACK_STEPS)}"),
            ("p", self.p >= 1, "be a number >= 1 or inf"),
            ("eps", self.eps is None or 0 < self.eps < math.inf, "be a positive number"),
            ("epochs", self.epochs >= 1, "be at least 1"),
            ("batch", self.batch >= 1, "be at least 1"),
            ("rate", 0 < self.rate < math.inf, "be a positive number"),
            ("attack_steps", self.attack_steps is None or self.attack_steps >= 1, "be at least 1"),
            ("evaluate_every", self.evaluate_every >= 0, "be at least 0"),
            ("evaluate_points", self.evaluate_points >= 0, "be at least 0"),
            ("save_seconds", self.save_seconds >= 0, "be at least 0"),
        ]
        for name, holds, rule in rules:
            if not holds:
                raise InvalidInput(f"{name} must {rule}; found {getattr(self, name)!r}")
        if self.eps is None and default_eps(self.data, self.p) is None and self.scheme != "plain":
            raise InvalidInput(
                f"eps must be given for p={self.p:g}: the paper has no radius for {self.data} in that norm"
            )

    @property
    def radius(self) -> float | None:
        """The radius that is trained and judged; None where neither the run nor the paper has one."""
        return default_eps(self.data, self.p) if self.eps is None else self.eps

    @property
    def pgd_steps(self) -> int:
        """The steps of PGD in training."""
        return ATTACK_STEPS[self.data] if self.attack_steps is None else self.attack_steps

    @property
    def folder(self) -> Path:
        """Where the run lives."""
        return self.out or Path("runs") / f"{self.data}-{self.model}-{self.scheme}-{self.p:g}"

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the weights: what a run must have in common with one that goes on."""
        aside = {"out", "evaluate_every", "evaluate_points", "save_seconds"}
        values = {name: value for name, value in dataclasses.asdict(self).items() if name not in aside}
        values |= {"p": "inf" if math.isinf(self.p) else self.p, "eps": self.radius, "attack_steps": self.pgd_steps}
        return values
