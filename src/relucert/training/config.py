"""The configuration of a training run: one dataclass for the library and for the command line."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relucert.core.errors import InvalidInput
from relucert.core.methods import spec
from relucert.training.old_config import migrated
from relucert.training.recipes import (
    ATTACK_STEPS,
    CROP_PADDING,
    MODELS,
    OWN,
    RECIPES,
    Setting,
    default_batch,
    default_epochs,
    default_eps,
    default_rate,
)
from relucert.training.schemes.registry import parse_scheme
from relucert.training.schemes.scheme import Scheme

#: How the other networks of a run are written: layers and units, PACKAGE.MODULE:FUNCTION, a file or a run's folder.
_LAYERS = re.compile(r"fc-[1-9]\d{0,2}x[1-9]\d{0,4}")
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
FILE = re.compile(r".*(/|\\|\.safetensors|\.onnx|\.onnx\.gz|\.mat).*")
_WAYS = {
    "model": ": others are fc-LAYERSxUNITS, PACKAGE.MODULE:FUNCTION, a checkpoint or a run's folder",
    "data": ": data of your own are a folder of images or FILE.npz, by a path that exists",
}
#: The entry of a saved configuration that says what values and files a run began with: digests of data and network.
IDENTITY = "identity"
#: Fields with a default of the scheme, and what nearly all schemes have.
_NEUTRAL: dict[str, Any] = {"start": "he", "batch_norm": False, "clip": 0.0, "average": 0.0}
_STARTS = ("he", "ibp")
#: Fields that do not change the weights.
_ASIDE = ("out", "device", "evaluate_every", "evaluate_points", "save_seconds", "tensorboard")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The numbers of a run, with the recipe's values for everything that the configuration leaves open."""

    epochs: int
    batch: int
    rate: float
    decay: float | None
    start: str
    batch_norm: bool
    clip: float
    average: float
    scheme: Scheme


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run; the paper's settings are the defaults.

    >>> TrainConfig(data="mnist", scheme="mmr(gamma_B=0.2)", epochs=20).settings.scheme.gamma_d
    0.1
    """

    data: str = "digits"
    """A data set by name, or your own by its path. Names: digits, mnist, fmnist, gts, cifar10. Paths, with training data: a
    folder of images, or FILE.npz."""
    model: str = "fc1"
    """fc1, fc10, fc-2x256, cnn, resnet or your own. The architecture: the name fc-LAYERSxUNITS takes any numbers; cnn-wide has
    twice the filters; your own is PACKAGE.MODULE:FUNCTION, a function of input shape and number of classes, or of nothing,
    that makes an nn.Module; or a network to go on with: a run's folder, a .safetensors checkpoint, .onnx or .mat."""
    init: Path | None = None
    """Where the first weights come from. A run's folder or file with a network of the same architecture."""
    scheme: str | Scheme = "plain"
    """Training scheme: a name, a text with parameters such as "mmr(lambda=2, gamma_B=0.1)", or a value."""
    p: float = math.inf
    """Norm of the perturbations: a number >= 1, or inf."""
    eps: float | None = None
    """Radius of the perturbations in pixels. By default the paper's for the data set and the norm."""
    recipe: str = "table1"
    """Defaults as in the paper: table1 or tables23. Those of its Table 1, or of its Tables 2 and 3 (l2)."""
    epochs: int | None = None
    """Passes over the training set. By default the recipe's (100, or 300)."""
    batch: int | None = None
    """Examples in a step. By default the recipe's (128, or 100)."""
    rate: float | None = None
    """Learning rate of Adam. Divided by 10 for the last tenth of the run; by default the recipe's (mostly 1e-3)."""
    decay: float | None = None
    """Share of the run, at its end, over which the rate falls. To a fiftieth; by default 0.5 for ibp and crown-ibp."""
    start: str | None = None
    """How the first weights are drawn: he or ibp. By default the scheme's: he is the paper's way, ibp that of Shi et al.
    (2021) for training against intervals."""
    batch_norm: bool | None = None
    """Normalise what enters a ReLU in training. The batch norm is folded into their weights in every step:
    the architecture stays as it is. By default the scheme's."""
    clip: float | None = None
    """Largest length of a gradient; 0: any. Longer ones are cut. By default the scheme's."""
    average: float | None = None
    """Share of the run, at its end, that is averaged; 0: none. The network has the mean of its weights. By default
    the scheme's."""
    augment: bool = True
    """Random crops and mirroring where the paper has them (cifar10), or where `crop` is given. --no-augment: no random crops
    and no mirroring of images."""
    crop: int | None = None
    """Largest shift of random crops in pixels. By default 2 on cifar10, 0 elsewhere. Mirroring: cifar10 and fmnist only."""
    seed: int = 0
    """Seed of all randomness."""
    validation: float = 0.0
    """Share of the training set that is held out. It is never trained on, and networks are evaluated on it instead of the test
    set."""
    validation_seed: int = 0
    """Seed of the choice of the points that are held out. The seed of the run does not change it."""
    out: Path | None = None
    """Folder of the run. By default runs/DATA-MODEL-SCHEME-P. A run that was stopped in the folder goes on."""
    device: str = "cpu"
    """cpu, or an accelerator of torch such as cuda."""
    evaluate_every: int = 1
    """Epochs between evaluations on the test set; 0: never."""
    evaluate_points: int = 1000
    """Test points that PGD attacks in these evaluations. 0: none."""
    save_seconds: float = 60.0
    """Seconds between saves of the state. It is also saved after every epoch."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard. They go into the folder tensorboard of the run (extra tensorboard)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", float(self.p))
        rules = [
            ("recipe", self.recipe in RECIPES, f"be one of {', '.join(RECIPES)}"),
            ("model", _names_model(self.model), f"be one of {', '.join(MODELS)}"),
            ("data", _names_data(self.data), f"be one of {', '.join(ATTACK_STEPS)}"),
            ("p", self.p >= 1, "be a number >= 1 or inf"),
            ("eps", self.eps is None or 0 < self.eps < math.inf, "be a positive number"),
            ("epochs", self.epochs is None or self.epochs >= 1, "be at least 1"),
            ("batch", self.batch is None or self.batch >= 1, "be at least 1"),
            ("rate", self.rate is None or 0 < self.rate < math.inf, "be a positive number"),
            ("decay", self.decay is None or 0 < self.decay <= 1, "be a share of the run, above 0 and at most 1"),
            ("start", self.start is None or self.start in _STARTS, f"be one of {', '.join(_STARTS)}"),
            ("clip", self.clip is None or 0 <= self.clip < math.inf, "be a number >= 0"),
            ("average", self.average is None or 0 <= self.average < 1, "be a share of the run, at least 0 and below 1"),
            ("crop", self.crop is None or self.crop >= 0, "be at least 0"),
            ("validation", 0 <= self.validation < 1, "be a share of the training set, at least 0 and below 1"),
            ("evaluate_every", self.evaluate_every >= 0, "be at least 0"),
            ("evaluate_points", self.evaluate_points >= 0, "be at least 0"),
            ("save_seconds", self.save_seconds >= 0, "be at least 0"),
        ]
        for name, holds, rule in rules:
            if not holds:
                raise InvalidInput(f"{name} must {rule}, got {getattr(self, name)!r}{_WAYS.get(name, '')}")
        parse_scheme(self.scheme).filled(self.setting)

    @property
    def setting(self) -> Setting:
        """The facts that the defaults of a scheme depend on."""
        return Setting(self.data, self.model, self.p, self.recipe, self.eps)

    @property
    def settings(self) -> Settings:
        """The given numbers, and the recipe's for the rest."""
        scheme = parse_scheme(self.scheme)
        return Settings(
            epochs=default_epochs(self.model, self.recipe) if self.epochs is None else self.epochs,
            batch=default_batch(self.recipe) if self.batch is None else self.batch,
            rate=default_rate(self.setting, scheme.name) if self.rate is None else self.rate,
            decay=scheme.decay if self.decay is None else self.decay,
            **{name: self._own(scheme, name) for name in _NEUTRAL},
            scheme=scheme.filled(self.setting),
        )

    def _own(self, scheme: Scheme, name: str) -> Any:
        """A field that a scheme has a default for."""
        value = getattr(self, name)
        return getattr(scheme, name) if value is None else value

    @property
    def radius(self) -> float | None:
        """The radius of evaluation; None where neither the configuration nor the paper has one."""
        return default_eps(self.data, self.p) if self.eps is None else self.eps

    @property
    def own_model(self) -> bool:
        """Whether the network is no architecture by name: a module, a function of the user or a file."""
        return self.model not in MODELS and not _LAYERS.fullmatch(self.model)

    @property
    def padding(self) -> int:
        """The zero-padding before random crops; 0 for no crops."""
        if not self.augment:
            return 0
        return CROP_PADDING.get(self.data, 0) if self.crop is None else self.crop

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        data, model = _short(self.data, ATTACK_STEPS), _short(self.model, MODELS)
        return self.out or Path("runs") / f"{data}-{model}-{parse_scheme(self.scheme).name}-{self.p:g}"

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the weights; a run goes on only where all of it is the same."""
        names = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in _ASIDE]
        settings = self.settings
        values = {name: getattr(settings if hasattr(settings, name) else self, name) for name in names}
        values |= {"p": "inf" if math.isinf(self.p) else self.p, "eps": self.radius, "scheme": spec(settings.scheme)}
        values |= {} if self.init is None else {"init": str(self.init)}
        for name in ("decay", "crop", "init"):
            if getattr(self, name) is None:
                del values[name]
        for name, value in _NEUTRAL.items():  # as all runs of earlier versions were
            if values[name] == value == getattr(settings.scheme, name):
                del values[name]
        if not self.validation:
            del values["validation"], values["validation_seed"]
        return values

    @staticmethod
    def from_json(values: dict[str, Any]) -> TrainConfig:
        """The configuration that `to_json` has written, of this or an earlier version.

        >>> config = TrainConfig(data="mnist", scheme="mmr", p=2)
        >>> TrainConfig.from_json(config.to_json()).to_json() == config.to_json()
        True
        """
        values = {name: value for name, value in values.items() if name != IDENTITY}
        if isinstance(values.get("init"), str):
            values["init"] = Path(values["init"])
        try:
            return TrainConfig(**migrated(values))
        except TypeError as error:
            raise InvalidInput(f"the configuration must hold the fields of TrainConfig: {error}") from error


def _names_model(model: str) -> bool:
    """Whether a text can stand for a network."""
    if model in MODELS or model == OWN or any(kind.fullmatch(model) for kind in (_LAYERS, FUNCTION, FILE)):
        return True
    return bool(model) and Path(model).is_dir()


def _names_data(data: str) -> bool:
    """Whether a text can stand for training data."""
    if data in ATTACK_STEPS or data == OWN:
        return True
    from relucert.data.own import is_own

    return is_own(data)


def _short(text: str, known: Container[str]) -> str:
    """A text as a part of a folder's name: the name of a file without its ending."""
    return text if text in known else re.sub(r"\W+", "-", Path(text.split(",")[0]).stem)
