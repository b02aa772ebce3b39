"""Real Dask clusters of one scheduler and a few worker processes, and calls that they can make; nothing here imports pytest."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class LocalCluster:
    """A scheduler and single-threaded workers, each a process; `folder` is where they keep their files."""

    def __init__(self, folder: Path, workers: int = 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.address = folder, f"tcp://127.0.0.1:{self.port}"
        self.scheduler = self._start("dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-show")
        self.workers = [self.worker() for _ in range(workers)]
        self._await()

    def worker(self) -> subprocess.Popen[bytes]:
        """A new worker, without a nanny that starts it again."""
        return self._start("dask_worker", self.address, "--nthreads", "1", "--no-nanny", "--memory-limit", "0")

    def restart(self) -> None:
        """Kill the scheduler, then start it and workers again."""
        self.scheduler.kill()
        self.scheduler.wait()
        self.scheduler = self._start("dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-show")
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.workers = [self.worker() for _ in self.workers]
        self._await()

    def stop(self) -> None:
        """Kill every process."""
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()

    def _await(self) -> None:
        """Wait until the scheduler listens."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            time.sleep(0.1)
        raise TimeoutError((self.folder / "dask_scheduler.log").read_text())

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
        with open(self.folder / f"{program}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{program}", *arguments, "--no-dashboard"],
                stdout=log, stderr=log, cwd=self.folder, env=os.environ | {"PYTHONPATH": paths},
            )  # fmt: skip


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[LocalCluster]:
    """A cluster that ends with the block."""
    started = LocalCluster(folder, workers)
    try:
        yield started
    finally:
        started.stop()


def square(folder: Path, number: int, seconds: float = 0.0) -> int:
    """The square of a number; every call leaves a file in the folder that says which process made it."""
    (folder / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(seconds)
    return number**2


def killing(folder: Path, number: int) -> int:
    """The square of a number; the first call with number 3 kills its process."""
    if number == 3 and not any(folder.glob("3-*")):
        square(folder, number)
        os.kill(os.getpid(), signal.SIGKILL)
    return square(folder, number, 0.05)


def suicidal() -> None:
    """Kill the process, every time."""
    os.kill(os.getpid(), signal.SIGKILL)


def failing(number: int) -> float:
    """An error that is none of relucert's."""
    return 1 / number


def threads() -> int:
    """The number of threads of torch."""
    import torch

    return torch.get_num_threads()


def busy(seconds: float) -> tuple[float, float]:
    """When the call began and ended."""
    started = time.time()
    time.sleep(seconds)
    return started, time.time()
