"""`relucert radius MODEL --data NAME`: an interval around the distance to the nearest change of decision, for every point."""

from __future__ import annotations

import json as json_format
import math
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from relucert.evaluation.config import RadiusConfig


@dataclass(frozen=True, kw_only=True)
class Radius(RadiusConfig):
    """Proved radii of a network's decisions on a data set's test points."""

    model: tyro.conf.Positional[Path]
    """A run's folder, a .safetensors checkpoint or the authors' .mat file."""
    json: bool = False
    """Print one line of JSON for every point and one for the summary, instead of a table."""


CONFIG = Radius


def run(config: Radius) -> int:
    """Find the radii with a progress bar, and print the table and the summary."""
    from rich.console import Console
    from rich.table import Table

    from relucert.cli._bar import followed
    from relucert.evaluation.radius import Radii, RadiusTask

    plain = RadiusConfig(**{field.name: getattr(config, field.name) for field in fields(RadiusConfig)})
    task = RadiusTask(plain)
    found = Radii.of(list(followed(task.records(), len(task), "radii", hidden=config.json)), task.net.dtype)
    if config.json:
        for record, exact in zip(found.records, found.exact, strict=True):
            line = {"index": record.index, "label": record.label, "prediction": record.prediction, "exact": exact}
            ends = {"lower": _plain(record.lower), "upper": _plain(record.upper), "seconds": record.seconds}
            print(json_format.dumps(line | ends | {"arithmetic": record.arithmetic}))
        print(json_format.dumps({"summary": {k: _plain(v) for k, v in found.summary().items()}}))
        return 0
    table = Table(title=f"{plain.model} on {plain.data}, l_{plain.norm:g}, {plain.method}", title_justify="left")
    for heading in ("point", "label", "predicted", "lower", "upper", "exact", "proof", "ms"):
        table.add_column(heading, justify="right")
    for record, exact in zip(found.records, found.exact, strict=True):
        table.add_row(
            str(record.index), str(record.label), str(record.prediction), f"{record.lower:.5f}", f"{record.upper:.5f}",
            "yes" if exact else "", record.arithmetic or "", f"{1000 * (record.seconds or 0):.1f}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    right = len(found.records) - found.misclassified
    print(
        f"mean lower {found.mean_lower:.5f}, mean upper {found.mean_upper:.5f} (of the {right - found.without_witness} points "
        f"with a witness), exact {found.share_exact:.1%} of {right} correctly classified points ({found.misclassified} "
        f"misclassified), {found.seconds:.1f} s"
    )
    print(f"records: {plain.records}")
    return 0


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
