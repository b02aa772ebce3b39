"""The folder of a run: configuration, metrics as JSON lines, the state of an unfinished run and the model of a finished one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relucert.core.errors import FileAccessError, RunError
from relucert.networks.network import Network
from relucert.records.atomic import AppendFile, write_atomically
from relucert.training.config import TrainConfig

CONFIG_FILE, METRICS_FILE, MODEL_FILE = "config.json", "metrics.jsonl", "model.safetensors"


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its network in eval mode, and the lines of its metrics."""

    folder: Path
    net: Network
    metrics: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any]:
        """The last evaluation (test error, PGD error), or an empty dictionary."""
        return next((line for line in reversed(self.metrics) if line["kind"] == "evaluation"), {})


class RunFolder:
    """The folder of a run in progress: a single writer, and files of another run are never overwritten."""

    def __init__(self, config: TrainConfig):
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
            self._claim(config)
        except BaseException:
            self._metrics.close()
            raise

    def _claim(self, config: TrainConfig) -> None:
        """Write the configuration, or check that the one in the folder is the same."""
        file, wanted = self.path / CONFIG_FILE, config.to_json()
        if not file.exists():
            write_atomically(file, json.dumps(wanted, indent=2) + "\n")
            return
        try:
            saved = json.loads(file.read_text())
            if saved == json.loads(json.dumps(wanted)):
                return
            saved = TrainConfig.from_json(saved).to_json()  # an earlier version may have written it
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{file} cannot be read ({error}): give another folder with out") from error
        differing = [name for name in {**saved, **wanted} if saved.get(name, file) != wanted.get(name, file)]
        if differing:
            said = ", ".join(f"{name} is {saved.get(name)!r}, not {wanted.get(name)!r}" for name in differing)
            raise RunError(f"out: {self.path} holds another run ({said}): give another folder, or remove this one")

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines."""
        raw = (self.path / METRICS_FILE).read_bytes()
        return [json.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines()]

    def rewind(self, step: int) -> None:
        """Delete the metrics of all steps after `step`, which are about to be repeated."""
        raw = (self.path / METRICS_FILE).read_bytes()
        size = 0
        for line in raw[: raw.rfind(b"\n") + 1].splitlines(keepends=True):
            if json.loads(line)["step"] > step:
                break
            size += len(line)
        self._metrics.truncate(size)

    def log(self, **line: Any) -> dict[str, Any]:
        """Append one line of metrics."""
        self._metrics.append((json.dumps(line) + "\n").encode())
        return line

    def close(self) -> None:
        """Release the folder for other processes."""
        self._metrics.close()
