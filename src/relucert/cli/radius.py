"""`relucert radius MODEL --data NAME`: an interval around the distance to the nearest change of decision, for every point."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from relucert.evaluation.config import RadiusConfig


@dataclass(frozen=True, kw_only=True)
class Radius(RadiusConfig):
    """For every test point an interval around the distance to the nearest change of decision: proved, and witnessed."""

    model: tyro.conf.Positional[Path]
    """A run's folder, or a file: .safetensors, .onnx or the authors' .mat."""
    show: int = 0
    """Print the first N points as a table. `relucert show` shows others later."""
    json: bool = False
    """Print JSON: a line for every point and one for the summary."""


CONFIG = Radius
COMMON = ("data", "p", "points", "method", "timeout", "show")
EXAMPLES = ("relucert radius runs/mnist-fc1-mmr-2 --p 2 --points 100 --timeout 2",)


def run(config: Radius) -> int:
    """Find the radii with a progress bar, and print the summary, and points on request."""
    from relucert.cli._bar import followed
    from relucert.cli._next import next_report
    from relucert.cli._points import line, plain, print_points
    from relucert.cli._text import say
    from relucert.evaluation.radius import Radii, RadiusTask

    radii = RadiusConfig(**{field.name: getattr(config, field.name) for field in fields(RadiusConfig)})
    task = RadiusTask(radii)
    records = followed(task.records(in_order=False), len(task), "radii", hidden=config.json)
    found = Radii.of(list(records), task.net.dtype)
    if config.json:
        for record, exact in zip(found.records, found.exact, strict=True):
            print(json_format.dumps(line(record) | {"exact": exact}))
        summary = {name: plain(value) for name, value in found.summary().items()}
        print(json_format.dumps({"summary": summary | {"records": str(radii.records)}}))
        return 0
    right = len(found.records) - found.misclassified
    say(
        f"{radii.model} on {radii.data}, l_{radii.norm:g}, {radii.method}: {len(task)} points, {found.misclassified} of them "
        f"misclassified, {found.seconds:.1f} s"
    )
    if right == 0:
        say("no point is correctly classified, so none has a radius")
    else:
        reached = right - found.without_witness
        nearest = f"mean upper {found.mean_upper:.5f}: distance of the nearest adversarial example found"
        say(f"mean lower {found.mean_lower:.5f}: no change of the decision is nearer (proved)")
        say(f"{nearest}, on {reached} points" if reached else "no adversarial example was found")
        say(f"both ends meet (exact) on {found.share_exact:.1%} of the {right} correctly classified points")
    print_points(found.records, config.show)
    print(f"records: {radii.records}")
    print(next_report(radii))
    return 0
