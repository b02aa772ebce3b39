"""Several processes that train one network: gradients and weights are those of one process."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import parallel_run as parallel
import relucert as rc
from relucert.core.errors import InvalidInput
from relucert.training.config import TrainConfig
from relucert.training.loop import Observers, carry_out, config_task, train
from relucert.training.losses.loss import StepContext
from relucert.training.ranks import ALONE, PartGenerator, Ranks, process_group
from relucert.training.run import Run
from relucert.training.schemes.registry import SCHEMES, parse_scheme

ROOT = Path(__file__).resolve().parents[2]
#: Every scheme; parameters that make tests quick.
TEXTS = {
    "at": "at(attack_steps=3)", "mmr+at": "mmr+at(attack_steps=3)", "kw": "kw(projections=5)", "rs": "rs(attack_steps=3)",
    "ibp": "ibp(kappa=0.5, adversarial=True, attack_steps=3)",
}  # fmt: skip
P = {"spectral": 2.0, "mmr-universal": float("inf")}


def torchrun(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("count", [4, 6, 7, 13])
@pytest.mark.parametrize("size", [2, 3])
def test_parts_are_the_batch_and_their_halves_are_halves(count, size):
    parts = [Ranks(rank, size).places(count) for rank in range(size)]
    if count < 2 * size:
        assert parts == [None] * size
        return
    assert sorted(torch.cat(parts).tolist()) == list(range(count))
    for part in parts:
        clean = len(part) - len(part) // 2  # what `mmr+at` and `at` leave as it is
        assert part[:clean].max() < count - count // 2 <= part[clean:].min()


@pytest.mark.parametrize("name", sorted(SCHEMES))
@pytest.mark.parametrize("size", [2, 3])
def test_the_gradient_of_a_batch_is_the_sum_of_those_of_its_parts(name, size):
    config = TrainConfig(data="digits", model="fc1", p=P.get(name, 2.0), eps=0.1, scheme=TEXTS.get(name, name))
    net = rc.build("fc-2x30", (1, 8, 8), 10, seed=1).double()
    net.box = (0.0, 1.0)
    data = rc.dataset("digits")
    x, y = data.x_train[:13].double(), data.y_train[:13]
    loss = parse_scheme(config.scheme).filled(config.setting).loss(config.setting)
    weights = list(net.parameters())

    def gradient(places=None) -> torch.Tensor:
        draws, part = torch.Generator().manual_seed(5), slice(None)
        if places is not None:
            draws, part = PartGenerator.of(draws, x, places), places
        net.zero_grad()
        loss(net.train(), x[part], y[part], StepContext(0.7, draws)).loss.backward()
        return torch.cat([torch.zeros_like(w).flatten() if w.grad is None else w.grad.flatten() for w in weights])

    whole = gradient()
    parts = [Ranks(rank, size).places(13) for rank in range(size)]
    total = sum(len(part) / 13 * gradient(part) for part in parts if part is not None)
    assert float(whole.abs().max()) > 1e-4
    torch.testing.assert_close(total, whole, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(gradient(parts[0]), whole, rtol=1e-3)  # a part alone is something else


def check(folder: Path, one: Run) -> None:
    """The processes of the run in `folder`/two have the weights and metrics of one process, and one of them has written."""
    weights = [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]
    for name, value in one.net.state_dict().items():
        assert torch.equal(weights[0][name], weights[1][name])
        torch.testing.assert_close(weights[0][name], value, rtol=0, atol=1e-5)
    names = [sorted(path.name for path in (folder / run).iterdir()) for run in ("one", "two")]
    assert names[0] == names[1]
    lines = [json.loads(line) for line in (folder / "two/metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == [line["kind"] for line in one.metrics]
    for line, other in zip(lines, one.metrics, strict=True):
        for name in {"loss", "train_error", "region", "decision"} & other.keys():
            assert line[name] == pytest.approx(other[name], rel=1e-4)


@pytest.mark.parametrize("scheme", ["mmr+at(attack_steps=3)"])
def test_two_processes_train_the_network_of_one(scheme, tmp_path, monkeypatch):
    """Two real processes, copies of this one, talk over gloo; the run is stopped after an epoch and gone on with."""
    one = train(parallel.config(scheme, tmp_path / "one"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    for name, value in {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}.items():
        monkeypatch.setenv(name, value)
    context = multiprocessing.get_context("fork")
    pair = [context.Process(target=run_rank, args=(rank, scheme, tmp_path / "two")) for rank in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(120)
    assert [process.exitcode for process in pair] == [0, 0]
    check(tmp_path, one)


def run_rank(rank: int, scheme: str, folder: Path) -> None:
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    parallel.main(scheme, folder)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["plain", "mmr+at(attack_steps=3)", "crown-ibp"])
def test_two_processes_of_torchrun_train_the_network_of_one(scheme, tmp_path):
    one = train(parallel.config(scheme, tmp_path / "one"))
    script = [parallel.__file__, scheme, str(tmp_path / "two")]
    done = subprocess.run(
        torchrun(*script), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    check(tmp_path, one)


def train_line(scheme: str, epochs: int, out: str) -> list[str]:
    flags = ["--data", "digits", "--scheme", scheme, "--epochs", str(epochs), "--evaluate-points", "0", "--out", out]
    return ["-m", "relucert", "train", *flags]


def called(command: list[str], folder: Path) -> str:
    """What a command that succeeds prints."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_command_line_under_torchrun_is_interrupted_and_goes_on(tmp_path):
    """Two processes that are stopped and started again end with the weights of two that were not, bit for bit.

    Those of one process are others: its sums are rounded in another order, and `at`, which moves points by signs of gradients,
    makes of that what it likes. The next test compares with one process.
    """
    assert called(torchrun(*train_line("at", 12, "whole")), tmp_path).count("network: whole;") == 1
    command = torchrun(*train_line("at", 12, "two"))
    running = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not (tmp_path / "two/state.safetensors").exists():
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=100)
    assert (tmp_path / "two/state.safetensors").exists()
    assert not (tmp_path / "two/model.safetensors").exists()
    assert called(command, tmp_path).count("network: two;") == 1
    nets = [rc.load(tmp_path / name) for name in ("whole", "two")]
    for value, other in zip(*(net.state_dict().values() for net in nets), strict=True):
        assert torch.equal(value, other)


@pytest.mark.slow
def test_the_command_line_under_torchrun_trains_the_network_of_one_process(tmp_path):
    called([sys.executable, *train_line("plain", 2, "one")], tmp_path)
    called(torchrun(*train_line("plain", 2, "two")), tmp_path)
    nets = [rc.load(tmp_path / name) for name in ("one", "two")]
    for value, other in zip(*(net.state_dict().values() for net in nets), strict=True):
        torch.testing.assert_close(value, other, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_folder_of_another_run_is_an_error_of_all_processes(tmp_path):
    train(TrainConfig(data="digits", epochs=1, evaluate_points=0, out=tmp_path / "run"))
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    line = ["-m", "relucert", "train", "--data", "digits", "--epochs", "2", "--out", "run"]
    done = subprocess.run(torchrun(*line), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "holds another run (epochs is 1, not 2)" in done.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_batch_normalisation_and_dropout_are_refused(tmp_path):
    config = TrainConfig(data="digits", model="resnet", epochs=1, out=tmp_path / "run")
    with pytest.raises(InvalidInput, match="model must have no batch normalisation and no dropout"):
        carry_out(config_task(config), Observers(), ranks=Ranks(0, 2))
    assert not config.folder.exists()


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # of something else
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with process_group() as ranks:
        assert ranks == ALONE
        assert ranks.first("kept") == "kept"
