"""`Verdict`: the four possible answers about one example."""

from __future__ import annotations

from enum import StrEnum

from relucert.core.errors import InvalidInput


class Verdict(StrEnum):
    """ROBUST is proved, VULNERABLE has a counterexample, MISCLASSIFIED is wrong at the input itself; all else is UNKNOWN.

    This module does not import torch, because records and reports use it too.
    """

    ROBUST = "robust"
    VULNERABLE = "vulnerable"
    UNKNOWN = "unknown"
    MISCLASSIFIED = "misclassified"

    @classmethod
    def _missing_(cls, value: object) -> Verdict:
        raise InvalidInput(f"verdict must be one of {', '.join(cls)}, got {value!r}")
