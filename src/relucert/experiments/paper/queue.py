"""The queue of trainings: which network of the paper is trained next, for how many epochs, and about how long it takes.

The order is that of value for time: networks that many figures of the tables need, that take few hours, and whose figures are
furthest from the paper's come first. Epochs are those that a single core can afford; `--epochs` gives others to all. A run that
was stopped goes on where it was, bit for bit.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relucert.core.errors import RelucertError, RunError
from relucert.evaluation.config import run_config
from relucert.experiments.paper.config import ReproduceConfig
from relucert.experiments.paper.experiment import Experiment
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.pace import Paces, epochs_done
from relucert.experiments.paper.registry import chosen
from relucert.experiments.paper.reproduce import Say
from relucert.experiments.paper.selection import Selection, require_data
from relucert.training.config import TrainConfig
from relucert.training.loop import Observers, carry_out, config_task
from relucert.training.progress import Terminal, Watcher

#: Epochs, and the networks that are trained for as many, in order. What is not in the list comes last, for the paper's epochs.
_LIST = """
    100  gts-fc1-mmr-2
     60  gts-fc1-mmr+at-2  gts-fc1-plain-2
    100  gts-fc1-mmr-2-tables23
     60  gts-fc1-plain-2-tables23
     40  mnist-cnn-mmr-inf  mnist-cnn-mmr+at-inf
     20  mnist-cnn-at-inf  mnist-cnn-plain-inf
    100  mnist-fc1-mmr-inf  mnist-fc1-mmr+at-inf  mnist-fc1-mmr-2  mnist-fc1-mmr+at-2
     20  mnist-fc1-kw-2
     40  fmnist-cnn-mmr+at-inf
     10  fmnist-cnn-kw-inf
     20  fmnist-cnn-plain-inf
     50  fmnist-fc1-kw-inf
    100  fmnist-fc1-mmr-inf
     40  cifar10-cnn-plain-inf  cifar10-cnn-at-inf
     30  cifar10-cnn-mmr+at-inf
     10  cifar10-cnn-kw-inf
     40  gts-cnn-plain-inf
     30  gts-cnn-mmr+at-inf
     40  mnist-cnn-mmr-2
     10  mnist-cnn-kw-2
     20  mnist-cnn-rs-inf
     50  mnist-fc1-cross-lipschitz-2
    100  mnist-fc1-mmr-dd-2-tables23  fmnist-fc1-mmr-dd-2-tables23
     20  gts-fc10-mmr-2-tables23
     60  gts-fc10-plain-2-tables23
     40  fmnist-fc10-mmr-2-tables23
     60  fmnist-fc10-plain-2-tables23
     20  mnist-cnn-lambda-0.5-inf  mnist-cnn-lambda-2-inf  mnist-cnn-lambda-3-inf
