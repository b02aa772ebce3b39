"""`relucert certify MODEL --data NAME`: which decisions are proved to stay the same within a radius."""

from __future__ import annotations

import json as json_format
import math
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from relucert.evaluation.config import CertifyConfig


@dataclass(frozen=True, kw_only=True)
class Certify(CertifyConfig):
    """Prove for a data set's test points that a network's decision stays the same within a radius."""

    model: tyro.conf.Positional[Path]
    """A run's folder, or a file: .safetensors, .onnx or the authors' .mat."""
    show: int = 0
    """Print the first N points as a table. `relucert show` shows others later."""
    json: bool = False
    """Print JSON: a line for every point and one for the summary."""


CONFIG = Certify
COMMON = ("data", "p", "eps", "points", "method", "timeout", "workers", "show")
EXAMPLES = ("relucert certify runs/mnist-fc1-mmr-inf --method crown --points 200",)


def run(config: Certify) -> int:
    """Certify with a progress bar, and print the summary, and points on request."""
    from relucert.cli._bar import followed, verdict_counts
    from relucert.cli._next import next_open, next_report
    from relucert.cli._points import error_text, line, print_points, print_table, verdicts_table
    from relucert.cli._text import say
    from relucert.evaluation.certify import CertifyTask, Verdicts
    from relucert.evaluation.union import UnionTask

    plain = CertifyConfig(**{field.name: getattr(config, field.name) for field in fields(CertifyConfig)})
    task = CertifyTask(plain) if plain.union is None else UnionTask(plain)
    records = followed(task.records(), len(task), "certifying", hidden=config.json, word=verdict_counts())
    found = Verdicts.of(records, len(task))
    proofs = {} if plain.proofs is None or isinstance(task, UnionTask) else task.prove(found.records, plain.proofs)
    if config.json:
        for record in found.records:
            print(json_format.dumps(line(record)))
        print(json_format.dumps({"summary": found.summary() | {"records": str(plain.records)}}))
        return 0
    wanted = ", as executed" if plain.arithmetic == "executed" else ""
    balls = " and ".join(f"{'l_inf' if math.isinf(p) else f'l_{p:g}'} {eps:.4g}" for p, eps in plain.balls)
    say(f"{plain.model} on {plain.data}, {balls}, {plain.method}{wanted}: {len(task)} points, {found.seconds:.1f} s")
    print_table(verdicts_table(found.records, found.points))
    if len(found.records) < found.points:
        print(f"{found.points - len(found.records)} points were not reached in {plain.run_timeout:g} s")
    if robust := found.counts["robust"]:
        say(
            f"{found.executed} of {robust} proofs also cover the network as it runs, with the rounding of its arithmetic"
        )
    say(f"robust error {error_text(found.robust_error)}: misclassified, or not proved")
    print_points(found.records, config.show)
    print(f"records: {plain.records}")
    if plain.proofs is not None:
        said = {"none": "without a certificate"}
        written = ", ".join(f"{count} {said.get(kind, kind)}" for kind, count in proofs.items())
        print(f"certificates: {plain.proofs} ({written or 'none'})")
    if any(record.reason == "time" for record in found.records):
        print("a longer --timeout may decide more points")
    print(next_open(plain.records) if found.counts["unknown"] else next_report(plain))
    return 0
