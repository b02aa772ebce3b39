"""The progress of calls that take long: how many points are done, and an estimate of the time left, on standard error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
AFTER = 2.0  # seconds after which a call of the library shows its progress


def wanted(progress: bool | None) -> bool:
    """Whether progress is shown: as said, by default if standard error is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def followed(
    items: Iterator[Item], total: int, what: str, *, after: float = AFTER, word: Callable[[Item], str] | None = None
) -> Iterator[Item]:
    """The items as they come, with a bar on standard error once `after` seconds have passed; `word(item)` stands beside it."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class Left(ProgressColumn):
        """The estimate of the time left, which moves while nothing is done as well."""

        def render(self, task: Task) -> Text:
            return Text(remaining(int(task.completed), total, task.elapsed or 0.0), style="progress.remaining")

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), Left())
    bar = Progress(*columns, console=Console(stderr=True, force_terminal=True), transient=True)
    task = bar.add_task(what, total=total)
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    timer.start()
    try:
        for item in items:
            yield item
            bar.update(task, advance=1, description=what if word is None else f"{what} ({word(item)})")
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def remaining(done: int, total: int, elapsed: float) -> str:
    """An estimate of the time left, at the pace so far: it falls as points are done, and grows while they are waited for.

    >>> remaining(0, 10, 3.0), remaining(5, 10, 3.0), remaining(5, 10, 9.0), remaining(1, 600, 10.0)
    ('', 'about 3 s left', 'about 9 s left', 'about 1:39:50 left')
    """
    if done == 0:
        return ""
    left = round(elapsed / done * (total - done))
    hours, minutes = left // 3600, left // 60 % 60
    clock = f"{hours}:{minutes:02d}:{left % 60:02d}" if hours else f"{minutes}:{left % 60:02d}"
    return f"about {left} s left" if left < 60 else f"about {clock} left"
