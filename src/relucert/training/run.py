"""The folder of a run: configuration, metrics as JSON lines, the state of an unfinished run and the model of a finished one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relucert.core.errors import DamagedData, FileAccessError, RunError
from relucert.networks.network import Network
from relucert.records.atomic import AppendFile, file_access, write_atomically
from relucert.records.untrusted import bounded_json, reading
from relucert.training.config import IDENTITY, TrainConfig

CONFIG_FILE, METRICS_FILE, MODEL_FILE = "config.json", "metrics.jsonl", "model.safetensors"
LONGEST = 2**20  # bytes of the configuration, and of a line of metrics


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, None if it has none, its network in eval mode, and the lines of its metrics."""

    folder: Path | None
    net: Network
    metrics: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any]:
        """The last evaluation (test error, PGD error), or an empty dictionary."""
        return next((line for line in reversed(self.metrics) if line["kind"] == "evaluation"), {})


class RunFolder:
    """The folder of a run in progress: a single writer, and files of another run are never overwritten."""

    def __init__(self, config: TrainConfig, identity: dict[str, str] | None = None):
        self.path = config.folder
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileAccessError(
                f"out: the run's folder {self.path} cannot be made: {error.strerror or error}"
            ) from error
        self._metrics = AppendFile(self.path / METRICS_FILE)
        try:
            self._metrics.lock()
            self._claim(config.to_json() | ({IDENTITY: identity} if identity else {}))
        except BaseException:
            self._metrics.close()
            raise

    def _claim(self, wanted: dict[str, Any]) -> None:
        """Write the configuration, or check that the one in the folder is the same."""
        file = self.path / CONFIG_FILE
        if not file.exists():
            write_atomically(file, json.dumps(wanted, indent=2) + "\n")
            return
        try:
            with file_access(file, "read"), file.open("rb") as opened:
                saved = bounded_json(opened.read(LONGEST + 1), "it", longest=LONGEST)
            if saved == json.loads(json.dumps(wanted)):
                return
            identity = {IDENTITY: saved[IDENTITY]} if IDENTITY in saved else {}
            saved = TrainConfig.from_json(saved).to_json() | identity  # an earlier version may have written it
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{file} cannot be read ({error}): give another folder with out") from error
        differing = [name for name in {**saved, **wanted} if saved.get(name, file) != wanted.get(name, file)]
        if differing:
            said = ", ".join(_difference(name, saved.get(name), wanted.get(name)) for name in differing)
            raise RunError(f"out: {self.path} holds another run ({said}): give another folder, or remove this one")

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines; a line that is none is `DamagedData`."""
        return [line for _, line in self._lines()]

    def _lines(self) -> list[tuple[int, dict[str, Any]]]:
        """Where every complete line of the metrics ends, and the line."""
        found, file = [], self.path / METRICS_FILE
        with reading(file, "restore the file from a copy, or give another folder with out"), file.open("rb") as opened:
            for number, line in enumerate(iter(lambda: opened.readline(LONGEST + 1), b""), 1):
                if not line.endswith(b"\n") and len(line) <= LONGEST:
                    break  # the writer was killed
                parsed = bounded_json(line, f"line {number}", longest=LONGEST, strict=False)
                if not isinstance(parsed, dict) or type(parsed.get("step")) is not int or "kind" not in parsed:
                    raise DamagedData("it must be a line of metrics, with kind and step", entry=f"line {number}")
                found.append((opened.tell(), parsed))
        return found

    def rewind(self, step: int) -> None:
        """Delete the metrics of all steps after `step`, which are about to be repeated."""
        size = 0
        for end, line in self._lines():
            if line["step"] > step:
                break
            size = end
        self._metrics.truncate(size)

    def log(self, **line: Any) -> dict[str, Any]:
        """Append one line of metrics."""
        self._metrics.append((json.dumps(line) + "\n").encode())
        return line

    def close(self) -> None:
        """Release the folder for other processes."""
        self._metrics.close()


class Unsaved:
    """A run without a folder: its metrics are kept in memory, and nothing is written."""

    path: None = None

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []

    def metrics(self) -> list[dict[str, Any]]:
        """All lines."""
        return list(self._lines)

    def rewind(self, step: int) -> None:
        """Delete the metrics of all steps after `step`."""
        self._lines = [line for line in self._lines if line["step"] <= step]

    def log(self, **line: Any) -> dict[str, Any]:
        """Append one line of metrics."""
        self._lines.append(line)
        return line

    def close(self) -> None:
        """Nothing to release."""


def _difference(name: str, saved: Any, wanted: Any) -> str:
    """What is another in a folder than in the run that wants it."""
    if name != IDENTITY:
        return f"{name} is {saved!r}, not {wanted!r}"
    saved, wanted = (part if isinstance(part, dict) else {} for part in (saved, wanted))
    return "another " + " and ".join(part for part in {**saved, **wanted} if saved.get(part) != wanted.get(part))
