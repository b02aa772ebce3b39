"""`relucert train`: train a network, or go on with a run that was stopped."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass, fields

from relucert.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Train(TrainConfig):
    """Train a network; a run that was stopped in the same folder goes on where it was."""

    json: bool = False
    """Print the last evaluation as JSON, and no progress."""


CONFIG = Train


def run(config: Train) -> int:
    """Train, and say how it ended and where the network is."""
    from relucert.training.loop import train
    from relucert.training.progress import Terminal, Watcher

    plain = TrainConfig(**{field.name: getattr(config, field.name) for field in fields(TrainConfig)})
    done = train(plain, Watcher() if config.json else Terminal())
    if config.json:
        print(json_format.dumps({"folder": str(done.folder), **done.last}))
        return 0
    last = done.last
    if last:
        print(f"test error {last['test_error']:.2%}", end="")
        if "pgd_error" in last:
            print(f", PGD error {last['pgd_error']:.2%} (first {last['pgd_points']}, eps {last['eps']:.4g})", end="")
        print()
    print(f"the network is in {done.folder}; evaluate it with: relucert evaluate {done.folder} --data {plain.data}")
    return 0
