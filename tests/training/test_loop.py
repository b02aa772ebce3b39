import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from relucert.core.errors import CheckpointError, DamagedData, FileAccessError, InvalidInput, RunError
from relucert.networks.checkpoints import digest, read
from relucert.networks.prediction import error
from relucert.training import loop
from relucert.training._saving import STATE_FILE
from relucert.training.config import TrainConfig
from relucert.training.loop import train
from relucert.training.losses.plain import Plain
from relucert.training.progress import Watcher

SMALL = {"data": "digits", "epochs": 2, "batch": 100, "evaluate_points": 50}
SOURCE = Path(__file__).resolve().parents[2] / "src"


class StopAfter(Watcher):
    """Interrupts the run after a number of steps, the way Ctrl-C does."""

    def __init__(self, steps):
        self.steps = steps

    def watching(self, config, total, done):
        from contextlib import contextmanager

        @contextmanager
        def watching():
            def callback(done, **measured):
                if done == self.steps:
                    os.kill(os.getpid(), signal.SIGINT)

            yield callback

        return watching()


def measured(run):
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "versions")} for line in run.metrics
    ]


MARGIN = "lam=0.5, gamma_b=0.3, gamma_d=0.3"


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("scheme", "model", "p"),
    [
        ("plain", "fc1", 2), ("at(attack_steps=3)", "fc1", 2), ("at(attack_steps=3)", "resnet", "inf"),
        ("at(attack_steps=3)", "cnn", 1), (f"mmr({MARGIN})", "cnn", "inf"),
        (f"mmr+at({MARGIN}, attack_steps=3)", "fc1", 2), ("mmr-dd(lam=0.5, gamma_d=0.3)", "fc10", 1),
        ("mmr-universal", "fc1", 1),
        ("cross-lipschitz(lam=0.5)", "fc1", 2), ("kw", "fc1", 2), ("ibp", "cnn", "inf"), ("crown-ibp", "fc10", "inf"),
        ("rs(lam=0.5, attack_steps=3)", "cnn", "inf"), ("spectral", "cnn", 2),
        ("mtl-ibp", "cnn", "inf"), ("cc-ibp", "fc1", 2), ("sabr", "cnn", "inf"), (f"mmr+ibp({MARGIN})", "fc-2x30", "inf"),
    ],
)  # fmt: skip
def test_a_run_stopped_anywhere_ends_with_the_same_weights_and_metrics(scheme, model, p, tmp_path):
    settings = SMALL | {"scheme": scheme, "model": model, "p": float(p), "eps": 0.2}
    whole = train(TrainConfig(**settings, out=tmp_path / "whole"))
    config = TrainConfig(**settings, out=tmp_path / "stopped")
    for steps in (4, 20, 23):
        with pytest.raises(
            KeyboardInterrupt, match=f"stopped after step {steps} of 30; the same command goes on there"
        ):
            train(config, StopAfter(steps))
        assert (tmp_path / "stopped" / STATE_FILE).exists()
    resumed = train(config)
    assert digest(resumed.net) == digest(whole.net)
    assert measured(resumed) == measured(whole)
    assert not (tmp_path / "stopped" / STATE_FILE).exists()


def test_a_run_stopped_while_weights_are_averaged_ends_with_the_same_ones(tmp_path):
    settings = SMALL | {"model": "fc-2x20", "batch_norm": True, "average": 0.5, "clip": 1.0, "evaluate_points": 0}
    whole = train(TrainConfig(**settings, out=tmp_path / "whole"))
    config = TrainConfig(**settings, out=tmp_path / "stopped")
    for steps in (7, 19, 24):
        with pytest.raises(KeyboardInterrupt):
            train(config, StopAfter(steps))
    resumed = train(config)
    assert digest(resumed.net) == digest(whole.net)
    assert measured(resumed) == measured(whole)
    other = train(TrainConfig(**settings | {"average": 0.0}, out=tmp_path / "last"))
    assert digest(other.net) != digest(whole.net)


