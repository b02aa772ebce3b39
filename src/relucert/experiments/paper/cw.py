"""The CW attack against proved optima: how much longer its perturbations are than the smallest ones, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relucert.experiments.paper.experiment import Effort, Experiment, Files, files_of
from relucert.experiments.paper.l2 import CW, QUICK_CW, THEOREM, network_of
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Only, Step, Verb
from relucert.reports.figures.drawing import picture_files
from relucert.reports.figures.ratios import ratios_figure
from relucert.reports.paper.claims import cw_comparison
from relucert.reports.paper.measured import MeasuredNetwork
from relucert.reports.published import Key


def steps(network: PaperNetwork, effort: Effort) -> Sequence[Step]:
    """The region theorem on the whole test set, and the attack where it proves an optimum."""
    points = effort.points or (100 if effort.quick else None)
    cw = QUICK_CW if effort.quick else CW
    return (
        Step(verb=Verb.RADIUS, method=THEOREM, points=points, labels=False),
        Step(verb=Verb.SMALLEST, method=cw, points=points, labels=False, only=Only.OPTIMAL),
    )


def report(networks: Sequence[MeasuredNetwork], out: Path) -> Files:
    """The figures of the paper's paragraph, and the sorted ratios of every network that has some."""
    files = files_of(cw_comparison({network.key.data: network for network in networks}))
    for network in networks:
        if ratios := network.ratios():
            files |= picture_files(f"cw-ratios-{network.key.data}", ratios_figure(ratios, "CW"))
    return files


EXPERIMENT = Experiment(
    name="cw",
    title="Section 5.2: perturbations by the CW attack over the smallest ones; GTS, FC1 trained with MMR",
    networks=(network_of(Key("gts", "fc1", "mmr", 2.0)),),
    hours="a day on one core: 300 epochs of training, then 5 hours of CW (paper: 4.5 hours)",
    steps=steps,
    report=report,
)
