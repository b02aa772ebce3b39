"""Several processes that share the points of one question; one of them alone writes."""

from __future__ import annotations

import multiprocessing
import queue
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from relucert.core.errors import RelucertError, RunError
from relucert.evaluation.stream import Facts

PATIENCE = 0.5  # seconds between looks at whether the workers are alive


class Solver(Protocol):
    """What a worker makes of the configuration."""

    def solve(self, indices: Tensor, deadline: float, keep: Callable[[int, Facts], None]) -> None:
        """Answer for some points, `keep(index, facts)` for each."""
        ...


def spread(
    make: Callable[[Any], Solver], config: Any, indices: Tensor, batch: int, workers: int, deadline: float,
    keep: Callable[[int, Facts], None],
) -> None:  # fmt: skip
    """Let `workers` processes answer for points, in pieces of at most `batch`, with `make(config).solve`.

    `keep` is called in this process. Pieces are handed out as workers get free, so the order of answers is not known. What a
    worker raises is raised here; then, and when this process is interrupted, all of them are ended.
    """
    if len(indices) == 0:
        return
    # A few pieces for each, so that nobody waits long for the last one.
    size = max(1, min(batch, -(-len(indices) // (4 * workers))))
    pieces = [part.tolist() for part in indices.split(size)]
    context = multiprocessing.get_context("spawn")
    tasks, answers = context.SimpleQueue(), context.Queue()
    for part in [*pieces, *[None] * workers]:
        tasks.put(part)
    threads = max(1, torch.get_num_threads() // workers)
    crew = [
        context.Process(target=_work, args=(make, config, tasks, answers, threads, deadline), daemon=True)
        for _ in range(workers)
    ]
    try:
        for process in crew:
            process.start()
        ended = 0
        while ended < workers:
            try:
                kind, what = answers.get(timeout=PATIENCE)
            except queue.Empty:
                if any(process.exitcode not in (None, 0) for process in crew):
                    raise RunError("a worker has died; points that were decided are kept, run again to go on") from None
                continue
            if kind == "point":
                keep(*what)
            elif kind == "end":
                ended += 1
            else:
                raise what
        for process in crew:
            process.join()
    finally:
        for process in crew:
            if process.is_alive():
                process.terminate()


def _work(make: Callable[[Any], Solver], config: Any, tasks: Any, answers: Any, threads: int, deadline: float) -> None:
    """The life of a worker."""
    try:
        torch.set_num_threads(threads)
        solver = make(config)
        while (part := tasks.get()) is not None:
            solver.solve(
                torch.tensor(part), deadline, lambda index, facts: answers.put(("point", (index, dict(facts))))
            )
        answers.put(("end", None))
    except KeyboardInterrupt:
        pass  # the process that waits has been interrupted as well
    except RelucertError as error:
        answers.put(("error", error))
    except Exception:
        answers.put(("error", RunError(f"a worker has failed:\n{traceback.format_exc()}")))
