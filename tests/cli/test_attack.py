import json

import numpy as np
import pytest
import torch

import relucert as rc
from relucert.cli.main import run
from relucert.core.errors import InvalidInput
from relucert.evaluation import attack as module
from relucert.evaluation.attack import attacked
from relucert.evaluation.config import AttackConfig
from relucert.records.store import RecordStore
from relucert.training.config import TrainConfig
from relucert.training.loop import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "run"
    return train(TrainConfig(data="digits", epochs=2, evaluate_every=0, out=place)).folder


def lines(capsys, *arguments):
    assert run(["attack", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_smallest_perturbations_are_records_with_witnesses(folder, tmp_path, capsys):
    out = tmp_path / "a.jsonl"
    prop = [
        str(folder),
        "--data",
        "digits",
        "--p",
        "2",
        "--points",
        "12",
        "--batch",
        "5",
        "--method",
        "ddn",
        "--out",
        str(out),
    ]
    found = lines(capsys, *prop)
    assert len(found) == 13
    data, net = rc.dataset("digits"), rc.load(folder)
    store = RecordStore(out)
    for record, line in zip(store.records(), found[:-1], strict=True):
        x, y = data.x_test[record.index], int(data.y_test[record.index])
        assert (line["index"], line["label"], line["distance"]) == (record.index, y, record.upper)
        if line["verdict"] == "misclassified":
            assert int(net.predict(x[None])) != y
        else:
            assert line["verdict"] == "vulnerable"
            witness = torch.from_numpy(store.array(record.key, "witness").copy())
            assert int(net.predict(witness[None])) != y
            assert float((witness - x).norm()) == pytest.approx(line["distance"], rel=1e-5)
    distances = [line["distance"] for line in found[:-1] if line["verdict"] == "vulnerable"]
    assert found[-1]["summary"]["mean_distance"] == pytest.approx(sum(distances) / len(distances))
    assert found[-1]["summary"]["falsified"] == len(distances)


def test_within_a_radius_the_records_are_those_of_evaluate(folder, tmp_path, capsys):
    out = str(tmp_path / "b.jsonl")
    common = ["--data", "digits", "--points", "20", "--p", "2", "--eps", "0.3", "--out", out]
    assert run(["evaluate", str(folder), *common, "--attack", "pgd(steps=5)", "--no-regions", "--json"]) == 0
    evaluation = json.loads(capsys.readouterr().out)
    found = lines(capsys, str(folder), *common, "--method", "pgd(steps=5)", "--batch", "500")
    assert found[-1]["summary"]["robust_error"] == evaluation["robust_error"]
    assert len(RecordStore(tmp_path / "b.jsonl")) == 20, "nothing was attacked a second time"
    assert run(["attack", str(folder), *common, "--method", "apgd(steps=5)"]) == 0
    out = capsys.readouterr().out
    assert "correctly classified points falsified" in out
    assert "vulnerable" in out


def test_what_is_known_is_not_done_again_and_a_stopped_run_ends_the_same(folder, tmp_path, monkeypatch):
    config = AttackConfig(
        model=folder, data="digits", p=1, method="fab(steps=3, restarts=2, targets=2)", points=9, batch=4,
        out=tmp_path / "whole.jsonl",
    )  # fmt: skip
    whole = attacked(config)
    part = AttackConfig(**{**vars(config), "points": 4, "out": tmp_path / "part.jsonl"})
    attacked(part)
    resumed = attacked(AttackConfig(**{**vars(part), "points": 9}))
    assert [record.upper for record in resumed.records] == [record.upper for record in whole.records]
    monkeypatch.setattr(module, "minimal_attack", lambda *a: pytest.fail("attacked again"))
    assert attacked(config).mean_distance == whole.mean_distance


def test_the_predicted_class_can_be_attacked_instead_of_the_label(folder, tmp_path):
    config = AttackConfig(
        model=folder, data="digits", p=2, method="ddn(steps=20)", points=60, labels=False, out=tmp_path / "p.jsonl"
    )
    assert attacked(config).misclassified == 0


def test_mistakes_are_named(folder, tmp_path, capsys):
    for change, message in [
        ({"p": 0.5}, "p must be a number >= 1 or inf, got 0.5"),
        ({"eps": -1.0}, "eps must be a number >= 0, got -1.0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            AttackConfig(**{"model": folder, "data": "digits", **change})
    common = ["attack", str(folder), "--data", "digits", "--out", str(tmp_path / "m.jsonl")]
    for more, message in [
        (["--method", "pgd"], "method must be one of best, cw, ddn, fab, region, got 'pgd'"),
        (["--method", "ddn", "--eps", "0.1"], "method must be one of apgd, pgd, got 'ddn'"),
        (["--method", "ddn", "--p", "inf"], "p of ddn must be 2, got inf"),
    ]:
        assert run([*common, *more]) == 2
        assert message in capsys.readouterr().err


def test_summaries_of_nothing_have_no_means(tmp_path, capsys):
    """Of points that are all misclassified, and of points that no attack falsifies: words, not the mean of no numbers."""
    data = rc.dataset("digits")
    net = rc.build("fc1", (1, 8, 8), 10).eval()
    x = data.x_test[:3]
    for name, y in (("wrong", (net.predict(x) + 1) % 10), ("right", net.predict(x))):
        rc.save(net, tmp_path / "net.safetensors")
        np.savez(tmp_path / f"{name}.npz", x_test=x.numpy(), y_test=y.numpy())
        common = [str(tmp_path / "net.safetensors"), "--data", str(tmp_path / f"{name}.npz"), "--p", "2"]
        out = ["--out", str(tmp_path / f"{name}.jsonl")]
        assert run(["attack", *common, "--eps", "1e-6", "--method", "pgd(steps=2)", *out]) == 0
        text = capsys.readouterr().out
        assert f"0 of {0 if name == 'wrong' else 3} correctly classified points falsified" in text
        assert "nan" not in text
    assert run(["radius", *common[:2], str(tmp_path / "wrong.npz"), "--p", "2", "--method", "crown", *out]) == 0
    text = capsys.readouterr().out
    assert "no point is correctly classified, so none has a radius" in text
    assert "nan" not in text
