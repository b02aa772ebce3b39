"""Networks that others have trained and published, from their files."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from relucert.interop.loading import load
from relucert.networks.architectures import cnn, mlp
from relucert.networks.network import Network


def published(path: Path) -> Network:
    """A network from the authors' .mat, or from the state of the paper's CNN or of an MLP 784-100-100-10."""
    if path.suffix == ".mat":
        return load(path)
    module = mlp((1, 28, 28), 10, [100, 100]) if "mlp" in path.name else cnn((1, 28, 28), 10)
    module.load_state_dict(load_file(path))
    return Network(module, (1, 28, 28)).eval()
