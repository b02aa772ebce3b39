import struct
import zlib

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat

from relucert.core.errors import CheckpointError, FileAccessError
from relucert.interop._mat_file import read_arrays
from relucert.interop.loading import load
from relucert.interop.mat import load_mat


def tensorflow_cnn(x, arrays):
    """The CNN computed the way TensorFlow lays it out: (batch, height, width, channel), explicit loops over windows."""
    for layer in ("conv1", "conv2"):
        weight, bias = arrays[f"weights_{layer}"], arrays[f"biases_{layer}"]
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        rows, columns = x.shape[1] // 2, x.shape[2] // 2
        out = np.zeros((len(x), rows, columns, weight.shape[3]))
        for i in range(rows):
            for j in range(columns):
                window = padded[:, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4]
                out[:, i, j] = np.einsum("bhwc,hwco->bo", window, weight) + bias[0]
        x = np.maximum(out, 0)
    hidden = np.maximum(x.reshape(len(x), -1) @ arrays["weights_fc1"] + arrays["biases_fc1"], 0)
    return hidden @ arrays["weights_fc2"] + arrays["biases_fc2"]


def random_cnn(channels, side, hidden=7, classes=4):
    rng = np.random.default_rng(0)
    shapes = {
        "conv1": (4, 4, channels, 3), "conv2": (4, 4, 3, 5), "fc1": (5 * (side // 4) ** 2, hidden), "fc2": (hidden, classes),
    }  # fmt: skip
    arrays = {f"weights_{name}": 0.3 * rng.standard_normal(shape) for name, shape in shapes.items()}
    return arrays | {f"biases_{name}": rng.standard_normal((1, shape[-1])) for name, shape in shapes.items()}


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 12)])
def test_a_cnn_in_tensorflow_layout_is_read_right(channels, side, tmp_path):
    arrays = random_cnn(channels, side)
    savemat(tmp_path / "net.mat", arrays)
    net = load(tmp_path / "net.mat")
    assert net.input_shape == (channels, side, side)
    x = np.random.default_rng(1).random((5, side, side, channels))
    ours = net.double()(torch.from_numpy(x).permute(0, 3, 1, 2))
    stored = {name: value.astype(np.float32).astype(np.float64) for name, value in arrays.items()}
    assert np.allclose(ours.detach().numpy(), tensorflow_cnn(x, stored), atol=1e-10)


@pytest.mark.parametrize(("channels", "side"), [(1, 6), (3, 4)])
def test_an_fc1_in_tensorflow_layout_is_read_right(channels, side, tmp_path):
    rng = np.random.default_rng(0)
    inner, outer = (
        rng.standard_normal((channels * side**2, 9)).astype(np.float32),
        rng.standard_normal((9, 3)).astype(np.float32),
    )
    biases = {
        "bU": rng.standard_normal((1, 9)).astype(np.float32),
        "bW": rng.standard_normal((1, 3)).astype(np.float32),
    }
    savemat(tmp_path / "net.mat", {"U": inner, "W": outer, **biases})
    net = load(tmp_path / "net.mat").double()
    assert net.input_shape == (channels, side, side)
    x = rng.random((5, side, side, channels))
    hidden = np.maximum(x.reshape(5, -1) @ inner.astype(float) + biases["bU"], 0)
    expected = hidden @ outer.astype(float) + biases["bW"]
    assert np.allclose(net(torch.from_numpy(x).permute(0, 3, 1, 2)).detach().numpy(), expected, atol=1e-10)


def test_files_that_are_not_the_authors_are_refused(tmp_path):
    savemat(tmp_path / "other.mat", {"a": np.zeros(3)})
    with pytest.raises(CheckpointError, match=r"must hold the keys weights_conv1.*, got a"):
        load(tmp_path / "other.mat")
    (tmp_path / "text.mat").write_text("hello " * 40)
    with pytest.raises(CheckpointError, match=r"not a \.mat file, or it is damaged"):
        load(tmp_path / "text.mat")
    with pytest.raises(FileAccessError, match="does not exist"):
        load_mat(tmp_path / "missing.mat")
    arrays = random_cnn(1, 8)
    savemat(tmp_path / "whole.mat", arrays)
    raw = (tmp_path / "whole.mat").read_bytes()
    (tmp_path / "cut.mat").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CheckpointError):
        load(tmp_path / "cut.mat")
    savemat(tmp_path / "wrong.mat", arrays | {"weights_fc1": np.zeros((19, 7))})
    with pytest.raises(CheckpointError, match="weights_fc1 has 19 rows"):
        load(tmp_path / "wrong.mat")
    savemat(tmp_path / "wrong.mat", arrays | {"biases_fc2": np.zeros((1, 2))})
    with pytest.raises(CheckpointError, match="not the paper's architecture"):
        load(tmp_path / "wrong.mat")
    savemat(tmp_path / "odd.mat", {"U": np.zeros((7, 3)), "bU": np.zeros(3), "W": np.zeros((3, 2)), "bW": np.zeros(2)})
    with pytest.raises(CheckpointError, match="7 inputs are no square image"):
        load(tmp_path / "odd.mat")
    assert load_mat(tmp_path / "odd.mat", input_shape=(7, 1, 1)).input_shape == (7, 1, 1)


