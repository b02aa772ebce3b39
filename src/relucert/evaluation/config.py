"""What an evaluation is: one dataclass for the library and for the command line."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relucert.core.errors import InvalidInput
from relucert.evaluation.executors.choice import check_choice
from relucert.training.config import TrainConfig
from relucert.training.recipes import OWN, UNION, default_eps

Rules = list[tuple[str, bool, str]]
CONFIG_FILE = "config.json"


def run_config(model: Path) -> TrainConfig | None:
    """The configuration of the run that a network comes from; None if the network is a file, or the folder has none."""
    file = Path(model) / CONFIG_FILE
    if not file.is_file():
        return None
    try:
        return TrainConfig.from_json(json.loads(file.read_text()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"model: {file} must be the configuration of a run, got an error: {error}") from error


def records_beside(model: Path) -> Path:
    """Where the records about a model go: into a run's folder, or beside a file.

    >>> records_beside(Path("runs/net.safetensors")).as_posix()
    'runs/net.records.jsonl'
    """
    return model / "records.jsonl" if model.is_dir() else model.with_suffix(".records.jsonl")


@dataclass(frozen=True, kw_only=True)
class PointsConfig:
    """A question about a network and the test points of a data set."""

    model: Path
    """A run's folder, or a file: .safetensors, .onnx or the authors' .mat."""
    data: str = ""
    """A data set by name, or your own by its path. Names: digits, mnist, fmnist, gts, cifar10. Paths: a folder of images,
    FILE.npz, X.npy,Y.npy or FILE.csv. The test set is used. By default what the run was trained on."""
    p: float | None = None
    """Norm of the perturbations: a number >= 1, or inf. By default that of the run, else inf."""
    input_shape: tuple[int, ...] | None = None
    """Channels, height, width of your own images. They are converted to this shape; by default they keep that of the files."""
    mean: tuple[float, ...] | None = None
    """What the network expects to be subtracted from inputs. One number, or one for each channel; by default nothing."""
    std: tuple[float, ...] | None = None
    """What the network expects inputs to be divided by. After `mean`; one number, or one a channel; by default nothing."""
    points: int | None = 100
    """How many test points, from the first; None: all."""
    batch: int = 100
    """Points worked on together."""
    device: str = "cpu"
    """cpu, or an accelerator of torch such as cuda."""
    workers: int | None = None
    """Processes on this machine that share the points. Each has one thread. None: this process; `certify` starts as many as
    torch has threads where that is faster."""
    scheduler: str | None = None
    """Address of a Dask scheduler, tcp://HOST:8786. Its workers share the points."""
    out: Path | None = None
    """Where the records go, a .jsonl file. By default beside the model. What is there already is not done again."""

    def __post_init__(self) -> None:
        if not self.data:
            if self.run is None:
                raise InvalidInput(f"data must be given for {self.model}, which is no run's folder")
            if self.run.data == OWN:
                raise InvalidInput(f"data must be given for {self.model}, which was trained on arrays of the caller")
            object.__setattr__(self, "data", self.run.data)
        if self.p is not None:
            object.__setattr__(self, "p", float(self.p))
        for name, holds, rule in self.rules():
            if not holds:
                raise InvalidInput(f"{name} must {rule}, got {getattr(self, name)!r}")
        check_choice(self.workers, self.scheduler)

    def rules(self) -> Rules:
        """What must hold: the names of parameters, whether it does, and how it is said."""
        return [
            ("p", self.norm >= 1, "be a number >= 1 or inf"),
            ("points", self.points is None or self.points >= 1, "be at least 1"),
            ("batch", self.batch >= 1, "be at least 1"),
            ("mean", self.mean is None or _finite(self.mean), "be numbers"),
            ("std", self.std is None or (_finite(self.std) and min(self.std) > 0), "be positive numbers"),
        ]

    @property
    def run(self) -> TrainConfig | None:
        """The configuration of the run that the network comes from, None for other networks."""
        return run_config(self.model)

    @property
    def norm(self) -> float:
        """The norm of the perturbations: as given, or that of the run, or inf."""
        if self.p is not None:
            return self.p
        return math.inf if self.run is None else self.run.p

    @property
    def records(self) -> Path:
        """Where the records go: as given, or into a run's folder, or beside a model's file."""
        return records_beside(self.model) if self.out is None else self.out


