"""The demo: train plainly, adversarially and with MMR on the embedded digits, compare proofs, and write the report.

Run it with `make demo`, or `python -m relucert.experiments.demo [FOLDER]`.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import torch

from relucert.evaluation.certify import verdicts
from relucert.evaluation.config import CertifyConfig, EvaluateConfig, RadiusConfig
from relucert.evaluation.evaluate import evaluate
from relucert.evaluation.radius import radii
from relucert.experiments.report import report
from relucert.reports.config import ReportConfig
from relucert.reports.demo import LEGEND, DemoRow, sentence, table
from relucert.training.config import TrainConfig
from relucert.training.loop import train

EPOCHS = 30
REPORT = "report.html"
SLICES = 6


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
    """Train, evaluate in both norms, print the table and write the report."""
    from rich.console import Console

    torch.set_num_threads(1)  # a step on 8 x 8 pixels is over before a second thread has woken up
    console, started = Console(), time.perf_counter()
    configs, rows, images, eps = runs(folder), [], 0, 0.0
    for number, config in enumerate(configs, 1):
        name = "plain" if config.scheme == "plain" else f"{config.scheme} l_{config.p:g}"
        console.print(f"{number} of {len(configs)}: training and proving {name} ...", highlight=False)
        train(config)
        shares, wrong = [], 0.0
        for p in (math.inf, 2.0):
            about = {"model": config.folder, "data": config.data, "p": p, "points": None}
            attacked = evaluate(EvaluateConfig(**about, attack="pgd(restarts=3)", regions=False))
            proved = verdicts(CertifyConfig(**about, method="crown"))
            radii(RadiusConfig(**about, method="crown", attack="fab(steps=10, targets=1)"))
            shares.append((1 - attacked.robust_error[0], 1 - proved.robust_error[1]))
            wrong, images = attacked.test_error, attacked.points
            eps = attacked.eps if math.isinf(p) else eps
        last = config.scheme in ("plain", "mmr+at")
        rows.append(DemoRow(name=name, correct=1 - wrong, shares=tuple(shares), last=last))
    console.print(table(("l_inf 0.1", "l_2 0.3"), rows))
    out = folder / REPORT
    sources = tuple(config.folder for config in configs)
    report(ReportConfig(sources=sources, out=out, title="Digits: trained, attacked and proved", slices=SLICES))
    for text in (
        *LEGEND,
        sentence(rows, eps, images),
        f"{time.perf_counter() - started:.0f} s. Report with every image:",
    ):
        console.print(text, highlight=False)
    console.print(f"next: open {out.resolve().as_uri()} in a browser", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    demo(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
