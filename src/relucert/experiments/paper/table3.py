"""Table 3: how many points have a proved optimum, and how far bounds are from it."""

from __future__ import annotations

from collections.abc import Sequence

from relucert.experiments.paper.experiment import QUICK_POINTS, Effort, Experiment, files_of
from relucert.experiments.paper.l2 import KW, THEOREM, network_of
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Only, Step, Verb
from relucert.reports.paper.tables import LAYOUTS
from relucert.reports.published import TABLE_3


def steps(network: PaperNetwork, effort: Effort) -> Sequence[Step]:
    """The region theorem on the whole test set, and the bounds of Wong and Kolter where it proves an optimum."""
    points = effort.points or (QUICK_POINTS if effort.quick else None)
    theorem = Step(verb=Verb.RADIUS, method=THEOREM, points=points, labels=False)
    kw = Step(verb=Verb.RADIUS, method=KW, points=points, labels=False, only=Only.OPTIMAL, batch=20)
    return (theorem, kw) if network.scheme == "mmr" else (theorem,)


EXPERIMENT = Experiment(
    name="table3",
    title="Table 3: share of points with a proved optimum, plain and MMR, and the optimum against KW's bound; FC1, FC10, CNN",
    networks=tuple(map(network_of, TABLE_3)),
    hours="days on one core: 18 networks of 100 to 300 epochs; the theorem takes minutes a network",
    steps=steps,
    report=lambda networks, out: files_of(LAYOUTS["table3"].comparison(networks)),
)
