"""Networks of the paper: their names, their configurations, and runs that exist already."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from relucert.experiments.paper.network import PaperNetwork, finished_runs
from relucert.experiments.paper.registry import EXPERIMENTS, chosen, listing
from relucert.training.config import TrainConfig

RESULTS = Path(__file__).resolve().parents[3] / "results"
MMR = PaperNetwork(data="mnist", model="fc1", scheme="mmr", p=math.inf)
EVERY = {network.name: network for experiment in EXPERIMENTS.values() for network in experiment.networks}


def test_names_tell_networks_apart():
    assert MMR.name == "mnist-fc1-mmr-inf"
    assert replace(MMR, p=2.0, recipe="tables23").name == "mnist-fc1-mmr-2-tables23"
    for experiment in EXPERIMENTS.values():
        names = [network.name for network in experiment.networks]
        assert len(set(names)) == len(names)
        for network in experiment.networks:
            assert EVERY[network.name] == network  # experiments that share a name share the network


@pytest.mark.parametrize("name", EVERY)
def test_every_network_can_be_configured(name):
    for network in (EVERY[name], EVERY[name].on_digits()):
        config = network.config(None, Path("out"))
        assert (config.data, config.model, config.p) == (network.data, network.model, network.p)
        assert config.folder == Path("out") / network.name
    paper = EVERY[name].config(None, Path("out")).settings
    assert paper.epochs == (300 if "fc" in EVERY[name].model and EVERY[name].recipe == "tables23" else 100)


def saved(folder, **given):
    """A finished run in a folder."""
    config = TrainConfig(**({"data": "mnist", "model": "fc1", "scheme": "mmr", "epochs": 5} | given))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_a_run_matches_by_data_model_scheme_norm_and_recipe(tmp_path):
    saved(tmp_path / "other-data", data="fmnist")
    saved(tmp_path / "other-model", model="cnn")
    saved(tmp_path / "other-scheme", scheme="mmr+at")
    saved(tmp_path / "other-norm", p=2.0)
    saved(tmp_path / "other-recipe", p=2.0, recipe="tables23")
    assert MMR.existing(finished_runs(tmp_path), None) is None
    short = saved(tmp_path / "short", scheme="mmr(lam=1)", epochs=4)
    long = saved(tmp_path / "long", epochs=9)
    (tmp_path / "unfinished").mkdir()
    assert MMR.existing(finished_runs(tmp_path), None) == long
    assert MMR.existing(finished_runs(tmp_path), 4) == short
    assert MMR.existing(finished_runs(tmp_path), 6) is None


def test_parameters_count_where_the_network_has_its_own(tmp_path):
    saved(tmp_path / "a", scheme="mmr(lam=1, gamma_b=0.1, gamma_d=0.1)")
    own = replace(MMR, scheme="lambda 1", text="mmr(lam=1.0, gamma_b=0.15, gamma_d=0.15)")
    assert own.existing(finished_runs(tmp_path), None) is None
    same = saved(tmp_path / "b", scheme="mmr(lambda=1, gamma_B=0.15, gamma_D=0.15)")
    assert own.existing(finished_runs(tmp_path), None) == same


def test_plain_training_belongs_to_both_norms(tmp_path):
    plain = saved(tmp_path / "plain", scheme="plain")
    assert (
        PaperNetwork(data="mnist", model="fc1", scheme="plain", p=2.0).existing(finished_runs(tmp_path), None) == plain
    )


@pytest.mark.skipif(not RESULTS.exists(), reason="no trained networks here")
def test_the_networks_of_results_are_used():
    runs = finished_runs(RESULTS)
    assert MMR.existing(runs, None) == RESULTS / "mnist-fc1-mmr-inf"
    found = [network.name for network in chosen("table1")[0].networks if network.existing(runs, None)]
    assert len(found) >= 15
    assert f"72 networks, {len(found)} of them in {RESULTS}" in listing(RESULTS)
