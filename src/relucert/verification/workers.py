"""A pool of single-threaded processes that share the points of a question.

Points are worked on in pieces. A worker is a copy of this process (a fork), which starts in some hundredths of a second and has
network and data in its memory already; where processes cannot be forked it is a new process, and what it works with is
pickled. Pieces go to whichever worker is free, so answers come in no particular order, each as soon as it is known. The
answers themselves do not depend on the number of workers.

This process, too, answers with one thread: two threads of torch beside any other load wait for each other most of the time.

By default (`workers` None) the first piece is answered in this process. Where the others will take longer than `WORTH` seconds
at its pace, and torch may use several threads, as many workers share them. The first piece is a batch; where there is no more
than a batch, and torch has more than `FEW` threads, it is a share of the batch.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
from torch import Tensor

from relucert.core.errors import InvalidInput, RelucertError, RunError
from relucert.core.interrupts import uninterrupted
from relucert.networks.network import single_threaded

Answer = TypeVar("Answer")
#: Answers about the points with these numbers, each as soon as it is known; picklable, and so are the answers.
Solve = Callable[[Tensor], Iterator[Answer]]

DEAD = "a worker has died; points that were decided are kept, run again to go on"
MOST = 8  # workers by default
LEAST = 4  # points of a piece, if there are so many
FEW = 2  # threads that are too few for sharing out a single batch
WORTH = 2.0  # seconds of remaining work that are worth the start of workers


def answers(
    solve: Solve[Answer], points: Tensor, batch: int, workers: int | None, batches: int = 1
) -> Iterator[Answer]:
    """The answers about the points with these numbers, by this process or by several workers.

    Pieces have at most `batch` points, or as many as `batches` batches after the first piece.
    """
    if workers is not None and workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")
    if len(points) == 0:
        return
    if workers is not None and workers > 1:
        yield from spread(solve, pieces_of(points, batch * batches, workers), workers)
        return
    crew = 1 if workers == 1 else _default()
    count = batch if len(points) > batch or crew <= FEW else -(-len(points) // crew)
    first, rest = points[:count], points[count:]
    started = time.monotonic()
    yield from single_threaded(solve(first))
    pace = (time.monotonic() - started) / len(first)
    if crew > 1 and len(rest) * pace > WORTH:
        yield from spread(solve, pieces_of(rest, batch * batches, crew), crew)
        return
    for piece in rest.split(batch * batches) if len(rest) else ():
        yield from single_threaded(solve(piece))


def spread(solve: Solve[Answer], pieces: Sequence[Tensor], workers: int) -> Generator[Answer, None, None]:
    """The answers about all pieces by several processes, in no particular order.

    An error of a worker is raised here, with the worker's traceback. When the iteration is interrupted, answers that have
    arrived are given first. Whenever it ends, by an error or an interruption too, all workers are ended.
    """
    context = multiprocessing.get_context("fork") if forks() else multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(min(workers, len(pieces)))]
    ours = [pair[0] for pair in pairs]
    crew = []
    waiting = list(reversed(pieces))
    try:
        for i, (_, theirs) in enumerate(pairs):
            # A fork has the other ends as well: closed, so that a worker sees it when this process ends.
            others = [*ours, *(pair[1] for pair in pairs[:i] + pairs[i + 1 :])] if forks() else []
            process = context.Process(target=_work, args=(solve, theirs, others), daemon=True)
            with warnings.catch_warnings(), uninterrupted():
                # Python warns of forks beside threads; those of torch are not used again in a fork with one thread.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
                crew.append(process)
        for pair in pairs:
            pair[1].close()
        for end in ours:
            _give(end, waiting.pop())
        yield from _received(ours, waiting)
        for process in crew:
            process.join()
    finally:
        for process in crew:
            if process.is_alive():
                process.terminate()
        for process in crew:
            process.join()
        for end in ours:
            end.close()


def _received(ends: Sequence[Connection], waiting: list[Tensor]) -> Iterator[Any]:
    """The answers of the workers at the other ends, which get further pieces when they are done with one."""
    open_ = list(ends)
    while open_:
        messages, interrupted = _messages(open_)
        for end, kind, what in messages:
            if kind == "answer":
                yield what
            elif interrupted:
                continue
            elif kind == "error":
                raise what
            elif waiting:
                _give(end, waiting.pop())
            else:
                _give(end, None)
                open_.remove(end)
        if interrupted:
            raise KeyboardInterrupt


def _messages(ends: Sequence[Connection]) -> tuple[list[tuple[Connection, str, Any]], bool]:
    """The next messages of workers, and whether waiting for them was interrupted; then all messages that have arrived."""
    found: list[tuple[Connection, str, Any]] = []
    try:
        ready = wait(ends)
        with uninterrupted():
            found += [(end, *_message(end)) for end in ends if end in ready]
    except KeyboardInterrupt:
        with uninterrupted():
            for end in ends:
                while end.poll():
                    found.append((end, *_message(end)))
                    if found[-1][1] == "error":
                        break
        return found, True
    return found, False


def _give(end: Connection, piece: Tensor | None) -> None:
    """Give a worker its next piece, or None if there is no more."""
    try:
        end.send(None if piece is None else piece.tolist())
    except (BrokenPipeError, ConnectionResetError):
        raise RunError(DEAD) from None


def _message(end: Connection) -> tuple[str, Any]:
    """The next message of a worker: an answer, an error, or that its piece is done."""
    try:
        return pickle.loads(end.recv_bytes())
    except (EOFError, ConnectionResetError):
        return "error", RunError(DEAD)


def _work(solve: Solve[Any], end: Connection, others: Sequence[Connection]) -> None:
    """A worker: answer pieces until there are none. An interruption is left to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what the program may do in its place
    for other in others:
        other.close()

    def send(kind: str, what: Any = None) -> None:
        # Plain pickles: tensors in shared memory would be gone with the worker.
        end.send_bytes(pickle.dumps((kind, what)))

    try:
        torch.set_num_threads(1)
        while (piece := end.recv()) is not None:
            for answer in solve(torch.tensor(piece)):
                send("answer", answer)
            send("done")
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the process that started this one has ended
    except RelucertError as error:
        error.add_note(f"in a worker:\n{traceback.format_exc()}")
        send("error", error)
    except Exception:
        send("error", RunError(f"a worker has failed:\n{traceback.format_exc()}"))


def pieces_of(points: Tensor, most: int, workers: int) -> list[Tensor]:
    """Pieces of at most so many points, each a share of what is left, so that the last ones are short."""
    pieces = []
    while len(points):
        size = min(most, max(LEAST, -(-len(points) // (2 * workers))))
        pieces.append(points[:size])
        points = points[size:]
    return pieces


def forks() -> bool:
    """Whether a copy of this process can go on computing: not on systems without fork, nor beside the threads of a GPU."""
    return sys.platform == "linux" and not torch.cuda.is_available()


def _default() -> int:
    """The number of workers by default: as many as torch has threads, where processes fork and may have children.

    At most `MOST`, since each has temporaries of its own.
    """
    alone = not forks() or multiprocessing.current_process().daemon
    return 1 if alone else min(MOST, torch.get_num_threads())
