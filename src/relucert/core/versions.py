"""The versions of the software with which a result was computed."""

from __future__ import annotations

import os
import platform
from importlib import metadata

VERSION = "0.1.0"
"""The version of relucert."""


def versions() -> dict[str, str]:
    """The versions of relucert, torch and Python, and the kind of machine."""
    return {
        "relucert": VERSION,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {os.cpu_count()} cores",
    }
