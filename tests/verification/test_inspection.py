"""Resuming from files: verdicts about other data are not used, and stored counterexamples are run again."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import relucert as rc
from data.official import random_arrays, write_npz
from relucert.cli.main import run
from relucert.core.errors import DamagedData, RunError
from relucert.data import SPECS
from relucert.evaluation.attack import attacked
from relucert.evaluation.certify import CertifyTask, verdicts
from relucert.evaluation.config import AttackConfig, CertifyConfig, EvaluateConfig, RadiusConfig
from relucert.evaluation.evaluate import evaluate
from relucert.evaluation.radius import radii
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.records.question import save
from relucert.records.store import RecordStore
from zoo import randomised

COUNT = 12


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a small "mnist" of random pixels, and a network for it."""
    monkeypatch.setitem(SPECS, "mnist", replace(SPECS["mnist"], train=10, test=COUNT))
    monkeypatch.setenv("RELUCERT_DATA", str(tmp_path))
    write_npz(tmp_path / "mnist.npz", random_arrays("mnist", train=10, test=COUNT))
    rc.save(Network(randomised(mlp((1, 28, 28), 10, [8]), 1), (1, 28, 28)).eval(), tmp_path / "net.safetensors")
    relabel(tmp_path)
    return tmp_path


def relabel(folder: Path, **changes: np.ndarray) -> None:
    """Change arrays of the data behind its name; all but the first two test points keep the class that the network says."""
    arrays = dict(np.load(folder / "mnist.npz")) | changes
    net = rc.load(folder / "net.safetensors")
    x = torch.from_numpy(arrays["x_test"]).float().div(255).unsqueeze(1)
    arrays["y_test"] = net.predict(x).numpy()
    arrays["y_test"][:2] = (arrays["y_test"][:2] + 1) % 10
    write_npz(folder / "mnist.npz", arrays | {name: changes[name] for name in changes if name == "y_test"})


def evaluations(folder: Path) -> dict:
    shared = {
        "model": folder / "net.safetensors",
        "data": "mnist",
        "points": COUNT,
        "batch": 5,
        "out": folder / "r.jsonl",
    }
    radius = {"p": math.inf, "eps": 0.002}
    return {
        "certify": lambda: verdicts(CertifyConfig(**shared, **radius, method="crown")).records,
        "attack": lambda: attacked(AttackConfig(**shared, p=math.inf, eps=0.05, method="pgd(steps=5)")).records,
        "smallest": lambda: attacked(AttackConfig(**shared, p=2.0, method="ddn(steps=10)")).records,
        "radius": lambda: (
            radii(RadiusConfig(**shared, p=2.0, method="region(regions=1)", attack="ddn(steps=10)")).records
        ),
        "evaluate": lambda: [
            evaluate(EvaluateConfig(**shared, p=math.inf, eps=0.05, attack="pgd(steps=5)", regions=False)).robust_error
        ],
    }


VERBS = ["certify", "attack", "smallest", "radius", "evaluate"]


@pytest.mark.parametrize("verb", VERBS)
def test_data_that_changed_behind_its_name_is_evaluated_again(folder, verb):
    evaluation = evaluations(folder)[verb]
    before = evaluation()
    assert evaluation() == before, "what is known is not done again"
    assert len(RecordStore(folder / "r.jsonl")) == COUNT
    pixels = np.load(folder / "mnist.npz")["x_test"].copy()
    pixels[3:5] = 255 - pixels[3:5]
    relabel(folder, x_test=pixels)
    with pytest.warns(UserWarning, match=r"r\.jsonl: the records of 2 points are about other contents of data 'mnist'"):
        after = evaluation()
    assert len(RecordStore(folder / "r.jsonl")) == COUNT + 2, "points that are the same keep their records"
    fresh = evaluations(folder)[verb]
    (folder / "r.jsonl").unlink()
    (folder / "r.arrays").unlink(missing_ok=True)
    assert [answer(record) for record in fresh()] == [answer(record) for record in after]


def answer(record):
    return record if isinstance(record, tuple) else (record.key, record.verdict, record.lower, record.upper)


