"""`relucert certify MODEL --data NAME`: which decisions are proved to stay the same within a radius."""

from __future__ import annotations

import json as json_format
import math
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from relucert.evaluation.config import CertifyConfig
from relucert.records.record import Record, Verdict


@dataclass(frozen=True, kw_only=True)
class Certify(CertifyConfig):
    """Prove for a data set's test points that a network's decision stays the same within a radius."""

    model: tyro.conf.Positional[Path]
    """A run's folder, a .safetensors checkpoint or the authors' .mat file."""
    json: bool = False
    """Print one line of JSON for every point and one for the summary, instead of a table."""


CONFIG = Certify
#: Columns of text of the table in a file or a pipe, which have no width of their own.
WIDTH = 120


def run(config: Certify) -> int:
    """Certify with a progress bar, and print the table and the summary."""
    from rich.console import Console
    from rich.table import Table

    from relucert.cli._bar import followed
    from relucert.evaluation.certify import CertifyTask, Verdicts, decider, method_name, why
    from relucert.evaluation.union import UnionTask

    plain = CertifyConfig(**{field.name: getattr(config, field.name) for field in fields(CertifyConfig)})
    stages: Counter[str] = Counter()

    def word(record: Record) -> str:
        stages[decider(record)] += 1
        return ", ".join(f"{count} {stage}" for stage, count in stages.items())

    task = CertifyTask(plain) if plain.union is None else UnionTask(plain)
    records = followed(task.records(), len(task), "certifying", hidden=config.json, word=word)
    found = Verdicts.of(records, len(task))
    proofs = {} if plain.proofs is None or isinstance(task, UnionTask) else task.prove(found.records, plain.proofs)
    if config.json:
        for record in found.records:
            line = {
                "index": record.index,
                "label": record.label,
                "prediction": record.prediction,
                "verdict": str(record.verdict),
                "ball": {"p": record.ball["p"], "eps": record.ball["eps"]},
                "arithmetic": record.arithmetic,
                "margin": _plain(record.margin),
                "executed": _plain(record.executed),
                "rounding": _plain(record.rounding),
                "by": record.by,
                "seconds": record.seconds,
                "reason": record.reason,
                "claim": record.claim,
            }
            print(json_format.dumps(line))
        print(json_format.dumps({"summary": found.summary()}))
        return 0
    wanted = ", as executed" if plain.arithmetic == "executed" else ""
    balls = " and ".join(_ball(p, eps) for p, eps in plain.balls)
    print(f"{plain.model} on {plain.data}, {balls}, {plain.method}{wanted}")
    table = Table()
    several = ("ball",) if len(plain.balls) > 1 else ()
    left = ("verdict", "ball", "proof", "by")
    headings = ("point", "label", "predicted", "verdict", *several, "proof", "by", "bound", "rounding", "margin", "ms")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    for record in found.records:
        table.add_row(
            str(record.index), str(record.label), str(record.prediction), str(record.verdict),
            *((_ball(float(record.ball["p"]), float(record.ball["eps"])),) if several else ()),
            _proof(record, why(record)), method_name(record), *_bound(record), f"{1000 * (record.seconds or 0):.1f}",
        )  # fmt: skip
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    proved = {"robust": f", {found.executed} of them as executed"}
    counts = ", ".join(
        f"{count} {verdict}{proved.get(verdict, '')}" for verdict, count in found.counts.items() if count
    )
    if len(found.records) < found.points:
        counts += f", {found.points - len(found.records)} not reached in {plain.run_timeout:g} s"
    print(
        f"robust error {found.robust_error[0]:.2%} to {found.robust_error[1]:.2%} of {found.points} points ({counts}), "
        f"{found.seconds:.1f} s"
    )
    print("decided by: " + ", ".join(f"{stage} {count / found.points:.1%}" for stage, count in found.by.items()))
    print(f"records: {plain.records}")
    if plain.proofs is not None:
        said = {"none": "without a certificate"}
        written = ", ".join(f"{count} {said.get(kind, kind)}" for kind, count in proofs.items())
        print(f"certificates: {plain.proofs} ({written or 'none'})")
    return 0


def _ball(p: float, eps: float) -> str:
    return f"{'l_inf' if math.isinf(p) else f'l_{p:g}'} {eps:.4g}"


def _proof(record: Record, why: str) -> str:
    """What the proof covers; for undecided points why there is none."""
    if record.verdict != Verdict.UNKNOWN:
        return record.arithmetic or ""
    if record.claim:
        return f"claim of {record.claim}"
    return f"no: {why}" if why else "no"


def _bound(record: Record) -> tuple[str, str, str]:
    """The bound before rounding was charged, the charge, and the margin that is left; "" where it is not known."""
    margin, charge = record.margin, record.rounding
    if margin is None or charge is None:
        return "", "", "" if margin is None else f"{margin:.4f}"
    return f"{margin + charge:.4f}", f"{charge:.1e}", f"{margin:.4f}"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
