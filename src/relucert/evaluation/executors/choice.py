"""Which executor the arguments `workers` and `scheduler` mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from relucert.core.errors import InvalidInput

if TYPE_CHECKING:
    from relucert.evaluation.executors.executor import Executor

_ADDRESS = re.compile(r"(tcp|tls)://\S+:\d{1,5}")


def executor_of(workers: int | None = None, scheduler: str | None = None) -> Executor:
    """`workers` processes on this machine, or the workers of the Dask cluster at the address `scheduler`; else this process.

    >>> with executor_of() as executor:
    ...     [future.result() for future in executor.as_completed([executor.submit(abs, -2), executor.submit(abs, 3)])]
    [2, 3]
    """
    check_choice(workers, scheduler)
    if scheduler is not None:
        from relucert.evaluation.executors._cluster import Cluster

        return Cluster(scheduler)
    from relucert.evaluation.executors._here import Here
    from relucert.evaluation.executors._processes import Processes

    return Here(workers) if workers is None or workers == 1 else Processes(workers)


def check_choice(workers: int | None, scheduler: str | None) -> None:
    """Raise unless the arguments name one executor."""
    if workers is not None and workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")
    if scheduler is not None and workers is not None:
        raise InvalidInput(f"workers must be left out with a scheduler, whose workers are used, got {workers}")
    if scheduler is not None and not _ADDRESS.fullmatch(scheduler):
        raise InvalidInput(f"scheduler must be an address such as tcp://HOST:8786, got {scheduler!r}")
