"""A sweep tries what it says, is judged on held-out points, loses nothing when it is stopped, and wants its own folder."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import clusters
import relucert as rc
from relucert.core.errors import ClusterError, DamagedData, FileAccessError, InvalidInput, RunError
from relucert.networks.prediction import error
from relucert.sweeps._stopping import checkpoints, stops
from relucert.sweeps.config import SweepConfig
from relucert.sweeps.journal import Figures, Journal, Trial, read_trials
from relucert.sweeps.sweep import sweep, trial_name
from relucert.training.config import TrainConfig
from relucert.training.loop import config_task

ROOT = Path(__file__).resolve().parents[2]
BASE = TrainConfig(data="digits", model="fc-1x15", scheme="mmr", p=2, eps=0.05, epochs=2, batch=100)
LINE = ["sweep", "--data", "digits", "--model", "fc-1x15", "--scheme", "mmr", "--epochs", "3", "--batch", "100"]
LINE += [
    "--p",
    "2",
    "--eps",
    "0.05",
    "--vary",
    "lam=0.5,2",
    "gamma=0.1,0.2",
    "--points",
    "20",
    "--stop",
    "median",
    "--no-plot",
]


def config(out: Path, **fields) -> SweepConfig:
    base = dataclasses.replace(BASE, out=out, **fields.pop("train", {}))
    return SweepConfig(**{"train": base, "vary": ("lam=0.5,2", "gamma=0.1,0.2"), "points": 20} | fields)


def figures(trials: list[Trial]) -> list[tuple]:
    """All of the trials but their times."""
    return [
        (trial.number, trial.values, trial.state, [(f.epoch, f.error, f.certified_error) for f in trial.figures])
        for trial in trials
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A grid with figures after every epoch, in one process; and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    return sweep(config(folder, stop="median"), plot=False)


def test_a_grid_is_trained_and_judged_on_points_that_are_held_out(whole):
    assert [trial.values for trial in whole.trials] == [
        {"lam": lam, "gamma": gamma} for lam in ("0.5", "2") for gamma in ("0.1", "0.2")
    ]
    for trial in whole.trials:
        saved = json.loads((whole.folder / trial_name(trial.number) / "config.json").read_text())
        assert saved["validation"] == 0.1
        run = TrainConfig.from_json(saved)
        assert run.settings.scheme.lam == float(trial.values["lam"])
        assert run.settings.scheme.gamma_b == run.settings.scheme.gamma_d == float(trial.values["gamma"])
        held, net = config_task(run).validation, rc.load(whole.folder / trial_name(trial.number))
        assert trial.last.error == pytest.approx(error(net, held.x, held.y))
        proved = rc.certify(net, held.x[:20], held.y[:20], rc.Ball(2, 0.05, (0, 1)), "crown").verdict
        assert trial.last.certified_error == sum(verdict != rc.Verdict.ROBUST for verdict in proved) / 20
    assert whole.best == whole.folder / trial_name(whole.rows[0].number)


def test_the_leaderboard_has_every_trial_the_best_first(whole):
    rows = list(csv.DictReader((whole.folder / "leaderboard.csv").open()))
    assert sorted(int(row["trial"]) for row in rows) == [0, 1, 2, 3]
    keys = [(float(row["certified_error"]), float(row["error"])) for row in rows]
    assert keys == sorted(keys)
    front = {int(row["trial"]) for row in rows if row["front"]}
    pairs = {trial.number: (trial.last.error, trial.last.certified_error) for trial in whole.trials}
    beaten = {
        number
        for number, own in pairs.items()
        if any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in pairs.values())
    }
    assert front == set(pairs) - beaten
    assert (whole.folder / "leaderboard.md").read_text().count("\n| ") == 2 + 4


def test_a_sweep_from_the_command_line(whole, capsys, tmp_path, monkeypatch):
    from relucert.cli.main import run

    monkeypatch.chdir(tmp_path)
    line = [*LINE, "--epochs", "2", "--out", str(whole.folder)]  # it is done: nothing is trained
    assert run([*line, "--json"]) == 0
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert [row["number"] for row in rows] == [row.number for row in whole.rows]
    assert run(line) == 0
    assert "certified error" in capsys.readouterr().out
    assert run([*line, "--scheduler", "tcp://127.0.0.1:9"]) == 2
    assert "relucert: error: scheduler must be the address of a Dask scheduler" in capsys.readouterr().err
    assert run([*LINE, "--vary", "speed=1"]) == 2
    assert "relucert: error: vary must name fields of a run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_plots_are_drawn(whole, tmp_path):
    pytest.importorskip("matplotlib")
    from relucert.reports.sweep import write_plot

    write_plot(tmp_path, whole.rows)
    assert (tmp_path / "pareto.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "pareto.svg").read_text()
    write_plot(tmp_path, [])  # nothing measured is a picture as well


def test_processes_make_the_trials_of_one_process(whole, tmp_path):
    shared = sweep(config(tmp_path / "sweep", stop="median", workers=2), plot=False)
    assert figures(shared.trials) == figures(whole.trials)


def test_a_sweep_goes_on_from_any_line_of_its_journal(whole, tmp_path):
    """Killed after any line, or in the middle of one: nothing is lost and nothing done twice."""
    lines = (whole.folder / "trials.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 4 * 4  # begun, measured twice, ended
    for kept in (9,):
        folder = tmp_path / str(kept)
        folder.mkdir()
        (folder / "sweep.json").write_bytes((whole.folder / "sweep.json").read_bytes())
        (folder / "trials.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:7])
        again = sweep(config(folder, stop="median"), plot=False)
        assert figures(again.trials) == figures(whole.trials)
        assert len((folder / "trials.jsonl").read_bytes().splitlines()) == len(lines)


def test_a_folder_of_something_else_and_another_sweep_are_refused(whole, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="holds files and no sweep"):
        sweep(config(tmp_path), plot=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    before = {path: path.read_bytes() for path in whole.folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"holds another sweep \(vary is .*, not \['rate=0.1,0.2'\]"):
        sweep(config(whole.folder, vary=("rate=0.1,0.2",), stop="median"), plot=False)
    assert {path: path.read_bytes() for path in whole.folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vary": ("speed=1,2",)}, "vary must name fields of a run .* or parameters of scheme mmr .*, got 'speed'"),
        ({"vary": ("lam",)}, "vary must read NAME=VALUE"),
        ({"vary": ("lam=1,1",)}, "each value once, got 'lam=1,1'"),
        ({"vary": ("lam=1", "lam=2")}, "vary must name 'lam' once"),
        ({"vary": ("lam=-1,1",)}, "lam must be a number >= 0, got -1"),
        ({"vary": ("lam=much",)}, "lam of mmr must be"),
        ({"vary": ("epochs=1.5,2",)}, "epochs must be of type int or None, got '1.5'"),
        ({"vary": ("epochs=0,2",)}, "epochs must be at least 1, got 0"),
        ({"vary": ("validation=0.1,0.2",)}, "vary must leave out validation, which all runs of a sweep share"),
        ({"vary": ("rate=log(0,1)",), "search": "random", "trials": 2}, r"log\(LOW,HIGH\) must have two positive"),
        ({"vary": ("rate=uniform(1e-3,1e-2)",)}, "vary must list the values of rate for a grid"),
        ({"search": "random"}, "trials must be given for search random, got None"),
        ({"vary": ()}, "vary or preset must be given, and not both"),
        ({"vary": (), "preset": "table9"}, "preset must be one of tables23-mmr"),
        ({"vary": (), "preset": "tables23-mmr"}, "preset must be another one for data digits"),
        ({"stop": "median", "vary": ("epochs=1,2",)}, "stop must be none where epochs vary"),
        ({"train": {"p": 3.0, "eps": None}}, "eps must be given for"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(fields, message, tmp_path):
    train = fields.pop("train", {})
    with pytest.raises(InvalidInput, match=message):
        config(tmp_path / "sweep", train={"scheme": "mmr(lam=1, gamma_b=1, gamma_d=1)", **train}, **fields)
    assert not (tmp_path / "sweep").exists()


def test_the_papers_grids():
    base = TrainConfig(data="mnist", model="cnn", p=2, recipe="tables23", scheme="plain")
    found = SweepConfig(train=base, preset="tables23-mmr")
    assert found.size == 15
    assert found.base.settings.scheme.name == "mmr"
    assert {name: set(map(float, domain.values)) for name, domain in found.space.items()} == {
        "lam": {0.1, 0.25, 0.5, 1.0, 2.0}, "gamma": {1.0, 1.5, 2.0},
    }  # fmt: skip
    table1 = SweepConfig(train=TrainConfig(data="cifar10", model="cnn"), preset="table1-mmr+at")
    assert [float(value) for value in table1.space["gamma"].values] == pytest.approx([3 / 255, 3.5 / 255, 4 / 255])
    radii = SweepConfig(train=base, preset="kw-radius").space["scheme.eps"].values
    assert list(map(float, radii)) == [0.05, 0.1, 0.2, 0.3, 0.4, 0.6]


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_searches_stay_in_the_space_and_go_on_as_they_would_have(search, tmp_path):
    if search == "optuna":
        pytest.importorskip("optuna")
    space = ("rate=log(1e-4,1e-2)", "batch=int(200,400)", "scheme=plain,mmr(lam=1)")
    fields = {"vary": space, "search": search, "train": {"epochs": 1}}
    done = sweep(config(tmp_path / "whole", trials=4, **fields), plot=False)
    for trial in done.trials:
        values = trial.values
        assert 1e-4 <= values["rate"] <= 1e-2
        assert isinstance(values["batch"], int)
        assert 200 <= values["batch"] <= 400
        assert values["scheme"] in ("plain", "mmr(lam=1)")
    assert len({json.dumps(trial.values) for trial in done.trials}) == 4
    for trials in (2, 4):  # more trials are a sweep that goes on
        parts = sweep(config(tmp_path / "parts", trials=trials, **fields), plot=False)
    assert figures(parts.trials) == figures(done.trials)


def test_a_trial_that_diverges_has_failed_and_the_others_go_on(tmp_path):
    done = sweep(config(tmp_path / "sweep", vary=("rate=1e30,1e-3",), train={"scheme": "plain"}), plot=False)
    assert [trial.state for trial in done.trials] == ["failed", "done"]
    assert "the loss is" in done.trials[0].reason
    assert "Trial 0 failed: the loss is" in (done.folder / "leaderboard.md").read_text()


def made(error: float, certified: float, epoch: int = 1) -> Figures:
    return Figures(epoch=epoch, error=error, certified_error=certified, seconds=1.0)


def test_who_is_stopped():
    others = [made(0.1 * i, 0.1 * i) for i in range(1, 6)]
    assert stops("median", made(0.4, 0.4), others)
    assert not stops("median", made(0.4, 0.2), others)  # one figure is enough to go on
    assert not stops("median", made(0.9, 0.9), others[:3])
    assert not stops("none", made(0.9, 0.9), others)
    assert not stops("halving", made(0.2, 0.2), others)
    assert stops("halving", made(0.35, 0.35), others)
    assert not stops("halving", made(0.9, 0.05), others)  # nobody dominates it
    assert not stops("halving", made(0.9, 0.9), [])
    assert checkpoints("halving", 2, 20) == [2, 6, 18, 20]


def test_halving_trains_few_trials_to_the_end(tmp_path):
    vary = ("rate=0.003,0.002,0.001,1e-5,1e-6,1e-7",)
    done = sweep(config(tmp_path / "s", vary=vary, stop="halving", train={"epochs": 4, "scheme": "plain"}), plot=False)
    ended = {trial.state: [] for trial in done.trials}
    for trial in done.trials:
        ended[trial.state].append(trial)
        assert trial.last.epoch == (4 if trial.state == "done" else trial.last.epoch)
    assert len(ended["stopped"]) >= 3
    assert done.trials[0].state == "done"


def test_a_journal_that_lies_is_damaged_data(whole, tmp_path):
    lines = (whole.folder / "trials.jsonl").read_text().splitlines()
    for number, bad in enumerate(
        ["[]", '{"kind": "trial"}', "{", '{"kind": "end", "number": 0, "state": "won", "reason": ""}',
         '{"kind": "figures", "number": 0, "epoch": 1, "error": 2, "certified_error": 0, "seconds": 1}',
         '{"kind": "figures", "number": 9, "epoch": 1, "error": 0, "certified_error": 0, "seconds": 1}']
    ):  # fmt: skip
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join([*lines[:2], bad, *lines[2:]]) + "\n")
        with pytest.raises(DamagedData, match=r"jsonl.*line 3"):
            read_trials(path)


def test_workers_that_do_not_share_the_folder_are_an_error(tmp_path):
    from relucert.sweeps._trial import Judge, measured

    run = dataclasses.replace(BASE, out=tmp_path / "elsewhere/trial-0000", validation=0.1)
    with pytest.raises(ClusterError, match="out must be a folder that all workers share"):
        measured(run, 1, Judge(p=2.0, eps=0.1, method="crown", points=10))


def command(folder: Path, *more: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    line = [sys.executable, "-m", "relucert", *LINE, "--out", str(folder), *more]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def await_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b"\n") < count):
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_a_sweep_that_is_interrupted_or_killed_goes_on(number, workers, tmp_path):
    whole = command(tmp_path / "whole")
    assert whole.wait(300) == 0, whole.stderr.read()
    running = command(tmp_path / "parts", *workers)
    await_lines(tmp_path / "parts/trials.jsonl", 4)
    running.send_signal(signal.SIGSTOP)
    lines = [(tmp_path / name / "trials.jsonl").read_bytes().count(b"\n") for name in ("parts", "whole")]
    assert 4 <= lines[0] < lines[1]  # it has begun, and is not over
    running.send_signal(number)
    running.send_signal(signal.SIGCONT)
    said = running.communicate(timeout=100)[1]
    if number == signal.SIGINT:
        assert running.returncode == 130
        assert "the same command goes on in" in said
        assert "Traceback" not in said
    again = command(tmp_path / "parts", *workers)
    assert again.wait(300) == 0, again.stderr.read()
    one, two = (read_trials(tmp_path / name / "trials.jsonl")[0] for name in ("whole", "parts"))
    assert [trial.values for trial in one] == [trial.values for trial in two]
    for a, b in zip(one, two, strict=True):
        for f in a.figures:
            assert b.at(f.epoch) is None or dataclasses.replace(b.at(f.epoch), seconds=0) == dataclasses.replace(
                f, seconds=0
            )


@pytest.mark.slow
def test_a_cluster_of_which_workers_and_the_scheduler_die_trains_the_trials_of_one_process(tmp_path):
    pytest.importorskip("distributed")
    one = sweep(config(tmp_path / "one", train={"epochs": 8}), plot=False)
    (tmp_path / "cluster").mkdir()
    with clusters.cluster(tmp_path / "cluster") as cluster:
        seen: list[int] = []

        def disturb(trial: Trial) -> None:
            seen.append(trial.number)
            if len(seen) == 2:
                cluster.workers[0].kill()
            if len(seen) == 4:
                cluster.restart()

        shared = sweep(config(tmp_path / "many", train={"epochs": 8}, scheduler=cluster.address), disturb, plot=False)
    assert figures(shared.trials) == figures(one.trials)
    for trial in one.trials:
        nets = [rc.load(tmp_path / name / trial_name(trial.number)).state_dict() for name in ("one", "many")]
        assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])


def fill(journal: Journal) -> None:
    """Begin and measure trials without end."""
    while True:
        journal.measure(journal.begin({"lam": "1"}), made(0.5, 0.5))


def test_a_journal_on_a_full_disk_loses_nothing(tmp_path):
    """A file system of sixteen kilobytes, where mounting one is allowed; then more room."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], capture_output=True
    ).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        with Journal(tmp_path / "sweep", {}) as journal:
            with pytest.raises(FileAccessError, match="cannot be written: No space left on device"):
                fill(journal)
            kept = figures(journal.trials)
        assert figures(read_trials(tmp_path / "sweep/trials.jsonl")[0]) == kept
        subprocess.run(["mount", "-o", "remount,size=1m", str(tmp_path)], check=True)
        with Journal(tmp_path / "sweep", {}) as journal:
            journal.begin({"lam": "2"})
        found = figures(read_trials(tmp_path / "sweep/trials.jsonl")[0])
        assert found[:-1] == kept
        assert len(kept) > 10
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def pages(folder: Path) -> int:
    """What the files of a folder take on a disk with pages of four kilobytes."""
    return sum(-(-path.stat().st_size // 4096) for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_full_disk_is_one_error_and_loses_nothing(whole, tmp_path):
    """A file system with room for three quarters of a sweep, where mounting one is allowed; then more, and it goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    room = f"size={4 * (3 * pages(whole.folder) // 4)}k"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", room, "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        full = command(disk / "sweep")
        said = full.communicate(timeout=300)[1]
        assert full.returncode == 2, said
        assert "relucert: error:" in said
        assert "No space left on device" in said
        assert "Traceback" not in said
        kept = read_trials(disk / "sweep/trials.jsonl")[0]
        assert kept[0].figures
        assert kept[-1].state == "open"
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        again = command(disk / "sweep")
        assert again.wait(300) == 0, again.stderr.read()
        trials = read_trials(disk / "sweep/trials.jsonl")[0]
        assert [trial.state in ("done", "stopped") for trial in trials] == [True] * 4
        for before, after in zip(kept, trials, strict=False):
            assert after.figures[: len(before.figures)] == before.figures
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_that_cannot_be_written_ends_the_sweep_and_not_the_trial(tmp_path, monkeypatch):
    from relucert.training import loop

    def full(*arguments, **named):
        raise FileAccessError("state.safetensors cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_state", full)
        with pytest.raises(FileAccessError, match="No space left"):
            sweep(config(tmp_path / "sweep"), plot=False)
    assert [trial.state for trial in read_trials(tmp_path / "sweep/trials.jsonl")[0]] == ["open"]
    assert [trial.state for trial in sweep(config(tmp_path / "sweep"), plot=False).trials] == ["done"] * 4
