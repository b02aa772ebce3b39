"""The training loop, which minimises the loss of any scheme.

The randomness of a step follows from the seed and the number of the step, and the state between steps is the weights and
the optimiser's moments. A run that is stopped anywhere and started again therefore ends with the same weights, bit for bit
on the same machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.pgd import PGD, robust_error
from relucert.core.ball import Ball
from relucert.core.errors import RunError
from relucert.core.versions import versions
from relucert.data import Dataset, dataset
from relucert.networks.architectures import build
from relucert.networks.checkpoints import load, save
from relucert.networks.network import Network
from relucert.networks.prediction import error
from relucert.training._augmentation import augment
from relucert.training._interruption import gentle_interrupts
from relucert.training._randomness import generator
from relucert.training._saving import STATE_FILE, load_state, save_state
from relucert.training._schedules import rate_factor
from relucert.training.config import TrainConfig
from relucert.training.losses.loss import StepContext, Terms
from relucert.training.progress import Watcher
from relucert.training.recipes import MIRRORED
from relucert.training.run import MODEL_FILE, Run, RunFolder


def train(config: TrainConfig, watcher: Watcher | None = None) -> Run:
    """Train a network as the configuration says, or go on where a run in the same folder stopped.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(TrainConfig(data="digits", epochs=1, out=pathlib.Path(folder) / "run", evaluate_points=0))
    >>> run.last["test_error"] < 0.2
    True
    """
    data = dataset(config.data)  # first, so that missing data leaves no folder behind
    folder = RunFolder(config)
    try:
        if (folder.path / MODEL_FILE).exists():
            return Run(folder.path, load(folder.path / MODEL_FILE), folder.metrics())
        return _Training(config, data, folder, watcher or Watcher()).run()
    finally:
        folder.close()


@dataclass
class _Sums:
    """Sums over the steps of the current epoch; saved with the state, so that metrics do not depend on stops."""

    examples: int = 0
    labelled: int = 0
    wrong: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, terms: Terms, count: int, seconds: float) -> None:
        self.examples += count
        self.labelled += len(terms.labels)
        self.wrong += int((terms.logits.argmax(1) != terms.labels).sum())
        for name, value in {"loss": terms.loss, **terms.parts}.items():
            self.terms[name] = self.terms.get(name, 0.0) + float(value.detach()) * count
        self.seconds += seconds

    def means(self) -> dict[str, float]:
        means = {name: total / self.examples for name, total in self.terms.items()}
        return {**means, "train_error": self.wrong / self.labelled, "seconds": self.seconds}


class _Training:
    """One run in progress."""

    def __init__(self, config: TrainConfig, data: Dataset, folder: RunFolder, watcher: Watcher):
        self.config, self.data, self.folder, self.watcher = config, data, folder, watcher
        self.settings = config.settings
        self.net: Network = build(config.model, data.input_shape, data.classes, seed=config.seed)
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=self.settings.rate)
        self.loss = self.settings.scheme.loss(config.setting)
        self.steps = math.ceil(len(data.y_train) / self.settings.batch)
        self.total = self.steps * self.settings.epochs
        self.sums = _Sums()
        self.done = 0
        self.saved = time.monotonic()

    def run(self) -> Run:
        about = load_state(self.folder.path, self.net, self.optimiser)
        if about is not None:
            self.done, self.sums = about["step"], _Sums(**about["sums"])
        self.folder.rewind(self.done)
        if self.done == 0:
            self.folder.log(kind="start", step=0, versions=versions())
        with gentle_interrupts() as interrupted, self.watcher.watching(self.config, self.total, self.done) as callback:
            while self.done < self.total:
                self._epoch(interrupted, callback)
        self.net.eval()
        about = {"config": self.config.to_json(), "versions": versions()}
        save(self.net, self.folder.path / MODEL_FILE, about)
        (self.folder.path / STATE_FILE).unlink(missing_ok=True)
        return Run(self.folder.path, self.net, self.folder.metrics())

    def _epoch(self, interrupted: Callable[[], bool], callback: Callable[..., None]) -> None:
        config, batch, epoch = self.config, self.settings.batch, self.done // self.steps
        x_train, y_train = self.data.x_train, self.data.y_train
        order = torch.randperm(len(y_train), generator=generator(config.seed, "shuffle", epoch))
        while self.done < (epoch + 1) * self.steps:
            started = time.perf_counter()
            place = self.done % self.steps
            pick = order[place * batch : (place + 1) * batch]
            terms = self._step(x_train[pick], y_train[pick])
            self.done += 1
            self.sums.add(terms, len(pick), time.perf_counter() - started)
            callback(self.done, **self.sums.means())
            last = self.done == (epoch + 1) * self.steps
            if interrupted() or (not last and time.monotonic() - self.saved > config.save_seconds):
                self._save()
            if interrupted():
                raise KeyboardInterrupt(
                    f"stopped after step {self.done} of {self.total}; the same command goes on there"
                )
        means = self.sums.means()
        self.sums = _Sums()
        self.folder.log(kind="epoch", step=self.done, epoch=epoch + 1, rate=self._rate(self.done - 1), **means)
        if self._evaluates(epoch + 1):
            line = self.folder.log(kind="evaluation", step=self.done, epoch=epoch + 1, **self._evaluate())
            callback(self.done, **means, **line)
        self._save()

    def _step(self, x: Tensor, y: Tensor) -> Terms:
        config = self.config
        if config.padding:
            draw = generator(config.seed, "augment", self.done)
            x = augment(x, config.padding, draw, mirror=config.data in MIRRORED)
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate(self.done)
        context = StepContext(self.done / self.total, generator(config.seed, "scheme", self.done))
        self.net.train()
        # Dropout draws from the global generator, which is seeded by the step here and restored afterwards.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(config.seed, "layers", self.done).initial_seed())
            terms = self.loss(self.net, x, y, context)
        if not bool(torch.isfinite(terms.loss)):
            raise RunError(
                f"the loss is {float(terms.loss.detach())} at step {self.done + 1} of {self.total} (epoch "
                f"{self.done // self.steps + 1}); the last good state is kept in {self.folder.path / STATE_FILE}. "
                f"A smaller rate than {self.settings.rate:g} may help"
            )
        self.optimiser.zero_grad(set_to_none=True)
        terms.loss.backward()
        self.optimiser.step()
        return terms

    def _rate(self, step: int) -> float:
        return self.settings.rate * rate_factor(self.settings.decay, step, self.total)

    def _evaluates(self, epoch: int) -> bool:
        every = self.config.evaluate_every
        return every > 0 and (epoch % every == 0 or epoch == self.settings.epochs)

    def _evaluate(self) -> dict[str, Any]:
        self.net.eval()
        line: dict[str, Any] = {"test_error": error(self.net, self.data.x_test, self.data.y_test)}
        points, radius = self.config.evaluate_points, self.config.radius
        if points and radius is not None:
            x, y = self.data.x_test[:points], self.data.y_test[:points]
            ball = Ball(self.config.p, radius)
            line |= {
                "pgd_error": robust_error(self.net, x, y, ball, PGD(steps=40)),
                "pgd_points": len(y),
                "eps": radius,
            }
        return line

    def _save(self) -> None:
        save_state(self.folder.path, self.net, self.optimiser, {"step": self.done, "sums": asdict(self.sums)})
        self.saved = time.monotonic()
