"""The progress bar of verbs that go through points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def points_bar(what: str, *, hidden: bool) -> Iterator[Callable[..., None]]:
    """A bar on stderr, where that is a terminal; yields a function that is told `(done, total)`, and a word if there is one."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    off = hidden or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=off, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def callback(done: int, total: int, word: str = "") -> None:
            bar.update(task, completed=done, total=total, description=f"{what} ({word})" if word else what)

        yield callback
