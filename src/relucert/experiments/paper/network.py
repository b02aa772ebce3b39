"""A network of the paper's tables: the configuration that trains it, and runs that exist already."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relucert.core.errors import InvalidInput
from relucert.core.methods import spec
from relucert.evaluation.config import run_config
from relucert.reports.published import Key
from relucert.training.config import TrainConfig
from relucert.training.run import CONFIG_FILE, MODEL_FILE
from relucert.training.schemes.registry import parse_scheme

#: Finished runs: their folders and their configurations.
Runs = Sequence[tuple[Path, TrainConfig]]
QUICK_EPOCHS, QUICK_BATCH = 2, 128
#: On the digits FC1 with MMR of Table 3 gets regions so large that the theorem proves optima, which its columns and the figures
#: of CW need: as many hyperplanes in the loss as in Table 1, a large weight, and more epochs.
_OPTIMAL = "mmr(lam=50, gamma_b=1.0, gamma_d=1.0, share_b=(0.1, 0.02), share_d=(1.0, 1.0), nearest_after=1.0)"
_OPTIMAL_EPOCHS = 10
#: Parameters of schemes on the digits, which are not in the paper, in l_inf and l2: settings for seconds, not for figures.
_RADIUS, _GAMMA = {math.inf: 0.1, 2.0: 0.3}, {math.inf: 0.2, 2.0: 0.6}


@dataclass(frozen=True, kw_only=True)
class PaperNetwork:
    """A network: data set, architecture, name of the scheme in the tables, norm, and whose settings (`recipe`).

    `text` is the scheme with its parameters where they are not the recipe's.
    """

    data: str
    model: str
    scheme: str
    p: float
    recipe: str = "table1"
    text: str = ""

    @property
    def key(self) -> Key:
        """Its place in the tables."""
        return Key(self.data, self.model, self.scheme, self.p)

    @property
    def name(self) -> str:
        """The name of its folder and its files."""
        recipe = "" if self.recipe == "table1" else f"-{self.recipe}"
        return f"{self.data}-{self.model}-{self.scheme.replace(' ', '-')}-{self.p:g}{recipe}"

    def on_digits(self) -> PaperNetwork:
        """The same on the digits."""
        return replace(self, data="digits", text=_small(self))

    def config(self, epochs: int | None, folder: Path) -> TrainConfig:
        """The run that trains the network, in a folder of its own below `folder`."""
        small = self.data == "digits"
        quick = _OPTIMAL_EPOCHS if self.text == _OPTIMAL else QUICK_EPOCHS
        return TrainConfig(
            data=self.data, model=self.model, scheme=self.text or self.scheme, p=self.p, recipe=self.recipe,
            epochs=quick if small and epochs is None else epochs, batch=QUICK_BATCH if small else None,
            evaluate_every=0 if small else 10, out=folder / self.name,
        )  # fmt: skip

    def matches(self, run: TrainConfig, epochs: int | None) -> bool:
        """Whether a run that exists trained such a network: its epochs count where `epochs` is given.

        A network of plain training is one of either norm. The scheme's parameters must be the same where this network has some
        of its own; otherwise its name is enough, and the report quotes the command of the run.
        """
        if (run.data, run.model, run.recipe) != (self.data, self.model, self.recipe):
            return False
        other, wanted = parse_scheme(run.scheme), parse_scheme(self.text or self.scheme)
        if other.name != wanted.name or (run.p != self.p and wanted.name != "plain"):
            return False
        if self.text and spec(wanted.filled(self.config(None, Path()).setting)) != spec(other.filled(run.setting)):
            return False
        return epochs in (None, run.settings.epochs)

    def existing(self, finished: Runs, epochs: int | None) -> Path | None:
        """The folder of a finished run that trained such a network, the one with the most epochs."""
        found = [(run.settings.epochs, str(path)) for path, run in finished if self.matches(run, epochs)]
        return Path(max(found)[1]) if found else None


def finished_runs(folder: Path) -> Runs:
    """The folders of all finished runs below a folder, with their configurations."""
    found = []
    for file in sorted(folder.glob(f"*/{MODEL_FILE}")):
        if not (file.parent / CONFIG_FILE).is_file():
            continue
        try:
            run = run_config(file.parent)
        except InvalidInput:  # of another version, or of a network of somebody's own
            continue
        if run is not None:
            found.append((file.parent, run))
    return found


def _small(network: PaperNetwork) -> str:
    """The scheme of a network on the digits, with parameters."""
    if (network.recipe, network.model, network.scheme) == ("tables23", "fc1", "mmr"):
        return _OPTIMAL
    radius, gamma = _RADIUS[network.p], _GAMMA[network.p]
    name = parse_scheme(network.text or network.scheme).name
    margin = f"gamma_b={gamma}, gamma_d={gamma}"
    lam = getattr(parse_scheme(network.text or network.scheme), "lam", None) or 4.0
    return {
        "at": f"at(eps={radius}, attack_steps=5)",
        "rs": f"rs(eps={radius}, attack_steps=5)",
        # Exact bounds of deeper networks take up to a minute an epoch.
        "kw": f"kw(eps={radius}" + (", projections=5)" if network.model != "fc1" else ")"),
        "mmr": f"mmr(lam={lam}, {margin})",
        "mmr-dd": f"mmr-dd(lam=4, gamma_d={gamma})",
        "mmr+at": f"mmr+at(lam=4, {margin}, eps={radius}, attack_steps=5)",
    }.get(name, name)
