"""Verifiability over lambda, the weight of MMR: minutes of verification, and bounds of the robust error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from relucert.experiments.paper.experiment import QUICK_POINTS, Effort, Experiment, Files, files_of
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Step, Verb
from relucert.experiments.paper.table1 import QUICK_SECONDS, QUICK_VERIFIER, SECONDS, VERIFIER
from relucert.reports.figures.drawing import picture_files
from relucert.reports.figures.verifiability import verifiability_figure
from relucert.reports.paper.claims import Verified, lambda_comparison, verified
from relucert.reports.paper.measured import MeasuredNetwork

#: The paper names 0, 2 and 3; between them are the values of its grids.
LAMBDAS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0)
GAMMA = 0.15
LABEL = "lambda "


def network_of(lam: float) -> PaperNetwork:
    """The CNN on MNIST at a weight of MMR; plain training at 0."""
    text = f"mmr(lam={lam}, gamma_b={GAMMA}, gamma_d={GAMMA})" if lam else "plain"
    return PaperNetwork(data="mnist", model="cnn", scheme=f"{LABEL}{lam:g}", p=math.inf, text=text)


def steps(network: PaperNetwork, effort: Effort) -> Sequence[Step]:
    """Verdicts on the first points, with the paper's time limit."""
    method = QUICK_VERIFIER if effort.quick else VERIFIER
    points = effort.points or (QUICK_POINTS if effort.quick else 1000)
    seconds = effort.timeout or (QUICK_SECONDS if effort.quick else SECONDS[math.inf])
    return (Step(verb=Verb.CERTIFY, method=method, points=points, timeout=seconds, fixed=effort.quick),)


def report(networks: Sequence[MeasuredNetwork], out: Path) -> Files:
    """What the paper says of verification, and both curves."""
    found: dict[str, list[Verified]] = {}
    for network in networks:
        if (one := verified(network, float(network.key.scheme.removeprefix(LABEL)))) is not None:
            found.setdefault(network.key.data, []).append(one)
    files = files_of(lambda_comparison(found))
    for data, every in found.items():
        files |= picture_files(f"lambda-{data}", verifiability_figure(sorted(every)))
    return files


EXPERIMENT = Experiment(
    name="lambda",
    title="Section 5.1: minutes of verification and robust errors over lambda; MNIST, CNN, l_inf",
    networks=tuple(map(network_of, LAMBDAS)),
    hours="days on one core: 6 networks of 100 epochs (4 hours each), up to 120 s for each of 1000 points (plain: 33 hours)",
    steps=steps,
    report=report,
)
