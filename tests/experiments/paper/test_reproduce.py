"""Experiments run from training to tables on the digits; what is interrupted ends with the same records; bad input is named."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from relucert.core.errors import ClusterError, FileAccessError, InvalidInput, MissingData, RecordConflict, RunError
from relucert.experiments.paper.config import ReproduceConfig
from relucert.experiments.paper.registry import EXPERIMENTS
from relucert.experiments.paper.reproduce import reproduce
from relucert.records import atomic
from relucert.records.store import RecordStore
from relucert.reports.paper.tables import LAYOUTS
from relucert.training.progress import Watcher


def config(out, name="table2", **given):
    """One network with one epoch and four points, if nothing else is given."""
    small = {"models": ("fc1",), "schemes": ("mmr",), "epochs": 1, "points": 4, "quick": True, "workers": 1}
    return ReproduceConfig(**({"name": name, "out": out, "runs": out / "none"} | small | given))


def run(out, name="table2", say=lambda line: None, **given):
    return reproduce(config(out, name, **given), say, Watcher())


def records(out):
    """All records below a folder by network and key."""
    return {
        file.stem: {record.key: record for record in RecordStore(file).records()}
        for file in sorted((out / "records").glob("*.jsonl"))
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A folder with Table 2 and one network of Table 1, and the lines that were said."""
    out, lines = tmp_path_factory.mktemp("done"), []
    written = run(out, say=lines.append)
    written += run(out, "table1", schemes=("plain",), say=lines.append)
    return out, written, lines


def test_tables_are_written_in_four_formats(done):
    out, written, lines = done
    assert {path.name for path in written} == {
        f"{name}.{kind}" for name in ("table1", "table2") for kind in ("md", "tex", "csv", "json")
    }
    found = json.loads((out / "table2.json").read_text())
    assert [section["title"] for section in found["sections"]] == [
        "MNIST",
        "GTS",
        "F-MNIST",
        "digits (not in the paper)",
    ]
    digits = found["sections"][-1]["rows"][0]["cells"]
    error, lower, upper = (cell["ours"] for cell in digits[:3])
    assert 0 <= error <= 100
    assert 0 < lower <= upper
    assert all(cell["ours"] is None for cell in digits[3:])
    paper = [cell["paper"] for section in found["sections"] for row in section["rows"] for cell in row["cells"]]
    published = [value for cells in LAYOUTS["table2"].paper.values() for value in cells.values()]
    assert sorted(value for value in paper if value is not None) == sorted(published)
    assert "table2: digits-fc1-mmr-2-tables23 (1 of 1): radius by kw" in lines


def test_robust_errors_enclose_the_truth_and_undecided_points_are_listed(done):
    out, _, _ = done
    found = json.loads((out / "table1.json").read_text())
    row = found["sections"][-1]["rows"][0]
    assert row["labels"] == ["plain"]
    for place in (0, 6):  # FC1 in l_inf and in l2
        _, lower, upper = (cell["ours"] for cell in row["cells"][place : place + 3])
        assert 0 <= lower <= upper <= 100
    assert "digits-fc1-plain-inf: " in (out / "table1.md").read_text()


def test_what_is_there_is_not_done_again(done, monkeypatch):
    out, _, _ = done
    before = records(out)
    monkeypatch.setattr("relucert.experiments.paper.reproduce.train", lambda *given: pytest.fail("trained again"))
    run(out)
    assert records(out) == before


@pytest.mark.parametrize("stop", [1, 8, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (2, 4, 9, 12))])
def test_interrupted_anywhere_it_ends_with_the_same_records(done, tmp_path, monkeypatch, stop):
    out, _, _ = done
    whole = {name: own for name, own in records(out).items() if "tables23" in name}
    append, count = RecordStore.append, [0]

    def stopped(self, *given):
        count[0] += 1
        if count[0] == stop:
            raise KeyboardInterrupt
        return append(self, *given)

    monkeypatch.setattr(RecordStore, "append", stopped)
    trained = {"runs": out / "networks", "existing": True}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, **trained)
    kept = records(tmp_path)
    assert sum(map(len, kept.values())) == stop - 1
    run(tmp_path, **trained)
    assert records(tmp_path) == whole
    assert list((tmp_path / "networks").iterdir()) == []
    assert (tmp_path / "table2.csv").read_text() == (out / "table2.csv").read_text()


