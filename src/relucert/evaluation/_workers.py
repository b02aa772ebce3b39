"""Multi-process evaluation with a single writer."""

from __future__ import annotations

import multiprocessing
import queue
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from relucert.core.errors import RelucertError, RunError
from relucert.evaluation._stream import Facts

PATIENCE = 0.5  # seconds between looks at whether the workers are alive


class Solver(Protocol):
    """What a worker makes of the configuration."""

    def solve(self, indices: Tensor, deadline: float) -> Iterator[tuple[int, Facts]]:
        """The index and the facts of every point, each as soon as it is known."""
        ...


def spread(
    make: Callable[[Any], Solver], config: Any, indices: Tensor, batch: int, workers: int, deadline: float
) -> Iterator[tuple[int, Facts]]:
    """The answers of `make(config).solve` about all points by several processes, in pieces of at most `batch`.

    Pieces go to whichever worker is free, so answers come in no particular order. An error of a worker is raised here. Whenever
    the iteration ends, by an error or an interruption too, all workers are ended.
    """
    if len(indices) == 0:
        return
    # A few pieces for each worker, so that the last piece is short.
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
                yield what
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
    """A worker: answer pieces until there are none."""
    try:
        torch.set_num_threads(threads)
        solver = make(config)
        while (part := tasks.get()) is not None:
            for index, facts in solver.solve(torch.tensor(part), deadline):
                answers.put(("point", (index, dict(facts))))
        answers.put(("end", None))
    except KeyboardInterrupt:
        pass  # the parent process is interrupted as well
    except RelucertError as error:
        answers.put(("error", error))
    except Exception:
        answers.put(("error", RunError(f"a worker has failed:\n{traceback.format_exc()}")))
