"""What attacks find on the networks of `results/`, where the truth or another attack stands beside it.

    python -m relucert.experiments.attacks [NAME ...]     # what is not known yet, or the named networks anew; then the page

Two questions. Where the region theorem gives the distance exactly, how much farther than that does each attack end? The paper
draws this for the Carlini-Wagner attack. And does `apgd` break at least as many points as PGD with as many gradients?
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relucert.attacks.problem import attack, minimal_attack
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.data import dataset
from relucert.experiments.trained import FOLDER, configurations
from relucert.interop.loading import load
from relucert.networks.network import Network
from relucert.records.atomic import write_atomically
from relucert.reports import attacks as report
from relucert.training.run import MODEL_FILE
from relucert.verification.radius import radius

FIGURES, PAGE = "attacks.json", "attacks.md"
POINTS = 1000
PGD, APGD = "pgd(steps=40, restarts=10)", "apgd(steps=40, restarts=10)"
#: The attacks that are compared with exact distances, the paper's Carlini-Wagner with a tenth of its iterations.
MINIMAL = ("cw(searches=20, iterations=1000)", "ddn", "fab", "region", "best")
#: Where the theorem gives enough exact distances, and how many of those are attacked at most.
EXACT = {"fmnist-fc1-mmr-2": 200}


def falsified(net: Network, x: Tensor, y: Tensor, ball: Ball) -> dict[str, Any]:
    """How many points PGD and `apgd` break, of those that are classified correctly, by as many gradients."""
    right = net.predict(x) == y
    x, y = x[right], y[right]
    found: dict[str, Any] = {"points": len(right), "correct": len(x)}
    for name, method in (("pgd", PGD), ("apgd", APGD)):
        started = time.perf_counter()
        pieces = [
            attack(net, x[part], y[part], ball, method).success for part in torch.arange(len(x)).split(250) if len(part)
        ]
        found[name] = int(torch.cat(pieces).sum())
        found[f"{name} seconds"] = time.perf_counter() - started
    return found


def ratios(net: Network, x: Tensor, p: float, most: int) -> dict[str, Any]:
    """Distances of attacks over the exact ones, sorted, on the first points where these are known."""
    known = radius(net, x, p=p, method="region(regions=0)")
    has = (known.exact & known.upper.isfinite() & (known.lower > 0)).nonzero()[:, 0][:most]
    found: dict[str, Any] = {"points": len(x), "exact": int(known.exact.sum()), "attacked": len(has)}
    for method in MINIMAL:
        started = time.perf_counter()
        distance = minimal_attack(net, x[has], p=p, method=method).distance
        ratio = (distance.double() / known.upper[has].double()).sort().values
        found[method] = {"seconds": time.perf_counter() - started, "ratios": [round(one, 6) for one in ratio.tolist()]}
    return found


def figures(name: str) -> dict[str, Any]:
    """What is found out about a network."""
    config = configurations()[name]
    net, data = load(config.folder), dataset(config.data)
    x, y = data.x_test[:POINTS], data.y_test[:POINTS]
    assert config.radius is not None
    found: dict[str, Any] = {"broken": falsified(net, x, y, Ball(config.p, config.radius))}
    if name in EXACT:
        found["ratios"] = ratios(net, x, config.p, EXACT[name])
    write_atomically(config.folder / FIGURES, json.dumps(found) + "\n")
    one = found["broken"]
    print(f"{name}: PGD breaks {one['pgd']} of {one['correct']}, apgd {one['apgd']}", flush=True)
    return found


def page(known: dict[str, dict[str, Any]]) -> str:
    """The figures of every network as Markdown."""
    return report.page(known, POINTS, (PGD, APGD), MINIMAL)


def main(arguments: list[str]) -> None:
    """Find out what is missing, or about the named networks, and write the page."""
    there = [name for name, config in configurations().items() if (config.folder / MODEL_FILE).exists()]
    if not set(arguments) <= set(there):
        raise InvalidInput(f"names must be among {', '.join(there)}, got {' '.join(arguments)!r}")
    known = {}
    for name in there:
        file = FOLDER / name / FIGURES
        old = file.exists() and name not in arguments
        known[name] = json.loads(file.read_text()) if old else figures(name)
    write_atomically(Path(FOLDER) / PAGE, page(known))


if __name__ == "__main__":
    main(sys.argv[1:])
