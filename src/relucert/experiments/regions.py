"""Exploration of linear regions: lower bounds of l2 radii over the number of neighbours, and the seconds that they cost.

    python -m relucert.experiments.regions [NETWORK ...]    # all networks, or the named ones, then the page

NETWORK is a folder of `results/`. Records are kept in `runs/records/`, so the list may be worked off in pieces; figures are
kept in `results/regions.json`, and the page is `results/regions.md`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from relucert.core.errors import InvalidInput
from relucert.evaluation.config import RadiusConfig
from relucert.evaluation.radius import radii
from relucert.records.atomic import write_atomically
from relucert.reports import regions as report
from relucert.reports.regions import Explored

FIGURES, PAGE = Path("results") / "regions.json", Path("results") / "regions.md"
RECORDS = Path("runs") / "records"
NETWORKS = ("mnist-fc1-mmr-2", "fmnist-fc1-mmr-2")
NEIGHBOURS = (0, 5, 30, 100, 300, 1000)
#: Explorations from a certified radius, beside that bound alone.
STARTED = ("crown", "region(regions=100, start='crown')")
POINTS, NORM = 100, 2.0


def methods() -> list[str]:
    """The methods of the table, those of the curve first."""
    return [*(f"region(regions={count})" for count in NEIGHBOURS), *STARTED]


def explored(network: str, method: str) -> dict[str, Any]:
    """The radii of the first test points by one method, with pixels in [0, 1], as a summary."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    config = RadiusConfig(
        model=Path("results") / network, p=NORM, points=POINTS, batch=POINTS, method=method,
        out=RECORDS / f"regions-{network}.jsonl",
    )  # fmt: skip
    return radii(config).summary()


def page(known: dict[str, Any]) -> str:
    """The figures of all networks as Markdown."""
    found = [
        Explored(network=network, method=method, summary=known[network][method])
        for network in NETWORKS if network in known for method in methods() if method in known[network]
    ]  # fmt: skip
    return report.page(found, points=POINTS)


def main(arguments: list[str]) -> None:
    """Find the radii of the named networks, or of all, and write the page."""
    if not set(arguments) <= set(NETWORKS):
        raise InvalidInput(
            f"usage: [NETWORK ...], where NETWORK is one of {', '.join(NETWORKS)}, got {' '.join(arguments)!r}"
        )
    for network in arguments or NETWORKS:
        for method in methods():
            figures: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
            own = figures.setdefault(network, {})[method] = explored(network, method)
            print(f"{network} by {method}: {own}", flush=True)
            write_atomically(FIGURES, json.dumps(figures, indent=2) + "\n")
            write_atomically(PAGE, page(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
