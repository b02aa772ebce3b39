"""The last line of a verb: a command that makes sense now, to be pasted into a shell as it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from relucert.data.specs import SPECS
from relucert.evaluation.config import JudgedConfig, PointsConfig


def next_report(config: PointsConfig) -> str:
    """The report about the records of a verb: where they do not say it themselves, with their data and their network."""
    own = [] if config.data in SPECS else ["--data", config.data]
    found = config.records == replace(config, out=None).records
    network = [] if found else ["--networks", config.model]
    return next_line("report", config.records, *own, *network, "-o", "report.html")


def next_open(records: Path) -> str:
    """The points that are undecided."""
    return next_line("show", records, "--verdict", "unknown")


def next_proofs(config: JudgedConfig) -> str:
    """Proofs for the points, the network and the radius of an evaluation."""
    flags: list[object] = ["--data", config.data, "--p", f"{config.norm:g}", "--eps", repr(config.radius)]
    for name, values in (("--input-shape", config.input_shape), ("--mean", config.mean), ("--std", config.std)):
        flags += [] if values is None else [name, *values]
    if config.device != "cpu":
        flags += ["--device", config.device]
    if config.out is not None:
        flags += ["--out", config.out]
    return next_line("certify", config.model, *flags)


def next_line(verb: str, *words: object) -> str:
    """A command as a line.

    >>> next_line("report", "my photos.jsonl", "-o", "report.html")
    "next: relucert report 'my photos.jsonl' -o report.html"
    """
    return f"next: {shlex.join(_texts(['relucert', verb, *words]))}"


def _texts(words: Iterable[object]) -> list[str]:
    return [str(word) for word in words]
