"""The errors of the library: each one is also the built-in error a caller would expect."""

from __future__ import annotations


class RelucertError(Exception):
    """Anything that relucert raises on purpose; the command line turns it into one line and exit code 2."""


class InvalidInput(RelucertError, ValueError):
    """A parameter breaks its rule; the message names the parameter, the rule and the value found."""


class UnsupportedLayer(RelucertError, TypeError):
    """A module holds something that is not piecewise affine, or not one of the supported kinds."""


class WrongMode(RelucertError, RuntimeError):
    """The network is in train mode where only its evaluation behaviour has a meaning."""


class CheckpointError(RelucertError, ValueError):
    """A file is not a checkpoint, or it is damaged."""


class MissingData(RelucertError, FileNotFoundError):
    """A data set is not in the data folder and could not be fetched; the message says what to do."""


class DamagedData(RelucertError, ValueError):
    """A data file or a download does not hold what it should."""


class RecordConflict(RelucertError, ValueError):
    """Two records have the same key and say different things."""


class RunError(RelucertError, RuntimeError):
    """A training run cannot start or go on: its folder is in use, holds another run, or its loss is not finite."""


class Contradiction(RelucertError, ArithmeticError):
    """A proof and a witness exclude each other: a fault of relucert, which is reported instead of an answer."""


class FileAccessError(RelucertError, OSError):
    """A file or folder cannot be read or written."""
