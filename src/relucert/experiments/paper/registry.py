"""All experiments of the paper by name, and what `relucert reproduce list` says of them."""

from __future__ import annotations

from pathlib import Path

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


def listing(runs: Path) -> str:
    """What every experiment is, what it needs, how many of its networks are among existing runs, and how long it takes."""
    lines, finished = [], finished_runs(runs)
    for experiment in EXPERIMENTS.values():
        there = sum(network.existing(finished, None) is not None for network in experiment.networks)
        lines += [
            f"{experiment.name}: {experiment.title}",
            f"  data {', '.join(experiment.data)}; {len(experiment.networks)} networks, {there} of them in {runs}",
            f"  about {experiment.hours}; with --quick on the digits: seconds to a minute",
        ]
    return "\n".join(lines)
