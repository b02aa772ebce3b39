"""A folder of images on the command line: the lines of docs/networks-of-others.md, `--mean` and `--std`, `--device`."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import relucert as rc
from accelerator import DEVICE, fake_accelerator
from relucert.cli.main import run
from relucert.records.store import RecordStore

PAGE = Path(__file__).resolve().parents[2] / "docs/networks-of-others.md"
#: Every verb about points, with a method that takes little time.
VERBS = {
    "certify": ["--eps", "0.01", "--method", "crown"],
    "radius": ["--p", "2", "--method", "region(regions=1)", "--attack", "ddn(steps=5)"],
    "attack": ["--eps", "0.2", "--method", "pgd(steps=5)"],
    "evaluate": ["--eps", "0.2", "--attack", "pgd(steps=5)"],
}


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    digits = rc.dataset("digits")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
    rc.train(module, (digits.x_train, digits.y_train), epochs=12)
    return module


@pytest.fixture
def place(trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network in two formats, and 20 images of digits in `photos/`, two of each class."""
    monkeypatch.chdir(tmp_path)
    digits = rc.dataset("digits")
    for label in range(10):
        folder = tmp_path / "photos" / str(label)
        folder.mkdir(parents=True)
        for number, x in enumerate(digits.x_test[digits.y_test == label][:2]):
            Image.fromarray((255 * x[0]).round().byte().numpy()).save(folder / f"{number}.png")
    for name in ("net.onnx", "net.safetensors"):
        rc.save(rc.Network(trained, (1, 8, 8)), tmp_path / name)
    return tmp_path


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """The 20 images of `photos/`, and their labels."""
    found = rc.dataset("photos/")
    assert found.y_test.tolist() == [label for label in range(10) for _ in range(2)]
    return found.x_test, found.y_test


@pytest.mark.skipif(not PAGE.exists(), reason="needs docs/, which source distributions leave out")
def test_the_lines_of_the_page_run(place, capsys):
    pytest.importorskip("onnx")
    lines = re.findall(r"^relucert (.*)$", PAGE.read_text(), re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["certify", "attack", "evaluate", "report"]
    for line in lines:
        assert run(shlex.split(line)) == 0
    said = capsys.readouterr().out
    assert "of 20 points" in said
    assert "correctly classified points falsified" in said
    x, _ = images()
    net, records = rc.load("net.onnx"), list(RecordStore(place / "net.records.jsonl").records())
    certified = [record for record in records if record.method.startswith("certify")]
    attacked = [record for record in records if record.method.startswith("apgd")]
    assert len(certified) == len(attacked) == 20
    assert all(record.prediction == int(net.predict(x[record.index][None])) for record in records)
    assert sum(record.verdict == "robust" for record in certified) >= 5
    assert sum(record.verdict == "vulnerable" for record in attacked) >= 5
    assert (place / "report.html").stat().st_size > 10_000


def test_mean_and_std_are_what_the_network_is_behind(place, trained, capsys):
    x, y = images()
    net = rc.Network(trained, (1, 8, 8), mean=0.05, std=0.9)
    expected = rc.certify(net, x, y, rc.Ball(torch.inf, 0.01, (0, 1)), "crown")
    line = ["certify", "net.safetensors", "--data", "photos/", *VERBS["certify"], "--json"]
    assert run([*line, "--mean", "0.05", "--std", "0.9"]) == 0
    found = [json.loads(text) for text in capsys.readouterr().out.splitlines()[:-1]]
    assert [point["verdict"] for point in found] == [str(verdict) for verdict in expected.verdict]
    right = [i for i, point in enumerate(found) if point["verdict"] != "misclassified"]
    margins = torch.tensor([found[i]["margin"] for i in right], dtype=torch.float64)
    torch.testing.assert_close(margins, expected.margin[right], rtol=1e-5, atol=1e-6)
    assert run(line) == 0
    plain = [json.loads(text)["margin"] for text in capsys.readouterr().out.splitlines()[:-1]]
    assert plain != [point["margin"] for point in found], "the network without a normalisation has other margins"
    assert run([*line, "--mean", "0.1", "0.2"]) == 2
    assert "mean must be a finite number or one for each channel" in capsys.readouterr().err
    assert run([*line, "--std", "0"]) == 2
    assert "std must be positive numbers, got (0.0,)" in capsys.readouterr().err
    rc.save(net, "normalised.safetensors")
    assert run(["attack", "normalised.safetensors", "--data", "photos/", "--mean", "0.05"]) == 2
    assert "mean and std must be left out for normalised.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_a_device_has_the_answers_of_the_cpu(verb, place, capsys):
    line = [verb, "net.safetensors", "--data", "photos/", "--points", "6", *VERBS[verb], "--json"]
    assert run([*line, "--out", "near.jsonl"]) == 0
    with fake_accelerator():
        assert run([*line, "--out", "far.jsonl", "--device", DEVICE.type]) == 0
        count = len(RecordStore(place / "far.jsonl"))
        assert run([*line, "--out", "far.jsonl", "--device", DEVICE.type]) == 0
    near, far = (list(RecordStore(place / name).records()) for name in ("near.jsonl", "far.jsonl"))
    assert len(near) == len(far) == count, "the second call reads the records of the first"
    for one, other in zip(near, far, strict=True):
        assert (one.key, one.verdict, one.prediction) == (other.key, other.verdict, other.prediction)
        for name in ("margin", "lower", "upper"):
            value = getattr(one, name)
            assert getattr(other, name) == (None if value is None else pytest.approx(value, rel=1e-5, abs=1e-6))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("device", ["nowhere", "meta"])
def test_devices_that_are_not_there_are_named(verb, device, place, capsys):
    assert run([verb, "net.safetensors", "--data", "photos/", *VERBS[verb], "--device", device]) == 2
    assert f"device must be one that torch can use here, such as cpu, got '{device}'" in capsys.readouterr().err


def test_workers_stay_on_the_cpu(place, capsys):
    line = ["certify", "net.safetensors", "--data", "photos/", *VERBS["certify"], "--workers", "2"]
    with fake_accelerator():
        assert run([*line, "--device", DEVICE.type]) == 2
    assert "workers must be 1 for inputs on lazy, got 2" in capsys.readouterr().err
