"""`relucert report RUN_OR_RECORDS... -o report.html`: one page with tables, curves and every test point."""

from __future__ import annotations

import json as json_format
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from relucert.reports.config import ReportConfig


@dataclass(frozen=True, kw_only=True)
class Report(ReportConfig):
    """Write one HTML page about records: how much is proved, by what, and every test point."""

    sources: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders or .jsonl files of records: one network, or several to compare."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """The file to write."""
    json: bool = False
    """Print JSON instead of text."""


CONFIG = Report
COMMON = ("out", "title", "eps")
EXAMPLES = ("relucert report runs/plain runs/mmr -o report.html",)


def run(config: Report) -> int:
    """Write the page, and say what is in it and where it is."""
    from relucert.cli._points import error_text
    from relucert.cli._text import say
    from relucert.experiments.report import report
    from relucert.reports.intervals import summary

    found = report(config)
    size = config.out.stat().st_size
    if config.json:
        rows = [
            {"name": one.name, "data": one.data, "p": "inf" if math.isinf(one.p) else one.p, "eps": one.eps}
            | {name: value if math.isfinite(value) else None for name, value in asdict(summary(one)).items()}
            for one in found
        ]
        print(json_format.dumps({"out": str(config.out), "bytes": size, "models": rows}))
        return 0
    for one in found:
        figures = summary(one)
        say(
            f"{one.name} on {one.data}, l_{one.p:g} {one.eps:g}: test error {figures.test_error:.2%}, robust error "
            f"{error_text((figures.least_error, figures.most_error))} of {figures.points} points"
        )
    print(f"report: {config.out} ({size / 1e6:.1f} MB)")
    print(f"next: open {config.out.resolve().as_uri()} in a browser")
    return 0
