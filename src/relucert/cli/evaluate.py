"""`relucert evaluate MODEL --data NAME`: test error, robust error under an attack, and the region theorem."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from relucert.evaluation.config import EvaluateConfig


@dataclass(frozen=True, kw_only=True)
class Evaluate(EvaluateConfig):
    """Test error, PGD robust error and the region theorem's figures of a network on a data set."""

    model: tyro.conf.Positional[Path]
    """A run's folder, a .safetensors checkpoint or the authors' .mat file."""
    json: bool = False
    """Print JSON instead of a table."""


CONFIG = Evaluate


def run(config: Evaluate) -> int:
    """Evaluate with a progress bar, and print a table."""
    from rich.console import Console
    from rich.table import Table

    from relucert.cli._bar import followed
    from relucert.evaluation.evaluate import EvaluateTask

    plain = EvaluateConfig(**{field.name: getattr(config, field.name) for field in fields(EvaluateConfig)})
    task = EvaluateTask(plain)
    result = task.evaluation(list(followed(task.records(), len(task), "attacking", hidden=config.json)))
    if config.json:
        print(json_format.dumps(result.to_json() | {"records": str(plain.records)}))
        return 0
    table = Table(title=f"{plain.model} on {plain.data}", title_justify="left")
    for heading in ("test error", "robust error", "points", "norm", "eps", "attack", "seconds"):
        table.add_column(heading, justify="right" if heading not in ("attack",) else "left")
    norm = "l_inf" if result.p == float("inf") else f"l_{result.p:g}"
    table.add_row(
        f"{result.test_error:.2%}", f"{result.robust_error[0]:.2%} to {result.robust_error[1]:.2%}", str(result.points), norm,
        f"{result.eps:.4g}", result.attack, f"{result.seconds:.1f}",
    )  # fmt: skip
    Console().print(table)
    if result.regions is not None:
        found = result.regions
        print(
            f"region theorem: mean d_B {found.mean_d_b:.4g}, mean d_D {found.mean_d_d:.4g}; certified at {result.eps:.4g}: "
            f"{found.certified:.2%} of the points; exact distance on {found.exact:.2%}"
        )
    print(f"records: {plain.records}")
    return 0
