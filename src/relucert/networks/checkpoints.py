"""Checkpoints: a safetensors file whose metadata is the JSON description of the network.

The file holds a digest of description and tensors. It names the network in records, and shows damage that the format
itself would not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from relucert.core.errors import CheckpointError, FileAccessError
from relucert.networks.build.rebuilding import describe, rebuild
from relucert.networks.network import Network
from relucert.records.atomic import write_atomically

FORMAT = "relucert-network"
VERSION = 1


def digest(net: Network) -> str:
    """A hash of the function: equal for networks with the same nodes and the same weights, whatever code made them."""
    return _digest(*describe(net))


def _digest(description: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    nodes = {"input_shape": description["input_shape"], "nodes": description["nodes"]}
    total = hashlib.sha256(json.dumps(nodes, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()


def save(net: Network, path: str | Path, about: dict[str, Any] | None = None) -> None:
    """Write a network to a `.safetensors` file, all at once; `about` is JSON kept beside it (how it was trained, say).

    >>> import tempfile, os
    >>> from relucert.networks.architectures import build
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(build("fc1", (1, 8, 8), 10), os.path.join(folder, "net.safetensors"))
    ...     load(os.path.join(folder, "net.safetensors")).hidden_units
    1024
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise CheckpointError(f"path must end in .safetensors, .onnx or .onnx.gz, got {path.name!r}")
    description, tensors = describe(net)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "network": json.dumps(description),
        "digest": _digest(description, tensors),
        "about": json.dumps(about or {}),
    }
    write_atomically(path, to_bytes(tensors, metadata))


def load(path: str | Path) -> Network:
    """Read a network from a file that `save` wrote, in eval mode."""
    return read(path)[0]


def read(path: str | Path) -> tuple[Network, dict[str, Any]]:
    """A network and what was said about it."""
    path = Path(path)
    metadata, tensors = _tensors(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} holds tensors but no description of a network (it was not written by relucert.save): build its module, "
            "load the tensors with load_state_dict and wrap it in relucert.Network"
        )
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path} has version {metadata.get('version')} of the format; this relucert reads version {VERSION}"
        )
    try:
        description, about = json.loads(metadata["network"]), json.loads(metadata["about"])
        whole = _digest(description, tensors) == metadata["digest"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: its description cannot be read ({error})") from error
    if not whole:
        raise CheckpointError(f"{path} is damaged: its contents do not match the digest it was written with")
    return rebuild(description, tensors), about


def _tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise FileAccessError(f"{path} does not exist") from error
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a safetensors file, or it is damaged: {error}") from error
    except OSError as error:
        raise FileAccessError(f"{path} cannot be read: {error}") from error
