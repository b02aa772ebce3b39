"""The display of a run: a bar with the loss, the errors and the time left, and a line for every evaluation.

A line has what the terminal is wide enough for, in a file everything; `metrics.jsonl` in the run's folder has all figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from relucert.training.config import TrainConfig

#: The parts of a loss that are shown, in words. `exact` is the share of points with d_D <= d_B, where the region theorem gives
#: the exact distance; `proved` is the share of points whose class the bound of training proves.
WORDS = {
    "region": "region term", "decision": "decision term", "exact": "share exact", "cross-lipschitz": "slope term",
    "radius": "radius", "robust": "robust loss", "proved": "share proved", "stability": "stability term",
    "tightness": "tightness term", "balance": "balance term", "unstable": "unstable units", "lipschitz": "Lipschitz bound",
}  # fmt: skip
#: The name of the error in lines of evaluations: on the test set, and on examples that are held out of the training set.
ERROR_OF = ("test_error", "validation_error")


class Watcher:
    """Shows nothing: the default of library calls."""

    @contextmanager
    def watching(self, config: TrainConfig, total: int, done: int) -> Iterator[Callable[..., None]]:
        """Yield a callback that is called with `(done, **measured)` after every step and every evaluation."""
        yield lambda done, **measured: None


class Terminal(Watcher):
    """A progress bar on stderr; a line for every evaluation where stderr is not a terminal."""

    @contextmanager
    def watching(self, config: TrainConfig, total: int, done: int) -> Iterator[Callable[..., None]]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}% {task.fields[said]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as bar:
            task = bar.add_task(_name(config), total=total, completed=done, said="")

            def callback(done: int, **measured: Any) -> None:
                bar.update(task, completed=done, said=_short(config, done, total, measured))
                if not measured.keys().isdisjoint(ERROR_OF):
                    width = console.width if console.is_terminal else None
                    console.print(_line(config, measured, width), soft_wrap=width is None)

            yield callback


def _short(config: TrainConfig, done: int, total: int, measured: dict[str, Any]) -> str:
    epochs = config.settings.epochs
    said = [f"epoch {min(epochs, (done - 1) * epochs // total + 1)}/{epochs}"]
    return " ".join([*said, f"loss {measured['loss']:.3f} error {measured['train_error']:.1%}"])


def _line(config: TrainConfig, measured: dict[str, Any], width: int | None = None) -> str:
    """The line of an evaluation, errors first; of the terms of the loss as many as `width` columns hold."""
    errors = [f"{name.replace('_', ' ')} {measured[name]:.2%}" for name in ERROR_OF if name in measured]
    if "pgd_error" in measured:
        about = f" (PGD, first {measured['pgd_points']}, eps {measured['eps']:.4g})" if width is None else ""
        errors.append(f"robust error at least {measured['pgd_error']:.2%}{about}")
    terms = [f"loss {measured['loss']:.4f}"]
    terms += [f"{words} {measured[name]:.3f}" for name, words in WORDS.items() if name in measured]
    line = f"{_name(config)} epoch {measured['epoch']}/{config.settings.epochs}: {', '.join(errors)}"
    for term in terms:
        if width is None or len(f"{line}, {term}") <= width:
            line = f"{line}, {term}"
    return line


def _name(config: TrainConfig) -> str:
    """The run in a few words."""
    return f"{config.data} {config.model} {config.settings.scheme.name} l_{config.p:g}"
