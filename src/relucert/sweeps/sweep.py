"""The loop of a sweep: trials are trained from checkpoint to checkpoint, wherever a worker is free.

Every figure is in the journal before anything is decided on it, and every run saves its state after every epoch: a sweep that
was stopped, or lost workers or scheduler, goes on with the epoch that was not finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relucert.core.errors import Diverged, InvalidInput, Lost
from relucert.evaluation.executors.choice import executor_of
from relucert.evaluation.executors.executor import TRIES, Executor
from relucert.reports.sweep import Row, fronts, write_leaderboard, write_plot
from relucert.sweeps._space import configured
from relucert.sweeps._stopping import checkpoints, stops
from relucert.sweeps._suggestions import suggestions
from relucert.sweeps._trial import Judge, measured, prepare
from relucert.sweeps.config import SweepConfig
from relucert.sweeps.journal import ENDS, Figures, Journal, Trial
from relucert.training.config import TrainConfig

#: Called whenever something has happened to a trial.
Callback = Callable[[Trial], object]


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended: its folder, its trials and the rows of its leaderboard, the best first."""

    folder: Path
    trials: list[Trial]
    rows: list[Row]

    @property
    def best(self) -> Path:
        """The folder of the run that comes first."""
        if not self.rows or self.rows[0].certified_error is None:
            raise InvalidInput(f"a sweep must have a trial with figures to have a best one, got none in {self.folder}")
        return self.folder / trial_name(self.rows[0].number)


def sweep(config: SweepConfig, callback: Callback = lambda trial: None, *, plot: bool = True) -> Swept:
    """Do a sweep, or go on with it in its folder; write leaderboard.md, leaderboard.csv and, with `plot`, pareto.png and .svg.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     base = TrainConfig(data="digits", model="fc-1x10", epochs=1, out=Path(folder) / "sweep")
    ...     done = sweep(SweepConfig(train=base, vary=("rate=0.001,0.01",), points=10), plot=False)
    >>> [trial.state for trial in done.trials], len(done.rows)
    (['done', 'done'], 2)
    """
    if config.scheduler is None:
        prepare(config.base)
    with (
        executor_of(config.workers, config.scheduler) as executor,
        Journal(config.folder, config.to_json()) as journal,
    ):
        _Sweep(config, journal, executor, callback).run()
        rows = rows_of(journal.trials)
        write_leaderboard(config.folder, rows)
        if plot:
            write_plot(config.folder, rows)
        return Swept(config.folder, journal.trials, rows)


def rows_of(trials: list[Trial]) -> list[Row]:
    """The rows of the leaderboard: by certified error, then by error; trials without figures last."""
    rows = []
    for trial in trials:
        row = Row(number=trial.number, values=trial.values, state=trial.state, reason=trial.reason)
        if (last := trial.last) is not None:
            seconds = sum(figures.seconds for figures in trial.figures)
            found = {"epoch": last.epoch, "error": last.error, "certified_error": last.certified_error}
            row = replace(row, seconds=seconds, **found)
        rows.append(row)
    return fronts(rows)


def trial_name(number: int) -> str:
    """The name of the folder of a trial's run.

    >>> trial_name(7)
    'trial-0007'
    """
    return f"trial-{number:04}"


class _Sweep:
    """A sweep in progress."""

    def __init__(self, config: SweepConfig, journal: Journal, executor: Executor, callback: Callback):
        self.config, self.journal, self.executor, self.callback = config, journal, executor, callback
        self.base, self.size = config.base, config.size
        self.suggest = suggestions(config.search, config.space, config.search_seed)
        radius = self.base.radius
        assert radius is not None
        self.judge = Judge(p=self.base.p, eps=radius, method=config.method, points=config.points)
        self.waiting = deque(trial for trial in journal.trials if trial.state not in ENDS)
        self.running: dict[Future[Figures], tuple[Trial, int, int]] = {}

    def run(self) -> None:
        """Train and measure until all trials have ended."""
        while True:
            while len(self.running) < self.executor.workers and (trial := self._next()) is not None:
                self._go_on(trial)
            if not self.running:
                return
            future = next(iter(self.executor.as_completed(self.running)))
            trial, epoch, tries = self.running.pop(future)
            try:
                figures = future.result()
            except Lost:
                if tries == TRIES:
                    raise
                self._submit(trial, epoch, tries + 1)
            except Diverged as error:
                self._end(trial, "failed", str(error))
            else:
                self._take(trial, figures)

    def _next(self) -> Trial | None:
        """A trial that is open, or a new one."""
        if self.waiting:
            return self.waiting.popleft()
        if len(self.journal.trials) >= self.size:
            return None
        values = self.suggest(self.journal.trials)
        return None if values is None else self.journal.begin(values)

    def _go_on(self, trial: Trial) -> None:
        """Submit what a trial has to do next, or end it: figures may be there already that were not decided on."""
        try:
            epochs = self._configuration(trial).settings.epochs
        except InvalidInput as error:  # values that do not go together
            self._end(trial, "failed", str(error))
            return
        for epoch in checkpoints(self.config.stop, self.config.every, epochs):
            own = trial.at(epoch)
            if own is None:
                self._submit(trial, epoch)
                return
            if epoch == epochs or own is not trial.last:
                continue
            others = [other.at(epoch) for other in self.journal.trials if other is not trial]
            if stops(self.config.stop, own, [other for other in others if other is not None]):
                self._end(trial, "stopped")
                return
        self._end(trial, "done")

    def _take(self, trial: Trial, figures: Figures) -> None:
        """Write down figures, and go on with the trial."""
        self.journal.measure(trial, figures)
        self.callback(trial)
        self._go_on(trial)

    def _submit(self, trial: Trial, epoch: int, tries: int = 1) -> None:
        future = self.executor.submit(measured, self._configuration(trial), epoch, self.judge)
        self.running[future] = trial, epoch, tries

    def _end(self, trial: Trial, state: Any, reason: str = "") -> None:
        self.journal.end(trial, state, reason)
        self.callback(trial)

    def _configuration(self, trial: Trial) -> TrainConfig:
        """The configuration of a trial's run, in a folder of its own."""
        folder = (self.config.folder / trial_name(trial.number)).resolve()
        return replace(configured(self.base, trial.values), out=folder)
