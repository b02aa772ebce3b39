"""The training loop, which minimises the loss of any scheme.

The randomness of a step follows from the seed and the number of the step, and the state between steps is the weights and
the optimiser's moments. A run that is stopped anywhere and started again therefore ends with the same weights, bit for bit
on the same machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.pgd import PGD, robust_error
from relucert.core.ball import Ball, as_ball
from relucert.core.device import require_device
from relucert.core.errors import Diverged, InvalidInput, RelucertError, RunError
from relucert.core.versions import versions
from relucert.data import Dataset, dataset
from relucert.networks.checkpoints import digest, load, save
from relucert.networks.network import Network
from relucert.networks.prediction import error
from relucert.training._augmentation import augment
from relucert.training._examples import Arrays, Examples, examples_of
from relucert.training._interruption import gentle_interrupts
from relucert.training._models import architecture, network_of
from relucert.training._randomness import forked_randomness, generator
from relucert.training._saving import STATE_FILE, load_module, load_state, save_module, save_state
from relucert.training._schedules import rate_factor
from relucert.training._sums import Step, Sums
from relucert.training._tensorboard import board
from relucert.training._weights import Weights
from relucert.training.config import FUNCTION, TrainConfig
from relucert.training.losses.loss import StepContext, depends_on_mode
from relucert.training.progress import ERROR_OF, Watcher
from relucert.training.ranks import ALONE, PartGenerator, Ranks
from relucert.training.recipes import EPS, MIRRORED
from relucert.training.run import MODEL_FILE, Run, RunFolder, Unsaved


def _ignore(line: dict[str, Any]) -> None:
    """The callback of a run that informs nobody."""


@dataclass(frozen=True, eq=False)
class Task:
    """What a run is: its configuration, its network, what it trains on and what it is evaluated on.

    `identity` has digests of values and files that the run was given. With `keeps_module` the weights of the module are saved
    as the module names them, and a run that is finished loads them.
    """

    config: TrainConfig
    net: Network
    examples: Examples
    validation: Examples | None
    identity: dict[str, str] = field(default_factory=dict)
    keeps_module: bool = False


@dataclass(frozen=True, eq=False)
class Observers:
    """Who is informed of a run: the display, and callbacks for every line of the metrics and for every step."""

    watcher: Watcher = field(default_factory=Watcher)
    line: Callable[[dict[str, Any]], object] = _ignore
    step: Callable[[dict[str, Any]], object] | None = None


def train(config: TrainConfig, watcher: Watcher | None = None, ranks: Ranks = ALONE) -> Run:
    """Train a network as the configuration says, or go on where a run in the same folder stopped.

    With `ranks` several processes train it together; the first one has the folder.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(TrainConfig(data="digits", epochs=1, out=pathlib.Path(folder) / "run", evaluate_points=0))
    >>> run.last["test_error"] < 0.2
    True
    """
    return carry_out(config_task(config), Observers(watcher or Watcher()), ranks=ranks)


def config_task(config: TrainConfig) -> Task:
    """The task of a configuration that names its data and its network."""
    data = dataset(config.data)  # first, so that missing data leaves no folder behind
    examples, validation = examples_of(data, config.settings.batch, config.seed), held_out(data)
    if config.validation:
        examples, validation = examples_split(examples, config)
    device = require_device(config.device)
    net = network_of(config, data.input_shape, data.classes).to(device)
    net.box = examples.box
    identity = {} if config.data in EPS else {"data": examples.digest()}
    if config.init is not None or config.own_model:
        begins = config.init is not None or not FUNCTION.fullmatch(config.model)
        identity["network"] = digest(net) if begins else architecture(net)
    return Task(config, net, examples, validation, identity)


def held_out(data: Dataset) -> Arrays:
    """The test set, as examples."""
    return Arrays(data.x_test, data.y_test, max(1, len(data.y_test)), 0, data.box)


def examples_split(examples: Examples, config: TrainConfig) -> tuple[Arrays, Arrays]:
    """The examples that a run trains on, and those that its configuration holds out of them."""
    if not isinstance(examples, Arrays):
        raise InvalidInput(
            f"validation must be 0 for a loader, whose examples have no numbers, got {config.validation}"
        )
    return examples.split(config.validation, config.validation_seed)


def carry_out(
    task: Task, observers: Observers, saved: bool = True, until: int | None = None, ranks: Ranks = ALONE
) -> Run:
    """Do a task, or go on with it in its folder; without `saved` there is no folder, and nothing is written.

    With `until` the run stops after that epoch, unless it is the last one: its network is that of the moment, and the state
    of the run is saved.
    """
    if ranks.size > 1 and depends_on_mode(task.net):
        raise InvalidInput(
            f"model must have no batch normalisation and no dropout to be trained by {ranks.size} processes, since they depend "
            f"on the whole batch, got {task.config.model!r}"
        )
    if ranks.size > 1 and task.config.settings.batch_norm:
        raise InvalidInput(
            f"batch_norm must be False for a network that is trained by {ranks.size} processes, got True"
        )
    folder = _opened(task, saved, ranks)
    try:
        if ranks.first(folder.path is not None and (folder.path / MODEL_FILE).exists()):
            if folder.path is None:
                return Run(None, task.net.eval(), [])
            net = load(folder.path / MODEL_FILE)
            if task.keeps_module:
                load_module(folder.path, task.net)
                net = task.net.eval()
            return Run(folder.path, net, folder.metrics())
        return _Training(task, folder, observers, ranks).run(until)
    finally:
        folder.close()


def _opened(task: Task, saved: bool, ranks: Ranks) -> RunFolder | Unsaved:
    """The folder of a run for the first of its processes; all of them fail where it does."""
    folder, error = Unsaved(), None
    if saved and ranks.rank == 0:
        try:
            folder = RunFolder(task.config, task.identity)
        except RelucertError as raised:
            error = raised
    failed = ranks.first(error is not None)
    if error is not None:
        raise error
    if failed:
        raise RunError("the first process of the run cannot start")
    return folder


class _Training:
    """One run in progress."""

    def __init__(self, task: Task, folder: RunFolder | Unsaved, observers: Observers, ranks: Ranks = ALONE):
        self.task, self.config, self.folder, self.observers = task, task.config, folder, observers
        self.ranks = ranks
        self.settings = task.config.settings
        self.net = task.net
        self.steps = task.examples.steps
        self.total = self.steps * self.settings.epochs
        self.weights = Weights(self.net, self.settings.batch_norm, self.settings.average, self.total)
        self.trained = self.weights.trained()
        if not self.trained:
            raise InvalidInput("model must have parameters that require gradients, got none to train")
        self.optimiser = torch.optim.Adam(self.trained, lr=self.settings.rate)
        self.loss = self.settings.scheme.loss(self.config.setting)
        self.sums = Sums()
        self.done = 0
        self.saved = time.monotonic()
        self.board: Callable[[dict[str, Any]], object] = _ignore

    def run(self, until: int | None = None) -> Run:
        folder = self.folder.path
        about = self._resumed()
        if about is not None:
            self.done, self.sums = about["step"], Sums(**about["sums"])
        self.folder.rewind(self.done)
        if self.done == 0:
            self.folder.log(kind="start", step=0, versions=versions())
        end = self.total if until is None else min(self.total, until * self.steps)
        watching = self.observers.watcher.watching(self.config, self.total, self.done)
        try:
            with gentle_interrupts() as interrupted, watching as callback, self._tensorboard():
                while self.done < end:
                    self._epoch(interrupted, callback)
        finally:  # also of a run that is stopped: its state is saved by then
            self.weights.finish()
        self.net.eval()
        if self.done < self.total:
            return Run(folder, self.net, self.folder.metrics())
        if folder is not None:
            if self.task.keeps_module:
                save_module(folder, self.net)
            save(self.net, folder / MODEL_FILE, {"config": self.config.to_json(), "versions": versions()})
            (folder / STATE_FILE).unlink(missing_ok=True)
        return Run(folder, self.net, self.folder.metrics())

    def _resumed(self) -> dict[str, Any] | None:
        """Load the state of the run, if it has one, in every process."""
        folder = self.folder.path
        about = None if folder is None else load_state(folder, self.weights, self.optimiser)
        if self.ranks.size == 1:
            return about
        self.ranks.equalise(self.net)
        self.weights.equalise(self.ranks)
        about, moments = self.ranks.first((about, self.optimiser.state_dict()))
        if about is not None:
            self.optimiser.load_state_dict(moments)
        return about

    @contextmanager
    def _tensorboard(self) -> Iterator[None]:
        """Write the metrics for TensorBoard inside the block, if the configuration wants that and there is a folder."""
        if not self.config.tensorboard or self.folder.path is None:
            yield
            return
        with board(self.folder.path, self.folder.metrics()) as self.board:
            yield

    def _epoch(self, interrupted: Callable[[], bool], callback: Callable[..., None]) -> None:
        epoch = self.done // self.steps
        batches, stopped = self.task.examples.batches(epoch, self.done % self.steps), False
        while self.done < (epoch + 1) * self.steps:
            started = time.perf_counter()
            x, y = next(batches)
            step = self._step(x.to(self.net.device, self.net.dtype), y.to(self.net.device), interrupted)
            self.done += 1
            self.sums.add(step, len(y), time.perf_counter() - started)
            callback(self.done, **self.sums.means())
            if self.observers.step is not None:
                self.observers.step(self._step_line(epoch, step))
            stopped = step.stopped if self.ranks.size > 1 else interrupted()  # all processes stop after the same step
            if self.done == (epoch + 1) * self.steps:
                break
            if stopped or time.monotonic() - self.saved > self.config.save_seconds:
                self._save()
            self._end_if(stopped)
        means = self.sums.means()
        self.sums = Sums()
        rate = self._rate(self.done - 1)
        lines = [self.folder.log(kind="epoch", step=self.done, epoch=epoch + 1, rate=rate, **means)]
        if self.task.validation is not None and self.ranks.rank == 0 and self._evaluates(epoch + 1):
            with self.weights.evaluated():
                found = self._evaluate(self.task.validation)
            lines.append(self.folder.log(kind="evaluation", step=self.done, epoch=epoch + 1, **found))
            callback(self.done, **means, **lines[-1])
        self._save()
        for line in lines:
            self.observers.line(dict(line))
            self.board(line)
        self._end_if((stopped if self.ranks.size > 1 else interrupted()) and self.done < self.total)

    def _end_if(self, interrupted: bool) -> None:
        """Raise if the run is interrupted; its state is saved by then."""
        if interrupted:
            rest = (
                "the same command goes on there" if self.folder.path else "without out nothing is kept but the weights"
            )
            raise KeyboardInterrupt(f"stopped after step {self.done} of {self.total}; {rest}")

    def _step_line(self, epoch: int, step: Step) -> dict[str, Any]:
        """What the callback for steps is given: a line like those of the metrics, with the values of this step."""
        line = {"kind": "step", "step": self.done, "epoch": epoch + 1, "rate": self._rate(self.done - 1)}
        return line | step.values

    def _step(self, x: Tensor, y: Tensor, interrupted: Callable[[], bool]) -> Step:
        config, ranks = self.config, self.ranks
        if config.padding:
            draw = generator(config.seed, "augment", self.done)
            x = augment(x, config.padding, draw, mirror=config.data in MIRRORED)
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate(self.done)
        draws, places = generator(config.seed, "scheme", self.done), ranks.places(len(y))
        share = 1 / ranks.size if places is None else len(places) / len(y)
        if places is not None:
            draws = PartGenerator.of(draws, x, places)
            x, y = x[places], y[places]
        self.net.check(x, y)
        self.net.train()
        # Dropout draws from the global generator, which is seeded by the step here and restored afterwards.
        with forked_randomness(self.net.device):
            torch.manual_seed(generator(config.seed, "layers", self.done).initial_seed())
            with self.weights.in_step(x):
                terms = self.loss(self.net, x, y, StepContext(self.done / self.total, draws))
        step = Step.of(terms, share, ranks, places is not None or ranks.rank == 0, interrupted())
        if not math.isfinite(step.values["loss"]):
            kept = f"; the last good state is kept in {self.folder.path / STATE_FILE}" if self.folder.path else ""
            raise Diverged(
                f"the loss is {step.values['loss']} at step {self.done + 1} of {self.total} (epoch "
                f"{self.done // self.steps + 1}){kept}. A smaller rate than {self.settings.rate:g} may help"
            )
        self.optimiser.zero_grad(set_to_none=True)
        terms.loss.backward()
        ranks.sum_gradients(self.trained, share)
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self.trained, self.settings.clip)
        self.optimiser.step()
        self.weights.record(self.done + 1)
        return step

    def _rate(self, step: int) -> float:
        return self.settings.rate * rate_factor(self.settings.decay, step, self.total)

    def _evaluates(self, epoch: int) -> bool:
        every = self.config.evaluate_every
        return every > 0 and (epoch % every == 0 or epoch == self.settings.epochs)

    def _evaluate(self, validation: Examples) -> dict[str, Any]:
        self.net.eval()
        points, radius = self.config.evaluate_points, self.config.radius
        ball = None if radius is None else as_ball(Ball(self.config.p, radius), self.net.box)
        seen = attacked = 0
        wrong = falsified = 0.0
        for x, y in validation.pieces():
            x, y = x.to(self.net.device, self.net.dtype), y.to(self.net.device)
            wrong += error(self.net, x, y) * len(y)
            count = min(len(y), points - attacked)
            if count > 0 and ball is not None:
                falsified += robust_error(self.net, x[:count], y[:count], ball, PGD(steps=40)) * count
                attacked += count
            seen += len(y)
        line: dict[str, Any] = {ERROR_OF[self.config.validation > 0]: round(wrong) / seen}
        if attacked:
            line |= {"pgd_error": round(falsified) / attacked, "pgd_points": attacked, "eps": radius}
        return line

    def _save(self) -> None:
        if self.folder.path is not None:
            save_state(self.folder.path, self.weights, self.optimiser, {"step": self.done, "sums": asdict(self.sums)})
        self.saved = time.monotonic()
