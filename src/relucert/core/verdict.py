"""`Verdict`: what a method says about one example."""

from __future__ import annotations

from enum import StrEnum

from relucert.core.errors import InvalidInput


class Verdict(StrEnum):
    """ROBUST is proved, VULNERABLE comes with a counterexample, MISCLASSIFIED is wrong at the input itself; else UNKNOWN.

    Results, records and reports share it, so it needs no torch.
    """

    ROBUST = "robust"
    VULNERABLE = "vulnerable"
    UNKNOWN = "unknown"
    MISCLASSIFIED = "misclassified"

    @classmethod
    def _missing_(cls, value: object) -> Verdict:
        raise InvalidInput(f"verdict must be one of {', '.join(cls)}, got {value!r}")
