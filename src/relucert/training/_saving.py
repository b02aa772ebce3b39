"""The state of a run between two steps: weights, the optimiser's moments and the number of steps taken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from relucert.core.errors import CheckpointError
from relucert.networks.checkpoints import LONGEST_DESCRIPTION, read_tensors
from relucert.networks.network import Network
from relucert.records.atomic import write_atomically
from relucert.records.untrusted import bounded_json
from relucert.training._weights import Weights

STATE_FILE = "state.safetensors"
MODULE_FILE = "module.safetensors"


def save_state(folder: Path, weights: Weights, optimiser: torch.optim.Adam, about: dict[str, Any]) -> None:
    """Write the state of a run atomically; `about` is JSON (steps taken, sums over the current epoch)."""
    tensors = {f"net.{name}": value for name, value in _owned(weights.net.state_dict()).items()}
    tensors |= _owned(weights.tensors())
    about = about | ({"averaged": weights.count} if weights.count else {})
    for place, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{place}.{name}": value.cpu().contiguous() for name, value in moments.items()}
    write_atomically(folder / STATE_FILE, to_bytes(tensors, {"about": json.dumps(about)}))


def load_state(folder: Path, weights: Weights, optimiser: torch.optim.Adam) -> dict[str, Any] | None:
    """Load a saved state into the weights of a run and its optimiser, and return its `about`; None without a state."""
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        metadata, tensors = read_tensors(path)
        about = bounded_json(metadata["about"], "its about", longest=LONGEST_DESCRIPTION, strict=False)
        if type(about["step"]) is not int or not isinstance(about["sums"], dict):
            raise TypeError("its about must have the step and the sums of the epoch")
        weights.net.load_state_dict({name[4:]: value for name, value in tensors.items() if name.startswith("net.")})
        weights.load(tensors, int(about.get("averaged", 0)))
        state = optimiser.state_dict()
        state["state"] = _moments(tensors)
        optimiser.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or belongs to another run: {error}",
            path=path, remedy="delete the file, and the run begins again",
        ) from error  # fmt: skip
    return about


def save_module(folder: Path, net: Network) -> None:
    """Write the weights of the network's module under the names that its `load_state_dict` knows."""
    write_atomically(folder / MODULE_FILE, to_bytes(_owned(net.module.state_dict())))


def load_module(folder: Path, net: Network) -> None:
    """Load what `save_module` has written."""
    path = folder / MODULE_FILE
    try:
        net.module.load_state_dict(read_tensors(path)[1])
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} does not fit the module: {error}", path=path, remedy="give another folder with out"
        ) from error


def _owned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state as contiguous tensors on the CPU that share no memory, as safetensors wants them."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return tensors


def _moments(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("adam."):
            _, place, name = key.split(".", 2)
            moments.setdefault(int(place), {})[name] = value
    return moments