def test_interrupted_in_training_and_between_steps(done, tmp_path):
    out, _, _ = done
    whole = {name: own for name, own in records(out).items() if name == "digits-fc1-plain-inf"}

    class Stopper(Watcher):
        def watching(self, config, total, done):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(config(tmp_path, "table1", schemes=("plain",)), lambda line: None, Stopper())
    for word in ("attack by apgd", "certify by", "smallest by region"):

        def say(line, word=word):
            if word in line:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "table1", schemes=("plain",), say=say)
    run(tmp_path, "table1", schemes=("plain",))
    assert {name: records(tmp_path)[name] for name in whole} == whole


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "tabel1"}, r"name must be one of table1, .*, all or list, got 'tabel1'"),
        ({"schemes": ("mmr+at",)}, r"schemes must be among mmr, mmr-dd for table2, got mmr\+at"),
        ({"models": ("cnn",)}, r"models must be among fc1, fc10 for table2, got cnn"),
        ({"quick": False, "data": ("cifar10",)}, r"data must be among mnist, gts, fmnist for table2, got cifar10"),
        ({"existing": True}, r"data, models, schemes and existing must leave a network of table2"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_written(tmp_path, given, message):
    with pytest.raises(InvalidInput, match=message):
        run(tmp_path, **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"points": 0}, "points must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"timeout": 0.0}, r"timeout must be a positive number of seconds, got 0\.0"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"quick": True, "data": ("mnist",)}, "data must be left out with quick"),
    ],
)
def test_numbers_keep_their_rules(given, message):
    with pytest.raises(InvalidInput, match=message):
        ReproduceConfig(name="table1", **given)


def test_missing_data_is_named_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("RELUCERT_DATA", str(tmp_path / "empty"))
    with pytest.raises(MissingData, match=r"data gts must be on this machine: relucert data fetch gts"):
        run(tmp_path / "out", quick=False, data=("gts",))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_a_scheduler_that_does_not_answer_is_named_before_anything_is_trained(tmp_path, name):
    pytest.importorskip("distributed")
    with pytest.raises(ClusterError, match=r"tcp://127\.0\.0\.1:9"):
        run(tmp_path / "out", name, workers=None, scheduler="tcp://127.0.0.1:9")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidInput, match="workers must be left out with a scheduler"):
        config(tmp_path, scheduler="tcp://127.0.0.1:9")


def test_processes_make_the_records_of_one_process(done, tmp_path):
    out, _, _ = done
    run(tmp_path, runs=out / "networks", existing=True, workers=2)
    assert records(tmp_path) == {name: own for name, own in records(out).items() if "tables23" in name}


def test_records_of_another_network_are_refused_and_kept(done, tmp_path):
    out, _, _ = done
    foreign = (out / "records" / "digits-fc1-plain-inf.jsonl").read_bytes()
    (tmp_path / "records").mkdir()
    file = tmp_path / "records" / "digits-fc1-mmr-2-tables23.jsonl"
    file.write_bytes(foreign)
    with pytest.raises(RecordConflict, match=r"tables23\.jsonl must hold records of network \w+ alone"):
        run(tmp_path, runs=out / "networks")
    assert file.read_bytes() == foreign
    file.unlink()
    run(tmp_path, runs=out / "networks")
    file.write_bytes(foreign)  # later, when the network has a description
    with pytest.raises(RecordConflict, match=r"tables23\.jsonl must hold records of network \w+ alone"):
        run(tmp_path, runs=out / "networks")
    assert file.read_bytes() == foreign


@pytest.mark.parametrize("kept", [1, 2])
def test_verdicts_of_a_batch_that_was_interrupted_are_the_same_to_the_last_digit(tmp_path, kept):
    name = "digits-fc1-plain-inf"
    given = {"schemes": ("plain",), "points": 8}
    run(tmp_path, "table1", **given)
    whole, file = records(tmp_path)[name], tmp_path / "records" / f"{name}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    verdicts = [line for line in lines if b"certify by" in line]
    assert len(verdicts) > kept
    attacks = [line for line in lines if b"certify by" not in line and b"smallest by" not in line]
    file.write_bytes(b"".join([*attacks, *verdicts[-kept:]]))
    run(tmp_path, "table1", **given, workers=2)
    assert records(tmp_path)[name] == whole


