"""The paper's settings are what a run takes where nothing is said."""

import math

import pytest

from relucert.core.errors import InvalidInput
from relucert.networks.architectures import ARCHITECTURES
from relucert.training._schedules import Count, ramp
from relucert.training.config import MODELS, TrainConfig
from relucert.training.recipes import TABLE_1, TABLES_2_3, Setting, default_schedule


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
    assert (found.epochs, found.batch, found.rate) == (100, 128, rate)
    assert (found.scheme.lam, found.scheme.gamma_d) == (lam, gamma)
    assert getattr(found.scheme, "gamma_b", gamma) == gamma


@pytest.mark.parametrize(
    ("data", "rate", "values"),
    [
        ("mnist", 5e-4, (3.0, 1.0, 12.0, 0.175)), ("fmnist", 5e-4, (3.0, 1.0, 40.0, 0.15)),
        ("gts", 1e-3, (3.0, 6.0, 12.0, 6 / 255)), ("cifar10", 1e-3, (1.0, 6.0, 6.0, 6 / 255)),
    ],
)  # fmt: skip
def test_mmr_universal_has_its_four_published_settings(data, rate, values):
    found = TrainConfig(data=data, model="cnn", scheme="mmr-universal").settings
    assert (found.epochs, found.batch, found.rate) == (100, 128, rate)
    scheme = found.scheme
    assert (scheme.lam_1, scheme.gamma_1, scheme.lam_inf, scheme.gamma_inf) == values
    assert scheme.share_b == (0.20, 0.05)
    for model in ("fc1", "resnet"):
        with pytest.raises(InvalidInput, match="lam_1 must be given: no recipe has one for scheme mmr-universal"):
            _ = TrainConfig(data=data, model=model, scheme="mmr-universal").settings


def test_the_second_family_has_its_own_schedule():
    assert {p for p, _, _ in TABLES_2_3.margins} == {2.0}
    dense = TrainConfig(data="mnist", model="fc1", scheme="mmr+at", p=2, recipe="tables23")
    local = TrainConfig(data="gts", model="cnn", scheme="mmr", p=2, recipe="tables23")
    assert (dense.settings.epochs, dense.settings.batch, dense.settings.rate) == (300, 100, 1e-3)
    assert (dense.radius, dense.settings.scheme.eps) == (0.3, 2.0)
    assert (local.settings.epochs, local.settings.scheme.gamma_b, local.settings.scheme.gamma_d) == (100, 0.5, 0.5)
    attacked = TrainConfig(data="gts", model="cnn", scheme="at", p=2, recipe="tables23")
    assert attacked.settings.scheme.eps == 0.5
    ten = default_schedule(dense.setting)
    assert [ten.counts(progress, 1024, 10) for progress in (0.0, 0.49, 0.5, 0.99)] == [
        (10, 10),
        (10, 10),
        (1, 1),
        (1, 1),
    ]
    assert [default_schedule(local.setting).counts(progress, 4804, 43) for progress in (0.0, 0.5, 1.0)] == [
        (400, 10), (250, 10), (100, 10),
    ]  # fmt: skip


def test_what_is_given_comes_first():
    given = "mmr(lam=0.3, gamma_b=0.7, gamma_d=0.7)"
    found = TrainConfig(data="mnist", scheme=given, rate=0.01, epochs=3, batch=7).settings
    assert (found.epochs, found.batch, found.rate) == (3, 7, 0.01)
    assert (found.scheme.lam, found.scheme.gamma_b, found.scheme.gamma_d) == (0.3, 0.7, 0.7)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"scheme": "mmr", "p": 3.0},
            "lam must be given: recipe table1 has none for scheme mmr, data digits, model fc1 and p=3",
        ),
        ({"scheme": "mmr(lam=1.0)", "p": 3.0}, "gamma_b must be given"),
        ({"scheme": "mmr+at(lam=1.0, gamma_b=0.1)", "model": "fc10"}, "gamma_d must be given"),
        ({"scheme": "mmr(gamma_b=0.0)"}, "gamma_b must be a positive number, got 0.0"),
        ({"scheme": "mmr(lam=-1.0)"}, "lam must be a number >= 0, got -1.0"),
        ({"recipe": "best"}, "recipe must be one of table1, tables23, got 'best'"),
        ({"scheme": "at", "data": "mnist", "recipe": "tables23"}, "eps must be given"),
    ],
)
def test_what_has_no_default_must_be_given(given, said):
    with pytest.raises(InvalidInput, match=said):
        TrainConfig(**given)


def test_schedules_stay_in_range():
    assert default_schedule(Setting("mnist", "fc1", 2.0)).counts(0.999, 3, 2) == (1, 2)
    assert default_schedule(Setting("mnist", "cnn", 2.0, "tables23")).counts(0.0, 50, 3) == (50, 3)
    assert Count(0.1, 0.02, shares=True).at(0.999, 3) == 1
    assert [ramp(progress) for progress in (0.0, 0.05, 0.1, 1.0)] == pytest.approx([0.1, 0.55, 1.0, 1.0])


def test_every_architecture_can_be_trained():
    assert tuple(ARCHITECTURES) == MODELS
