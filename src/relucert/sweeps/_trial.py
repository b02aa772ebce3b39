"""One trial: train up to an epoch, in the folder of the run, and measure on the examples that are held out."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass

import torch

from relucert.core.ball import Ball
from relucert.core.errors import ClusterError, FileInUse, InvalidInput
from relucert.core.verdict import Verdict
from relucert.networks.prediction import error
from relucert.sweeps.journal import SWEEP_FILE, Figures
from relucert.training.config import TrainConfig
from relucert.training.loop import Observers, carry_out, config_task
from relucert.training.run import Run
from relucert.verification.certify import certify

PATIENCE = 60.0  # seconds until the process that had the trial before has ended


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What trials are judged by: the norm and the radius of the ball, the method that proves, how many examples it gets."""

    p: float
    eps: float
    method: str
    points: int | None


def prepare(config: TrainConfig) -> None:
    """Load what every trial needs, so that copies of this process have it already; missing data are an error here."""
    importlib.import_module("torch._dynamo")  # the optimisers of torch import it, which takes seconds
    config_task(config)


def measured(config: TrainConfig, epoch: int, judge: Judge) -> Figures:
    """Train a run up to an epoch, or go on with it, and measure it on the examples that its configuration holds out."""
    started = time.monotonic()
    if not (config.folder.parent / SWEEP_FILE).exists():
        raise ClusterError(
            f"out must be a folder that all workers share: {config.folder.parent} is not there on a worker"
        )
    task = config_task(config)
    held = task.validation
    if held is None or not config.validation:
        raise InvalidInput(f"validation must be above 0 in a sweep, got {config.validation}")
    net = _trained(config, epoch).net
    x, y = (torch.cat(parts) for parts in zip(*held.pieces(), strict=True))
    x = x.to(net.device, net.dtype)
    few, labels = x[: judge.points], y[: judge.points].to(net.device)
    ball = Ball(judge.p, judge.eps, held.box)
    proved = certify(net, few, labels, ball, judge.method, workers=1, progress=False)
    robust = sum(verdict == Verdict.ROBUST for verdict in proved.verdict)
    return Figures(
        epoch=epoch,
        error=round(error(net, x, y.to(net.device)) * len(y)) / len(y),
        certified_error=(len(few) - robust) / len(few),
        seconds=time.monotonic() - started,
    )


def _trained(config: TrainConfig, epoch: int) -> Run:
    """The run after an epoch; where another process still has its folder, once that has ended."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return carry_out(config_task(config), Observers(), until=epoch)
        except FileInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
