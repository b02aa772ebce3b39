"""The errors that relucert raises; each one is also a subclass of the matching built-in error."""

from __future__ import annotations

from typing import Generic, TypeVar

Result = TypeVar("Result")
#: Characters of the message of `DamagedData`, without path and remedy.
LONGEST_MESSAGE = 1000


class RelucertError(Exception):
    """The base of all errors of relucert; the command line prints one as a single line and exits with code 2."""


class InvalidInput(RelucertError, ValueError):
    """A parameter breaks its rule; the message names the parameter, the rule and the value."""


class UnsupportedLayer(RelucertError, TypeError):
    """A module contains a layer that is not piecewise affine, or not one of the supported kinds."""


class WrongMode(RelucertError, RuntimeError):
    """The network is in train mode, but the function is only defined for eval mode."""


class ReducedPrecision(RelucertError, RuntimeError):
    """A setting of torch computes with shorter numbers than those of the network's dtype, which proofs do not cover."""


class MissingData(RelucertError, FileNotFoundError):
    """A data set is not in the data folder and cannot be downloaded; the message says what to do."""


class DamagedData(RelucertError, ValueError):
    """The contents of a file or a download are not what they must be: the one error for all files that lie.

    `path` is the file, `entry` what in the file is wrong (a line, an array, a byte; "" for all of it), `remedy` what the user
    can do; the message has all three.

    >>> str(DamagedData("the sha256 does not fit", path="a.arrays", entry="byte 120", remedy="restore it from a copy"))
    'a.arrays: byte 120: the sha256 does not fit; restore it from a copy'
    """

    def __init__(self, message: str, *, path: object = None, entry: str = "", remedy: str = "") -> None:
        if len(message) > LONGEST_MESSAGE:  # it may quote the file
            message = f"{message[:LONGEST_MESSAGE]}..."
        parts = [str(part) for part in (path, entry) if part not in (None, "") and str(part) not in message]
        text = ": ".join([*parts, message])
        super().__init__(text if not remedy or remedy in text else f"{text}; {remedy}")
        self.path, self.entry, self.remedy = None if path is None else str(path), entry, remedy


class CheckpointError(DamagedData):
    """A file does not hold a network that can be loaded: it is no checkpoint, or it is damaged."""


class RecordConflict(RelucertError, ValueError):
    """Two records have the same key but different contents."""


class RunError(RelucertError, RuntimeError):
    """A training run cannot start or continue: its folder is in use or holds another run, or the loss is not finite."""


class Diverged(RunError):
    """The loss of a training run is not finite."""


class ClusterError(RelucertError, ConnectionError):
    """The scheduler of a cluster cannot be reached, or its workers are gone or cannot do the work."""


class Lost(RunError):
    """The worker that had a call, or the scheduler that knew of it, is gone: the call can be made again."""


class Contradiction(RelucertError, ArithmeticError):
    """A proved bound and a witness contradict each other: a bug in relucert, reported instead of an answer."""


class FileAccessError(RelucertError, OSError):
    """A file or folder cannot be read or written."""


class FileInUse(FileAccessError):
    """A file has another writer."""


class MissingExtra(RelucertError, ImportError):
    """A package that only an extra installs is missing; the message names the extra."""


class OutOfTime(BaseException):
    """The deadline of a computation has passed (`networks/traversal.py`): for verifiers, whose answer is UNKNOWN.

    Like an interruption it is no `Exception`: code that turns any error of torch into one of its own must not take it for one.
    """


class Interrupted(KeyboardInterrupt, Generic[Result]):
    """A call was interrupted (Ctrl-C); `result` is its answer with what was decided by then.

    It is a `KeyboardInterrupt` and no error: code that does not know it is interrupted as always.

    >>> try:
    ...     raise Interrupted("2 of 5 inputs are decided", [1, 2])
    ... except KeyboardInterrupt as stopped:
    ...     print(stopped, stopped.result)
    2 of 5 inputs are decided [1, 2]
    """

    def __init__(self, message: str, result: Result):
        super().__init__(message)
        self.result = result
