"""`relucert sweep --vary lam=0.5,1,2 ...`: many training runs, judged on examples that are held out of the training set."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from relucert.training.config import TrainConfig

if TYPE_CHECKING:
    from relucert.reports.sweep import Row
    from relucert.sweeps.journal import Trial


@dataclass(frozen=True, kw_only=True)
class Sweep(TrainConfig):
    """Train many networks that differ in some parameters, and rank them on examples held out of the training set.

    Flags of `relucert train` say what all runs have. A sweep that was stopped goes on in its folder.
    """

    scheme: str = "plain"
    """Training scheme, such as mmr or "mmr(lambda=2)"."""
    vary: tuple[str, ...] = ()
    """What varies, such as lam=0.5,1,2 "rate=log(1e-4,1e-2)". Fields of a run or parameters of the scheme, with values or a
    range: "gamma=uniform(0.1,0.3)", "epochs=int(5,20)"; gamma is gamma_b and gamma_d."""
    preset: str | None = None
    """A grid of the paper instead, such as table1-mmr. Others: table1-mmr+at, tables23-mmr, tables23-mmr+at, kw-radius."""
    search: Literal["grid", "random", "optuna"] = "grid"
    """All points of the grid, random ones, or Optuna. Optuna has two objectives (extra sweep)."""
    trials: int | None = None
    """How many trials, at most. Needed for random and optuna."""
    search_seed: int = 0
    """Seed of the choice of trials."""
    stop: Literal["none", "median", "halving"] = "none"
    """When a trial ends early. Never, where both figures are above the median, or by successive halving."""
    every: int = 1
    """Epochs between decisions whether a trial goes on. For halving: before the first one."""
    method: str = "crown"
    """How held-out examples are proved robust. Any method of certify."""
    points: int | None = 500
    """How many held-out examples it gets; None: all."""
    workers: int | None = None
    """Processes that train at the same time. Each has one thread. None: this process."""
    scheduler: str | None = None
    """Address of a Dask scheduler, tcp://HOST:8786. Its workers train; they must share the folder."""
    plot: bool = True
    """Draw pareto.png and pareto.svg (extra sweep). --no-plot: draw no Pareto plot."""
    json: bool = False
    """Print the leaderboard as lines of JSON, and no progress."""


CONFIG = Sweep
COMMON = (
    "data",
    "model",
    "scheme",
    "p",
    "eps",
    "epochs",
    "vary",
    "preset",
    "search",
    "trials",
    "stop",
    "workers",
    "out",
)
ALSO = ("train", TrainConfig)
EXAMPLES = ("relucert sweep --data digits --scheme mmr --epochs 5 --vary lam=1,2",)


def run(config: Sweep) -> int:
    """Do the sweep, and print the leaderboard."""
    from relucert.cli._next import next_line
    from relucert.reports.sweep import require_plots
    from relucert.sweeps.config import SweepConfig
    from relucert.sweeps.sweep import sweep

    if config.plot:
        require_plots()
    base = TrainConfig(**{field.name: getattr(config, field.name) for field in fields(TrainConfig)})
    own = {field.name: getattr(config, field.name) for field in fields(SweepConfig) if field.name != "train"}
    plain = SweepConfig(train=base, **own)
    try:
        done = sweep(plain, (lambda trial: None) if config.json else _say, plot=config.plot)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; the same command goes on in {plain.folder}") from None
    if config.json:
        for row in done.rows:
            print(json_format.dumps({field.name: getattr(row, field.name) for field in fields(row)}))
        return 0
    _print(done.rows)
    print(f"leaderboard{' and plot' if config.plot else ''}: {done.folder}")
    if done.rows[0].certified_error is not None:
        print(next_line("certify", done.best))
    return 0


def _say(trial: Trial) -> None:
    """A line about what has happened to a trial."""
    values = ", ".join(f"{name}={value}" for name, value in trial.values.items())
    last = trial.last
    if trial.state == "open" and last is not None:
        said = f"epoch {last.epoch}: error {last.error:.2%}, certified error {last.certified_error:.2%}"
    else:
        said = trial.state + (f": {trial.reason}" if trial.reason else "")
    print(f"trial {trial.number} ({values}) {said}", file=sys.stderr)


def _print(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    from relucert.reports.sweep import cells, columns

    names = columns(rows)
    table = Table()
    for name in names:
        table.add_column(name, justify="left" if name in ("state", "front") else "right")
    for row in rows:
        table.add_row(*cells(row, names))
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)
