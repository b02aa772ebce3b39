"""Bounds of networks that others have trained: Wong and Kolter's published figures, and what better bounds add.

    python -m relucert.experiments.bounds FOLDER     # FOLDER has the networks of others

The page is `results/bounds.md`. Verdicts are kept in `runs/records/`, so the list may be worked off in pieces.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relucert.bounding.methods.kw import KW
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.properties import class_stays
from relucert.data import dataset
from relucert.evaluation.certify import verdicts
from relucert.evaluation.config import CertifyConfig
from relucert.experiments.others import published
from relucert.networks.checkpoints import save
from relucert.networks.network import Network
from relucert.records.atomic import write_atomically
from relucert.reports import bounds as report
from relucert.reports.bounds import ProvedPoints, Reproduction

FIGURES, PAGE = Path("results") / "bounds.json", Path("results") / "bounds.md"
RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, a ball, some points, and the robust error that was published for Wong and Kolter's relaxation, in percent."""

    model: str
    p: float = math.inf
    eps: float = 0.1
    box: bool = False
    points: int = 1000
    stated: float

    @property
    def data(self) -> str:
        """The data set that the network is for."""
        return "fmnist" if "fmnist" in self.model else "mnist"

    @property
    def ball(self) -> Ball:
        """The ball."""
        return Ball(self.p, self.eps, (0.0, 1.0) if self.box else None)


UNIVERSAL = "mmr_universal/mnist.mat"
CASES = (
    Case(model="kw_fmnist.safetensors", stated=34.7),
    Case(model="wk17a_mnist.safetensors", stated=7.9),
    Case(model="kw_mnist.safetensors", stated=6.7),
    Case(model=UNIVERSAL, stated=27.7),
    Case(model=UNIVERSAL, box=True, stated=18.4),
    Case(model=UNIVERSAL, p=2.0, eps=0.3, stated=10.4),
    Case(model="lpd_mlp_mnist.safetensors", box=True, points=10000, stated=18.32),
)
#: What each method proves of one network, with the box and without.
LADDER = {math.inf: ("ibp", "kw", "crown", "alpha"), 2.0: ("kw", "crown", "alpha", "lipschitz", "sdp")}
RADII = {math.inf: 0.1, 2.0: 0.3}
LADDER_POINTS = 1000


@torch.no_grad()
def relaxation_error(net: Network, x: Tensor, y: Tensor, ball: Ball) -> float:
    """Misclassified, or not proved by the relaxation as published: in the network's dtype, without error terms, in percent."""
    wrong = 0
    for part, labels in zip(x.split(200), y.split(200), strict=True):
        margins = KW().solve(net, part, ball, class_stays(labels, net.classes, dtype=part.dtype))[1]
        wrong += int((margins <= 0).any(1).sum())
    return 100 * wrong / len(x)


def reproduced(case: Case, folder: Path) -> float:
    """The robust error of a case by the relaxation, in percent."""
    images = dataset(case.data)
    net = published(folder / case.model)
    return relaxation_error(net, images.x_test[: case.points], images.y_test[: case.points], case.ball)


def proved(p: float, method: str, box: bool, folder: Path) -> dict[str, Any]:
    """What a method proves of the first 1000 points, as a summary of verdicts."""
    model = RUNS / "published" / "universal-float32.safetensors"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        save(published(folder / UNIVERSAL), model)
    records = RUNS / "records" / "bounds-universal.jsonl"
    records.parent.mkdir(parents=True, exist_ok=True)
    config = CertifyConfig(model=model, data="mnist", p=p, eps=RADII[p], method=method, box=box, out=records)
    return verdicts(config).figures()


def page(found: dict[str, Any]) -> str:
    """The figures of all cases and of the ladder as Markdown."""
    reproductions = [
        Reproduction(
            network=case.model, p=case.p, eps=case.eps, box=case.box, points=case.points, published=case.stated,
            computed=error,
        )
        for case, error in zip(CASES, found["kw"], strict=True)
    ]  # fmt: skip
    proved = [
        ProvedPoints(
            p=p, eps=RADII[p], method=method, free=found["ladder"][f"{p:g} {method} free"],
            boxed=found["ladder"][f"{p:g} {method} box"], points=LADDER_POINTS,
        )
        for p, methods in LADDER.items()
        for method in methods
    ]  # fmt: skip
    return report.page(reproductions, UNIVERSAL, proved)


def main(arguments: list[str]) -> None:
    """Compute all figures, and write the page."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        raise InvalidInput(f"usage: FOLDER, which has the networks of others, got {' '.join(arguments)!r}")
    folder = Path(arguments[0])
    found: dict[str, Any] = {"kw": [], "ladder": {}}
    for case in CASES:
        found["kw"].append(reproduced(case, folder))
        print(f"{case.model} l_{case.p:g} {case.eps:g}: {found['kw'][-1]:.2f} %, stated {case.stated:g} %", flush=True)
    for p, methods in LADDER.items():
        for method in methods:
            for box in (False, True):
                robust = proved(p, method, box, folder)["robust"]
                found["ladder"][f"{p:g} {method} {'box' if box else 'free'}"] = robust
                print(f"l_{p:g} {method} {'with' if box else 'without'} box: {robust} of 1000", flush=True)
    write_atomically(FIGURES, json.dumps(found, indent=2) + "\n")
    write_atomically(PAGE, page(found))


if __name__ == "__main__":
    main(sys.argv[1:])
