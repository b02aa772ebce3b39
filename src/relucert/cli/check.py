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
    """A folder that `relucert certify --proofs` has written. CHECKED: the claim of a file is proved from it and the network
    alone. NOT CHECKED: it is not, for the reason that follows; certify the point again. NO CERTIFICATE: the verdict has a proof
    that the checker does not know."""
    network: Path
    """The network they are about, a .safetensors file or a run's folder."""
    exact: bool = False
    """Rational numbers instead of float64 with outward rounding. For small networks, and real arithmetic."""
    json: bool = False
    """Print JSON: a line for every certificate and one for the summary."""


CONFIG = Check
#: Bytes of a network whose proofs rational numbers derive again in minutes.
SMALL = 100_000
COMMON = ("network",)
EXAMPLES = ("relucert check proofs/ --network runs/mnist-fc1-mmr-inf",)


def run(config: Check) -> int:
    """Check, and print a line for every certificate."""
    from relucert.checker.__main__ import run as check
    from relucert.cli._next import next_check

    if not config.folder.is_dir():
        raise InvalidInput(f"folder must be a folder of certificates, got {config.folder}")
    network = config.network / "model.safetensors" if config.network.is_dir() else config.network
    code = check(config.folder, network, config.exact, config.json)
    if code in (0, 1) and not config.json:
        small = network.stat().st_size <= SMALL and not config.exact
        print(next_check(config.folder, config.network, checked=code == 0, rational=small))
    return code