def test_a_killed_run_ends_with_the_same_weights(tmp_path):
    settings = SMALL | {"scheme": "at(attack_steps=3)", "p": 2.0, "model": "fc10", "epochs": 4}
    whole = train(TrainConfig(**settings, out=tmp_path / "whole"))
    script = (
        "from pathlib import Path; import sys; from relucert.training.loop import train; "
        "from relucert.training.config import TrainConfig; import torch; torch.set_num_threads(int(sys.argv[2])); "
        f"train(TrainConfig(**{settings!r}, save_seconds=0.05, out=Path(sys.argv[1])))"
    )
    folder = tmp_path / "killed"
    for _ in range(2):
        seen = _progress(folder)
        command = [sys.executable, "-c", script, str(folder), str(torch.get_num_threads())]
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(SOURCE)})
        while process.poll() is None and _progress(folder) == seen:
            time.sleep(0.005)
        assert process.poll() is None, "the run must still be under way"
        process.kill()
        process.wait()
    assert not (folder / "model.safetensors").exists()
    assert digest(train(TrainConfig(**settings, out=folder)).net) == digest(whole.net)


def _progress(folder):
    file = folder / STATE_FILE
    return file.stat().st_mtime_ns if file.exists() else 0


def test_seeds_make_different_runs_and_the_same_seed_the_same(tmp_path):
    first, same, other = (
        train(TrainConfig(**SMALL, seed=seed, out=tmp_path / name)) for name, seed in [("a", 0), ("b", 0), ("c", 1)]
    )
    assert digest(first.net) == digest(same.net)
    assert digest(first.net) != digest(other.net)


def test_global_random_state_neither_matters_nor_changes(tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = train(TrainConfig(**SMALL, out=tmp_path / "a"))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert digest(train(TrainConfig(**SMALL, out=tmp_path / "b")).net) == digest(first.net)


def test_training_learns_and_adversarial_training_makes_robust(tmp_path):
    settings = {"data": "digits", "epochs": 12, "batch": 64, "p": 2.0, "eps": 0.5, "evaluate_every": 12}
    plain = train(TrainConfig(**settings, out=tmp_path / "plain"))
    robust = train(TrainConfig(**settings, scheme="at(attack_steps=8)", out=tmp_path / "at"))
    assert plain.last["test_error"] < 0.06
    assert robust.last["test_error"] < 0.06
    assert robust.last["pgd_error"] < 0.8 * plain.last["pgd_error"]


def test_the_folder_holds_everything_and_a_finished_run_is_not_done_again(tmp_path):
    config = TrainConfig(**SMALL, out=tmp_path / "run")
    run = train(config)
    assert sorted(file.name for file in run.folder.iterdir()) == ["config.json", "metrics.jsonl", "model.safetensors"]
    net, about = read(run.folder / "model.safetensors")
    assert about["config"] == config.to_json() == json.loads((run.folder / "config.json").read_text())
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "epoch", "evaluation", "epoch", "evaluation"]
    data = loop.dataset("digits")
    assert lines[-1]["test_error"] == error(net, data.x_test, data.y_test)
    assert {"loss", "cross-entropy", "train_error", "rate", "seconds"} <= lines[1].keys()
    stamp = (run.folder / "model.safetensors").stat().st_mtime_ns
    again = train(config)
    assert (run.folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert again.metrics == run.metrics


def test_the_rate_falls_for_the_last_tenth(tmp_path):
    run = train(TrainConfig(data="digits", epochs=10, batch=500, evaluate_every=0, out=tmp_path / "run"))
    rates = [line["rate"] for line in run.metrics if line["kind"] == "epoch"]
    assert rates == [1e-3] * 9 + [1e-4]


def test_a_folder_of_another_run_is_left_alone(tmp_path):
    train(TrainConfig(**SMALL, out=tmp_path / "run"))
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    with pytest.raises(RunError, match=r"holds another run \(rate is 0\.001, not 0\.01\)"):
        train(TrainConfig(**SMALL, rate=0.01, out=tmp_path / "run"))
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}


