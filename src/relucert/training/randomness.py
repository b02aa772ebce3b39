"""Every random number of a run follows from its seed and the step it is used in.

Nothing random is carried from step to step, so a run that goes on after a stop draws what it would have drawn.
"""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A fresh generator for one purpose, such as `generator(seed, "shuffle", epoch)`."""
    text = repr((seed, *purpose)).encode()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1)
