"""Table 1: test error, and lower and upper bounds of the robust test error, of six training schemes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from relucert.experiments.paper.experiment import QUICK_POINTS, Effort, Experiment, files_of
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Only, Step, Verb
from relucert.reports.paper.tables import LAYOUTS
from relucert.reports.published import TABLE_1

#: Seconds for a point: those of the paper in l_inf; in l2 all test points are verified, not the first thousand.
SECONDS = {math.inf: 120.0, 2.0: 20.0}
POINTS = {math.inf: 1000, 2.0: None}
#: In a quick run branch and bound ends after some subproblems, and verdicts do not depend on the speed of the machine.
VERIFIER = "auto(nodes=1000000)"
QUICK_VERIFIER, QUICK_SECONDS = "auto(nodes=10, restarts=1)", 600.0
#: Two attacks, the verifiers, and the attack on what they leave open.
METHODS = ("pgd(steps=40, restarts=10)", "apgd(steps=50, restarts=5)", VERIFIER, "region")
QUICK_METHODS = ("pgd(steps=10)", "apgd(steps=10)", QUICK_VERIFIER, "region(regions=2)")


def cascade(p: float, effort: Effort) -> Sequence[Step]:
    """Every witness and every proof: PGD and APGD on all points, then verifiers and the region attack on what is open.

    The verifiers are `auto`: CROWN and its kin, SDP-CROWN in l2, and branch and bound with its own attacks.
    """
    points = effort.points or (QUICK_POINTS if effort.quick else POINTS[p])
    seconds = effort.timeout or (QUICK_SECONDS if effort.quick else SECONDS[p])
    pgd, apgd, verifier, region = QUICK_METHODS if effort.quick else METHODS
    attack = Step(verb=Verb.ATTACK, method=pgd, points=points, batch=500)
    return (
        attack,
        replace(attack, method=apgd),
        Step(verb=Verb.CERTIFY, method=verifier, points=points, only=Only.OPEN, timeout=seconds, fixed=effort.quick),
        Step(verb=Verb.SMALLEST, method=region, points=points, only=Only.OPEN, batch=20),
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
