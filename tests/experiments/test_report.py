"""The report of real records of the digits: one file, the figures of the records, pictures that belong to them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from relucert.cli.main import run
from relucert.core.errors import DamagedData, InvalidInput
from relucert.data import dataset
from relucert.evaluation.certify import verdicts
from relucert.evaluation.config import CertifyConfig, RadiusConfig
from relucert.evaluation.radius import radii
from relucert.experiments import report as module
from relucert.experiments.report import report
from relucert.records.store import RecordStore
from relucert.reports.config import ReportConfig
from relucert.training.config import TrainConfig
from relucert.training.loop import train

POINTS = 40


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "plain<run>"
    train(TrainConfig(data="digits", epochs=2, evaluate_points=0, out=folder))
    about = {"model": folder, "data": "digits", "p": math.inf, "points": POINTS}
    found = verdicts(CertifyConfig(**about, eps=0.03, method="crown"))
    radii(RadiusConfig(**about, method="crown", attack="fab(steps=5, targets=1)"))
    return folder, found


def document(path):
    text = path.read_text()
    return json.loads(re.search(r'id="document">(.*?)</script>', text, re.DOTALL)[1]), text


def test_the_page_has_the_figures_of_the_records_and_needs_no_network(trained, tmp_path, capsys):
    folder, found = trained
    out = tmp_path / "r.html"
    assert run(["report", str(folder), "-o", str(out), "--slices", "3", "--json"]) == 0
    (figures,) = json.loads(capsys.readouterr().out)["models"]
    assert figures["most_error"] <= found.robust_error[1] + 1e-9
    assert figures["least_error"] >= found.robust_error[0] - 1e-9
    stored, text = document(out)
    assert "plain<run>" not in text
    assert stored["subjects"][0]["name"] == "plain<run>"
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\(["']?http""", text)
    (subject,) = stored["subjects"]
    assert subject["eps"] == 0.03
    assert len(subject["points"]["index"]) == len(stored["data"]["digits"]["tiles"]) == POINTS
    assert len(subject["slices"]) == 3
    assert set(subject["differenceTiles"]) == set(subject["witnessLogits"])
    assert len(subject["logits"]) == POINTS
    for at, row in subject["witnessLogits"].items():
        place = subject["points"]["index"].index(int(at))
        assert np.argmax(row) != subject["points"]["label"][place] or sorted(row)[-1] - sorted(row)[-2] < 1e-2


def test_without_network_and_data_the_page_says_so(trained, tmp_path, monkeypatch):
    folder, _ = trained
    for name in ("records.jsonl", "records.arrays"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    monkeypatch.setattr(module, "local_data", lambda name, shape: "the data set digits is not on this machine")
    report(ReportConfig(sources=(tmp_path / "records.jsonl",), out=tmp_path / "r.html"))
    stored, _ = document(tmp_path / "r.html")
    assert stored["data"]["digits"]["kind"] == "none"
    assert "not on this machine" in stored["data"]["digits"]["why"]
    assert "The network was not found" in stored["subjects"][0]["notes"][0]


def test_inputs_that_are_not_those_of_the_records_are_not_shown(trained, tmp_path, monkeypatch):
    folder, _ = trained
    other = dataset("digits")
    other.__dict__["x_test"] = other.x_test.flip(0)
    monkeypatch.setattr(module, "local_data", lambda name, shape: other)
    report(ReportConfig(sources=(folder,), out=tmp_path / "r.html", slices=0))
    stored, _ = document(tmp_path / "r.html")
    assert stored["data"]["digits"]["kind"] == "none"
    assert f"{POINTS} inputs are left out" in stored["data"]["digits"]["why"]


def test_a_counterexample_far_from_its_input_is_refused(trained):
    folder, _ = trained
    (subject,) = module.subjects([("run", RecordStore(folder / "records.jsonl"))])
    witnesses = module._witnesses(subject)
    index, array = next(iter(witnesses.items()))
    x = dataset("digits").x_test.numpy()
    with pytest.raises(DamagedData, match="lies at distance"):
        module._nearer(subject, {index: x[index]}, {index: array + 1})
    measured = module._nearer(subject, {index: x[index]}, {index: array})
    assert [a.lower for a in measured.points] == [a.lower for a in subject.points]


def test_tables_show_features(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    labels = (numbers[:, 0] > 0).astype(int)
    rows = [",".join(map(str, [*row, label])) for row, label in zip(numbers.tolist(), labels, strict=True)]
    (tmp_path / "table.csv").write_text("a,b,c,d,label\n" + "\n".join(rows) + "\n")
    import torch
    from torch import nn

    import relucert as rc

    torch.manual_seed(0)
    net = rc.Network(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), input_shape=(4,)).eval()
    rc.save(net, tmp_path / "net.safetensors")
    data = str(tmp_path / "table.csv")
    radii(
        RadiusConfig(
            model=tmp_path / "net.safetensors", data=data, p=math.inf, points=None, method="crown",
            attack="fab(steps=10, targets=1)", labels=False,
        )
    )  # fmt: skip
    out = tmp_path / "r.html"
    report(ReportConfig(sources=(tmp_path / "net.records.jsonl",), out=out, data=data))
    stored, _ = document(out)
    (subject,) = stored["subjects"]
    assert stored["data"]["table.csv"]["kind"] == "table"
    assert stored["data"]["table.csv"]["columns"] == ["a", "b", "c", "d"]
    assert subject["changes"]
    for index, changes in subject["changes"].items():
        assert sorted(j for j, *_ in changes) == [0, 1, 2, 3]
        assert all(change == pytest.approx(z - x, rel=1e-3, abs=1e-6) for _, x, z, change in changes)
        assert changes[0][1] == pytest.approx(float(numbers[int(index), changes[0][0]]), rel=1e-4)


def test_sources_without_records_are_an_error(tmp_path, capsys):
    assert run(["report", str(tmp_path)]) == 2
    assert "sources must be run folders" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="out must end in"):
        replace(ReportConfig(sources=(tmp_path,)), out=tmp_path / "page.pdf")
