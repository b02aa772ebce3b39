"""`relucert supports NET.onnx PROP.vnnlib`: can an instance be verified at all?"""

from __future__ import annotations

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


CONFIG = Supports
EXAMPLES = ("relucert supports net.onnx prop.vnnlib",)


def run(config: Supports) -> int:
    """Read both files and print whether they are supported; files that cannot be read are errors."""
    from relucert.core.errors import FileAccessError, RelucertError
    from relucert.evaluation.competition import load_instance

    try:
        load_instance(config.onnx, config.vnnlib)
    except FileAccessError:
        raise
    except RelucertError as error:
        print(f"no: {error}")
        return 1
    print("yes")
    return 0
