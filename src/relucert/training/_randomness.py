"""Generators that follow from the seed of a run and the step they are used in.

No random state is carried from step to step, so a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A new generator for one purpose, such as `generator(seed, "shuffle", epoch)`."""
    text = repr((seed, *purpose)).encode()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1)


@contextmanager
def forked_randomness(device: torch.device) -> Iterator[None]:
    """Restore the global generators of the CPU and of one device, if it has one, at the end."""
    if device.type == "cpu" or not hasattr(torch, device.type):
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            yield
