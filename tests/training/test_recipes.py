"""The paper's settings are what a run takes where nothing is said."""

import math

import pytest

from relucert.core.errors import InvalidInput
from relucert.networks.architectures import ARCHITECTURES
from relucert.training.config import MODELS, TrainConfig
from relucert.training.recipes import TABLE_1, TABLES_2_3, Schedule, ramp, schedule


def test_table_1_has_all_28_networks():
    assert sum(len(pair) for pair in TABLE_1.margins.values()) == 28
    assert {p for p, _, _ in TABLE_1.margins} == {2.0, math.inf}
    # CIFAR-10 has a CNN only, everything else both.
    assert {(data, model) for _, data, model in TABLE_1.margins} == {
        (data, model) for data in ("mnist", "fmnist", "gts", "cifar10") for model in ("fc1", "cnn")
    } - {("cifar10", "fc1")}


@pytest.mark.parametrize(
    ("given", "rate", "lam", "gamma"),
    [
        (("mnist", "fc1", "mmr", math.inf), 1e-3, 2.0, 0.1),
        (("mnist", "cnn", "mmr+at", math.inf), 1e-3, 0.5, 0.2),
        (("mnist", "fc1", "mmr", 2.0), 1e-4, 1.5, 0.6),
        (("mnist", "fc1", "mmr-dd", 2.0), 1e-4, 1.5, 0.6),
        (("fmnist", "fc1", "mmr+at", 2.0), 5e-5, 0.5, 0.45),
        (("fmnist", "fc1", "mmr+at", math.inf), 1e-3, 1.0, 0.15),
        (("gts", "fc1", "mmr", math.inf), 1e-3, 10.0, 8 / 255),
        (("gts", "cnn", "mmr+at", 2.0), 1e-3, 6.0, 0.3),
        (("cifar10", "cnn", "mmr", 2.0), 1e-3, 1.5, 0.2),
    ],
)
def test_a_run_needs_nothing_else(given, rate, lam, gamma):
    data, model, scheme, p = given
    found = TrainConfig(data=data, model=model, scheme=scheme, p=p).settings
    assert (found.epochs, found.batch, found.rate, found.lam, found.gamma) == (100, 128, rate, lam, gamma)


def test_the_second_family_has_its_own_schedule():
    assert {p for p, _, _ in TABLES_2_3.margins} == {2.0}
    dense = TrainConfig(data="mnist", model="fc1", scheme="mmr+at", p=2, recipe="tables23")
    local = TrainConfig(data="gts", model="cnn", scheme="mmr", p=2, recipe="tables23")
    assert (dense.settings.epochs, dense.settings.batch, dense.settings.rate) == (300, 100, 1e-3)
    assert (dense.radius, dense.trained_radius) == (0.3, 2.0)
    assert (local.settings.epochs, local.settings.gamma, local.trained_radius) == (100, 0.5, 0.5)
    ten = schedule("fc1", "tables23")
    assert [ten.counts(progress, 1024, 10) for progress in (0.0, 0.49, 0.5, 0.99)] == [
        (10, 10),
        (10, 10),
        (1, 1),
        (1, 1),
    ]
    assert [schedule("cnn", "tables23").counts(progress, 4804, 43) for progress in (0.0, 0.5, 1.0)] == [
        (400, 10), (250, 10), (100, 10),
    ]  # fmt: skip


def test_what_is_given_comes_first():
    found = TrainConfig(data="mnist", scheme="mmr", lam=0.3, gamma=0.7, rate=0.01, epochs=3, batch=7).settings
    assert (found.epochs, found.batch, found.rate, found.lam, found.gamma) == (3, 7, 0.01, 0.3, 0.7)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"scheme": "mmr", "p": 3.0},
            "lam must be given: recipe table1 has none for scheme mmr, data digits, model fc1 and p=3",
        ),
        ({"scheme": "mmr", "p": 3.0, "lam": 1.0}, "gamma must be given"),
        ({"scheme": "mmr+at", "model": "fc10", "lam": 1.0}, "gamma must be given"),
        ({"scheme": "mmr", "gamma": 0.0}, "gamma must be a positive number, got 0.0"),
        ({"scheme": "mmr", "lam": -1.0}, "lam must be a number >= 0, got -1.0"),
        ({"recipe": "best"}, "recipe must be one of table1, tables23, got 'best'"),
        ({"scheme": "at", "data": "mnist", "recipe": "tables23"}, "eps must be given"),
    ],
)
def test_what_has_no_default_must_be_given(given, said):
    with pytest.raises(InvalidInput, match=said):
        TrainConfig(**given)


def test_schedules_stay_in_range():
    assert Schedule(0.1, 0.02).counts(0.999, 3, 2) == (1, 2)
    assert Schedule(400, 100, shares=False, classes=10).counts(0.0, 50, 3) == (50, 3)
    assert [ramp(progress) for progress in (0.0, 0.05, 0.1, 1.0)] == pytest.approx([0.1, 0.55, 1.0, 1.0])


def test_every_architecture_can_be_trained():
    assert tuple(ARCHITECTURES) == MODELS
