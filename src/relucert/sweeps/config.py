"""What a sweep is: the configuration that all runs share, what varies, how trials are chosen and judged, where they run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relucert.core.errors import InvalidInput
from relucert.evaluation.executors.choice import check_choice
from relucert.sweeps._presets import preset
from relucert.sweeps._space import Domain, space_of
from relucert.sweeps._stopping import Stop
from relucert.sweeps._suggestions import Search, grid_size
from relucert.training.config import TrainConfig
from relucert.training.recipes import OWN

#: The share of the training set that is held out, unless the configuration of the runs says another one.
SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A sweep over fields of a training configuration and parameters of its scheme.

    >>> config = SweepConfig(train=TrainConfig(data="digits", scheme="mmr"), vary=("lam=1,2", "gamma=0.1,0.2,0.3"))
    >>> config.size, sorted(config.space)
    (6, ['gamma', 'lam'])
    """

    train: TrainConfig
    """What all runs have; its `out` is the folder of the sweep, and a tenth of the training set is held out if it says none."""
    vary: tuple[str, ...] = ()
    """What varies: "lam=0.5,1,2", "rate=log(1e-4,1e-2)", "gamma=uniform(0.1,0.3)", "epochs=int(5,20)"."""
    preset: str | None = None
    """A grid of the paper instead of `vary`."""
    search: Search = "grid"
    """How trials are chosen: all points of the grid, random points, or by Optuna."""
    trials: int | None = None
    """How many trials, at most; needed but for a grid."""
    search_seed: int = 0
    """Seed of the choice of trials."""
    stop: Stop = "none"
    """When a trial ends early: never, where both figures are above the median of the others, or by successive halving."""
    every: int = 1
    """Epochs between the figures that decide whether a trial goes on; for halving: before the first ones."""
    method: str = "crown"
    """The method that proves robustness on the examples that are held out."""
    points: int | None = 500
    """How many of these it gets; None for all. The error is of all of them."""
    workers: int | None = None
    """Processes on this machine that train trials at the same time; None: this one."""
    scheduler: str | None = None
    """Address of a Dask scheduler whose workers train trials; they must share the folder of the sweep."""

    def __post_init__(self) -> None:
        rules = [
            ("trials", self.trials is None or self.trials >= 1, "be at least 1"),
            ("every", self.every >= 1, "be at least 1"),
            ("points", self.points is None or self.points >= 1, "be at least 1"),
            ("search", self.search in ("grid", "random", "optuna"), "be grid, random or optuna"),
            ("stop", self.stop in ("none", "median", "halving"), "be none, median or halving"),
        ]
        for name, holds, rule in rules:
            if not holds:
                raise InvalidInput(f"{name} must {rule}, got {getattr(self, name)!r}")
        check_choice(self.workers, self.scheduler)
        if (self.preset is None) == (not self.vary):
            raise InvalidInput(f"vary or preset must be given, and not both, got {self.vary} and {self.preset}")
        if OWN in (self.train.data, self.train.model):
            raise InvalidInput("train must name data and model, got values of the caller")
        if self.train.radius is None:
            raise InvalidInput(f"eps must be given for {self.train.setting}: the paper has no radius for it")
        space = self.space
        if self.search == "grid":
            grid_size(space)
        elif self.trials is None:
            raise InvalidInput(f"trials must be given for search {self.search}, got None")
        if self.stop != "none" and "epochs" in space:
            raise InvalidInput("stop must be none where epochs vary, since trials are compared after as many epochs")

    @property
    def _described(self) -> tuple[TrainConfig, tuple[str, ...]]:
        """The configuration of all runs, and what varies."""
        base = replace(self.train, validation=self.train.validation or SHARE)
        return (base, self.vary) if self.preset is None else preset(self.preset, base)

    @property
    def base(self) -> TrainConfig:
        """The configuration of all runs, with a share of the training set that is held out."""
        return replace(self._described[0], evaluate_every=0)

    @property
    def space(self) -> dict[str, Domain]:
        """What varies, by name."""
        base, texts = self._described
        return space_of(texts, base)

    @property
    def size(self) -> int:
        """How many trials there are at most."""
        size = grid_size(self.space) if self.search == "grid" else self.trials
        assert size is not None
        return size if self.trials is None else min(size, self.trials)

    @property
    def folder(self) -> Path:
        """The folder of the sweep."""
        if self.train.out is not None:
            return self.train.out
        return Path("sweeps") / self.base.folder.name

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the trials; a sweep goes on only where all of it is the same."""
        names = ("search", "search_seed", "stop", "every", "method", "points")
        return {"train": self.base.to_json(), "vary": list(self._described[1])} | {n: getattr(self, n) for n in names}
