"""Run experiments of the paper: train what is missing, evaluate it, and write tables and figures.

Everything goes into one folder, `out`: `networks/` has the runs that were trained, `records/` for every network a description
(`NAME.json`) and its records (`NAME.jsonl`), `arrays/` what figures are drawn from, and beside them stand tables and figures.
Training goes on where it was stopped and what has a record is not computed again, so that a run which is interrupted anywhere
and started again ends with the same records. Tables show all that the folder knows, whatever the last run was about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relucert.core.errors import InvalidInput, MissingData
from relucert.data import dataset, locate
from relucert.evaluation.config import run_config
from relucert.experiments.paper.config import ReproduceConfig
from relucert.experiments.paper.experiment import Effort, Experiment
from relucert.experiments.paper.network import PaperNetwork, Runs, finished_runs
from relucert.experiments.paper.registry import chosen
from relucert.experiments.trained import command
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.networks.prediction import error
from relucert.records.atomic import file_access, write_atomically
from relucert.reports.paper.measured import MeasuredNetwork, measured
from relucert.training.loop import train
from relucert.training.progress import Terminal, Watcher
from relucert.training.recipes import default_eps
from relucert.training.run import MODEL_FILE

NETWORKS, RECORDS, ARRAYS = "networks", "records", "arrays"
#: Called with a line for everything that is done.
Say = Callable[[str], None]


def reproduce(config: ReproduceConfig, say: Say = lambda line: None, watcher: Watcher | None = None) -> list[Path]:
    """Run the experiments that a configuration names, and return the files that were written."""
    experiments = {experiment.name: experiment for experiment in chosen(config.name)}
    work = _Work(config, finished_runs(config.runs), say, watcher or Terminal())
    selected = work.selected(list(experiments.values()))
    _require_data(sorted({network.data for networks in selected.values() for network in networks}))
    for name in (NETWORKS, RECORDS, ARRAYS):
        with file_access(config.out / name):
            (config.out / name).mkdir(parents=True, exist_ok=True)
    return [path for name, networks in selected.items() for path in work.files(experiments[name], networks)]


@dataclass(frozen=True)
class _Work:
    """A call: its configuration, the runs that exist already, and who is informed."""

    config: ReproduceConfig
    finished: Runs
    say: Say
    watcher: Watcher

    def files(self, experiment: Experiment, networks: Sequence[PaperNetwork]) -> list[Path]:
        """The files of one experiment: its networks one after the other, then arrays, tables and figures."""
        config, folders = self.config, {}
        effort = Effort(points=config.points, timeout=config.timeout, quick=config.quick)
        for number, network in enumerate(networks, 1):
            head = f"{experiment.name}: {network.name} ({number} of {len(networks)})"
            folder = self.trained(network)
            if folder is None:
                wanted = network.config(config.epochs, config.out / NETWORKS)
                self.say(f"{head}: training {wanted.settings.epochs} epochs")
                folder = wanted.folder
                train(wanted, self.watcher)
            about, folders[network.name] = self._described(network, folder), folder
            for step in experiment.steps(network, effort):
                self.say(f"{head}: {step.verb} by {step.method}")
                count = sum(1 for _ in step.records(MeasuredNetwork.read(about), folder, config.workers))
                self.say(f"{head}: {count} points")
        if experiment.arrays is not None:
            self.say(f"{experiment.name}: arrays of the figures")
            experiment.arrays(folders, config.out / ARRAYS, effort)
        files = experiment.write(list(measured(config.out / RECORDS).values()), config.out)
        self.say(f"{experiment.name}: {', '.join(path.name for path in files)}")
        return files

    def _described(self, network: PaperNetwork, folder: Path) -> Path:
        """The file that describes the network of a run; records about another network are refused."""
        about = self.config.out / RECORDS / f"{network.name}.json"
        net = load(folder)
        if about.exists() and MeasuredNetwork.read(about).model == digest(net):
            return about
        run = run_config(folder)
        assert run is not None
        data = dataset(network.data)
        found = MeasuredNetwork(
            name=network.name, key=network.key, model=digest(net), source=str(folder),
            command=command(replace(run, out=folder)), epochs=run.settings.epochs,
            test_error=error(net, data.x_test.to(net.dtype), data.y_test), eps=default_eps(network.data, network.p),
            records=about.with_suffix(".jsonl"),
        )  # fmt: skip
        if found.store is not None:
            self.say(f"{network.name}: {len(found.store)} records are there already")
        write_atomically(about, found.to_json())
        return about

    def trained(self, network: PaperNetwork) -> Path | None:
        """The folder of a finished run of the network: its own below `out`, or another; None where it is to be trained.

        A run of its own with another number of epochs than those that are wanted is left to training, which refuses it.
        """
        epochs, own = self.config.epochs, self.config.out / NETWORKS / network.name
        if (own / MODEL_FILE).exists():
            run = run_config(own)
            return own if run is not None and epochs in (None, run.settings.epochs) else None
        return network.existing(self.finished, epochs)

    def selected(self, experiments: Sequence[Experiment]) -> dict[str, list[PaperNetwork]]:
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


def _require_data(names: Sequence[str]) -> None:
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
