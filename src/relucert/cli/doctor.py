"""`relucert doctor`: does this machine with this torch compute as proofs about executed networks assume?"""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what is installed and found, and check what proofs assume of torch: precision, and the rounding of layers."""

    json: bool = False
    """Print one JSON object instead of a table."""


CONFIG = Doctor
EXAMPLES = ("relucert doctor",)
#: Packages that some methods need: what they do, the name of the distribution, and how to install it.
PACKAGES = {
    "HiGHS (mip)": ("highspy", "highspy"),
    "SCIP (mip in l2)": ("pyscipopt", '"relucert[scip]"'),
    "ONNX files": ("onnx", '"relucert[onnx]"'),
    "onnxruntime": ("onnxruntime", '"relucert[onnx]"'),
}


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what was found, and whether proofs allow it; None if they do not depend on it."""

    what: str
    found: str
    fine: bool | None = None


def run(config: Doctor) -> int:
    """Print all checks; 1 if something breaks what proofs assume, else 0."""
    found = checks()
    faulty = any(check.fine is False for check in found)
    if config.json:
        print(json_format.dumps({"fine": not faulty, "checks": [vars(check) for check in found]}))
        return int(faulty)
    from rich.console import Console
    from rich.table import Table

    from relucert.cli._text import say

    table = Table(title="this machine, and what proofs assume of it", title_justify="left")
    for heading in ("", "check", "found"):
        table.add_column(heading)
    for check in found:
        table.add_row({True: "ok", False: "FAULT", None: ""}[check.fine], check.what, check.found)
    Console().print(table)
    if faulty:
        say(
            "proofs about the network as executed in float32 do not hold here: docs/theory/rounding.md says what they assume"
        )
    else:
        say("this machine computes as proofs assume")
    return int(faulty)


def surroundings() -> list[Check]:
    """Solvers, optional packages, data sets and the room on the disk."""
    import shutil

    from relucert.core.versions import installed
    from relucert.data.folder import data_folder, locate
    from relucert.data.specs import SPECS

    found = [
        Check(what, installed(name) or f"missing: pip install {extra}") for what, (name, extra) in PACKAGES.items()
    ]
    here = [spec.name for spec in SPECS.values() if spec.embedded or locate(spec.name, None).kind != "missing"]
    folder = data_folder(None)
    found.append(Check("data sets", f"{', '.join(here)} (others are fetched into {folder})"))
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    for what, where in (("free disk, data", existing), ("free disk, here", Path.cwd())):
        found.append(Check(what, f"{shutil.disk_usage(where).free / 1e9:.1f} GB"))
    return found


def checks() -> list[Check]:
    """Everything that is looked at."""
    import torch

    from relucert.core.versions import versions
    from relucert.networks.execution import flushes_denormals, reduced_precision, rounds_to_nearest, summation_errors

    found = [Check(name, version) for name, version in versions().items()] + surroundings()
    found += [
        Check(
            "threads", f"{torch.get_num_threads()} inside operations, {torch.get_num_interop_threads()} between them"
        ),
        Check("instructions", torch.backends.cpu.get_cpu_capability()),
        Check("denormal numbers", "flushed to zero" if flushes_denormals() else "kept", True),
    ]
    for dtype in (torch.float32, torch.float64):
        nearest = rounds_to_nearest(dtype)
        name = str(dtype).removeprefix("torch.")
        found.append(Check(f"rounding of {name}", "to nearest" if nearest else "not to nearest", nearest))
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        short = reduced_precision(device)
        found.append(Check(f"precision of float32 on {device}", "; ".join(short) or "full", not short))
    for error in summation_errors():
        share = f"error {error.share:.3g} of the bound gamma_{error.terms}"
        found.append(Check(error.layer, share, error.share <= 1))
    return found