def test_labels_that_changed_are_another_question(folder):
    evaluation = evaluations(folder)["certify"]
    before = evaluation()
    assert {str(record.verdict) for record in before} >= {"robust", "misclassified"}
    relabel(folder, y_test=np.full(COUNT, 3))
    with pytest.warns(UserWarning, match="are about other contents"):
        after = evaluation()
    assert all(record.label == 3 for record in after)
    assert all((record.verdict == "misclassified") == (record.prediction != 3) for record in after)


def test_old_records_are_read_and_say_what_they_lack(folder):
    evaluation = evaluations(folder)["certify"]
    before = evaluation()
    (folder / "r.jsonl").unlink()
    (folder / "r.arrays").unlink(missing_ok=True)
    with RecordStore(folder / "r.jsonl", writable=True) as store:
        for record in before:
            if record.verdict != "vulnerable":
                store.append(replace(record, content=None))
        old = len(store)
    with pytest.warns(UserWarning, match=f"records of {old} points lack a digest of input and label, as an older"):
        after = evaluation()
    assert after == before
    store = RecordStore(folder / "r.jsonl")
    assert sum(bool(record.lacks) for record in store.records()) == old
    assert len(store) == old + COUNT


def forge(folder: Path, **changes) -> None:
    """Write the store again with other facts or witnesses in the records of counterexamples, resealed."""
    store = RecordStore(folder / "r.jsonl")
    kept = [(record, {name: store.array(record.key, name) for name in record.arrays}) for record in store.records()]
    for name in ("r.jsonl", "r.arrays"):
        (folder / name).unlink()
    with RecordStore(folder / "r.jsonl", writable=True) as writer:
        for record, arrays in kept:
            if "witness" in arrays:
                record, arrays = (
                    replace(record, arrays={}, **changes.get("facts", {})),
                    changes["arrays"](record, arrays),
                )
            writer.append(record, arrays)


@pytest.mark.parametrize("verb", ["attack", "smallest", "radius"])
def test_stored_counterexamples_are_run_again(folder, verb):
    evaluation = evaluations(folder)[verb]
    evaluation()
    x = rc.dataset("mnist").x_test.numpy()
    for change, message in (
        (lambda record, arrays: {"witness": x[record.index]}, "must change the class"),
        (lambda record, arrays: {"witness": 1 - arrays["witness"]}, "must lie in the ball of radius"),
        (lambda record, arrays: {"witness": arrays["witness"][:, 1:]}, r"must be float32 of shape \(1, 28, 28\), got"),
        (lambda record, arrays: {}, "must have a witness, got none"),
    ):
        for name in ("r.jsonl", "r.arrays"):
            (folder / name).unlink()
        evaluation()
        forge(folder, arrays=change)
        with pytest.raises(DamagedData, match=rf"r\.jsonl: record .* of point \d+: .*{message}") as caught:
            evaluation()
        assert "delete the line of that record" in caught.value.remedy


def test_workers_that_read_other_data_are_found_out(folder):
    task = CertifyTask(CertifyConfig(
        model=folder / "net.safetensors", data="mnist", points=COUNT, p=2.0, eps=0.01, method="ibp", out=folder / "r.jsonl",
    ))  # fmt: skip
    _, facts = next(task.solve(torch.tensor([5]), math.inf))
    with RecordStore(folder / "r.jsonl", writable=True) as store:
        assert save(task.question, store, 5, facts, {}).index == 5
        with pytest.raises(RunError, match="data 'mnist' must not change while it is evaluated, got another point 6"):
            save(task.question, store, 6, facts, {})


def test_the_command_line_says_in_one_line_what_is_evaluated_again(folder, capsys, monkeypatch):
    arguments = [
        "certify", str(folder / "net.safetensors"), "--data", "mnist", "--p", "inf", "--eps", "0.002", "--method", "crown",
        "--points", str(COUNT), "--out", str(folder / "r.jsonl"),
    ]  # fmt: skip
    assert run(arguments) == 0
    capsys.readouterr()
    relabel(folder, y_test=np.full(COUNT, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run(arguments) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert line.startswith(f"relucert: warning: {folder / 'r.jsonl'}: the records of")
