"""The queue of trainings: its order, what it lacks, and that a run which is stopped ends with the same weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from relucert.core.errors import DamagedData, InvalidInput, RunError
from relucert.experiments.paper.config import ReproduceConfig
from relucert.experiments.paper.pace import PACES, epochs_done, seconds_a_step, steps_of
from relucert.experiments.paper.queue import EPOCHS, queue, queue_table, work_off
from relucert.experiments.paper.registry import EXPERIMENTS
from relucert.networks.checkpoints import digest, load
from relucert.training.config import TrainConfig
from relucert.training.loop import train
from relucert.training.progress import Watcher


def config(out, name="table1", **given):
    """The FC1 of plain training on the digits, if nothing else is given."""
    small = {"models": ("fc1",), "schemes": ("plain",), "quick": True, "queue": True, "runs": out / "none"}
    return ReproduceConfig(**({"name": name, "out": out} | small | given))


@pytest.fixture
def paced(monkeypatch):
    """All steps take half a second."""
    monkeypatch.setattr("relucert.experiments.paper.pace.seconds_a_step", lambda run: 0.5)


def test_the_list_names_networks_of_the_paper():
    names = {network.name for experiment in EXPERIMENTS.values() for network in experiment.networks}
    assert set(EPOCHS) <= names
    assert all(5 <= epochs <= 300 for epochs in EPOCHS.values())


def test_the_order_is_that_of_the_list_and_what_is_not_in_it_comes_last(tmp_path, paced):
    found = queue(config(tmp_path, "all", models=(), schemes=(), quick=False))
    names = [training.network.name for training in found]
    assert names[: len(EPOCHS)] == list(EPOCHS)
    assert [training.run.settings.epochs for training in found[: len(EPOCHS)]] == list(EPOCHS.values())
    assert len(names) > len(EPOCHS)
    assert len(set(names)) == len(names)
    assert "fmnist-fc1-plain-2" not in names  # plain training is the same in both norms
    assert found[3].experiments == ("table2", "table3", "bounds", "l2", "cw")
    steps = 100 * 307  # 39209 signs in batches of 128
    assert found[0].hours == pytest.approx(steps * 0.5 / 3600)
    assert steps_of(found[0].run) == steps
    assert queue_table(found).count("\n") == len(found)


def test_epochs_of_the_command_are_those_of_all(tmp_path, paced):
    found = queue(config(tmp_path, schemes=("mmr",), data=("gts",), quick=False, epochs=7))
    assert [training.run.settings.epochs for training in found] == [7, 7]


def test_runs_count_that_have_as_many_epochs(tmp_path, paced):
    wanted = config(tmp_path, epochs=1)
    (training,) = queue(wanted)
    train(replace(training.run, out=tmp_path / "runs" / "plain"))
    assert queue(replace(wanted, runs=tmp_path / "runs")) == []
    assert len(queue(replace(wanted, runs=tmp_path / "runs", epochs=2))) == 1
    more = replace(wanted, epochs=None, runs=tmp_path / "runs")
    assert queue(more) == []  # it has no place in the list
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EPOCHS, training.network.name, 2)
        assert [one.run.settings.epochs for one in queue(more)] == [2]
        patch.setitem(EPOCHS, training.network.name, 1)
        assert queue(more) == []


def test_a_run_that_has_begun_keeps_its_epochs_and_what_is_left_counts(tmp_path, paced):
    class Stopper(Watcher):
        def watching(self, config, total, done):
            raise KeyboardInterrupt

    wanted = config(tmp_path, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        work_off(wanted, queue(wanted), lambda line: None, Stopper())
    (training,) = queue(replace(wanted, epochs=None))
    assert training.run.settings.epochs == 3
    folder = training.run.folder
    (folder / "metrics.jsonl").write_text('{"kind": "epoch", "step": 12, "epoch": 1, "seconds": 36.0}\n{"kind": "ep')
    assert epochs_done(folder) == (1, 36.0)
    (training,) = queue(wanted)
    assert training.hours == pytest.approx(2 * 36 / 3600)
    assert training.to_json()["done"] == 1


def test_hours_end_the_queue_after_a_step_and_the_rest_is_done_later(tmp_path, paced, monkeypatch):
    whole, wanted, lines = config(tmp_path / "whole", epochs=2), config(tmp_path / "stopped", epochs=2), []
    assert work_off(whole, queue(whole), lines.append, Watcher())
    with monkeypatch.context() as patch:  # a second passes with every look at the clock
        patch.setattr("relucert.experiments.paper.queue.time", SimpleNamespace(monotonic=count().__next__))
        limited = replace(wanted, hours=8 / 3600)
        assert not work_off(limited, queue(limited), lines.append, Watcher())
    (training,) = queue(wanted)
    assert (training.run.folder / "state.safetensors").exists()
    assert work_off(replace(wanted, hours=1.0), [training], lines.append, Watcher())
    assert digests(wanted.out) == digests(whole.out)
    assert queue(wanted) == []
    assert lines[0].startswith("1 of 1: digits-fc1-plain-inf: 2 epochs, about ")
    assert "1 of 1: digits-fc1-plain-inf: saved" in lines


def test_a_training_that_fails_does_not_keep_the_others_from_being_done(tmp_path, paced, monkeypatch):
    from relucert.experiments.paper import queue as module

    wanted, lines = config(tmp_path, epochs=1, schemes=("plain", "mmr")), []
    carry_out = module.carry_out

    def failing(task, observers):
        if task.config.scheme == "plain":
            raise RunError("the loss is nan")
        return carry_out(task, observers)

    monkeypatch.setattr(module, "carry_out", failing)
    with pytest.raises(RunError, match=r"got errors from digits-fc1-plain-inf: see above"):
        work_off(wanted, queue(wanted), lines.append, Watcher())
    assert [one.network.name for one in queue(wanted)] == ["digits-fc1-plain-inf"]
    assert any("the loss is nan" in line for line in lines)


def test_paces_are_measured_once_and_damaged_ones_are_named(tmp_path):
    (training,) = queue(config(tmp_path))
    assert 0 < training.hours < 1
    paces = json.loads((tmp_path / PACES).read_text())
    (tmp_path / PACES).write_text(json.dumps(dict.fromkeys(paces, 3600.0)))
    (again,) = queue(config(tmp_path))
    assert again.hours == steps_of(again.run)
    (tmp_path / PACES).write_text("[1")
    with pytest.raises(DamagedData, match=r"paces\.json.*delete it, and the paces are measured again"):
        queue(config(tmp_path))
    for scheme in ("mmr+at", "kw"):
        assert seconds_a_step(TrainConfig(data="digits", model="fc1", scheme=scheme)) > 0


def test_hours_need_a_queue():
    with pytest.raises(InvalidInput, match="hours must be left out without queue"):
        ReproduceConfig(name="table1", hours=1.0)
    with pytest.raises(InvalidInput, match="hours must be at least 0, got -1"):
        ReproduceConfig(name="table1", queue=True, hours=-1.0)


def digests(out):
    """The digests of all networks below a folder."""
    return {file.parent.name: digest(load(file)) for file in (out / "networks").glob("*/model.safetensors")}


def command(out):
    return [
        *(sys.executable, "-m", "relucert", "reproduce", "table1", "--quick", "--queue", "--models", "fc1"),
        *("--schemes", "mmr", "--epochs", "6", "--out", str(out), "--runs", str(out / "none")),
    ]


def epochs_below(out):
    return sum(epochs_done(folder)[0] for folder in out.glob("networks/*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_stopped_goes_on_bit_for_bit(tmp_path, number):
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    out = tmp_path / "stopped"
    for epochs in (2, 7):  # in the first network, and in the second one
        with subprocess.Popen(command(out), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            while epochs_below(out) < epochs and process.poll() is None:
                time.sleep(0.02)
            os.kill(process.pid, number)
            _, error = process.communicate()
        assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130), error
        assert number == signal.SIGKILL or "the same command goes on from there" in error
        assert epochs_below(out) < 12
    subprocess.run(command(out), check=True, capture_output=True)
    assert digests(out) == digests(tmp_path / "whole")
    assert len(digests(out)) == 2
