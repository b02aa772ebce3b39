"""Every experiment asks the paper's questions about the paper's networks."""

from __future__ import annotations

import math

import pytest

from relucert.experiments.paper import bounds, cross_lipschitz, cw, l2, lambdas, table1, table2, table3
from relucert.experiments.paper.experiment import QUICK_POINTS, Effort
from relucert.experiments.paper.registry import EXPERIMENTS
from relucert.experiments.paper.step import Only, Verb
from relucert.reports.published import TABLE_1

#: Name -> number of networks; verbs and methods of the first network, in order.
WANTED = {
    "table1": (72, [Verb.ATTACK, Verb.ATTACK, Verb.CERTIFY, Verb.SMALLEST]),
    "table2": (12, [Verb.RADIUS, Verb.RADIUS, Verb.SMALLEST]),
    "table3": (18, [Verb.RADIUS, Verb.RADIUS]),
    "bounds": (12, [Verb.RADIUS, Verb.RADIUS, Verb.RADIUS]),
    "l2": (50, [Verb.RADIUS, Verb.RADIUS, Verb.SMALLEST]),
    "cross-lipschitz": (4, [Verb.ATTACK, Verb.ATTACK, Verb.CERTIFY, Verb.SMALLEST]),
    "cw": (1, [Verb.RADIUS, Verb.SMALLEST]),
    "lambda": (6, [Verb.CERTIFY]),
    "figures": (17, []),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_networks_and_questions(name):
    experiment = EXPERIMENTS[name]
    networks, verbs = WANTED[name]
    assert len(experiment.networks) == networks
    assert [step.verb for step in experiment.steps(experiment.networks[0], Effort())] == verbs
    for step in experiment.steps(experiment.networks[0], Effort(points=7)):
        assert step.points == 7
    for step in experiment.steps(experiment.networks[0], Effort(quick=True)):
        assert step.points is not None
        assert step.points <= 100
    assert experiment.hours
    assert experiment.title


def test_robust_errors_follow_the_papers_protocol():
    linf, l2_norm = (table1.cascade(p, Effort()) for p in (math.inf, 2.0))
    assert {step.points for step in linf} == {1000}
    assert {step.points for step in l2_norm} == {None}
    assert (linf[2].timeout, linf[0].method) == (120.0, "pgd(steps=40, restarts=10)")
    assert [step.only for step in linf] == [Only.ALL, Only.ALL, Only.OPEN, Only.OPEN]
    assert table1.cascade(2.0, Effort(timeout=5.0))[2].timeout == 5.0


def test_questions_about_distances_are_about_the_predicted_class():
    for module in (table2, table3, bounds, l2, cw):
        network = module.EXPERIMENT.networks[0]
        assert not any(step.labels for step in module.EXPERIMENT.steps(network, Effort()))
        assert network.recipe == "tables23"


def test_table_3_takes_the_whole_test_set_and_bounds_optima_alone():
    plain, trained = (
        next(network for network in table3.EXPERIMENT.networks if network.scheme == scheme)
        for scheme in ("plain", "mmr")
    )
    assert [step.points for step in table3.steps(trained, Effort())] == [None, None]
    assert [step.only for step in table3.steps(trained, Effort())] == [Only.ALL, Only.OPTIMAL]
    assert len(table3.steps(plain, Effort())) == 1


def test_lambda_has_plain_training_and_the_papers_gamma():
    plain, *trained = lambdas.EXPERIMENT.networks
    assert plain.text == "plain"
    assert all("gamma_b=0.15, gamma_d=0.15" in network.text for network in trained)
    assert [float(network.scheme.removeprefix(lambdas.LABEL)) for network in (plain, *trained)] == list(lambdas.LAMBDAS)
    assert lambdas.steps(plain, Effort())[0].timeout == 120.0


def test_cross_lipschitz_shares_networks_with_table_1():
    names = {network.name for network in table1.EXPERIMENT.networks}
    assert [network.name in names for network in cross_lipschitz.EXPERIMENT.networks] == [False, True, True, True]


def test_table_1_has_the_networks_that_the_paper_prints():
    keys = {network.key for network in table1.EXPERIMENT.networks}
    assert keys == {key for key, cells in TABLE_1.items() if cells["UB"] is not None}
    assert QUICK_POINTS < 20
