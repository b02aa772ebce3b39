"""What the benchmarks measure with: medians of seconds, and the peak of memory."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable


def timed(run: Callable[[], object], repeats: int) -> float:
    """The median of the seconds of some runs, after one that warms up."""
    run()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def peak_gigabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
