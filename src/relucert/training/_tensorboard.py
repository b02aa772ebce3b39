"""The metrics of a run for TensorBoard (extra `tensorboard`), beside the JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relucert.core.errors import MissingExtra
from relucert.records.atomic import file_access

FOLDER = "tensorboard"
_NUMBERS = ("kind", "step", "epoch")


@contextmanager
def board(run: Path, before: list[dict[str, Any]]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a callback that writes a line of metrics as scalars `KIND/NAME` at its step.

    `before` are the metrics of the run so far: they are written anew where there is no folder yet, and what was written of
    later steps is hidden, so that a run which goes on has one curve.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard needs the extra tensorboard: pip install 'relucert[tensorboard]'") from error
    is_new = not (run / FOLDER).exists()
    done = max((line["step"] for line in before), default=0)
    with file_access(run / FOLDER):
        writer = SummaryWriter(str(run / FOLDER), purge_step=None if is_new else done + 1)

    def write(line: dict[str, Any]) -> None:
        with file_access(run / FOLDER):
            for name, value in line.items():
                if name not in _NUMBERS and isinstance(value, int | float):
                    writer.add_scalar(f"{line['kind']}/{name}", value, line["step"])
            writer.flush()

    try:
        for line in before if is_new else ():
            write(line)
        yield write
    finally:
        with file_access(run / FOLDER):
            writer.close()