@dataclass(frozen=True, kw_only=True)
class JudgedConfig(PointsConfig):
    """A question about one radius, for which the paper has a default."""

    eps: float | None = None
    """Radius of the perturbations in pixels. By default that of the run in its own norm, else the paper's for the data set
    and the norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._needs_eps and self._default_radius is None:
            raise InvalidInput(
                f"eps must be given for p={self.norm:g} on {self.data!r}, which has no radius of its own: --eps 0.01, say, in "
                "the units of the inputs"
            )

    @property
    def _needs_eps(self) -> bool:
        """Whether the question is about one radius."""
        return True

    def rules(self) -> Rules:
        return [*super().rules(), _radius_rule(self.eps)]

    @property
    def radius(self) -> float:
        """The radius at which the network is judged."""
        assert self._default_radius is not None
        return self._default_radius

    @property
    def _default_radius(self) -> float | None:
        if self.eps is not None:
            return self.eps
        run = self.run
        if run is not None and (run.data, run.p) == (self.data, self.norm) and run.eps is not None:
            return run.eps
        return default_eps(self.data, self.norm)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(JudgedConfig):
    """Test error and PGD robust error of a network on a data set."""

    points: int | None = 1000
    """How many test points are attacked, from the first. The test error is of all of them."""
    attack: str = "pgd"
    """The attack, such as "pgd(steps=40, restarts=10)". Attacks: pgd, apgd."""
    regions: bool = True
    """Also mean d_B and d_D, and the share of points that the region theorem certifies at eps. --no-regions: leave out what
    the linear regions say."""
    batch: int = 500
    """Points attacked together."""


@dataclass(frozen=True, kw_only=True)
class RadiusConfig(PointsConfig):
    """Proved radii of a network's decisions on a data set's test points."""

    method: str = "auto"
    """The method, such as "region(regions=100)" or crown. With parameters if wanted; auto: what proves most for its cost, and
    the attack best."""
    attack: str | None = None
    """An attack for the upper ends: best, cw, ddn, fab, region, none. Its points bound radii from above, besides those that the
    method finds itself."""
    tol: float = 0.01
    """Relative width to which intervals are narrowed. By bab and auto."""
    timeout: float | None = None
    """Seconds that a point may cost. Its share of its batch's. None: 5 for auto, and no limit for other methods."""
    box: bool = True
    """Only inputs in the range of the data count, [0, 1] for images. --no-box: count inputs outside the data's range, too."""
    labels: bool = True
    """Ask about the label; a misclassified point has radius 0. --no-labels: ask about the predicted class, not the label."""
    arithmetic: Literal["real", "executed"] = "real"
    """What a proof must cover. With `real` real arithmetic with the stored weights, with `executed` also the network as it runs
    in its dtype, with its rounding."""

    def rules(self) -> Rules:
        return [
            *super().rules(),
            _arithmetic_rule(self.arithmetic),
            ("tol", 0 < self.tol < 1, "be above 0 and below 1"),
            _clock_rule("timeout", self.timeout),
        ]


