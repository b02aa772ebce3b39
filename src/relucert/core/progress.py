"""The progress of calls that take long: how many points are done, and an estimate of the time left, on standard error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
AFTER = 2.0  # seconds after which a call of the library shows its progress


def wanted(progress: bool | None) -> bool:
    """Whether progress is shown: as said, by default if standard error is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def followed(
    items: Iterator[Item], total: int, what: str, *, after: float = AFTER, word: Callable[[Item], str] | None = None
) -> Iterator[Item]:
    """The items as they come, with a bar on standard error once `after` seconds have passed; `word(item)` stands below it."""
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Pace(ProgressColumn):
        """How fast it goes and how long the rest takes, which moves while nothing is done as well."""

        def render(self, task: Task) -> Text:
            return Text(pace(int(task.completed), total, task.elapsed or 0.0), style="progress.remaining")

    class Bar(Progress):
        """A bar with a line of words below it, which is cut where the terminal ends."""

        words = ""

        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            if self.words:
                yield Text(f"  {self.words}", no_wrap=True, overflow="ellipsis")

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), Pace())
    bar = Bar(*columns, console=Console(stderr=True, force_terminal=True), transient=True)
    task = bar.add_task(what, total=total)
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    timer.start()
    try:
        for item in items:
            yield item
            bar.words = "" if word is None else word(item)
            bar.advance(task)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def pace(done: int, total: int, elapsed: float) -> str:
    """The rate so far and an estimate of the time left: it falls as points are done, and grows while they are waited for.

    >>> pace(0, 10, 3.0), pace(5, 10, 3.0), pace(5, 10, 9.0)
    ('3 s so far', '1.7 a second, about 3 s left', '1.8 s each, about 9 s left')
    >>> pace(1, 600, 10.0), pace(300, 900, 1.0)
    ('10.0 s each, about 1:39:50 left', '300 a second, about 2 s left')
    """
    if done == 0:
        return f"{_clock(elapsed)} so far"
    rate = done / elapsed if elapsed > 0 else float("inf")
    each = f"{rate:.3g} a second" if rate >= 100 else f"{rate:.1f} a second" if rate >= 1 else f"{1 / rate:.1f} s each"
    return f"{each}, about {_clock((total - done) * elapsed / done)} left"


def _clock(seconds: float) -> str:
    """A time in words below a minute, as minutes and seconds or with hours above."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if whole < 60:
        return f"{whole} s"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
