"""A training loss: the function that the loop minimises, and its context at one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from relucert.networks.network import Network


@dataclass(frozen=True)
class StepContext:
    """The training step context: `progress` in [0, 1), the share of the run that is done, and the step's randomness."""

    progress: float
    generator: torch.Generator


@dataclass(frozen=True)
class Terms:
    """The loss of a step, its named parts for the log, and logits with the labels they are compared with."""

    loss: Tensor
    parts: dict[str, Tensor]
    logits: Tensor
    labels: Tensor


@dataclass(frozen=True)
class ExampleLosses:
    """The loss of every example, (batch,), named parts for the log as detached numbers, and the logits (batch, classes)."""

    loss: Tensor
    parts: dict[str, Tensor]
    logits: Tensor

    def terms(self, y: Tensor, clean: int | None = None) -> Terms:
        """The terms of a step: the mean loss, and the first `clean` logits with their labels."""
        return Terms(self.loss.mean(), self.parts, self.logits[:clean].detach(), y[:clean])


class Loss(Protocol):
    """A loss on a batch of images and labels at one step of a run."""

    def __call__(self, net: Network, x: Tensor, y: Tensor, context: StepContext) -> Terms:
        """The terms of the loss on a batch."""
        ...


def depends_on_mode(net: Network) -> bool:
    """Whether the network computes something else in train mode: batch norm, dropout."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return any(isinstance(part, kinds) for part in net.modules())
