"""Data-parallel training: several processes train one network, each on its part of every batch (torchrun, gloo).

With w_r the share of the batch that process r has, and L_r its mean loss, the loss of the batch is sum_r w_r L_r, and so is its
gradient: every process adds up the gradients of all and takes the same step. Batches are those of one process. A part has
examples of the first and of the second half of the batch, since some schemes replace the second half by adversarial points;
their random starts are drawn for the whole batch (`PartGenerator`). A batch with fewer than two examples for each process is
computed by all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from relucert.core.ball import Ball
from relucert.core.errors import RunError

TIMEOUT = timedelta(hours=6)  # that processes wait for one another: the first one evaluates alone


@dataclass(frozen=True)
class Ranks:
    """The number of this process, and how many there are."""

    rank: int = 0
    size: int = 1

    def places(self, count: int) -> Tensor | None:
        """The places of this process's examples in a batch of `count`; None for all of them.

        >>> [Ranks(rank, 2).places(7).tolist() for rank in range(2)]
        [[0, 2, 4, 6], [1, 3, 5]]
        """
        if not self.splits(count):
            return None
        middle = count - count // 2
        return torch.cat(
            [torch.arange(self.rank, middle, self.size), torch.arange(middle + self.rank, count, self.size)]
        )

    def splits(self, count: int) -> bool:
        """Whether every process has a part of its own of a batch."""
        return self.size > 1 and count >= 2 * self.size

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes, the same in all of them."""
        if self.size == 1:
            return values
        total = values.detach().cpu().contiguous()
        with _spoken():
            torch.distributed.all_reduce(total)
        return total.to(values.device)

    def sum_gradients(self, weights: Sequence[nn.Parameter], share: float) -> None:
        """Put the sum over all processes of share * gradient in place of every gradient."""
        if self.size == 1:
            return
        flat = [torch.zeros_like(w).flatten() if w.grad is None else share * w.grad.flatten() for w in weights]
        has = torch.tensor([float(w.grad is not None) for w in weights], dtype=flat[0].dtype, device=flat[0].device)
        total = self.sum(torch.cat([has, *flat]))
        parts = total[len(weights) :].split([w.numel() for w in weights])
        for weight, known, part in zip(weights, total[: len(weights)].tolist(), parts, strict=True):
            weight.grad = part.reshape(weight.shape).to(weight.dtype) if known else None

    def first(self, value: Any) -> Any:
        """The value that the first process has."""
        if self.size == 1:
            return value
        box = [value]
        with _spoken():
            torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    @torch.no_grad()
    def equalise(self, net: nn.Module) -> None:
        """Give the weights and buffers of the first process to all."""
        for value in net.state_dict().values() if self.size > 1 else ():
            with _spoken():
                sent = value.detach().cpu().contiguous()
                torch.distributed.broadcast(sent, src=0)
            value.copy_(sent)


ALONE = Ranks()


class PartGenerator(torch.Generator):
    """A generator for a part of a batch: `start` draws random points for the whole batch, and gives those of the part."""

    batch: Tensor
    places: Tensor

    @classmethod
    def of(cls, generator: torch.Generator, batch: Tensor, places: Tensor) -> PartGenerator:
        """The generator in the state of another one, for the examples in some places of a batch."""
        made = cls()
        made.set_state(generator.get_state())
        made.batch, made.places = batch, places
        return made

    def start(self, ball: Ball, moved: int, of: int) -> Tensor:
        """Random points of the ball around the last `moved` of `of` examples, drawn as for the whole batch."""
        count = len(self.batch)
        clean = count - (count if moved == of else count // 2)
        points = ball.sample(self.batch[clean:], self)
        return points[self.places[of - moved :] - clean]


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The processes that torchrun has started; this one alone without torchrun."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        yield ALONE
        return
    torch.distributed.init_process_group("gloo", timeout=TIMEOUT)
    try:
        yield Ranks(torch.distributed.get_rank(), size)
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def _spoken() -> Iterator[None]:
    """Say in words that another process is gone."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(f"another process of the run has ended: {' '.join(str(error).split())[:200]}") from error
