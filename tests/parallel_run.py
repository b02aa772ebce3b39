"""A run by the processes that torchrun starts: its first epoch, then the rest in the same folder. Arguments: scheme, folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from relucert.training.config import TrainConfig
from relucert.training.loop import Observers, carry_out, config_task
from relucert.training.ranks import process_group


def config(scheme: str, out: Path) -> TrainConfig:
    """The run; batches of 250 leave a short one at the end."""
    return TrainConfig(
        data="digits", model="fc-1x20", scheme=scheme, p=2, epochs=2, batch=250, rate=1e-3, evaluate_points=10, out=out
    )


def main(scheme: str, folder: Path) -> None:
    """Train, and leave the weights of every process beside the folder."""
    with process_group() as ranks:
        assert ranks.size == 2
        for until in (1, None):
            run = carry_out(config_task(config(scheme, folder)), Observers(), until=until, ranks=ranks)
            assert (run.folder is None) == (ranks.rank == 1)
        torch.save(run.net.state_dict(), folder.parent / f"rank-{ranks.rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
