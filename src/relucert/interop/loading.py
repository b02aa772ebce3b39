"""`load` and `save`: networks from and to files, the format chosen by the name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relucert.core.errors import CheckpointError, FileAccessError
from relucert.interop.mat import load_mat
from relucert.interop.onnx.reading import load_onnx
from relucert.interop.onnx.writing import save_onnx
from relucert.networks import checkpoints
from relucert.networks.network import Network

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib")
MODEL_FILE = "model.safetensors"


def load(path: str | Path) -> Network:
    """Read a network in eval mode: a run's folder, a `.safetensors` checkpoint, `.onnx`, `.onnx.gz`, or the authors' `.mat`."""
    path = Path(path)
    if path.is_dir():
        if not (path / MODEL_FILE).is_file():
            raise FileAccessError(f"{path} is a folder without {MODEL_FILE}: no run ended there")
        return checkpoints.load(path / MODEL_FILE)
    if not path.exists():
        raise FileAccessError(f"{path} does not exist")
    if path.suffix == ".safetensors":
        return checkpoints.load(path)
    if path.suffix == ".mat":
        return load_mat(path)
    if is_onnx(path):
        return load_onnx(path)
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path} is a pickle: reading it runs code that the file chooses, and its weights do not say what the network "
            "computes. Convert it once, where its code is at hand: module = YourModule(); "
            f"module.load_state_dict(torch.load({path.name!r}, weights_only=True)); "
            f"relucert.save(relucert.Network(module, input_shape), {path.with_suffix('.safetensors').name!r})"
        )
    raise CheckpointError(
        f"{path} must be a run's folder, a .safetensors checkpoint, an .onnx, .onnx.gz or .mat file, got {path.suffix!r}"
    )


def is_onnx(path: Path) -> bool:
    """Whether a name is that of an ONNX file."""
    return path.suffix == ".onnx" or path.name.endswith(".onnx.gz")


def save(net: Network, path: str | Path, about: dict[str, Any] | None = None) -> None:
    """Write a network to a `.safetensors`, `.onnx` or `.onnx.gz` file, all at once.

    `about` is JSON that a `.safetensors` file keeps beside the network (how it was trained, say).

    >>> import tempfile, os
    >>> from relucert.networks.architectures import build
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(build("fc1", (1, 8, 8), 10), os.path.join(folder, "net.safetensors"))
    ...     load(os.path.join(folder, "net.safetensors")).hidden_units
    1024
    """
    path = Path(path)
    if not is_onnx(path):
        checkpoints.save(net, path, about)
    elif about:
        raise CheckpointError(
            f"about must be left out for an ONNX file, got {about!r}: .safetensors files have room for it"
        )
    else:
        save_onnx(net, path)
