"""`relucert reproduce NAME`: a table or figure of the paper: train what is missing, evaluate, and compare."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import dataclass, fields

import tyro

from relucert.experiments.paper.config import ReproduceConfig


@dataclass(frozen=True, kw_only=True)
class Reproduce(ReproduceConfig):
    """Tables and figures of the paper: train what is missing, evaluate, and write them beside the paper's figures."""

    name: tyro.conf.Positional[str] = "list"
    """table1, table2, table3, bounds, l2, cross-lipschitz, cw, lambda, figures, or all. `list` says what each needs."""
    json: bool = False
    """Print JSON instead of text, and no progress."""


CONFIG = Reproduce
COMMON = ("data", "models", "schemes", "epochs", "points", "timeout", "quick", "out", "workers")
EXAMPLES = (
    "relucert reproduce list",
    "relucert reproduce table1 --data mnist --models fc1 --epochs 20 --points 200",
)


def run(config: Reproduce) -> int:
    """Run experiments and print the files that were written."""
    from relucert.experiments.paper.registry import LIST, entries, listing

    if config.name == LIST:
        print(json_format.dumps(entries(config.runs)) if config.json else listing(config.runs))
        return 0
    from relucert.experiments.paper.reproduce import reproduce
    from relucert.training.progress import Terminal, Watcher

    if config.quick:
        import torch

        torch.set_num_threads(1)  # a step on 8 x 8 pixels is over before a second thread has woken up
    plain = ReproduceConfig(**{field.name: getattr(config, field.name) for field in fields(ReproduceConfig)})
    say = (lambda line: None) if config.json else (lambda line: print(line, file=sys.stderr, flush=True))
    try:
        written = reproduce(plain, say, Watcher() if config.json or config.quick else Terminal())
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: what is done is kept, and the same command goes on from there") from None
    if config.json:
        print(json_format.dumps({"out": str(config.out), "files": [str(path) for path in written]}))
        return 0
    for path in written:
        if path.suffix in (".md", ".png"):
            print(path)
    return 0
