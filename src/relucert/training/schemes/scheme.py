"""What a scheme is: a loss on a batch, at a moment of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from relucert.networks.network import Network


@dataclass(frozen=True)
class StepContext:
    """Where in the run a step is taken: `progress` in [0, 1), and the randomness of this step."""

    progress: float
    generator: torch.Generator


@dataclass(frozen=True)
class Terms:
    """The loss of a step, its named parts for the log, and the logits it saw with their labels."""

    loss: Tensor
    parts: dict[str, Tensor]
    logits: Tensor
    labels: Tensor


class Scheme(Protocol):
    """A loss that the one training loop minimises."""

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        """The terms of the loss on a batch of images and labels."""
        ...
