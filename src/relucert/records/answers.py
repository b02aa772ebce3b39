"""What a record says in a word: the method that decided, and why a point is undecided."""

from __future__ import annotations

import re

from relucert.core.verdict import CLOCK, Reason, Verdict
from relucert.records.record import Record


def method_of(record: Record) -> str:
    """The name of the method that decided a record, or was the last to try, without parameters.

    >>> from relucert.records.record import ball_fields
    >>> fields = dict(model="5f1e", data="digits", split="test", index=0, ball=ball_fields(2, 0.1))
    >>> method_of(Record(**fields, method="certify by alpha(steps=50) in 5 s"))
    'alpha'
    >>> method_of(Record(**fields, method="radius by region(regions=5) and fab(steps=20)"))
    'region'
    """
    text = record.by or re.sub(r"^(certify|radius|smallest) by ", "", record.method)
    return re.split(r"[(,]| as executed| in | and | to ", text.removeprefix(CLOCK))[0]


def why(record: Record) -> str:
    """Why a point is undecided, in a word of `Reason`; "" if no word says it."""
    if (record.by or record.method.removeprefix("certify by ")).startswith(CLOCK):
        return Reason.TIME
    return record.reason if record.reason and record.reason in list(Reason) else ""


def decider(record: Record) -> str:
    """The name of the method that decided, or in a word why the point is undecided."""
    if record.verdict != Verdict.UNKNOWN:
        return method_of(record)
    if record.claim:
        return f"robust on the word of {record.claim}"
    return f"undecided ({why(record) or method_of(record)})"
