"""`relucert check DIR --network NET`: check certificate files with the independent checker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from relucert.core.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Check:
    """Derive every claim of a folder of certificates again; exit code 1 if one of them is not proved."""

    folder: tyro.conf.Positional[Path]
    """A folder that `relucert certify --proofs` has written."""
    network: Path
    """The network they are about, a .safetensors file or a run's folder."""
    exact: bool = False
    """Rational numbers instead of float64 with outward rounding. For small networks, and real arithmetic."""
    json: bool = False
    """Print JSON: a line for every certificate and one for the summary."""


CONFIG = Check
COMMON = ("network",)
EXAMPLES = ("relucert check proofs/ --network runs/mnist-fc1-mmr-inf",)


def run(config: Check) -> int:
    """Check, and print a line for every certificate."""
    from relucert.checker.__main__ import run as check

    if not config.folder.is_dir():
        raise InvalidInput(f"folder must be a folder of certificates, got {config.folder}")
    network = config.network / "model.safetensors" if config.network.is_dir() else config.network
    return check(config.folder, network, config.exact, config.json)
