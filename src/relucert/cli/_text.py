"""Text for a terminal, which is broken between words; in files and pipes a sentence stays one line."""

from __future__ import annotations

import shutil
import sys
from textwrap import fill
from typing import TextIO


def folded(text: str, stream: TextIO) -> str:
    """A sentence as it is written to a stream.

    >>> import io
    >>> len(folded("word " * 99, io.StringIO()).splitlines())
    1
    """
    if not stream.isatty():
        return text
    width = max(20, shutil.get_terminal_size().columns)
    return fill(text, width, break_long_words=False, break_on_hyphens=False)


def say(text: str) -> None:
    """Print a sentence."""
    print(folded(text, sys.stdout))
