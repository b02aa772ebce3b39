"""The network that a run begins with: an architecture by name, a function of the user, a checkpoint; and its first weights."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from relucert.core.errors import InvalidInput
from relucert.interop.loading import load
from relucert.networks.architectures import build
from relucert.networks.build.rebuilding import describe
from relucert.networks.network import Network
from relucert.training.config import FILE, FUNCTION, TrainConfig

Shape = tuple[int, ...]


def network_of(config: TrainConfig, input_shape: Shape, classes: int) -> Network:
    """The network of a configuration, with its first weights, in the mode it was made in."""
    if FUNCTION.fullmatch(config.model):
        net = _made(config, input_shape, classes)
    elif FILE.fullmatch(config.model) or Path(config.model).is_dir():
        net = load(config.model)
    else:
        net = build(config.model, input_shape, classes, seed=config.seed, start=config.settings.start)
    _require_fit(f"model {config.model}", net, input_shape, classes)
    if config.init is not None:
        adopt(net, load(config.init), str(config.init))
    return net


def _made(config: TrainConfig, input_shape: Shape, classes: int) -> Network:
    """The network of a module that a function of the user makes, with the global generator seeded by the run's seed."""
    package, name = config.model.split(":")
    try:
        sys.path.insert(0, os.getcwd())
        try:
            function = getattr(importlib.import_module(package), name)
        finally:
            sys.path.remove(os.getcwd())
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"model must name a function that can be imported, got {config.model!r}: {error}") from error
    try:
        inspect.signature(function).bind(input_shape, classes)
        arguments: tuple[object, ...] = (input_shape, classes)
    except TypeError:
        arguments = ()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            module = function(*arguments)
        except TypeError as error:
            raise InvalidInput(
                f"model must name a function of (input_shape, classes), or of nothing, got {config.model!r}: {error}"
            ) from error
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"model must name a function that makes an nn.Module, got a {type(module).__name__}")
    return module if isinstance(module, Network) else Network(module, input_shape)


def _require_fit(what: str, net: Network, input_shape: Shape, classes: int) -> None:
    if net.input_shape != tuple(input_shape):
        raise InvalidInput(
            f"{what} must take inputs of shape {tuple(input_shape)}, as data has them, got {net.input_shape}"
        )
    if net.classes < classes:
        raise InvalidInput(f"{what} must have a logit for each of {classes} classes of data, got {net.classes}")


@torch.no_grad()
def adopt(net: Network, source: Network, name: str) -> None:
    """Copy the weights of a network of the same architecture, running statistics and normalisation included."""
    (own, numbers), (given_form, others) = describe(net), describe(source)
    shapes = {key: tuple(value.shape) for key, value in numbers.items()}
    if own["nodes"] != given_form["nodes"] or shapes != {key: tuple(value.shape) for key, value in others.items()}:
        raise InvalidInput(
            f"init must hold a network of the architecture of model, got another one in {name}: to go on with the network of "
            "the file, give it as model"
        )
    for node, other in zip(net.graph, source.graph, strict=True):
        sources = {} if node.op is None else node.op.sources()
        given = {} if other.op is None else other.op.sources()
        for role, target in sources.items():
            target.value.detach().copy_(given[role].value)
    if any(not torch.equal(value, others[key].to(value)) for key, value in describe(net)[1].items()):
        raise InvalidInput(
            "model must hold its weights in parameters and buffers to take those of init, got computed ones"
        )


def architecture(net: Network) -> str:
    """A digest of the nodes and shapes of a network, whatever its weights are."""
    description, tensors = describe(net)
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    text = json.dumps([description["input_shape"], description["nodes"], shapes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
