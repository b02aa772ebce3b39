"""Workers give the answers of one process, raise their errors, and leave nothing behind."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import relucert as rc
from relucert.core.errors import InvalidInput, RunError
from relucert.verification import workers
from relucert.verification.certify import _Decide
from relucert.verification.registry import find
from relucert.verification.verifier import Budget, Query
from zoo import inputs, network


def squares(points: Tensor) -> Iterator[tuple[int, int]]:
    for point in points.tolist():
        yield point, point**2


def slow(points: Tensor) -> Iterator[int]:
    for point in points.tolist():
        time.sleep(0.02)
        yield point


def failing(points: Tensor) -> Iterator[int]:
    yield 0
    raise ZeroDivisionError("of this piece")


def refusing(points: Tensor) -> Iterator[int]:
    yield 0
    raise InvalidInput("p must be 1, got 2")


def dying(points: Tensor) -> Iterator[int]:
    yield 0
    os._exit(3)


def interrupting(points: Tensor) -> Iterator[int]:
    yield int(points[0])
    time.sleep(0.3)
    if 0 in points:  # the process that started this one
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)


def children() -> int:
    return len(multiprocessing.active_children())


@pytest.mark.parametrize("count", [None, 1, 2, 3])
@pytest.mark.parametrize("batch", [1, 4, 100])
def test_every_point_is_answered_once(count, batch, monkeypatch):
    monkeypatch.setattr(workers, "WORTH", -1.0)
    monkeypatch.setattr(workers, "_default", lambda: 2)
    found = dict(workers.answers(squares, torch.arange(3, 12), batch, count))
    assert found == {point: point**2 for point in range(3, 12)}
    assert list(workers.answers(squares, torch.arange(0), batch, count)) == []
    assert children() == 0


@pytest.mark.parametrize(
    ("solve", "kind", "message"),
    [
        (failing, RunError, "ZeroDivisionError: of this piece"),
        (refusing, InvalidInput, "p must be 1, got 2"),
        (dying, RunError, "a worker has died"),
    ],
)
def test_errors_of_workers_are_raised(solve, kind, message):
    with pytest.raises(kind, match=message) as raised:
        list(workers.answers(solve, torch.arange(8), 2, 2))
    if solve is refusing:
        assert any("refusing" in note for note in raised.value.__notes__)
    assert children() == 0
    with pytest.raises(InvalidInput, match="workers must be at least 1, got 0"):
        list(workers.answers(squares, torch.arange(8), 2, 0))


def test_an_iteration_that_is_left_ends_its_workers():
    found = workers.spread(slow, torch.arange(100).split(10), 2)
    assert next(found) in range(100)
    assert children() == 2
    found.close()
    assert children() == 0


def test_an_interruption_ends_workers():
    # The processes of pytest-xdist ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(workers.spread(interrupting, torch.arange(4).split(2), 2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert children() == 0


def test_an_interruption_gives_what_has_arrived(monkeypatch):
    def interrupted(ends):
        assert all(end.poll(60) for end in ends)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "wait", interrupted)
    heard: list[tuple[int, int]] = []
    with pytest.raises(KeyboardInterrupt):
        heard.extend(workers.spread(squares, torch.arange(2).split(1), 2))
    assert sorted(heard) == [(0, 0), (1, 1)]
    assert children() == 0


def test_answers_are_made_with_one_thread():
    def threads(points: Tensor) -> Iterator[int]:
        for _ in points:
            yield torch.get_num_threads()

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for count in (1, 2):
            for used in workers.answers(threads, torch.arange(8), 4, count):
                assert used == 1
                assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["kw", "crown", "auto"])
def test_verdicts_do_not_depend_on_workers(method):
    net, ball = network("cnn", torch.float32), rc.Ball(math.inf, 0.02)
    x = inputs(net, 6)
    y = net.predict(x)
    y[3] = (y[3] + 1) % net.classes
    alone, shared = (rc.certify(net, x, y, ball, method, batch=2, workers=count) for count in (1, 2))
    assert alone.verdict == shared.verdict
    assert alone.verdict[3] is rc.Verdict.MISCLASSIFIED
    assert alone.method == shared.method
    torch.testing.assert_close(alone.margin, shared.margin, rtol=1e-4, atol=1e-5)


def test_workers_of_other_systems_get_the_question_pickled():
    net, ball = network("cnn", torch.float64), rc.Ball(math.inf, 0.02)
    x = inputs(net, 4)
    chosen, entry = find("crown")
    solve = _Decide(Query.of(net, x, net.predict(x), ball), entry.verifier(chosen), Budget())
    again = pickle.loads(pickle.dumps(solve))
    points = torch.arange(4)
    assert [found.margin for found in again(points)] == [found.margin for found in solve(points)]
