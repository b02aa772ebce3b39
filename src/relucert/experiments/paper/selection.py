"""The networks that a call is about, and the runs that have trained them: in its own folder, or somewhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relucert.core.errors import InvalidInput, MissingData
from relucert.data import locate
from relucert.evaluation.config import run_config
from relucert.experiments.paper.config import ReproduceConfig
from relucert.experiments.paper.experiment import Experiment
from relucert.experiments.paper.network import PaperNetwork, finished_runs
from relucert.training.config import TrainConfig
from relucert.training.run import CONFIG_FILE, MODEL_FILE

#: The folder below `out` that has the runs which a call trains.
NETWORKS = "networks"


@dataclass(frozen=True)
class Selection:
    """What the configuration of a call selects; `finished` are the runs that exist."""

    config: ReproduceConfig
    finished: list[tuple[Path, TrainConfig]] = field(default_factory=list)

    @staticmethod
    def of(config: ReproduceConfig) -> Selection:
        """The selection of a configuration, with the runs of `runs` and those that calls with the same `out` have trained."""
        return Selection(config, [*finished_runs(config.runs), *finished_runs(config.out / NETWORKS)])

    def trained(self, network: PaperNetwork) -> Path | None:
        """The folder of a finished run of the network: its own below `out`, or another; None where it is to be trained.

        A run of its own with another number of epochs than those that are wanted is left to training, which refuses it.
        """
        epochs, own = self.config.epochs, self.config.out / NETWORKS / network.name
        if (own / MODEL_FILE).exists():
            run = run_config(own)
            return own if run is not None and epochs in (None, run.settings.epochs) else None
        return network.existing(self.finished, epochs)

    def wanted(self, network: PaperNetwork, epochs: int | None = None) -> TrainConfig:
        """The run that trains a network: `--epochs`, else those of a run that has begun in its folder, else `epochs`."""
        folder = self.config.out / NETWORKS
        begun = run_config(folder / network.name) if (folder / network.name / CONFIG_FILE).exists() else None
        return network.config(self.config.epochs or (epochs if begun is None else begun.settings.epochs), folder)

    def networks(self, experiments: Sequence[Experiment]) -> dict[str, list[PaperNetwork]]:
        """The networks that the configuration is about, by experiment; experiments without one are left out."""
        config = self.config
        every = {one.name: one.on_digits() if config.quick else one.networks for one in experiments}
        fields = [_fields(network) for networks in every.values() for network in networks]
        for name, given in (("data", config.data), ("models", config.models), ("schemes", config.schemes)):
            known = dict.fromkeys(text for one in fields for text in one[name])
            if unknown := [value for value in given if value not in known]:
                raise InvalidInput(
                    f"{name} must be among {', '.join(known)} for {config.name}, got {' '.join(unknown)}"
                )
        kept = {
            name: [
                network
                for network in networks
                if _is_named(network, config) and not (config.existing and self.trained(network) is None)
            ]
            for name, networks in every.items()
        }
        if not any(kept.values()):
            raise InvalidInput(
                f"data, models, schemes and existing must leave a network of {config.name}, got none that is all of them"
            )
        return {name: networks for name, networks in kept.items() if networks}


def _is_named(network: PaperNetwork, config: ReproduceConfig) -> bool:
    fields = _fields(network)
    given = (("data", config.data), ("models", config.models), ("schemes", config.schemes))
    return all(not values or set(values) & set(fields[name]) for name, values in given)


def _fields(network: PaperNetwork) -> dict[str, tuple[str, ...]]:
    """What a network is called on the command line: its scheme by its place in the table, and by name."""
    plain = network.text.partition("(")[0] or network.scheme
    return {"data": (network.data,), "models": (network.model,), "schemes": (network.scheme, plain)}


def require_data(names: Sequence[str]) -> None:
    """Raise unless all data sets are on this machine, before anything is trained."""
    missing = [name for name in names if _is_missing(name)]
    if missing:
        raise MissingData(
            f"data {', '.join(missing)} must be on this machine: relucert data fetch {' '.join(missing)} gets it, or --data "
            "names others"
        )


def _is_missing(name: str) -> bool:
    match locate(name).kind:
        case "missing":
            return True
        case _:
            return False
