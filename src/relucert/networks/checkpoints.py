"""Checkpoints: a safetensors file whose metadata is the JSON description of the network.

The file holds a digest of description and tensors. It names the network in records, and shows damage that the format
itself would not. A forger can make a digest that fits: sizes and shapes of a description are checked before anything is built.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from relucert.core.errors import CheckpointError, FileAccessError
from relucert.networks.build.rebuilding import describe, rebuild
from relucert.networks.network import Network
from relucert.records.atomic import write_atomically
from relucert.records.untrusted import bounded_json, reading

FORMAT = "relucert-network"
VERSION = 1
#: Bytes of the header of a safetensors file, and characters of the description in it.
LONGEST_HEADER = 2**25
LONGEST_DESCRIPTION = 2**24
_REMEDY = "restore the file from a copy, or train and save the network again"


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
    with reading(path, _REMEDY, CheckpointError):
        metadata, tensors = read_tensors(path)
        if metadata.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} holds tensors but no description of a network (it was not written by relucert.save)",
                remedy="build its module, load the tensors with load_state_dict and wrap it in relucert.Network",
            )
        if metadata.get("version") != str(VERSION):
            raise CheckpointError(
                f"{path} has version {metadata.get('version')} of the format; this relucert reads version {VERSION}",
                entry="version", remedy="load it with the relucert that wrote it",
            )  # fmt: skip
        try:
            description = bounded_json(metadata["network"], "its network", longest=LONGEST_DESCRIPTION)
            about = bounded_json(metadata["about"], "its about", longest=LONGEST_DESCRIPTION, deepest=64, strict=False)
            whole = _digest(description, tensors) == metadata["digest"]
        except (KeyError, TypeError, ValueError) as error:
            text = f"{path} is damaged: its description cannot be read ({error})"
            raise CheckpointError(text, entry="description") from error
        if not whole:
            raise CheckpointError(
                f"{path} is damaged: its contents do not match the digest it was written with", entry="digest"
            )
        return rebuild(description, tensors), about


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and all tensors of a safetensors file, whose header must have at most `LONGEST_HEADER` bytes."""
    with reading(path, _REMEDY, CheckpointError):
        if not path.exists():
            raise FileAccessError(f"{path} does not exist")
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if length > LONGEST_HEADER:
            raise CheckpointError(
                f"{path} is not a safetensors file, or it is damaged: its header must have at most {LONGEST_HEADER} bytes, "
                f"got {length}",
                entry="header",
            )
        try:
            with safe_open(path, framework="pt") as file:
                return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path} is not a safetensors file, or it is damaged: {error}") from error
