"""What a sweep keeps in its folder: `sweep.json`, what it is; `trials.jsonl`, what has happened, line by line.

A line says that a trial has begun (with its values), that it was measured, or that it has ended. Lines are appended by the one
process that runs the sweep, each as a whole: a sweep that was killed at any moment goes on from them.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from relucert.core.errors import DamagedData, FileAccessError, RunError
from relucert.records.atomic import AppendFile, file_access, write_atomically
from relucert.records.untrusted import bounded_json, reading

SWEEP_FILE, TRIALS_FILE = "sweep.json", "trials.jsonl"
LONGEST = 2**20  # bytes of the description, and of a line
_REMEDY = "restore the file from a copy, or give another folder with out"
_VALUES = (str, int, float)

State = Literal["open", "done", "stopped", "failed"]
ENDS = ("done", "stopped", "failed")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A trial after some epochs: shares of the examples that are held out which are misclassified, and not proved robust."""

    epoch: int
    error: float
    certified_error: float
    seconds: float


@dataclass
class Trial:
    """A trial: its number, what it has in place of the sweep's configuration, its figures and how it ended."""

    number: int
    values: dict[str, Any]
    figures: list[Figures] = field(default_factory=list)
    state: State = "open"
    reason: str = ""

    @property
    def last(self) -> Figures | None:
        """The latest figures."""
        return self.figures[-1] if self.figures else None

    def at(self, epoch: int) -> Figures | None:
        """The figures after an epoch."""
        return next((figures for figures in self.figures if figures.epoch == epoch), None)


class Journal:
    """The folder of a sweep, with a single writer."""

    def __init__(self, folder: Path, description: dict[str, Any]):
        self.folder = folder
        if not (folder / SWEEP_FILE).exists() and folder.exists() and any(folder.iterdir()):
            raise RunError(f"out: {folder} holds files and no sweep: give another folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileAccessError(f"out: the folder {folder} cannot be made: {error.strerror or error}") from error
        self._claim(json.loads(json.dumps(description)))
        self._file = AppendFile(folder / TRIALS_FILE)
        try:
            self._file.lock()
            self.trials, end = read_trials(folder / TRIALS_FILE)
            if end < self._file.size:
                self._file.truncate(end)
        except BaseException:
            self._file.close()
            raise

    def begin(self, values: dict[str, Any]) -> Trial:
        """A new trial."""
        trial = Trial(len(self.trials), values)
        self._append(kind="trial", number=trial.number, values=values)
        self.trials.append(trial)
        return trial

    def measure(self, trial: Trial, figures: Figures) -> None:
        """Add figures to a trial."""
        self._append(kind="figures", number=trial.number, **asdict(figures))
        trial.figures.append(figures)

    def end(self, trial: Trial, state: State, reason: str = "") -> None:
        """End a trial."""
        self._append(kind="end", number=trial.number, state=state, reason=reason)
        trial.state, trial.reason = state, reason

    def close(self) -> None:
        """Release the folder for other processes."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, **line: Any) -> None:
        self._file.append((json.dumps(line) + "\n").encode())
        self._file.sync()

    def _claim(self, wanted: dict[str, Any]) -> None:
        """Write what the sweep is, or check that the folder holds the same."""
        file = self.folder / SWEEP_FILE
        if not file.exists():
            write_atomically(file, json.dumps(wanted, indent=2) + "\n")
            return
        with file_access(file, "read"), file.open("rb") as opened:
            try:
                saved = bounded_json(opened.read(LONGEST + 1), "it", longest=LONGEST)
            except ValueError as error:
                raise DamagedData(f"{error}", path=file, remedy=_REMEDY) from error
        if not isinstance(saved, dict):
            raise DamagedData("it must describe a sweep", path=file, remedy=_REMEDY)
        differing = [name for name in {**saved, **wanted} if saved.get(name, file) != wanted.get(name, file)]
        if differing:
            said = ", ".join(f"{name} is {saved.get(name)!r}, not {wanted.get(name)!r}" for name in differing)
            raise RunError(f"out: {self.folder} holds another sweep ({said}): give another folder, or remove this one")


def read_trials(path: Path) -> tuple[list[Trial], int]:
    """The trials of a file, and where its last complete line ends."""
    trials: list[Trial] = []
    end = 0
    with reading(path, _REMEDY), path.open("rb") as opened:
        for number, line in enumerate(iter(lambda: opened.readline(LONGEST + 1), b""), 1):
            if not line.endswith(b"\n") and len(line) <= LONGEST:
                break  # the writer was killed
            try:
                _apply(bounded_json(line, f"line {number}", longest=LONGEST), trials)
            except (KeyError, TypeError, IndexError) as error:
                raise DamagedData(
                    f"it must be a line about a trial, with its number: {error}", entry=f"line {number}"
                ) from error
            end = opened.tell()
    return trials, end


def _apply(line: Any, trials: list[Trial]) -> None:
    """Take in a line about a trial; TypeError for one that is none."""
    number, kind = line["number"], line["kind"]
    if type(number) is not int or not 0 <= number <= len(trials) - (kind != "trial"):
        raise TypeError(f"number {number!r}")
    if kind == "trial":
        values = line["values"]
        if number != len(trials) or not isinstance(values, dict):
            raise TypeError("a trial begins once, with its values")
        if not all(type(value) in _VALUES for value in values.values()):
            raise TypeError("values are texts and numbers")
        trials.append(Trial(number, values))
    elif kind == "figures":
        figures = Figures(**{name: line[name] for name in Figures.__dataclass_fields__})
        shares = (figures.error, figures.certified_error)
        if type(figures.epoch) is not int or not all(
            type(share) in (int, float) and 0 <= share <= 1 for share in shares
        ):
            raise TypeError("figures are shares from 0 to 1 after an epoch")
        if type(figures.seconds) not in (int, float) or not math.isfinite(figures.seconds):
            raise TypeError("seconds are a number")
        trials[number].figures.append(figures)
    elif kind == "end" and line["state"] in ENDS and isinstance(line["reason"], str):
        trials[number].state, trials[number].reason = line["state"], line["reason"]
    else:
        raise TypeError(f"kind {kind!r}")
