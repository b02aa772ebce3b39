"""`load`: a network from the folder of a run, a checkpoint or a .mat file, chosen by the name."""

from __future__ import annotations

from pathlib import Path

from relucert.core.errors import CheckpointError, FileAccessError
from relucert.interop.mat import load_mat
from relucert.networks import checkpoints
from relucert.networks.network import Network

MODEL_FILE = "model.safetensors"


def load(path: str | Path) -> Network:
    """Read a network in eval mode: a run's folder, a `.safetensors` checkpoint, or the authors' `.mat`."""
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
    raise CheckpointError(
        f"{path} must be a run's folder, a .safetensors checkpoint or a .mat file, got {path.suffix!r}"
    )
