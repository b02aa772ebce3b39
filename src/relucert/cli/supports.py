"""`relucert supports NET.onnx PROP.vnnlib`: can an instance be verified at all?"""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True, kw_only=True)
class Supports:
    """Print yes, or no and the reason (exit code 1), without verifying anything."""

    onnx: tyro.conf.Positional[Path]
    """The network (.onnx, .onnx.gz)."""
    vnnlib: tyro.conf.Positional[Path]
    """The property (.vnnlib, .vnnlib.gz)."""
    json: bool = False
    """Print JSON."""


CONFIG = Supports
EXAMPLES = ("relucert supports net.onnx prop.vnnlib",)


def run(config: Supports) -> int:
    """Read both files and print whether they are supported; files that cannot be read are errors."""
    from relucert.core.errors import FileAccessError, RelucertError
    from relucert.evaluation.competition import load_instance

    reason = None
    try:
        load_instance(config.onnx, config.vnnlib)
    except FileAccessError:
        raise
    except RelucertError as error:
        reason = str(error)
    if config.json:
        print(json_format.dumps({"supported": reason is None, "reason": reason}))
    else:
        print("yes" if reason is None else f"no: {reason}")
    return 0 if reason is None else 1
