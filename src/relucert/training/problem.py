"""`train`: any module on any data by any scheme, with checkpoints, or a run that a configuration describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relucert.core.errors import InvalidInput
from relucert.data import Dataset
from relucert.interop.loading import load
from relucert.networks.network import Network
from relucert.training._examples import Examples, examples_of
from relucert.training._models import adopt, architecture
from relucert.training.config import TrainConfig
from relucert.training.loop import Observers, Task, carry_out, config_task, examples_split, held_out
from relucert.training.progress import Terminal, Watcher
from relucert.training.recipes import EPS, OWN
from relucert.training.run import Run

Callback = Callable[[dict[str, Any]], object]


def train(
    model: nn.Module | TrainConfig,
    data: object = None,
    *,
    validation: object = None,
    progress: bool | Watcher = False,
    callback: Callback | None = None,
    step_callback: Callback | None = None,
    **settings: Any,
) -> Run:
    """Train a module on data by a scheme, or go on where a run in the same folder stopped.

    Args:
        model: any `nn.Module` of supported layers, or a `Network` (which knows mean, std and box). It is trained in place and
            ends in eval mode. Or a `TrainConfig`, which names data and network; then nothing else is given but observers.
        data: arrays (x, y) as tensors or numpy arrays, a torch Dataset or DataLoader of such pairs, or a relucert data set.
            A loader has its own batches and its own order.
        validation: the same kinds of data; test error and PGD error are measured after epochs. By default the test set of a
            relucert data set, and none for other data. Or a share of the data, such as 0.1, which is held out.
        progress: True for a bar on stderr.
        callback: called with every line of the metrics, a dictionary with `kind` ("epoch", "evaluation"), `step` and `epoch`.
        step_callback: called after every step with a line of `kind` "step".
        settings: fields of `TrainConfig`: scheme, p, eps, epochs, batch, rate, decay, crop, init, seed, out,
            evaluate_every, evaluate_points, save_seconds, validation_seed, tensorboard.

    With `out` the state of the run is saved in that folder. The same call goes on there and ends with the same weights, bit for
    bit on the same machine; what the module's weights were before matters to a new run only. A call for a run that is finished
    loads its weights into the module. Without `out` nothing is written.

    >>> import relucert as rc
    >>> from torch import nn
    >>> module, digits = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10)), rc.dataset("digits")
    >>> run = rc.train(module, (digits.x_train, digits.y_train), scheme="mmr", p=2, eps=0.3, epochs=1, batch=50)
    >>> [line["kind"] for line in run.metrics], run.net.module is module
    (['start', 'epoch'], True)
    """
    watcher = progress if isinstance(progress, Watcher) else Terminal() if progress else Watcher()
    observers = Observers(watcher, *([] if callback is None else [callback]), step=step_callback)
    if isinstance(model, TrainConfig):
        if data is not None or validation is not None or settings:
            raise InvalidInput(
                "data, validation and settings must be left out where model is a TrainConfig, which has them"
            )
        return carry_out(config_task(model), observers)
    if isinstance(validation, float):
        settings, validation = settings | {"validation": validation}, None
    config = _config(data, settings)
    return carry_out(_task(config, model, data, validation), observers, saved=config.out is not None)


def _config(data: object, settings: dict[str, Any]) -> TrainConfig:
    """The configuration of a run whose data and network are values."""
    named = data.name if isinstance(data, Dataset) and data.name in EPS else OWN
    known = {field.name for field in dataclasses.fields(TrainConfig)} - {"data", "model", "device"}
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise InvalidInput(f"settings must be among {', '.join(sorted(known))}, got {', '.join(unknown)}")
    paths = {name: Path(settings[name]) for name in ("out", "init") if settings.get(name) is not None}
    return TrainConfig(data=named, model=OWN, **{**settings, **paths})


def _task(config: TrainConfig, model: nn.Module, data: object, validation: object) -> Task:
    """The task of training a module on data."""
    examples = examples_of(data, config.settings.batch, config.seed)
    left_out = None
    if config.validation:
        examples, left_out = examples_split(examples, config)
    net = _network(model, examples)
    if isinstance(validation, Dataset):
        raise InvalidInput(
            "validation must be arrays (x, y), such as those of a data set's test set, got a whole data set"
        )
    checked: Examples | None = left_out
    if validation is not None:
        checked = examples_of(validation, config.settings.batch, config.seed, "validation")
    elif isinstance(data, Dataset) and left_out is None:
        checked = held_out(data)
    for part in (examples, checked):
        if part is not None:
            x, y = part.sample()
            net.check(x.to(net.device, net.dtype), y.to(net.device))
    identity = {"data": examples.digest(), "network": architecture(net)}
    if config.init is not None:
        adopt(net, load(config.init), str(config.init))
    return Task(config, net, examples, checked, identity, keeps_module=True)


def _network(model: nn.Module, examples: Examples) -> Network:
    """The network of a module, with the box of the examples."""
    if isinstance(model, Network):
        return model
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be an nn.Module, a Network or a TrainConfig, got {type(model).__name__}")
    with torch.no_grad():
        net = Network(model, tuple(examples.sample()[0].shape[1:]))
    net.box = examples.box
    return net
