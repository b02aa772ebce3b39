"""Deep networks: what `auto` decides in a minute a point, and what rounding costs the network as executed.

    python -m relucert.experiments.deep train [NAME ...]     # networks that are not there yet, or the named ones
    python -m relucert.experiments.deep decide [NAME ...]    # verdicts of all networks that are there, then the page

Networks and records are kept in `runs/`, figures in `results/deep.json`; the page is `results/deep.md`.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.results import Verdict
from relucert.data import dataset
from relucert.evaluation.certify import verdicts
from relucert.evaluation.config import CertifyConfig
from relucert.experiments.trained import command
from relucert.interop.loading import load
from relucert.records.atomic import write_atomically
from relucert.reports import deep as report
from relucert.reports.deep import DecidedPoints, Slack
from relucert.training.config import TrainConfig
from relucert.training.loop import train
from relucert.training.progress import Terminal
from relucert.training.run import MODEL_FILE
from relucert.verification.certify import certify

FIGURES, PAGE = Path("results") / "deep.json", Path("results") / "deep.md"
RUNS = Path("runs")
MODELS = ("fc-2x256", "fc-4x256", "fc-6x256", "fc10")
RADII = (0.03, 0.05)
POINTS, SECONDS = 15, 60.0
SLACK_POINTS, SLACK_METHOD = 100, "crown"


def configurations(folder: Path = RUNS) -> dict[str, TrainConfig]:
    """The runs by the names of the architectures: adversarial training at l_inf 0.1 with sparse weights.

    Without the sparse weights bounds of the deeper networks prove nothing at 0.05: those of the last layers are hundreds wide.
    """
    scheme = "rs(lam=0, l1=2e-5, attack_steps=5)"
    return {
        model: TrainConfig(
            data="mnist", model=model, scheme=scheme, epochs=6, evaluate_every=3, out=folder / f"mnist-{model}-rs-inf"
        )
        for model in MODELS
    }


def decided(config: TrainConfig, eps: float) -> dict[str, Any]:
    """The verdicts of `auto` on the first points of the test set, as a summary."""
    records = RUNS / "records" / f"deep-{config.model}.jsonl"
    records.parent.mkdir(parents=True, exist_ok=True)
    found = verdicts(
        CertifyConfig(
            model=config.folder, data=config.data, p=math.inf, eps=eps, points=POINTS, timeout=SECONDS, batch=POINTS,
            out=records,
        )
    )  # fmt: skip
    return found.figures()


@torch.no_grad()
def slack(config: TrainConfig, eps: float) -> dict[str, float]:
    """Charges for rounding as shares of the margin at the input, over some points: median and largest.

    `scale` is the largest charge as a share of the median margin: points close to a decision boundary have margins near zero.
    `executed` is what the rounding of the executed network costs, `all` that and what the computation of the bound rounds.
    """
    net, data = load(config.folder), dataset(config.data)
    x, y = data.x_test[:SLACK_POINTS], data.y_test[:SLACK_POINTS]
    found = certify(net, x, y, Ball(math.inf, eps), SLACK_METHOD)
    assert found.executed is not None
    assert found.computed is not None
    right = ~found.which(Verdict.MISCLASSIFIED)
    logits = net(x).double()
    own = logits.gather(1, y[:, None])
    lead = (own - logits.scatter(1, y[:, None], -math.inf).amax(1, keepdim=True))[:, 0]
    lead, charges = lead[right], {"executed": found.margin - found.executed, "all": found.computed - found.executed}
    return {
        f"{kind} {name}": float(value)
        for kind, charge in charges.items()
        for name, value in (
            ("median", (charge[right] / lead).median()),
            ("largest", (charge[right] / lead).max()),
            ("scale", charge[right].max() / lead.median()),
        )
    }


def page(known: dict[str, Any]) -> str:
    """The figures of all networks as Markdown."""
    configs = configurations()
    points = [
        DecidedPoints(network=name, eps=eps, summary=known[name][f"{eps:g}"])
        for name in configs if name in known for eps in RADII if f"{eps:g}" in known[name]
    ]  # fmt: skip
    slacks = [
        Slack(network=name, eps=eps, shares=known[name][f"slack {eps:g}"])
        for name in configs if name in known for eps in RADII if f"slack {eps:g}" in known[name]
    ]  # fmt: skip
    commands = [command(config) for name, config in configs.items() if name in known]
    return report.page(points, slacks, commands, seconds=SECONDS)


def main(arguments: list[str]) -> None:
    """Train networks, or decide the points of those that are there and write the page."""
    known = configurations()
    verb, names = (arguments[0] if arguments else "", arguments[1:])
    if verb not in ("train", "decide") or not set(names) <= set(known):
        raise InvalidInput(
            f"usage: train [NAME ...] or decide [NAME ...], where NAME is one of {', '.join(known)}, got "
            f"{' '.join(arguments)!r}"
        )
    for name in names or known:
        if verb == "train":
            train(known[name], Terminal())
        elif (known[name].folder / MODEL_FILE).exists():
            figures: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
            own = figures.setdefault(name, {})
            for eps in RADII:
                own[f"slack {eps:g}"] = slack(known[name], eps)
                own[f"{eps:g}"] = decided(known[name], eps)
                print(f"{name} at {eps:g}: {own[f'{eps:g}']}", flush=True)
            write_atomically(FIGURES, json.dumps(figures, indent=2) + "\n")
            write_atomically(PAGE, page(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
