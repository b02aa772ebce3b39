"""The l2 tables of the appendix: mean lower and upper bounds of the distance, and certified accuracy over the radius."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from relucert.experiments.paper.experiment import QUICK_POINTS, Effort, Experiment, Files, files_of
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Step, Verb
from relucert.reports.figures.certified import certified_figure
from relucert.reports.figures.drawing import picture_files
from relucert.reports.intervals import Subject
from relucert.reports.paper.measured import IMPROVED as NEIGHBOURS
from relucert.reports.paper.measured import KINDS as ANSWERS
from relucert.reports.paper.measured import MeasuredNetwork
from relucert.reports.paper.tables import LAYOUTS, label
from relucert.reports.published import L2, L2_CIFAR10, Key

KW, THEOREM, IMPROVED = "kw", "region(regions=0)", "region(regions=5)"
#: The answers that a point must have to count in means and curves: those of the steps of these tables.
KINDS = tuple(kind for kind in ANSWERS if kind != NEIGHBOURS)
CW, QUICK_CW = "cw", "cw(searches=4, iterations=100, rate=0.03, constant=0.1)"
#: The middle of the radii that the paper searched for the networks of Wong and Kolter in these tables.
KW_SCHEME = "kw(eps=0.3)"


def network_of(key: Key) -> PaperNetwork:
    """A network of Tables 2 and 3 and of the l2 tables: they share their settings, and so their networks."""
    return PaperNetwork(**key._asdict(), recipe="tables23", text=KW_SCHEME if key.scheme == "kw" else "")


def steps(network: PaperNetwork, effort: Effort) -> Sequence[Step]:
    """Lower bounds by Wong and Kolter, optima by the region theorem, and upper bounds by the CW attack."""
    points = effort.points or (QUICK_POINTS if effort.quick else 1000)
    kw = Step(verb=Verb.RADIUS, method=KW, points=points, labels=False)
    cw = QUICK_CW if effort.quick else CW
    return kw, replace(kw, method=THEOREM), replace(kw, verb=Verb.SMALLEST, method=cw)


def report(networks: Sequence[MeasuredNetwork], out: Path) -> Files:
    """Both tables, and the certified accuracy of every architecture on every data set."""
    files = files_of(LAYOUTS["l2"].comparison(networks), LAYOUTS["l2-cifar10"].comparison(networks))
    for data, model in dict.fromkeys((network.key.data, network.key.model) for network in networks):
        subjects: dict[str, Subject] = {}
        for network in networks:
            if (network.key.data, network.key.model) == (data, model):
                count = network.first(KINDS)
                subject = network.subject(lambda record, count=count: record.index < count)
                subjects |= {} if subject is None else {label(network.key.scheme): subject}
        if subjects:
            files |= picture_files(f"l2-certified-{data}-{model}", certified_figure(subjects))
    return files


EXPERIMENT = Experiment(
    name="l2",
    title="Appendix: mean lower and upper bounds of l2 distances, five schemes; FC1, FC10, CNN; CIFAR-10",
    networks=tuple(network_of(key) for key in (*L2, *L2_CIFAR10)),
    hours="weeks on one core: 50 networks of 100 to 300 epochs, the CW attack 10 to 60 minutes a network",
    steps=steps,
    report=report,
)
