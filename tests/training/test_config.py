"""Schemes own their parameters; configurations of earlier versions are read, and their runs go on."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from relucert.core.errors import InvalidInput, RunError
from relucert.core.methods import parse, spec
from relucert.experiments.trained import configurations
from relucert.networks.checkpoints import digest
from relucert.training.config import TrainConfig
from relucert.training.loop import train
from relucert.training.old_config import OLD_FIELDS, migrated, parameters
from relucert.training.schemes.maximum_margin import MMRTraining
from relucert.training.schemes.registry import SCHEMES, parse_scheme
from relucert.training.schemes.scheme import Scheme

RESULTS = Path(__file__).resolve().parents[2] / "results"

#: As earlier versions wrote it for `scheme="mmr+at", lam=0.5, gamma=0.3, attack_steps=3, p=2, epochs=2, batch=300`.
EARLIER = {
    "data": "digits", "model": "fc1", "scheme": "mmr+at", "p": 2.0, "eps": 0.3, "train_eps": 0.3, "recipe": "table1",
    "epochs": 2, "batch": 300, "rate": 0.003, "lam": 0.5, "gamma": 0.3, "attack_steps": 3, "augment": True, "seed": 0,
}  # fmt: skip
LATER = {
    "scheme": "mmr+at(lam=0.5, gamma_b=0.3, gamma_d=0.3, attack_steps=3)",
    "data": "digits", "p": 2.0, "epochs": 2, "batch": 300,
}  # fmt: skip


def test_a_run_has_no_field_of_a_scheme():
    """But for eps: the radius of evaluation and that of training are two."""
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    assert names.isdisjoint(OLD_FIELDS)
    for kind in SCHEMES.values():
        assert parameters(kind) & names <= {"eps"}


@pytest.mark.parametrize("name", SCHEMES)
def test_texts_and_values_are_the_same_scheme(name):
    scheme = SCHEMES[name]()
    assert parse_scheme(name) == scheme == parse_scheme(scheme) == parse(spec(scheme), SCHEMES)
    config = {"data": "digits", "p": 2.0, "seed": 3, "crop": 1}
    assert TrainConfig(scheme=name, **config).to_json() == TrainConfig(scheme=scheme, **config).to_json()
    saved = json.loads(json.dumps(TrainConfig(scheme=name, **config).to_json()))
    assert TrainConfig.from_json(saved).to_json() == saved
    assert TrainConfig(scheme=name, **config).folder == Path("runs") / f"digits-fc1-{name}-2"


def test_the_papers_spelling_is_understood():
    scheme = parse_scheme("mmr(lambda=2, gamma_B=0.1, gamma_D = 0.2, k_B=(20, 5), k_D=(10, 1))")
    assert scheme == MMRTraining(lam=2.0, gamma_b=0.1, gamma_d=0.2, k_b=(20, 5), k_d=(10, 1))


def test_everything_of_mmr_is_set_apart():
    config = TrainConfig(data="mnist", scheme=MMRTraining(gamma_b=0.3, k_d=(10, 2), nearest_after=0.75))
    filled = config.settings.scheme
    assert isinstance(filled, MMRTraining)
    assert (filled.lam, filled.gamma_b, filled.gamma_d) == (2.0, 0.3, 0.1)
    loss = filled.loss(config.setting)
    assert (loss.gamma_b, loss.gamma_d, loss.lam) == (0.3, 0.1, 2.0)
    counts = [loss.schedule.counts(progress, 1000, 10) for progress in (0.0, 0.5, 0.75)]
    assert counts == [(100, 10), (60, 6), (1, 1)]
    other = TrainConfig(data="mnist", scheme="mmr(k_b=(40, 20), share_d=(0.5, 0.1))").settings.scheme
    assert [other.loss(config.setting).schedule.counts(progress, 1000, 10) for progress in (0.0, 0.999)] == [
        (40, 5),
        (20, 1),
    ]


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("mmr(gamma=0.1)", "mmr has no parameter 'gamma'; it has gamma_b, gamma_d, k_b"),
        ("mmr(lam", r"scheme must read 'name' or 'name\(parameter=value, ...\)', got 'mmr\(lam'"),
        ("mmr(0.1)", "parameters of a scheme are given by name"),
        ("mmr(k_b=10)", "k_b of mmr must be "),
        ("mmr(k_b=(0, 1))", r"k_b must be two numbers of at least 1, got \(0, 1\)"),
        ("mmr(share_b=(0.5, 1.5))", r"share_b must be two shares from 0 to 1, got \(0.5, 1.5\)"),
        ("mmr(k_d=(2, 1), share_d=(0.5, 0.5))", "share_d must be left out where k_d is given"),
        ("mmr(nearest_after=2)", "nearest_after must be a share of the run, from 0 to 1, got 2.0"),
        ("at(attack_steps=0)", "attack_steps must be at least 1, got 0"),
        ("crown-ibp(intervals=2)", "intervals must be a number from 0 to 1, got 2.0"),
        ("cross-lipschitz(lam=-1)", "lam must be a number >= 0, got -1.0"),
        (None, "scheme must be one of plain, at"),
    ],
)
def test_bad_parameters_are_named(scheme, message):
    with pytest.raises(InvalidInput, match=message):
        TrainConfig(scheme=scheme)


def test_an_own_scheme_needs_no_registry(tmp_path):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(Scheme):
        name = "own"
        weight: float = 2.0

        def loss(self, setting):
            def loss(net, x, y, context):
                terms = SCHEMES["plain"]().loss(setting)(net, x, y, context)
                return dataclasses.replace(terms, loss=self.weight * terms.loss)

            return loss

    config = TrainConfig(scheme=Own(), epochs=1, batch=500, evaluate_every=0, out=tmp_path / "run")
    run = train(config)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["scheme"] == "own(weight=2.0)"
    assert digest(train(config).net) == digest(run.net)


@pytest.mark.skipif(not RESULTS.exists(), reason="no trained networks here")
@pytest.mark.parametrize("name", configurations())
def test_configurations_of_earlier_versions_are_those_of_today(name):
    saved = json.loads((RESULTS / name / "config.json").read_text())
    assert TrainConfig.from_json(saved).to_json() == configurations(RESULTS)[name].to_json()


def test_runs_of_earlier_versions_go_on(tmp_path):
    config = TrainConfig(**LATER, out=tmp_path / "run", evaluate_every=0)
    whole = train(dataclasses.replace(config, out=tmp_path / "whole"))
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "config.json"
    file.write_text(json.dumps(EARLIER, indent=2) + "\n")
    written = file.read_bytes()
    assert digest(train(config).net) == digest(whole.net)
    assert file.read_bytes() == written
    with pytest.raises(
        RunError, match=r"holds another run \(scheme is 'mmr\+at\(.*lam=0\.5.*, not 'mmr\+at\(.*lam=1\.0"
    ):
        train(dataclasses.replace(config, scheme="mmr+at(lam=1.0, gamma_b=0.3, gamma_d=0.3, attack_steps=3)"))


def test_fields_that_a_scheme_does_not_read_are_dropped():
    old = {"data": "mnist", "scheme": "plain", "p": "inf", "lam": None, "gamma": None, "attack_steps": 40}
    assert migrated(old) == {"data": "mnist", "scheme": "plain", "p": "inf"}
    config = TrainConfig.from_json(old)
    assert math.isinf(config.p)
    with pytest.raises(InvalidInput, match="must hold the fields of TrainConfig"):
        TrainConfig.from_json({"data": "mnist", "colour": "red"})


def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text('["no", "configuration"]')
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        train(TrainConfig(out=tmp_path))
