"""The demo: train plainly, adversarially and with MMR on the embedded digits, and compare errors and proofs.

Run it with `make demo`, or `python -m relucert.experiments.demo [FOLDER]`.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import torch

from relucert.evaluation.certify import verdicts
from relucert.evaluation.config import CertifyConfig, EvaluateConfig
from relucert.evaluation.evaluate import evaluate
from relucert.reports.demo import DemoRow, table
from relucert.training.config import TrainConfig
from relucert.training.loop import train
from relucert.training.progress import Terminal

EPOCHS = 30


def runs(folder: Path) -> list[TrainConfig]:
    """Plain training, and adversarial training, MMR and both together in l_inf and l2."""
    settings = [("plain", math.inf), *((scheme, p) for p in (math.inf, 2.0) for scheme in ("at", "mmr", "mmr+at"))]
    return [
        TrainConfig(
            data="digits", model="fc1", scheme=scheme, p=p, epochs=EPOCHS, batch=64, evaluate_every=EPOCHS // 3,
            out=folder / f"{scheme}-{p:g}",
        )
        for scheme, p in settings
    ]  # fmt: skip


def demo(folder: Path) -> None:
    """Train, evaluate in both norms and print the table."""
    from rich.console import Console

    torch.set_num_threads(1)  # a step on 8 x 8 pixels is over before a second thread has woken up
    console, started = Console(), time.perf_counter()
    rows = []
    for config in runs(folder):
        train(config, Terminal())
        found = [
            evaluate(
                EvaluateConfig(
                    model=config.folder, data=config.data, p=p, points=None, attack="pgd(restarts=3)", regions=False
                )
            )
            for p in (math.inf, 2.0)
        ]
        name = "plain" if config.scheme == "plain" else f"{config.scheme} l_{config.p:g}"
        shares = []
        for one in found:
            proved = verdicts(
                CertifyConfig(model=config.folder, data=config.data, p=one.p, points=None, method="crown")
            )
            shares.append((one.robust_error[0], 1 - proved.robust_error[1]))
        last = config.scheme in ("plain", "mmr+at")
        rows.append(DemoRow(name=name, test_error=found[0].test_error, shares=tuple(shares), last=last))
    console.print(table(("l_inf 0.1", "l_2 0.3"), rows))
    console.print(
        f"PGD error: misclassified, or broken by PGD (40 steps, 3 restarts) within the radius. Proved: correct, and proved "
        f"by linear bounds (CROWN) that no image within the radius changes that. {folder}/ has the networks and a record of "
        f"every point. {time.perf_counter() - started:.0f} s.",
        highlight=False,
    )


if __name__ == "__main__":
    demo(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
