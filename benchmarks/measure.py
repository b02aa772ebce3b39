"""What the benchmarks measure with: medians of seconds, and the peak of memory."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence


def timed(run: Callable[[], object], repeats: int) -> float:
    """The median of the seconds of some runs, after one that warms up."""
    run()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def interleaved(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The medians of the processor seconds of several functions, run in turn, after a round that warms up.

    Processor seconds do not count the time in which other processes run, so that ratios hold on a busy machine.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(repeats + 1):
        for place, run in enumerate(runs):
            started = time.process_time()
            run()
            if number:
                seconds[place].append(time.process_time() - started)
    return [statistics.median(each) for each in seconds]


def peak_gigabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
