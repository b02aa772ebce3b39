"""The errors that relucert raises; each one is also a subclass of the matching built-in error."""

from __future__ import annotations


class RelucertError(Exception):
    """The base of all errors of relucert; the command line prints one as a single line and exits with code 2."""


class InvalidInput(RelucertError, ValueError):
    """A parameter breaks its rule; the message names the parameter, the rule and the value."""


class UnsupportedLayer(RelucertError, TypeError):
    """A module contains a layer that is not piecewise affine, or not one of the supported kinds."""


class WrongMode(RelucertError, RuntimeError):
    """The network is in train mode, but the function is only defined for eval mode."""


class CheckpointError(RelucertError, ValueError):
    """A file is not a checkpoint, or is damaged."""


class MissingData(RelucertError, FileNotFoundError):
    """A data set is not in the data folder and cannot be downloaded; the message says what to do."""


class DamagedData(RelucertError, ValueError):
    """The contents of a data file or a download are not the expected ones."""


class RecordConflict(RelucertError, ValueError):
    """Two records have the same key but different contents."""


class RunError(RelucertError, RuntimeError):
    """A training run cannot start or continue: its folder is in use or holds another run, or the loss is not finite."""


class Contradiction(RelucertError, ArithmeticError):
    """A proved bound and a witness contradict each other: a bug in relucert, reported instead of an answer."""


class FileAccessError(RelucertError, OSError):
    """A file or folder cannot be read or written."""


class MissingExtra(RelucertError, ImportError):
    """A package that only an extra installs is missing; the message names the extra."""
