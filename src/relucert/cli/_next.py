"""The last line of a verb: a command that makes sense now, to be pasted into a shell as it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from relucert.data.specs import SPECS
from relucert.evaluation.config import JudgedConfig, PointsConfig, records_beside
from relucert.experiments.paper.config import ReproduceConfig

if TYPE_CHECKING:
    from relucert.reports.paper.measured import MeasuredNetwork

#: Networks of a report that are compared at a glance.
MOST = 4


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


def next_check(folder: Path, network: Path, *, checked: bool, rational: bool) -> str:
    """After a check: rational numbers where they are worth it, else the points; what answers mean where one is not proved."""
    records = records_beside(network)
    if checked and rational:
        return next_line("check", folder, "--network", network, "--exact")
    if checked and records.exists():
        return next_line("show", records, "--verdict", "robust")
    return next_line("help", "check")


def next_fetch(names: Iterable[str], folder: Path | None) -> str:
    """Training on the first data set that is there; its description, if it is where training does not look."""
    name = next(iter(names), None)
    where = [] if folder is None else ["--folder", folder]
    if name is None:
        return next_line("data", "list", *where)
    if where:
        return next_line("data", "info", name, *where)
    return next_line("train", "--data", name, "--scheme", "mmr", "--epochs", 5)


def next_reproduce(config: ReproduceConfig, **changes: object) -> str:
    """The same experiment with other flags."""
    changed, flags = replace(config, **changes), list[object]()  # type: ignore[arg-type]
    for field in fields(ReproduceConfig):
        value = getattr(changed, field.name)
        if field.name == "name" or value == field.default:
            continue
        flags.append(f"--{field.name}")
        flags += value if isinstance(value, tuple) else [] if value is True else [value]
    return next_line("reproduce", config.name, *flags)


def next_comparison(networks: Sequence[MeasuredNetwork]) -> str:
    """One report about networks of the paper, at most `MOST`, from their records."""
    some = [network for network in networks if network.records.exists()][:MOST]
    records, sources = [network.records for network in some], [network.source for network in some]
    return next_line("report", *records, "--networks", *sources, "-o", "report.html")


def next_line(verb: str, *words: object) -> str:
    """A command as a line.

    >>> next_line("report", "my photos.jsonl", "-o", "report.html")
    "next: relucert report 'my photos.jsonl' -o report.html"
    """
    return f"next: {shlex.join(_texts(['relucert', verb, *words]))}"


def _texts(words: Iterable[object]) -> list[str]:
    return [str(word) for word in words]
