"""The versions of the software with which a result was computed."""

from __future__ import annotations

import os
import platform
from importlib import metadata

VERSION = "0.1.0"
"""The version of relucert."""


def installed(name: str) -> str | None:
    """The version of a package; None if it is not installed.

    >>> installed("torch") is None, installed("no-such-package")
    (False, None)
    """
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """The versions of relucert, torch and Python, and the kind of machine."""
    return {
        "relucert": VERSION,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {os.cpu_count()} cores",
    }
