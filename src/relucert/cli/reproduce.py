"""`relucert reproduce NAME`: a table or figure of the paper: train what is missing, evaluate, and compare."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import tyro

from relucert.experiments.paper.config import ReproduceConfig

if TYPE_CHECKING:
    from relucert.training.progress import Watcher

#: Called with a line for everything that is done.
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Reproduce(ReproduceConfig):
    """Tables and figures of the paper: train what is missing, evaluate, and write them beside the paper's figures."""

    name: tyro.conf.Positional[str] = "list"
    """table1, table2, table3, bounds, l2, cross-lipschitz, cw, lambda, figures, or all. `list` says what each needs."""
    json: bool = False
    """Print JSON instead of text, and no progress."""


CONFIG = Reproduce
COMMON = ("data", "models", "schemes", "epochs", "points", "timeout", "quick", "queue", "out", "workers")
EXAMPLES = (
    "relucert reproduce list",
    "relucert reproduce table1 --data mnist --models fc1 --epochs 20 --points 200",
    "relucert reproduce all --queue --hours 2.5",
)


def run(config: Reproduce) -> int:
    """Run experiments or trainings, and print what was written or is missing."""
    from relucert.cli._next import next_line
    from relucert.experiments.paper.registry import LIST, entries, listing

    if config.name == LIST:
        print(json_format.dumps(entries(config.runs)) if config.json else listing(config.runs))
        if not config.json:
            print(next_line("reproduce", "all", "--quick"))
        return 0
    from relucert.training.progress import Terminal, Watcher

    if config.quick:
        import torch

        torch.set_num_threads(1)  # a step on 8 x 8 pixels is over before a second thread has woken up
    plain = ReproduceConfig(**{field.name: getattr(config, field.name) for field in fields(ReproduceConfig)})
    say = (lambda line: None) if config.json else (lambda line: print(line, file=sys.stderr, flush=True))
    try:
        return (_queue if config.queue else _tables)(
            config, plain, say, Watcher() if config.json or config.quick else Terminal()
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: what is done is kept, and the same command goes on from there") from None


def _queue(config: Reproduce, plain: ReproduceConfig, say: Say, watcher: Watcher) -> int:
    """Print the queue of trainings, and do them."""
    from relucert.cli._next import next_reproduce
    from relucert.experiments.paper.queue import queue, queue_table, work_off

    trainings = queue(plain)
    print(
        json_format.dumps([one.to_json() for one in trainings]) if config.json else queue_table(trainings), flush=True
    )
    done = not trainings or (plain.hours != 0 and work_off(plain, trainings, say, watcher))
    if not done and plain.hours:
        say(f"stopped after {plain.hours:g} hours; the same command goes on")
    if not config.json:
        print(next_reproduce(plain, hours=None, queue=not done))
    return 0


def _tables(config: Reproduce, plain: ReproduceConfig, say: Say, watcher: Watcher) -> int:
    """Run experiments, and print the files."""
    from relucert.cli._next import next_comparison, next_reproduce
    from relucert.experiments.paper.reproduce import evaluated, reproduce

    written = reproduce(plain, say, watcher)
    if config.json:
        print(json_format.dumps({"out": str(config.out), "files": [str(path) for path in written]}))
        return 0
    for path in written:
        if path.suffix in (".md", ".png"):
            print(path)
    print(
        next_reproduce(plain, quick=False, queue=True, hours=0) if config.quick else next_comparison(evaluated(plain))
    )
    return 0
