"""The last line of a verb is a command that works when it is pasted, about the same network, data, norm and radius."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import relucert as rc
from relucert.cli._next import next_comparison, next_reproduce
from relucert.cli.main import run
from relucert.experiments.paper.config import ReproduceConfig
from relucert.experiments.paper.reproduce import evaluated
from relucert.records.store import RecordStore

SHOTS = "my photos/of digits"


@pytest.fixture(scope="module")
def net() -> rc.Network:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    return rc.train(module, rc.dataset("digits"), epochs=3, progress=False).net


@pytest.fixture
def place(net: rc.Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network, and six images whose path has spaces."""
    monkeypatch.chdir(tmp_path)
    digits = rc.dataset("digits")
    for number in range(6):
        folder = tmp_path / SHOTS / str(int(digits.y_test[number]))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * digits.x_test[number, 0]).byte().numpy()).save(folder / f"{number}.png")
    for label in range(10):
        (tmp_path / SHOTS / str(label)).mkdir(exist_ok=True)
    rc.save(net, "net.safetensors")
    return tmp_path


def following(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The words of the next command, as a shell takes the last line of a verb."""
    last = capsys.readouterr().out.splitlines()[-1]
    command, *words = shlex.split(last.removeprefix("next: "), comments=False)
    assert last.startswith("next: ")
    assert command == "relucert"
    assert not {"(", ")", ";", "|", "&"} & set(last), "a shell reads these itself"
    return words


NORMALISED = ["--mean", "0.1", "--std", "0.9", "--input-shape", "1", "8", "8"]
ELSEWHERE = ["--out", "far/my records.jsonl"]


@pytest.mark.parametrize(("more", "out"), [([], []), (NORMALISED, []), (NORMALISED, ELSEWHERE)])
def test_what_follows_an_evaluation_is_about_the_same_question(more, out, place, capsys):
    """evaluate, then certify, then show or report: every line is the one that was printed before it."""
    (place / "far").mkdir()
    line = ["evaluate", "net.safetensors", "--data", SHOTS, "--p", "2", "--eps", "0.07", "--attack", "pgd(steps=3)"]
    assert run([*line, *more, *out]) == 0
    words = following(capsys)
    assert words[:2] == ["certify", "net.safetensors"]
    assert run([*words, "--method", "crown"]) == 0
    following(capsys)
    records = list(RecordStore(place / (out[1] if out else "net.records.jsonl")).records())
    judged = [record for record in records if math.isfinite(float(record.ball["eps"]))]
    questions = {(record.model, record.data, str(record.ball["p"]), record.ball["eps"]) for record in judged}
    assert len(judged) == 12
    assert len(questions) == 1, "both verbs ask about one network, one data set and one ball"
    assert run(["radius", *words[1:4], *more, *out, "--method", "region(regions=1)", "--points", "2"]) == 0
    words = following(capsys)
    assert words[0] == "report"
    assert run(words) == 0
    page = (place / "report.html").read_text()
    assert "could not be read" not in page, "the report shows the inputs"
    assert "report.html" in words
    assert ("--networks net.safetensors" in " ".join(words)) == bool(out), "networks beside the records are found"


def test_undecided_points_are_shown(place, capsys):
    assert run(["certify", "net.safetensors", "--data", SHOTS, "--eps", "0.03", "--method", "ibp"]) == 0
    words = following(capsys)
    assert words[0] == "show"
    assert run(words) == 0
    assert "unknown" in capsys.readouterr().out


def test_a_run_is_gone_on_with(place, capsys):
    assert (
        run(
            [
                "train",
                "--data",
                "digits",
                "--model",
                "fc-1x8",
                "--p",
                "2",
                "--eps",
                "0.05",
                "--epochs",
                "1",
                "--out",
                "a run",
            ]
        )
        == 0
    )
    words = following(capsys)
    assert words == ["certify", "a run"]
    assert run([*words, "--points", "3", "--method", "crown"]) == 0
    following(capsys)
    first = next(RecordStore(place / "a run/records.jsonl").records())
    assert (first.data, float(first.ball["p"]), first.ball["eps"]) == ("digits", 2, 0.05)
    for verb in ("radius", "attack", "evaluate"):
        quick = {"radius": ["--method", "crown"], "attack": ["--method", "fab(steps=3)"], "evaluate": []}[verb]
        assert run([verb, "a run", "--points", "3", *quick]) == 0
        words = following(capsys)
        assert run([*words, *(["--points", "3", "--method", "crown"] if verb == "evaluate" else [])]) == 0
        capsys.readouterr()
    assert run(["merge", "a run/records.jsonl", "-o", "all of them.jsonl"]) == 0
    assert run(following(capsys)) == 0


def test_certificates_are_derived_again_and_then_shown(place, capsys):
    """check, then check in rational numbers, then show; where one is not proved, what that means."""
    flags = ["--data", "digits", "--eps", "0.02", "--points", "4", "--method", "crown", "--proofs", "some proofs"]
    assert run(["certify", "net.safetensors", *flags]) == 0
    capsys.readouterr()
    assert run(["check", "some proofs", "--network", "net.safetensors"]) == 0
    words = following(capsys)
    assert words == ["check", "some proofs", "--network", "net.safetensors", "--exact"]
    assert run(words) == 0
    words = following(capsys)
    assert words[:2] == ["show", "net.records.jsonl"]
    assert run(words) == 0
    assert "robust" in capsys.readouterr().out
    (place / "some proofs/000000.npz").write_bytes(b"nothing")
    assert run(["check", "some proofs", "--network", "net.safetensors"]) == 1
    assert run(following(capsys)) == 0
    assert "NOT CHECKED: it is not" in " ".join(capsys.readouterr().out.split())


def test_data_that_are_there_are_trained_on(place, capsys):
    assert run(["data", "fetch", "digits"]) == 0
    words = following(capsys)
    assert words[:3] == ["train", "--data", "digits"]
    assert run([*words, "--epochs", "1", "--model", "fc-1x8"]) == 0
    capsys.readouterr()
    assert run(["data", "fetch", "digits", "--folder", "my data"]) == 0
    words = following(capsys)
    assert words == ["data", "info", "digits", "--folder", "my data"]
    assert run(words) == 0


def test_what_follows_the_experiments_of_the_paper(place, capsys):
    """list, then all on the digits; a table on the digits, then the queue of its trainings; a table, then a report."""
    assert run(["reproduce", "list"]) == 0
    assert following(capsys) == ["reproduce", "all", "--quick"]
    quick = [
        "--models",
        "fc1",
        "--schemes",
        "plain",
        "--epochs",
        "1",
        "--points",
        "3",
        "--out",
        "a folder",
        "--runs",
        "none",
    ]
    assert run(["reproduce", "table3", *quick, "--quick"]) == 0
    words = following(capsys)
    assert words == ["reproduce", "table3", *quick, "--queue", "--hours", "0"]
    config = ReproduceConfig(name="table3", models=("fc1",), quick=True, epochs=1, out=Path("a folder"))
    assert run(shlex.split(next_comparison(evaluated(config)))[2:]) == 0
    assert "fc1" in (place / "report.html").read_text()
    line = next_reproduce(config, quick=False, queue=True, hours=None)
    assert line == "next: relucert reproduce table3 --models fc1 --epochs 1 --out 'a folder' --queue"