def test_another_number_of_epochs_is_another_run(done):
    out, _, _ = done
    with pytest.raises(RunError, match=r"holds another run \(epochs is 1, not 2\): give another folder"):
        run(out, epochs=2)


def test_a_full_disk_is_named_and_nothing_is_lost(done, tmp_path, monkeypatch):
    out, _, _ = done
    write, full = atomic.write_atomically, []

    def writing(path, data):
        if str(path).endswith("table2.tex") and not full:
            full.append(path)
            with atomic.file_access(path):
                raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr("relucert.experiments.paper.experiment.write_atomically", writing)
    with pytest.raises(FileAccessError, match=r"table2\.tex cannot be written: No space left on device"):
        run(tmp_path, runs=out / "networks")
    run(tmp_path, runs=out / "networks")
    assert (tmp_path / "table2.tex").read_text().count("shortstack") == (out / "table2.tex").read_text().count(
        "shortstack"
    )
    assert records(tmp_path) == {name: own for name, own in records(out).items() if "tables23" in name}


@pytest.mark.slow
def test_all_of_it_on_the_digits(tmp_path):
    written = reproduce(ReproduceConfig(name="all", out=tmp_path, runs=tmp_path / "none", quick=True, workers=1))
    names = {path.name for path in written}
    for name in LAYOUTS:
        found = json.loads((tmp_path / f"{name}.json").read_text())
        if name != "l2-cifar10":  # the CNN on the digits is in the table of all architectures
            assert found["sections"][-1]["title"] == "digits (not in the paper)"
        first, last = (section["rows"] for section in (found["sections"][0], found["sections"][-1]))
        assert [row["labels"] for row in first] == [row["labels"] for row in last]
        for row, ours in zip(first, last, strict=True):
            known = [
                (paper["paper"] is not None, own["ours"] is not None)
                for paper, own in zip(row["cells"], ours["cells"], strict=True)
            ]
            assert all(own for paper, own in known if paper and name not in ("l2-cifar10", "table3"))
    figures = ("toy", "theorem", "plane-digits", "gradients-digits", "filters-digits")
    assert names >= {f"figure-{name}.{suffix}" for name in figures for suffix in ("png", "svg")}
    assert names >= {
        f"l2-certified-digits-{model}.{suffix}" for model in ("fc1", "fc10", "cnn") for suffix in ("png", "svg")
    }
    assert names >= {"lambda.md", "cw.md", "lambda-digits.png", "cw-ratios-digits.png"}
    optima = json.loads((tmp_path / "table3.json").read_text())["sections"][-1]["rows"][0]["cells"]
    assert all(cell["ours"] is not None for cell in optima)  # FC1 has proved optima, and so what exceeds KW's bound
    for name in ("lambda", "cw"):
        rows = json.loads((tmp_path / f"{name}.json").read_text())["sections"][-1]["rows"]
        assert all(row["cells"][0]["ours"] is not None for row in rows)
    assert set(EXPERIMENTS) >= {"table1", "lambda", "figures"}


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_records(done, tmp_path):
    words = (
        "reproduce",
        "table1",
        "--quick",
        "--models",
        "fc1",
        "--schemes",
        "plain",
        "--epochs",
        "1",
        "--points",
        "4",
    )
    flags = ("--workers", "1", "--out", str(tmp_path), "--runs", str(tmp_path / "none"))
    command = [sys.executable, "-m", "relucert", *words, *flags]
    moments = (
        ("pgd", signal.SIGINT),
        ("apgd", signal.SIGKILL),
        ("certify", signal.SIGINT),
        ("plain-2", signal.SIGTERM),
    )
    for word, number in moments:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if word in line:
                    break
            time.sleep(random.Random(word).uniform(0, 0.1))
            os.kill(process.pid, number)
            process.communicate()
        assert process.returncode in (-number, 130)
    subprocess.run(command, check=True, capture_output=True)
    out, _, _ = done
    whole = {name: own for name, own in records(out).items() if "tables23" not in name}
    assert records(tmp_path) == whole
