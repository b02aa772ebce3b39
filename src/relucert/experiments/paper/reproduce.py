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

from relucert.data import dataset
from relucert.evaluation.config import run_config
from relucert.evaluation.executors.choice import executor_of
from relucert.experiments.paper.config import ReproduceConfig
from relucert.experiments.paper.experiment import Effort, Experiment
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.registry import chosen
from relucert.experiments.paper.selection import NETWORKS, Selection, require_data
from relucert.experiments.trained import command
from relucert.interop.loading import load
from relucert.networks.checkpoints import digest
from relucert.networks.prediction import error
from relucert.records.atomic import file_access, write_atomically
from relucert.reports.paper.measured import MeasuredNetwork, measured
from relucert.training.loop import train
from relucert.training.progress import Terminal, Watcher
from relucert.training.recipes import default_eps

RECORDS, ARRAYS = "records", "arrays"
#: Called with a line for everything that is done.
Say = Callable[[str], None]


def reproduce(config: ReproduceConfig, say: Say = lambda line: None, watcher: Watcher | None = None) -> list[Path]:
    """Run the experiments that a configuration names, and return the files that were written."""
    experiments = {experiment.name: experiment for experiment in chosen(config.name)}
    selection = Selection.of(config)
    work, selected = _Work(selection, say, watcher or Terminal()), selection.networks(list(experiments.values()))
    require_data(sorted({network.data for networks in selected.values() for network in networks}))
    with executor_of(config.workers, config.scheduler):
        pass  # a scheduler that cannot be reached is an error before anything is trained
    for name in (NETWORKS, RECORDS, ARRAYS):
        with file_access(config.out / name):
            (config.out / name).mkdir(parents=True, exist_ok=True)
    written = {name: work.done(experiments[name], networks) for name, networks in selected.items()}
    for name in list(selected)[:-1]:  # later experiments know more of networks that they share with this one
        written[name] = work.files(experiments[name])
    return [path for files in written.values() for path in files]


def evaluated(config: ReproduceConfig) -> list[MeasuredNetwork]:
    """The networks that a configuration is about and that have been evaluated."""
    selected = Selection.of(config).networks(chosen(config.name))
    known = measured(config.out / RECORDS)
    names = dict.fromkeys(network.name for networks in selected.values() for network in networks)
    return [known[name] for name in names if name in known]


@dataclass(frozen=True)
class _Work:
    """A call: what it is about, and who is informed."""

    selection: Selection
    say: Say
    watcher: Watcher

    @property
    def config(self) -> ReproduceConfig:
        """The configuration of the call."""
        return self.selection.config

    def done(self, experiment: Experiment, networks: Sequence[PaperNetwork]) -> list[Path]:
        """The files of one experiment after its networks, one after the other, and its arrays."""
        config, folders = self.config, {}
        effort = Effort(points=config.points, timeout=config.timeout, quick=config.quick)
        for number, network in enumerate(networks, 1):
            head = f"{experiment.name}: {network.name} ({number} of {len(networks)})"
            folder = self.selection.trained(network)
            if folder is None:
                wanted = self.selection.wanted(network)
                self.say(f"{head}: training {wanted.settings.epochs} epochs")
                folder = wanted.folder
                train(wanted, self.watcher)
                self.selection.finished.append((folder, wanted))
            about, folders[network.name] = self._described(network, folder), folder
            for step in experiment.steps(network, effort):
                self.say(f"{head}: {step.verb} by {step.method}")
                records = step.records(MeasuredNetwork.read(about), folder, config.workers, config.scheduler)
                count = sum(1 for _ in records)
                self.say(f"{head}: {count} points")
        if experiment.arrays is not None:
            self.say(f"{experiment.name}: arrays of the figures")
            experiment.arrays(folders, config.out / ARRAYS, effort)
        files = self.files(experiment)
        self.say(f"{experiment.name}: {', '.join(path.name for path in files)}")
        return files

    def files(self, experiment: Experiment) -> list[Path]:
        """The files of one experiment, from all that the folder knows."""
        return experiment.write(list(measured(self.config.out / RECORDS).values()), self.config.out)

    def _described(self, network: PaperNetwork, folder: Path) -> Path:
        """The file that describes the network of a run; records about another network are refused."""
        about = self.config.out / RECORDS / f"{network.name}.json"
        net = load(folder)
        if about.exists():
            known = MeasuredNetwork.read(about)
            if known.model == digest(net):
                self.say(f"{network.name}: {known.known} records")
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
        self.say(f"{network.name}: {found.known} records")
        write_atomically(about, found.to_json())
        return about
