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
    """Where `relucert certify --proofs` has written certificates."""
    network: Path
    """The network that they are about, a .safetensors checkpoint or a run's folder."""
    exact: bool = False
    """Rational numbers instead of float64 with outward rounding: for small networks, and real arithmetic."""


CONFIG = Check


def run(config: Check) -> int:
    """Check, and print a line for every certificate."""
    from relucert.checker.__main__ import run as check

    if not config.folder.is_dir():
        raise InvalidInput(f"folder must be a folder of certificates, got {config.folder}")
    network = config.network / "model.safetensors" if config.network.is_dir() else config.network
    return check(config.folder, network, config.exact)
