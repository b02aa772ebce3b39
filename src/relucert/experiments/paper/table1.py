"""Table 1: test error, and lower and upper bounds of the robust test error, of six training schemes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from relucert.experiments.paper.experiment import Effort, Experiment, files_of
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Only, Step, Verb
from relucert.reports.paper.tables import LAYOUTS
from relucert.reports.published import TABLE_1

#: Seconds for a point: those of the paper in l_inf; in l2 all test points are verified, not the first thousand.
SECONDS = {math.inf: 120.0, 2.0: 20.0}
POINTS = {math.inf: 1000, 2.0: None}


def cascade(p: float, effort: Effort) -> Sequence[Step]:
    """Every witness and every proof: PGD and APGD on all points, then verifiers and the region attack on what is open.

    The verifiers are `auto`: CROWN and its kin, SDP-CROWN in l2, and branch and bound with its own attacks.
    """
    points = effort.points or (20 if effort.quick else POINTS[p])
    seconds = effort.timeout or (60.0 if effort.quick else SECONDS[p])
    if effort.quick:
        pgd, apgd, verifier, region = (
            "pgd(steps=10)",
            "apgd(steps=10)",
            "auto(nodes=50, restarts=1)",
            "region(regions=5)",
        )
    else:
        pgd, apgd = "pgd(steps=40, restarts=10)", "apgd(steps=50, restarts=5)"
        verifier, region = "auto(nodes=1000000)", "region"
    attack = Step(verb=Verb.ATTACK, method=pgd, points=points, batch=500)
    return (
        attack,
        replace(attack, method=apgd),
        Step(verb=Verb.CERTIFY, method=verifier, points=points, only=Only.OPEN, timeout=seconds),
        Step(verb=Verb.SMALLEST, method=region, points=points, only=Only.OPEN, batch=1),
    )


def steps(network: PaperNetwork, effort: Effort) -> Sequence[Step]:
    """The questions about a network of the table."""
    return cascade(network.p, effort)


EXPERIMENT = Experiment(
    name="table1",
    title="Table 1: errors and robust errors of plain, at, KW, Xiao et al, MMR and MMR+at; FC1, CNN; l_inf and l2",
    networks=tuple(PaperNetwork(**key._asdict()) for key, cells in TABLE_1.items() if cells["TE"] is not None),
    hours="weeks on one core: 72 networks of 100 epochs (MNIST FC1: 1 hour each), up to 120 s a point",
    steps=steps,
    report=lambda networks, out: files_of(LAYOUTS["table1"].comparison(networks)),
)
