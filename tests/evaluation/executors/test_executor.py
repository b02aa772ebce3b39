"""Executors give every result once, whatever dies: this process, processes, and a real Dask cluster."""

from __future__ import annotations

import dataclasses
import math
import socket
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

import clusters
import relucert as rc
from relucert.core.errors import ClusterError, InvalidInput, Lost, RunError
from relucert.evaluation.attack import AttackTask
from relucert.evaluation.certify import CertifyTask
from relucert.evaluation.config import AttackConfig, CertifyConfig, EvaluateConfig, PointsConfig, RadiusConfig
from relucert.evaluation.evaluate import EvaluateTask
from relucert.evaluation.executors.choice import executor_of
from relucert.evaluation.executors.executor import Executor, completed
from relucert.evaluation.radius import RadiusTask
from relucert.records.record import Record

SQUARES = {number: number**2 for number in range(9)}


def squares(executor: Executor, function, *folder: Path) -> dict[int, int]:
    found = list(completed(executor, ((n, function, (*folder, n)) for n in SQUARES)))
    assert len(found) == len(SQUARES)  # nothing twice
    return dict(found)


@pytest.fixture
def model(tmp_path) -> Path:
    rc.save(rc.build("fc1", (1, 8, 8), 10, seed=3).eval(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def questions(model: Path) -> list[PointsConfig]:
    """One question of every verb, in several batches."""
    common = {"model": model, "data": "digits", "batch": 4, "points": 10}
    return [
        CertifyConfig(eps=0.01, method="crown", **common),
        RadiusConfig(p=2, method="region(regions=2)", **common),
        AttackConfig(p=2, method="ddn(steps=5)", **common),
        EvaluateConfig(eps=0.02, attack="pgd(steps=5)", regions=False, **common),
    ]


TASKS = {CertifyConfig: CertifyTask, RadiusConfig: RadiusTask, AttackConfig: AttackTask, EvaluateConfig: EvaluateTask}


def records(config: PointsConfig) -> list[Record]:
    """The records of a question but for their times, by index; each once."""
    found = sorted(TASKS[type(config)](config).records(), key=lambda record: record.index)
    assert [record.index for record in found] == list(range(len(found)))
    lines = config.records.read_text().splitlines()
    assert len(lines) == len(found)
    return [dataclasses.replace(record, seconds=None, versions={}) for record in found]


@pytest.mark.parametrize("place", [{}, {"workers": 1}, {"workers": 2}])
def test_every_result_comes_once(place, tmp_path):
    with executor_of(**place) as executor:
        assert squares(executor, clusters.square, tmp_path) == SQUARES
        assert len(list(tmp_path.iterdir())) == len(SQUARES)
        with pytest.raises((RunError, ZeroDivisionError), match="division by zero"):
            squares(executor, clusters.failing)


def test_what_a_dead_process_had_is_done_again(tmp_path):
    with executor_of(2) as executor:
        assert squares(executor, clusters.killing, tmp_path) == SQUARES
        assert len(list(tmp_path.glob("3-*"))) == 2
        with pytest.raises(Lost, match=r"a worker has died \(exit code -9\)"):
            list(completed(executor, [("", clusters.suicidal, ())]))
        assert list(completed(executor, [("", clusters.threads, ())])) == [("", 1)]


def test_executors_that_make_no_sense_are_refused():
    for arguments, message in [
        ((0, None), "workers must be at least 1, got 0"),
        ((2, "tcp://127.0.0.1:1"), "workers must be left out with a scheduler, whose workers are used, got 2"),
        ((None, "127.0.0.1"), "scheduler must be an address such as tcp://HOST:8786, got '127.0.0.1'"),
        ((None, "tcp://head"), "scheduler must be an address such as tcp://HOST:8786, got 'tcp://head'"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            executor_of(*arguments)


def test_processes_make_the_records_of_one_process(model, tmp_path):
    for config in questions(model):
        one, two = (
            records(dataclasses.replace(config, workers=n, out=tmp_path / f"{type(config).__name__}{n}.jsonl"))
            for n in (1, 2)
        )
        assert one == two


def test_a_scheduler_that_does_not_answer_is_one_error_and_quick(model, tmp_path):
    pytest.importorskip("distributed")
    started = time.monotonic()
    config = dataclasses.replace(questions(model)[0], scheduler="tcp://127.0.0.1:9", out=tmp_path / "out.jsonl")
    with pytest.raises(
        ClusterError, match=r"scheduler must be the address of a Dask scheduler that can be reached.*:9': .*refused"
    ):
        records(config)
    assert time.monotonic() - started < 10
    assert not (tmp_path / "out.jsonl").exists()


def test_a_cluster_of_which_a_worker_is_killed_makes_the_records_of_one_process(model, tmp_path):
    pytest.importorskip("distributed")
    with clusters.cluster(tmp_path) as cluster, executor_of(scheduler=cluster.address) as executor:
        (tmp_path / "calls").mkdir()
        assert squares(executor, clusters.killing, tmp_path / "calls") == SQUARES
        assert len(list((tmp_path / "calls").glob("3-*"))) == 2
        assert sum(worker.poll() is not None for worker in cluster.workers) == 1
        assert list(completed(executor, [("", clusters.threads, ())])) == [("", 1)]
        with pytest.raises(
            ClusterError, match="a worker of the cluster has failed: ZeroDivisionError: division by zero"
        ):
            squares(executor, clusters.failing)
        for config in questions(model):
            out = {place: tmp_path / f"{type(config).__name__}-{place}.jsonl" for place in ("one", "cluster")}
            one = records(dataclasses.replace(config, workers=1, out=out["one"]))
            assert records(dataclasses.replace(config, scheduler=cluster.address, out=out["cluster"])) == one


def test_a_server_that_is_no_scheduler_is_one_error(monkeypatch):
    cluster = pytest.importorskip("relucert.evaluation.executors._cluster")
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "REACH", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ClusterError, match="scheduler must be the address of a Dask scheduler that can be reached"):
            cluster.Cluster(f"tcp://127.0.0.1:{silent.getsockname()[1]}", reach=0.5)


@pytest.mark.slow
def test_a_scheduler_that_is_started_again_loses_nothing(tmp_path):
    pytest.importorskip("distributed")
    (tmp_path / "calls").mkdir()
    with clusters.cluster(tmp_path) as cluster, executor_of(scheduler=cluster.address) as executor:
        found, slow = {}, partial(clusters.square, seconds=0.3)
        for number, square in completed(executor, ((n, slow, (tmp_path / "calls", n)) for n in range(12))):
            assert number not in found
            found[number] = square
            if len(found) == 3:
                cluster.restart()
        assert found == {n: n**2 for n in range(12)}


@pytest.mark.slow
def test_a_call_that_kills_workers_and_a_cluster_without_workers_are_errors(tmp_path):
    pytest.importorskip("distributed")
    from relucert.evaluation.executors._cluster import Cluster

    with clusters.cluster(tmp_path, workers=6) as cluster, executor_of(scheduler=cluster.address) as executor:
        with pytest.raises(ClusterError, match="workers of the cluster have died of one call again and again"):
            list(completed(executor, [("", clusters.suicidal, ())]))
        for worker in cluster.workers:
            worker.kill()
        with (
            Cluster(cluster.address, patience=3) as impatient,
            pytest.raises(ClusterError, match=r"no worker at .* for 3 seconds; what is done is kept"),
        ):
            list(completed(impatient, [("", clusters.threads, ())]))


@pytest.mark.slow
def test_calls_in_one_process_exclude_each_other(tmp_path):
    """A worker with several threads makes one call at a time: calls set what belongs to the process."""
    pytest.importorskip("distributed")
    with clusters.cluster(tmp_path, workers=0) as cluster, executor_of(scheduler=cluster.address) as executor:
        cluster.workers = [cluster._start("dask_worker", cluster.address, "--nthreads", "2", "--no-nanny")]
        times = sorted(found for _, found in completed(executor, [(n, clusters.busy, (0.2,)) for n in range(4)]))
        assert all(ended <= began for (_, ended), (began, _) in pairwise(times))


def test_a_run_timeout_holds_elsewhere_as_well(model, tmp_path):
    config = dataclasses.replace(questions(model)[0], run_timeout=1e-9, out=tmp_path / "out.jsonl")
    task = CertifyTask(config)
    assert list(task.records()) == []
    from relucert.evaluation._stream import Share

    work = Share(task, time.monotonic() - 1.0).part(task.x.new_tensor([0, 1]).long())
    assert list(work()) == []
    assert len(list(Share(task, math.inf).part(task.x.new_tensor([0, 1]).long())())) == 2
