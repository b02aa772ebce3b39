"""All experiments of the paper by name, and what `relucert reproduce list` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relucert.core.errors import InvalidInput
from relucert.experiments.paper import (
    bounds,
    cross_lipschitz,
    cw,
    figures,
    l2,
    lambdas,
    table1,
    table2,
    table3,
)
from relucert.experiments.paper.experiment import Experiment
from relucert.experiments.paper.network import finished_runs

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (table1, table2, table3, bounds, l2, cross_lipschitz, cw, lambdas, figures)
}
ALL, LIST = "all", "list"


def chosen(name: str) -> list[Experiment]:
    """The experiments that a name stands for."""
    if name == ALL:
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise InvalidInput(f"name must be one of {', '.join(EXPERIMENTS)}, {ALL} or {LIST}, got {name!r}")
    return [EXPERIMENTS[name]]


def entries(runs: Path) -> list[dict[str, Any]]:
    """What every experiment is, what it needs, how many of its networks are among existing runs, and how long it takes."""
    finished = finished_runs(runs)
    return [
        {
            "name": experiment.name,
            "title": experiment.title,
            "data": list(experiment.data),
            "networks": len(experiment.networks),
            "existing": sum(network.existing(finished, None) is not None for network in experiment.networks),
            "hours": experiment.hours,
        }
        for experiment in EXPERIMENTS.values()
    ]


def listing(runs: Path) -> str:
    """`entries` as text, and the command that begins the first of them."""
    lines = []
    for entry in entries(runs):
        lines += [
            f"{entry['name']}: {entry['title']}",
            f"  data {', '.join(entry['data'])}; {entry['networks']} networks, {entry['existing']} of them in {runs}",
            f"  about {entry['hours']}; with --quick on the digits: seconds to a minute",
        ]
    return "\n".join([*lines, f"next: relucert reproduce {next(iter(EXPERIMENTS))} --quick"])
