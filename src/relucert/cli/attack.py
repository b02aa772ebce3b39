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
    """Find adversarial examples of test points: within a radius (--eps), or as near as possible."""

    model: tyro.conf.Positional[Path]
    """A run's folder, or a file: .safetensors, .onnx or the authors' .mat."""
    show: int = 0
    """Print the first N points as a table. `relucert show` shows others later."""
    json: bool = False
    """Print JSON: a line for every point and one for the summary."""


CONFIG = Attack
COMMON = ("data", "p", "eps", "points", "method", "show")
EXAMPLES = ("relucert attack runs/mnist-fc1-mmr-2 --p 2 --points 100",)


def run(config: Attack) -> int:
    """Attack with a progress bar, and print the summary, and points on request."""
    from relucert.cli._bar import followed, verdict_counts
    from relucert.cli._next import next_report
    from relucert.cli._points import error_text, line, print_points, print_table, verdicts_table
    from relucert.cli._text import say
    from relucert.evaluation.attack import Attacked, AttackTask

    plain = AttackConfig(**{field.name: getattr(config, field.name) for field in fields(AttackConfig)})
    task = AttackTask(plain)
    records = followed(task.records(), len(task), "attacking", hidden=config.json, word=verdict_counts())
    found = Attacked.of(list(records))
    if config.json:
        for record in found.records:
            print(json_format.dumps(line(record) | {"distance": record.upper}))
        summary = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in found.summary().items()
        }
        print(json_format.dumps({"summary": summary | {"records": str(plain.records)}}))
        return 0
    norm = "l_inf" if math.isinf(plain.norm) else f"l_{plain.norm:g}"
    within = ", nearest examples" if plain.eps is None else f" {plain.eps:.4g}"
    say(f"{plain.model} on {plain.data}, {norm}{within}, {plain.attack}: {len(task)} points, {found.seconds:.1f} s")
    print_table(verdicts_table(found.records, found.points))
    distances = f"; distance of the examples: mean {found.mean_distance:.5f}, median {found.median_distance:.5f}"
    right = found.points - found.misclassified
    say(f"{found.falsified} of {right} correctly classified points falsified{distances if found.falsified else ''}")
    if found.robust_error is not None:
        ends = error_text(found.robust_error)
        say(f"robust error {ends}: an attack proves nothing about the points it leaves")
    print_points(found.records, config.show)
    print(f"records: {plain.records}")
    print(next_report(plain))
    return 0
