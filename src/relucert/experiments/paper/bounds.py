"""Lower bounds of the distance: Wong and Kolter, the region theorem, and the theorem with neighbouring regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relucert.experiments.paper.experiment import QUICK_POINTS, Effort, Experiment, files_of
from relucert.experiments.paper.l2 import IMPROVED, KW, THEOREM, network_of
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Step, Verb
from relucert.reports.paper.tables import LAYOUTS
from relucert.reports.published import BOUNDS


def steps(network: PaperNetwork, effort: Effort) -> Sequence[Step]:
    """The three bounds."""
    kw = Step(
        verb=Verb.RADIUS, method=KW, points=effort.points or (QUICK_POINTS if effort.quick else 1000), labels=False
    )
    return kw, replace(kw, method=THEOREM), replace(kw, method=IMPROVED)


EXPERIMENT = Experiment(
    name="bounds",
    title="Appendix: lower bounds of l2 distances by KW, the region theorem and five neighbouring regions; FC1, FC10",
    networks=tuple(map(network_of, BOUNDS)),
    hours="days on one core: 12 networks of 300 epochs; the bounds take minutes a network",
    steps=steps,
    report=lambda networks, out: files_of(LAYOUTS["bounds"].comparison(networks)),
)
