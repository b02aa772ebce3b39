"""Instances of the verification competition: an ONNX file, a VNN-LIB file and a limit in seconds, one or a list of them.

`verify` answers one instance. `run_instances` answers a list: every instance in a process of its own (a fork), which is ended
when its limit is over, and one line of the results for each as soon as it is known. A list that was interrupted goes on where
it was.
"""

from __future__ import annotations

import csv
import importlib
import io
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relucert.core.errors import DamagedData, FileAccessError, InvalidInput, RelucertError, UnsupportedLayer
from relucert.core.interrupts import uninterrupted
from relucert.records.atomic import AppendFile, write_atomically
from relucert.records.untrusted import reading

if TYPE_CHECKING:
    from relucert.interop.vnnlib.specification import Specification
    from relucert.networks.network import Network
    from relucert.verification.specifications import Answer

#: The head of a file of results.
HEAD = ["onnx", "vnnlib", "limit", "result", "seconds", "by", "agreed", "other_seconds"]
WORDS = ("unsat", "sat", "unknown", "timeout", "error")
#: Of the limit of an instance this is kept for the last batch of subproblems and for writing the answer.
RESERVE, LEAST_RESERVE = 0.02, 0.2
#: Seconds after its limit at which a process is ended.
GRACE = 2.0


def load_instance(onnx: str | Path, vnnlib: str | Path) -> tuple[Network, Specification]:
    """The network of an instance, in float64, and its specification; an error says what is not supported."""
    from relucert.interop.onnx.reading import load_onnx
    from relucert.interop.vnnlib.reading import load_vnnlib
    from relucert.networks.network import in_double
    from relucert.verification.specifications import check_sizes

    spec = load_vnnlib(vnnlib)
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        net = in_double(load_onnx(onnx))
    dropped = [str(one.message) for one in remarks if "dropped" in str(one.message)]
    if dropped:
        raise UnsupportedLayer(f"{dropped[0]}; a property is about the outputs of the file, with it")
    check_sizes(net, spec)
    return net, spec


def verify(onnx: str | Path, vnnlib: str | Path, seconds: float, started: float | None = None) -> Answer:
    """Decide an instance in `seconds` since `started`, a moment of `time.monotonic`; by default since now."""
    if not seconds > 0:
        raise InvalidInput(f"timeout must be positive, got {seconds}")
    deadline = (time.monotonic() if started is None else started) + seconds - max(RESERVE * seconds, LEAST_RESERVE)
    import torch

    from relucert.interop.onnx.execution import Runtime
    from relucert.networks.network import one_thread
    from relucert.verification.specifications import decide_specification

    net, spec = load_instance(onnx, vnnlib)
    with one_thread(), torch.no_grad():
        return decide_specification(net, spec, Runtime(onnx), deadline)


def counterexample_text(answer: Answer) -> str:
    """The counterexample of an answer in the competition's format."""
    from relucert.interop.vnnlib.writing import counterexample

    assert answer.counterexample is not None
    return counterexample(answer.counterexample.x, answer.counterexample.y)


@dataclass(frozen=True)
class Instance:
    """One line of a list: files, seconds, and where the list has them the agreed verdict and the seconds of another tool."""

    onnx: str
    vnnlib: str
    limit: float
    agreed: str = ""
    other_seconds: str = ""


@dataclass(frozen=True)
class Result:
    """What was answered to an instance, in how many seconds."""

    instance: Instance
    word: str
    seconds: float
    by: str = ""

    def line(self) -> list[str]:
        """The cells of the results."""
        one = self.instance
        return [
            one.onnx, one.vnnlib, f"{one.limit:g}", self.word, f"{self.seconds:.3f}", self.by, one.agreed, one.other_seconds
        ]  # fmt: skip


def read_instances(path: str | Path) -> list[Instance]:
    """The instances of a list: lines of onnx, vnnlib and seconds, with further columns if the first line names them.

    Agreed verdicts are in a column `verdict` or in a file `verdicts.csv` beside the list, by the names of the files.
    """
    path, found = Path(path), []
    agreed = _agreed(path.with_name("verdicts.csv"))
    with reading(path, "write one line 'onnx,vnnlib,seconds' for each instance"):
        lines = list(csv.reader(io.StringIO(path.read_text())))
        head = lines.pop(0) if lines and lines[0][:2] == ["onnx", "vnnlib"] else ["onnx", "vnnlib", "seconds"]
        for number, cells in enumerate(lines, 2 if head != ["onnx", "vnnlib", "seconds"] else 1):
            if not cells:
                continue
            named = dict(zip(head, cells, strict=False))
            if len(cells) < 3:
                raise DamagedData(f"it must have 3 cells, got {len(cells)}", entry=f"line {number}")
            try:
                limit = float(named["seconds"])
            except ValueError as error:
                raise DamagedData(
                    f"seconds must be a number, got {named['seconds']!r}", entry=f"line {number}"
                ) from error
            if not 0 < limit < 10**7:
                raise DamagedData(f"seconds must be positive, got {limit:g}", entry=f"line {number}")
            other = named.get("alpha_beta_crown_seconds", "")
            verdict = named.get("verdict") or agreed.get((Path(cells[0]).name, Path(cells[1]).name), "")
            found.append(Instance(named["onnx"], named["vnnlib"], limit, verdict, other))
    return found


def _agreed(path: Path) -> dict[tuple[str, str], str]:
    """Verdicts by the names of the files of an instance; empty without a file."""
    if not path.exists():
        return {}
    with reading(path, "write lines 'onnx,vnnlib,verdict' below such a head"):
        lines = csv.DictReader(io.StringIO(path.read_text()))
        return {(Path(line["onnx"]).name, Path(line["vnnlib"]).name): line["verdict"] for line in lines}