def test_two_runs_cannot_share_a_folder(tmp_path):
    config = TrainConfig(**SMALL, out=tmp_path / "run")
    folder = loop.RunFolder(config)
    with pytest.raises(FileAccessError, match="being written by someone else"):
        train(config)
    folder.close()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    config = TrainConfig(**SMALL, save_seconds=0, out=tmp_path / "run")
    step, calls = Plain.__call__, []

    def poisoned(self, net, x, y, context):
        calls.append(None)
        terms = step(self, net, x, y, context)
        if len(calls) == 7:
            return type(terms)(terms.loss * torch.nan, terms.parts, terms.logits, terms.labels)
        return terms

    monkeypatch.setattr(Plain, "__call__", poisoned)
    with pytest.raises(RunError, match=r"the loss is nan at step 7 of 30 \(epoch 1\); the last good state is kept"):
        train(config)
    monkeypatch.setattr(Plain, "__call__", step)
    assert digest(train(config).net) == digest(train(TrainConfig(**SMALL, out=tmp_path / "whole")).net)


def test_a_damaged_state_is_an_error(tmp_path):
    config = TrainConfig(**SMALL, out=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(config, StopAfter(4))
    state = tmp_path / "run" / STATE_FILE
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        train(config)


@pytest.mark.parametrize(
    "line", [b"hello", b"[1]", b'{"step": "1", "kind": "epoch"}', b"[" * 10**5, b"x" * 2**21, b"\xff"]
)
def test_metrics_that_are_not_understood_are_never_cut(tmp_path, line):
    config = TrainConfig(**SMALL, out=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(config, StopAfter(4))
    file = tmp_path / "run" / "metrics.jsonl"
    file.write_bytes(line + b"\n" + file.read_bytes())
    before = file.read_bytes()
    with pytest.raises(DamagedData, match=r"metrics\.jsonl: .*line 1.*; restore the file from a copy"):
        train(config)
    assert file.read_bytes() == before


def test_a_nested_configuration_is_an_error(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("[" * 10**5)
    with pytest.raises(RunError, match=r"config\.json cannot be read \(it must be nested at most 16 deep"):
        train(TrainConfig(**SMALL, out=tmp_path / "run"))


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileAccessError, match=r"out: the run's folder .*file/run cannot be made"):
        train(TrainConfig(**SMALL, out=tmp_path / "file" / "run"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model": "vgg"},
            "model must be one of fc1, fc10, fc-2x256, fc-4x256, fc-6x256, cnn, cnn-wide, resnet, got 'vgg'",
        ),
        (
            {"scheme": "magic"},
            "scheme must be one of plain, at, mmr, mmr-dd, mmr.at, mmr-universal, .*, kw, .*, spectral, got 'magic'",
        ),
        ({"data": "imagenet"}, "data must be one of"),
        ({"p": 0.5}, "p must be a number >= 1 or inf, got 0.5"),
        ({"eps": -0.1}, "eps must be a positive number, got -0.1"),
        ({"eps": float("nan")}, "eps must be a positive number, got nan"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"rate": float("inf")}, "rate must be a positive number"),
        ({"scheme": "at", "p": 1.0}, "eps must be given for p=1"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(InvalidInput, match=message):
        TrainConfig(**settings)


@pytest.mark.slow
def test_five_epochs_of_plain_training_on_mnist_reach_2_5_percent(tmp_path, real_data, monkeypatch):
    monkeypatch.setenv("RELUCERT_DATA", str(real_data.folder("mnist")))
    run = train(
        TrainConfig(data="mnist", model="fc1", epochs=5, evaluate_every=5, evaluate_points=0, out=tmp_path / "run")
    )
    assert run.last["test_error"] <= 0.025
