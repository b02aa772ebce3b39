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
    """A run's folder, or a file: .safetensors, .onnx or the authors' .mat."""
    json: bool = False
    """Print JSON instead of text."""


CONFIG = Evaluate
COMMON = ("data", "p", "eps", "points", "attack")
EXAMPLES = ('relucert evaluate runs/mnist-fc1-mmr-inf --attack "pgd(steps=40, restarts=10)"',)


def run(config: Evaluate) -> int:
    """Evaluate with a progress bar, and print a table."""
    from relucert.cli._bar import followed
    from relucert.cli._next import next_proofs
    from relucert.cli._points import error_text
    from relucert.cli._text import say
    from relucert.evaluation.evaluate import EvaluateTask

    plain = EvaluateConfig(**{field.name: getattr(config, field.name) for field in fields(EvaluateConfig)})
    task = EvaluateTask(plain)
    result = task.evaluation(list(followed(task.records(), len(task), "attacking", hidden=config.json)))
    if config.json:
        print(json_format.dumps(result.to_json() | {"records": str(plain.records)}))
        return 0
    norm = "l_inf" if result.p == float("inf") else f"l_{result.p:g}"
    say(f"{plain.model} on {plain.data}, {norm} {result.eps:.4g}, {result.attack}, {result.seconds:.1f} s")
    say(f"test error {result.test_error:.2%} of the whole test set")
    proved = (
        "the attack alone proves nothing"
        if result.regions is None
        else "at most what the region theorem does not prove"
    )
    say(
        f"robust error {error_text(result.robust_error)} of the first {result.points} points: at least what is misclassified "
        f"or falsified, {proved}"
    )
    if result.regions is not None:
        found = result.regions
        say(
            f"linear regions: mean distance to the boundary of the region (d_B) {found.mean_d_b:.4g}, to the decision "
            f"hyperplanes (d_D) {found.mean_d_d:.4g}; exact distance to the nearest change of decision on {found.exact:.2%}"
        )
    print(f"records: {plain.records}")
    print(next_proofs(plain))
    return 0