def read_results(path: str | Path) -> list[Result]:
    """The results of a file that `run_instances` has written; a last line without an end is left out."""
    path = Path(path)
    with reading(path, "move it away, or write to another file"):
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        lines = list(csv.reader(io.StringIO(whole)))
        if lines and lines[0] != HEAD:
            raise DamagedData(
                f"its first line must be {','.join(HEAD)}, got {','.join(lines[0])[:80]!r}", entry="line 1"
            )
        found = []
        for number, cells in enumerate(lines[1:], 2):
            if len(cells) != len(HEAD) or cells[3] not in WORDS:
                raise DamagedData(
                    f"it must have {len(HEAD)} cells and a result of {', '.join(WORDS)}", entry=f"line {number}"
                )
            instance = Instance(cells[0], cells[1], float(cells[2]), cells[6], cells[7])
            found.append(Result(instance, cells[3], float(cells[4]), cells[5]))
    return found


def run_instances(
    path: str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    most: float | None = None,
    counterexamples: Path | None = None,
) -> Iterator[Result]:
    """The results of a list of instances, those that `out` has already first; paths are relative to the folder of the list.

    `workers` instances at a time; `most` seconds an instance, if that is less than its limit. Counterexamples go into the
    folder `counterexamples` if there is one.
    """
    if workers < 1:
        raise InvalidInput(f"workers must be at least 1, got {workers}")
    if most is not None and not most > 0:
        raise InvalidInput(f"timeout must be positive, got {most}")
    path, out = Path(path), Path(out)
    instances = read_instances(path)
    known = _known(out)
    todo = []
    for one in instances:
        limit = one.limit if most is None else min(most, one.limit)
        lowered = Instance(one.onnx, one.vnnlib, limit, one.agreed, one.other_seconds)
        if (one.onnx, one.vnnlib, f"{limit:g}") in known:
            yield known[one.onnx, one.vnnlib, f"{limit:g}"]
        else:
            todo.append(lowered)
    file = AppendFile(out)
    try:
        file.lock()
        if file.size == 0:
            file.append(_row(HEAD))
        for result in _answers(todo, path.parent, workers, counterexamples):
            file.append(_row(result.line()))
            yield result
    finally:
        file.close()


def _known(out: Path) -> dict[tuple[str, str, str], Result]:
    """The results of an earlier run, by instance; what was left of an incomplete line is cut off."""
    if not out.exists():
        return {}
    found = read_results(out)
    text = out.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        write_atomically(out, whole)
    return {(one.instance.onnx, one.instance.vnnlib, f"{one.instance.limit:g}"): one for one in found}


def _row(cells: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _answers(todo: list[Instance], folder: Path, workers: int, counterexamples: Path | None) -> Iterator[Result]:
    """Results in the order in which they are known, each from a process of its own."""
    _import_all()
    context: Any = multiprocessing.get_context("fork")
    waiting, running = list(reversed(todo)), {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                one = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, one, folder, counterexamples), daemon=True)
                with uninterrupted():
                    process.start()
                    running[ours] = (process, one, time.monotonic())
                theirs.close()
            first = min(begun + one.limit + GRACE for _, one, begun in running.values())
            ready = wait(list(running), timeout=max(0.0, first - time.monotonic()))
            for pipe in list(running):
                process, one, begun = running[pipe]
                spent = time.monotonic() - begun
                if pipe in ready:
                    try:
                        word, by = pipe.recv()
                    except EOFError:
                        word, by = "error", "the process has died"
                elif spent >= one.limit + GRACE:
                    word, by = "timeout", "ended"
                    process.kill()
                else:
                    continue
                if word in ("sat", "unsat") and spent > one.limit:
                    word, by = "timeout", f"{word} after the limit"
                process.join()
                del running[pipe]
                pipe.close()
                yield Result(one, word, spent, by)
    finally:
        for process, _, _ in running.values():
            process.kill()


def _import_all() -> None:
    """Import what processes may need, once, before they are forked."""
    for name in (
        "onnx", "onnxruntime", "relucert.interop.onnx.reading", "relucert.interop.vnnlib.reading",
        "relucert.verification.bab.envelopes", "relucert.verification.bab.bab", "relucert.verification.specifications",
    ):  # fmt: skip
        with suppress(ImportError):  # a process that misses a package says so
            importlib.import_module(name)


def _child(pipe: Any, one: Instance, folder: Path, counterexamples: Path | None) -> None:
    """Answer one instance in a process of its own. An interruption is left to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started = time.monotonic()
    try:
        answer = verify(_file(folder / one.onnx), _file(folder / one.vnnlib), one.limit, started)
        if answer.word == "sat" and counterexamples is not None:
            write_atomically(counterexamples / counterexample_name(one.onnx, one.vnnlib), counterexample_text(answer))
        pipe.send((answer.word, answer.by))
    except RelucertError as error:
        pipe.send(("error", str(error)[:200]))
    except MemoryError:
        pipe.send(("error", "out of memory"))
    finally:
        pipe.close()
        os._exit(0)


def _file(path: Path) -> Path:
    """A file of an instance, which may be packed."""
    packed = path.with_name(f"{path.name}.gz")
    if not path.exists() and packed.exists():
        return packed
    if not path.exists():
        raise FileAccessError(f"{path} does not exist")
    return path


def counterexample_name(onnx: str | Path, vnnlib: str | Path) -> str:
    """The name of the file of a counterexample.

    >>> counterexample_name("onnx/a.onnx", "vnnlib/p_1.vnnlib.gz")
    'a_p_1.counterexample'
    """
    stems = [Path(one).name.removesuffix(".gz").rpartition(".")[0] for one in (onnx, vnnlib)]
    return f"{'_'.join(stems)}.counterexample"