"""
#: Epochs of the networks in the list, which is in order.
EPOCHS = {
    name: int(line.split()[0]) for line in _LIST.splitlines() for name in line.split()[1:]
}  # fmt: skip


@dataclass(frozen=True)
class Training:
    """A training that is missing: its network, its run, the experiments that need it, and about how many hours are left."""

    network: PaperNetwork
    run: TrainConfig
    experiments: tuple[str, ...]
    hours: float

    def to_json(self) -> dict[str, Any]:
        """The training as JSON."""
        epochs = {"epochs": self.run.settings.epochs, "done": epochs_done(self.run.folder)[0]}
        return {"network": self.network.name, **epochs, "hours": self.hours, "for": list(self.experiments)}


def queue(config: ReproduceConfig) -> list[Training]:
    """The trainings that the experiments of a configuration lack, in order.

    A network counts as trained by any run of its own, and by a run of `runs` with as many epochs as the list gives it; any run
    does where the list has no place for it.
    """
    experiments = chosen(config.name)
    selection, paces = Selection.of(config), Paces(config.out)
    return [
        Training(network, run, _needed_by(network, experiments, config.quick), paces.hours(run))
        for network, run in _missing(selection, experiments)
    ]


def _missing(selection: Selection, experiments: Sequence[Experiment]) -> list[tuple[PaperNetwork, TrainConfig]]:
    """The networks without a run, and the runs that train them; plain networks of both norms are one."""
    networks = {one.name: one for own in selection.networks(experiments).values() for one in own}
    order = {name: place for place, name in enumerate(EPOCHS)}
    found: list[tuple[PaperNetwork, TrainConfig]] = []
    for network in sorted(networks.values(), key=lambda one: order.get(one.name, len(order))):
        run = selection.wanted(network, EPOCHS.get(network.name))
        if _is_trained(selection, network, run) or any(network.matches(other, None) for _, other in found):
            continue
        found.append((network, run))
    return found


def _is_trained(selection: Selection, network: PaperNetwork, wanted: TrainConfig) -> bool:
    folder = selection.trained(network)
    run = None if folder is None else run_config(folder)
    if run is None or folder == wanted.folder or network.name not in EPOCHS:
        return run is not None
    return run.settings.epochs >= wanted.settings.epochs


def _needed_by(network: PaperNetwork, experiments: Sequence[Experiment], quick: bool) -> tuple[str, ...]:
    """The names of the experiments that have a network."""
    every = {one.name: one.on_digits() if quick else one.networks for one in experiments}
    return tuple(name for name, networks in every.items() if network.name in {one.name for one in networks})


def queue_table(trainings: Sequence[Training]) -> str:
    """The queue as text, one training a line, with the hours until it is done."""
    lines, until = [f"{'':>3} {'hours':>6} {'until':>6} {'epochs':>9}  network"], 0.0
    for number, training in enumerate(trainings, 1):
        until += training.hours
        done, epochs = epochs_done(training.run.folder)[0], training.run.settings.epochs
        epochs = f"{done} of {epochs}" if done else f"{epochs}"
        said = f"{training.network.name} ({', '.join(training.experiments)})"
        lines.append(f"{number:>3} {training.hours:>6.2f} {until:>6.1f} {epochs:>9}  {said}")
    return "\n".join(lines)


def work_off(config: ReproduceConfig, trainings: Sequence[Training], say: Say, watcher: Watcher | None = None) -> bool:
    """Do the trainings of a queue one after the other; False if `hours` were over before.

    SIGINT and SIGTERM raise `KeyboardInterrupt`, after the current step and with the run saved. A training that fails does not
    keep the others from being done: its error is raised at the end.
    """
    require_data(sorted({training.network.data for training in trainings}))
    limit, failed = _Limit(config.hours), []
    with _terminations_interrupt():
        for number, training in enumerate(trainings, 1):
            if limit.over:
                return False
            head = f"{number} of {len(trainings)}: {training.network.name}"
            say(f"{head}: {training.run.settings.epochs} epochs, about {training.hours:.2f} hours")
            try:
                done = carry_out(config_task(training.run), Observers(watcher or Terminal(), step=limit.step))
                say(f"{head}: " + (f"test error {done.last['test_error']:.2%}" if done.last else "done"))
            except KeyboardInterrupt:
                if not limit.over:
                    raise
                say(f"{head}: saved")
                return False
            except RelucertError as error:
                say(f"{head}: {error}")
                failed.append(training.network.name)
    if failed:
        raise RunError(f"trainings must end with a network, got errors from {', '.join(failed)}: see above")
    return True


@dataclass
class _Limit:
    """The hours after which no further step is taken; None for no limit."""

    hours: float | None
    started: float = 0.0

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether the hours are over."""
        return self.hours is not None and time.monotonic() - self.started >= self.hours * 3600

    def step(self, line: dict[str, Any]) -> None:
        """After a step: interrupt the run where the hours are over, so that it saves its state."""
        if self.over:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _terminations_interrupt() -> Iterator[None]:
    """SIGTERM is a KeyboardInterrupt inside the block, as SIGINT is."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