@dataclass(frozen=True, kw_only=True)
class CertifyConfig(JudgedConfig):
    """Verdicts about a network's decisions on a data set's test points, at one radius."""

    method: str = "auto"
    """auto, or one method such as crown, "alpha(steps=50)", bab. Methods: region, ibp, kw, crown, alpha, lipschitz, sdp,
    moments, bab, mip, with parameters if wanted; auto: one after the other, until every point is decided."""
    timeout: float | None = None
    """Seconds that a point may cost. Its share of its batch's; what is undecided by then is unknown. None: 60 for auto, and no
    limit for other methods."""
    run_timeout: float | None = None
    """Seconds for all points together. What is undecided by then has no record, and the next run goes on there. None: no
    limit."""
    points: int | None = 1000
    """How many test points, from the first; None: all."""
    box: bool = True
    """Only inputs in the range of the data count, [0, 1] for images. --no-box: count inputs outside the data's range, too."""
    arithmetic: Literal["real", "executed"] = "real"
    """What a proof must cover. With `real` real arithmetic with the stored weights, with `executed` also the network as it runs
    in its dtype, with its rounding."""
    union: str | None = None
    """Several balls, such as "inf:0.1,2:0.3,1:1". Pairs of norm and radius instead of p and eps: a point is robust if it is in
    all of them; published: those that MMR-Universal is evaluated at."""
    proofs: Path | None = None
    """A folder for certificate files. One for every robust or vulnerable point, which `relucert check` derives again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.balls

    @property
    def _needs_eps(self) -> bool:
        return self.union is None

    @property
    def balls(self) -> list[tuple[float, float]]:
        """The norms and radii of all balls: one, or those of `union`."""
        return [(self.norm, self.radius)] if self.union is None else _balls(self.union, self.data)

    def rules(self) -> Rules:
        return [
            *super().rules(),
            _arithmetic_rule(self.arithmetic),
            _clock_rule("run_timeout", self.run_timeout),
            _clock_rule("timeout", self.timeout),
            ("proofs", self.proofs is None or self.union is None, "be left out with --union"),
        ]


@dataclass(frozen=True, kw_only=True)
class AttackConfig(PointsConfig):
    """Points that change a network's decisions near a data set's test points: within eps, or as near as possible."""

    eps: float | None = None
    """Radius of the perturbations in pixels. By default there is none, and the smallest perturbations are looked for."""
    method: str | None = None
    """The attack, such as "pgd(steps=40)", fab or best. Within eps pgd or apgd (the default); for the smallest perturbations
    cw, ddn, fab, region or best (the default)."""
    box: bool = True
    """Only inputs in the range of the data count, [0, 1] for images. --no-box: count inputs outside the data's range, too."""
    labels: bool = True
    """Attack the label; a misclassified point has distance 0. --no-labels: attack the predicted class, not the label."""

    def rules(self) -> Rules:
        return [*super().rules(), _radius_rule(self.eps)]

    @property
    def attack(self) -> str:
        """The attack that is run."""
        return self.method or ("best" if self.eps is None else "apgd")


def _balls(union: str, data: str) -> list[tuple[float, float]]:
    """The norms and radii that a text stands for."""
    if union == "published":
        if data not in UNION:
            raise InvalidInput(
                f"union must name norms and radii for data {data!r}, which has no published ones, got {union!r}"
            )
        return list(UNION[data].items())
    rule = f"union must be pairs such as 'inf:0.1,2:0.3,1:1', with norms >= 1 and radii >= 0, got {union!r}"
    try:
        found = [(float(p), float(eps)) for p, eps in (pair.split(":") for pair in union.split(","))]
    except ValueError as error:
        raise InvalidInput(rule) from error
    if not all(p >= 1 and 0 <= eps < math.inf for p, eps in found) or len(set(found)) < len(found):
        raise InvalidInput(rule)
    return found


def _finite(values: tuple[float, ...]) -> bool:
    return len(values) > 0 and all(math.isfinite(value) for value in values)


def _radius_rule(eps: float | None) -> tuple[str, bool, str]:
    return "eps", eps is None or 0 <= eps < math.inf, "be a number >= 0"


def _clock_rule(name: str, seconds: float | None) -> tuple[str, bool, str]:
    return name, seconds is None or seconds > 0, "be a positive number of seconds"


def _arithmetic_rule(arithmetic: str) -> tuple[str, bool, str]:
    return "arithmetic", arithmetic in ("real", "executed"), "be 'real' or 'executed'"
