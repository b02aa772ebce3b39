"""`relucert certify MODEL --data NAME`: which decisions are proved to stay the same within a radius."""

from __future__ import annotations

import json as json_format
import math
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from relucert.evaluation.config import CertifyConfig
from relucert.records.record import Record


@dataclass(frozen=True, kw_only=True)
class Certify(CertifyConfig):
    """Prove for a data set's test points that a network's decision stays the same within a radius."""

    model: tyro.conf.Positional[Path]
    """A run's folder, a .safetensors checkpoint or the authors' .mat file."""
    json: bool = False
    """Print one line of JSON for every point and one for the summary, instead of a table."""


CONFIG = Certify


def run(config: Certify) -> int:
    """Certify with a progress bar, and print the table and the summary."""
    from rich.console import Console
    from rich.table import Table

    from relucert.cli._bar import followed
    from relucert.evaluation.certify import CertifyTask, Verdicts, decider

    plain = CertifyConfig(**{field.name: getattr(config, field.name) for field in fields(CertifyConfig)})
    stages: Counter[str] = Counter()

    def word(record: Record) -> str:
        stages[decider(record)] += 1
        return ", ".join(f"{count} {stage}" for stage, count in stages.items())

    task = CertifyTask(plain)
    records = followed(task.records(), len(task), "certifying", hidden=config.json, word=word)
    found = Verdicts.of(records, len(task))
    if config.json:
        for record in found.records:
            margin = record.margin if record.margin is None or math.isfinite(record.margin) else str(record.margin)
            line = {"index": record.index, "label": record.label, "prediction": record.prediction}
            print(
                json_format.dumps(
                    line
                    | {"verdict": str(record.verdict), "margin": margin, "by": record.by, "seconds": record.seconds}
                    | {"reason": record.reason, "claim": record.claim}
                )
            )
        print(json_format.dumps({"summary": found.summary()}))
        return 0
    norm = "l_inf" if math.isinf(plain.p) else f"l_{plain.p:g}"
    table = Table(
        title=f"{plain.model} on {plain.data}, {norm} {plain.radius:.4g}, {plain.method}", title_justify="left"
    )
    for heading in ("point", "label", "predicted", "verdict", "by", "margin", "ms"):
        table.add_column(heading, justify="left" if heading in ("verdict", "by") else "right")
    for record in found.records:
        table.add_row(
            str(record.index), str(record.label), str(record.prediction), str(record.verdict), decider(record),
            f"{record.margin:.4f}", f"{1000 * (record.seconds or 0):.1f}",
        )  # fmt: skip
    Console().print(table)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items() if count)
    if len(found.records) < found.points:
        counts += f", {found.points - len(found.records)} not reached in {plain.run_timeout:g} s"
    print(
        f"robust error {found.broken_error:.2%} to {found.robust_error:.2%} of {found.points} points ({counts}), "
        f"{found.seconds:.1f} s"
    )
    print("decided by: " + ", ".join(f"{stage} {count / found.points:.1%}" for stage, count in found.by.items()))
    print(f"records: {plain.records}")
    return 0
