"""The `.mat` files of the paper's authors: TensorFlow layout, the CNN or FC1.

CNN: `weights_conv1` (height, width, in, out), `biases_conv1`, ..., `weights_fc1` (rows in height, width, channel order),
`biases_fc1`, `weights_fc2`, `biases_fc2`. FC1: `U` (inputs, hidden), `bU`, `W` (hidden, classes), `bW`. Inputs are
pixels in [0, 1] without normalisation.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relucert.core.errors import CheckpointError, FileAccessError
from relucert.interop._mat_file import read_arrays
from relucert.networks.architectures import cnn, fc1
from relucert.networks.network import Network
from relucert.records.untrusted import reading

Image = tuple[int, int, int]
Array = np.ndarray[Any, Any]
CNN_KEYS = tuple(f"{kind}_{layer}" for layer in ("conv1", "conv2", "fc1", "fc2") for kind in ("weights", "biases"))
FC1_KEYS = ("U", "bU", "W", "bW")
#: Numbers of an input.
LARGEST_INPUT = 2**22
_REMEDY = "get the authors' file again, or write the arrays anew with scipy.io.savemat"


def load_mat(path: str | Path, input_shape: Image | None = None) -> Network:
    """Read the authors' CNN or FC1, in eval mode.

    The files do not contain the shape of an image: by default it is square (28 x 28 for 784 inputs, 3 x 32 x 32 for 3072);
    otherwise give `input_shape`. `(batch, *input_shape)` inputs are channels first, as everywhere.
    """
    path = Path(path)
    arrays = _arrays(path)
    with reading(path, _REMEDY, CheckpointError):
        return _network(path, arrays, input_shape)


def _network(path: Path, arrays: dict[str, Array], input_shape: Image | None) -> Network:
    """The network of the arrays of a file."""
    if all(key in arrays for key in CNN_KEYS):
        module, shape = _cnn(path, {key: arrays[key] for key in CNN_KEYS}, input_shape)
    elif all(key in arrays for key in FC1_KEYS):
        module, shape = _fc1(path, {key: arrays[key] for key in FC1_KEYS}, input_shape)
    else:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise CheckpointError(f"{path} must hold the keys {', '.join(CNN_KEYS)} or {', '.join(FC1_KEYS)}, got {found}")
    return Network(module, shape).eval()


def _arrays(path: Path) -> dict[str, Array]:
    if not path.exists():
        raise FileAccessError(f"{path} does not exist")
    try:
        with reading(path, _REMEDY, CheckpointError):
            return read_arrays(path)
    except CheckpointError as error:
        text = f"{path} is not a .mat file, or it is damaged: {str(error).removeprefix(f'{path}: ')}"
        raise CheckpointError(text, path=path, entry=error.entry, remedy=error.remedy) from error


def _cnn(path: Path, arrays: dict[str, Array], shape: Image | None) -> tuple[nn.Module, Image]:
    conv1, conv2, full1, full2 = (arrays[f"weights_{layer}"] for layer in ("conv1", "conv2", "fc1", "fc2"))
    if conv1.ndim != 4 or conv2.ndim != 4 or full1.ndim != 2 or full2.ndim != 2:
        raise CheckpointError(f"{path} must hold 4-dimensional convolutions and 2-dimensional matrices")
    channels, filters = conv1.shape[2], conv2.shape[3]
    if 0 in (*conv1.shape, *conv2.shape, *full1.shape, *full2.shape):
        raise CheckpointError(f"{path} must hold weights of positive size")
    side = math.isqrt(full1.shape[0] // filters)
    rows, columns = (side, side) if shape is None else (shape[1] // 4, shape[2] // 4)
    if filters * rows * columns != full1.shape[0]:
        raise CheckpointError(f"{path}: weights_fc1 has {full1.shape[0]} rows, not {filters} x {rows} x {columns}")
    shape = shape or (channels, 4 * side, 4 * side)
    kernels = conv1.shape[:2] == conv2.shape[:2] == (4, 4)
    if not kernels or conv2.shape[2] != conv1.shape[3] or full2.shape[0] != full1.shape[1] or shape[0] != channels:
        found = ", ".join(str(part.shape) for part in (conv1, conv2, full1, full2))
        raise CheckpointError(f"{path} is not the paper's architecture: weights {found} for inputs {shape} do not fit")
    if math.prod(shape) > LARGEST_INPUT:
        raise CheckpointError(f"{path} must be about inputs of at most {LARGEST_INPUT} numbers, got {shape}")
    module = cnn(shape, full2.shape[1], filters=(conv1.shape[3], filters), hidden=full1.shape[1])
    # TensorFlow flattens height, width, channel; torch channel, height, width.
    full1 = full1.reshape(rows, columns, filters, -1).transpose(2, 0, 1, 3).reshape(full1.shape)
    weights = [conv1.transpose(3, 2, 0, 1), conv2.transpose(3, 2, 0, 1), full1.T, full2.T]
    return _fill(
        path, module, weights, [arrays[f"biases_{layer}"] for layer in ("conv1", "conv2", "fc1", "fc2")]
    ), shape


def _fc1(path: Path, arrays: dict[str, Array], shape: Image | None) -> tuple[nn.Module, Image]:
    inner, outer = arrays["U"], arrays["W"]
    if inner.ndim != 2 or outer.ndim != 2 or inner.shape[1] != outer.shape[0] or 0 in (*inner.shape, *outer.shape):
        raise CheckpointError(
            f"{path}: U (inputs, hidden) and W (hidden, classes) do not fit: {inner.shape}, {outer.shape}"
        )
    inputs = inner.shape[0]
    if shape is None:
        channels = next((count for count in (1, 3) if math.isqrt(inputs // count) ** 2 * count == inputs), None)
        if channels is None:
            raise CheckpointError(f"{path}: {inputs} inputs are no square image of 1 or 3 channels; give input_shape")
        side = math.isqrt(inputs // channels)
        shape = (channels, side, side)
    if math.prod(shape) != inputs:
        raise CheckpointError(f"{path} has {inputs} inputs, which do not fit input_shape {shape}")
    channels, height, width = shape
    inner = inner.reshape(height, width, channels, -1).transpose(2, 0, 1, 3).reshape(inner.shape)
    module = fc1(shape, outer.shape[1], hidden=inner.shape[1])
    return _fill(path, module, [inner.T, outer.T], [arrays["bU"], arrays["bW"]]), shape


def _fill(path: Path, module: nn.Module, weights: list[Array], biases: list[Array]) -> nn.Module:
    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        for layer, weight, bias in zip(layers, weights, biases, strict=True):
            if tuple(weight.shape) != tuple(layer.weight.shape) or bias.size != weight.shape[0]:
                raise CheckpointError(
                    f"{path} is not the paper's architecture: expected weights {tuple(layer.weight.shape)} (and a bias for "
                    f"each row), got {weight.shape} and {bias.shape}"
                )
            layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight)))
            assert layer.bias is not None
            layer.bias.copy_(torch.from_numpy(bias.reshape(-1).copy()))
            if not bool(layer.weight.isfinite().all() & layer.bias.isfinite().all()):
                raise CheckpointError(f"{path} must hold finite weights in float32, got NaN or infinity")
    return module
