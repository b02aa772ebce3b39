"""Weights without gradients, while bounds or attacks are optimised over something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen_weights(module: nn.Module) -> Iterator[None]:
    """Switch the gradients of all parameters off, and restore each afterwards.

    >>> layer = nn.Linear(2, 1)
    >>> with frozen_weights(layer):
    ...     layer.weight.requires_grad
    False
    >>> layer.weight.requires_grad
    True
    """
    before = [(weight, weight.requires_grad) for weight in module.parameters()]
    try:
        for weight, _ in before:
            weight.requires_grad_(False)
        yield
    finally:
        for weight, required in before:
            weight.requires_grad_(required)
