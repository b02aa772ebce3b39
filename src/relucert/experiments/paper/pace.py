"""How long training takes on this machine: seconds a step, measured on random images, so that no data is needed."""

from __future__ import annotations

import json
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from relucert.core.errors import DamagedData
from relucert.core.methods import spec
from relucert.data.specs import spec_of
from relucert.networks.architectures import build
from relucert.records.atomic import file_access, write_atomically
from relucert.records.untrusted import reading
from relucert.training.config import TrainConfig
from relucert.training.problem import train
from relucert.training.run import METRICS_FILE

#: Steps that are timed after the first one, which also prepares what all steps need.
STEPS = 2
#: The parameters of schemes that decide how much a step computes.
_COSTLY = ("attack_steps", "projections", "k_b", "k_d", "share_b", "share_d", "adversarial")
#: The file of measured paces below the folder of an experiment.
PACES = "paces.json"


def seconds_a_step(config: TrainConfig) -> float:
    """Seconds of a training step of a run while nothing else runs, on random images of the data set's shape.

    It is the processor time of the main thread, which other programs do not lengthen; the shortest of `STEPS` steps.
    """
    about, settings = spec_of(config.data), config.settings
    count, draws = settings.batch * (STEPS + 1), torch.Generator().manual_seed(0)
    x = torch.rand(count, *about.input_shape, generator=draws)
    y = torch.randint(about.classes, (count,), generator=draws)
    net = build(config.model, about.input_shape, about.classes, seed=config.seed)
    net.box = about.box
    times: list[float] = []

    def callback(line: dict[str, Any]) -> None:
        times.append(time.thread_time())

    given = {"scheme": spec(settings.scheme), "p": config.p, "eps": config.radius, "rate": settings.rate}
    train(net, (x, y), epochs=1, batch=settings.batch, step_callback=callback, **given)
    return min(after - before for before, after in pairwise(times))


def _kind(config: TrainConfig) -> str:
    """What the seconds of a step depend on, in words: runs whose images have the same shape and whose schemes differ in weights
    and radii alone have the same.
    """
    about, settings = spec_of(config.data), config.settings
    numbers = [f"{name}={getattr(settings.scheme, name)}" for name in _COSTLY if hasattr(settings.scheme, name)]
    shape = "x".join(map(str, about.input_shape))
    words = (
        f"{shape} to {about.classes}",
        config.model,
        f"l_{config.p:g}",
        f"batch {settings.batch}",
        settings.scheme.name,
    )
    return " ".join([*words, *numbers])


def steps_of(config: TrainConfig) -> int:
    """The steps of a run."""
    return config.settings.epochs * math.ceil(spec_of(config.data).train / config.settings.batch)


def epochs_done(folder: Path) -> tuple[int, float]:
    """The epochs that a run has behind it, and their mean seconds; zeros where it has not begun."""
    file, lines = folder / METRICS_FILE, []
    if file.exists():
        with reading(file, "restore the file from a copy, or give another folder with out"):
            whole = [text for text in file.read_text().splitlines(keepends=True) if text.endswith("\n")]
            lines = [line for line in map(json.loads, whole) if line["kind"] == "epoch"]
    return len(lines), sum(line["seconds"] for line in lines) / max(1, len(lines))


class Paces:
    """Seconds a step by the kind of run, measured once and kept in a file, because measuring takes seconds for each of them."""

    def __init__(self, out: Path):
        self.file = out / PACES
        self.known: dict[str, float] = {}
        if self.file.exists():
            with reading(self.file, "delete it, and the paces are measured again"), file_access(self.file, "read"):
                known = json.loads(self.file.read_text())
                if not isinstance(known, dict) or not all(isinstance(pace, float) for pace in known.values()):
                    raise DamagedData("it must hold seconds by kinds of runs")
                self.known = known

    def seconds(self, config: TrainConfig) -> float:
        """Seconds a step of a run: of its finished epochs, else as measured."""
        done, seconds = epochs_done(config.folder)
        if done:
            return seconds * config.settings.epochs / steps_of(config)
        text = _kind(config)
        if text not in self.known:
            self.known[text] = seconds_a_step(config)
            with file_access(self.file.parent):
                self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, json.dumps(self.known, indent=2) + "\n")
        return self.known[text]

    def hours(self, config: TrainConfig) -> float:
        """About how many hours are left of a run."""
        left = 1 - epochs_done(config.folder)[0] / config.settings.epochs
        return left * steps_of(config) * self.seconds(config) / 3600
