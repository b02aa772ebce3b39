"""`relucert attack MODEL --data NAME`: points that change the decision, within a radius or as near as possible."""

from __future__ import annotations

import json as json_format
import math
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from relucert.evaluation.config import AttackConfig


@dataclass(frozen=True, kw_only=True)
class Attack(AttackConfig):
    """Attack a network on a data set's test points: within a radius (--eps), or for the smallest perturbations."""

    model: tyro.conf.Positional[Path]
    """A run's folder, a .safetensors checkpoint or the authors' .mat file."""
    json: bool = False
    """Print one line of JSON for every point and one for the summary, instead of a table."""


CONFIG = Attack


def run(config: Attack) -> int:
    """Attack with a progress bar, and print the table and the summary."""
    from rich.console import Console
    from rich.table import Table

    from relucert.cli._bar import followed
    from relucert.evaluation.attack import Attacked, AttackTask

    plain = AttackConfig(**{field.name: getattr(config, field.name) for field in fields(AttackConfig)})
    task = AttackTask(plain)
    found = Attacked.of(list(followed(task.records(), len(task), "attacking", hidden=config.json)))
    if config.json:
        for record in found.records:
            line = {"index": record.index, "label": record.label, "prediction": record.prediction}
            facts = {"verdict": str(record.verdict), "distance": record.upper, "seconds": record.seconds}
            print(json_format.dumps(line | facts))
        summary = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in found.summary().items()
        }
        print(json_format.dumps({"summary": summary}))
        return 0
    norm = "l_inf" if math.isinf(plain.norm) else f"l_{plain.norm:g}"
    within = "" if plain.eps is None else f" {plain.eps:.4g}"
    table = Table(title=f"{plain.model} on {plain.data}, {norm}{within}, {plain.attack}", title_justify="left")
    for heading in ("point", "label", "predicted", "verdict", "distance", "ms"):
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    for record in found.records:
        distance = "" if record.upper is None else f"{record.upper:.5f}"
        table.add_row(
            str(record.index), str(record.label), str(record.prediction), str(record.verdict), distance,
            f"{1000 * (record.seconds or 0):.1f}",
        )  # fmt: skip
    Console().print(table)
    ends = found.robust_error
    error = "" if ends is None else f"robust error {ends[0]:.2%} to {ends[1]:.2%}, "
    print(
        f"{found.falsified} of {found.points - found.misclassified} correctly classified points falsified "
        f"({found.misclassified} misclassified), {error}mean distance {found.mean_distance:.5f}, median "
        f"{found.median_distance:.5f}, {found.seconds:.1f} s"
    )
    print(f"records: {plain.records}")
    return 0