@pytest.mark.parametrize("packed", [False, True])
def test_numeric_arrays_are_those_that_scipy_reads(packed, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.random((3, 4)), "b": rng.integers(0, 200, (2, 3, 4)).astype(np.uint8), "c": np.float32(rng.random((1, 5))),
        "empty": np.zeros((0, 3)), "i": np.arange(7), "one": 3.0, "rows": np.asfortranarray(rng.random((4, 2, 3))),
    }  # fmt: skip
    other = {"text": "abc", "cells": np.array([1, "x"], object), "structure": {"a": 1}, "complex": np.array([1j])}
    savemat(tmp_path / "x.mat", arrays | other, do_compression=packed)
    found, theirs = read_arrays(tmp_path / "x.mat"), loadmat(tmp_path / "x.mat")
    assert sorted(found) == sorted(arrays)
    for name, array in found.items():
        assert array.dtype == theirs[name].dtype
        np.testing.assert_array_equal(array, theirs[name])


def element(kind: int, content: bytes) -> bytes:
    padding = b"" if kind == 15 else bytes(-len(content) % 8)
    return struct.pack("<II", kind, len(content)) + content + padding


def matrix(shape: tuple[int, ...], numbers: bytes, kind: int = 9, name: bytes = b"U", flags: int = 6) -> bytes:
    parts = struct.pack("<II", flags, 0), struct.pack(f"<{len(shape)}i", *shape), name, numbers
    return element(14, b"".join(element(which, part) for which, part in zip((6, 5, 1, kind), parts, strict=True)))


HEAD = b"MATLAB 5.0".ljust(124) + struct.pack("<HH", 0x0100, 0x4D49)
LIES = {
    "negative": (matrix((-1, 2), bytes(16)), "whole numbers, at least 0"),
    "too large": (matrix((2**30, 2**30), bytes(16)), "must have at most"),
    "short": (matrix((3, 2), bytes(16)), "must take 48 bytes, got 16"),
    "long": (matrix((1, 1), bytes(16)), "must take 8 bytes, got 16"),
    "axes": (matrix((1,) * 40, bytes(8)), "at most 32 whole numbers"),
    "text": (matrix((1, 1), bytes(8), kind=16), "it must hold numbers"),
    "no flags": (element(14, element(5, bytes(8))), "must begin with its flags"),
    "no numbers": (element(14, element(6, struct.pack("<II", 6, 0))), "must have dimensions, a name and numbers"),
    "size": (struct.pack("<II", 14, 2**31), "at most the 0 bytes that follow"),
    "tag": (b"abc", "it ends within the tag"),
    "no matrix": (bytes(800), "it must be a sequence of matrices, got an element of type 0"),
    "packed zeros": (
        element(15, zlib.compress(bytes(800))),
        "it must be a sequence of matrices, got an element of type 0",
    ),
    "stream": (element(15, b"no zlib"), "incorrect header check"),
    "half a stream": (element(15, zlib.compress(bytes(1000))[:-6]), "is incomplete"),
    "bomb": (element(15, zlib.compress(bytes(2**24), 9)), "unpack to at most"),
    "version 4": (b"", "version 5"),
}


@pytest.mark.parametrize("lie", LIES)
def test_files_that_lie_are_one_clear_error(lie, tmp_path, monkeypatch):
    content, message = LIES[lie]
    monkeypatch.setattr("relucert.interop._mat_file.LARGEST_FILE", 2**23)
    path = tmp_path / "x.mat"
    path.write_bytes(bytes(200) if lie == "version 4" else HEAD + content)
    with pytest.raises(CheckpointError, match=rf"x\.mat is not a \.mat file, or it is damaged: .*{message}") as caught:
        load(path)
    assert caught.value.path == str(path)
    assert "scipy.io.savemat" in caught.value.remedy


def test_shapes_that_do_not_fit_are_refused_before_a_network_is_built(tmp_path):
    """Every array is small; the network of their sizes would not fit any memory."""
    arrays = random_cnn(1, 8)
    for changes in (
        {"weights_fc2": np.zeros((1, 10**5)), "weights_fc1": np.zeros((20, 10**5))},
        {"weights_conv1": np.zeros((4, 4, 1, 10**5))},
        {"weights_conv1": np.zeros((4, 4, 10**5, 3)), "weights_fc1": np.zeros((5 * 100**2, 7))},
        {"weights_conv1": np.zeros((4, 4, 0, 3))},
        {"weights_conv1": np.zeros((3, 4, 1, 3))},
        {"weights_fc2": np.full((7, 4), 1e300)},
        {"biases_fc2": np.full((1, 4), np.nan)},
    ):
        savemat(tmp_path / "x.mat", arrays | changes)
        with pytest.raises(
            CheckpointError, match=r"not the paper's architecture|of at most|of positive size|finite weights"
        ):
            load(tmp_path / "x.mat")
