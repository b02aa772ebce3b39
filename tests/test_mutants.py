"""Files that lie: mutated files of every kind are read or refused with a clear error; see `mutants`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mutants

ROOT = Path(__file__).parent


@pytest.fixture
def alarm(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mutated_files_are_read_or_refused(tmp_path, alarm):
    counts = mutants.run(range(108), 1, tmp_path)
    assert sum(counts.values()) == 108
    for kind in mutants.KINDS:
        assert any(name.startswith(f"{kind}: ") and not name.endswith("read") for name in counts), "nothing was refused"


def test_what_is_not_mutated_is_read(tmp_path, alarm, monkeypatch):
    """The files themselves are whole: what is refused is the mutation."""
    monkeypatch.setattr(mutants, "of_bytes", lambda rng, raw: raw)
    monkeypatch.setattr(mutants, "of_json", lambda rng, value: value)
    monkeypatch.setattr(mutants, "text_of", lambda rng, value: json.dumps(value))
    counts = mutants.run(range(72), 2, tmp_path)
    for kind in mutants.KINDS:
        assert counts[f"{kind}: read"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_thousands_in_a_process_with_limits(part):
    """A thousand a case: no signal, no hang, no memory beyond 2000 MB."""
    command = [
        sys.executable,
        str(ROOT / "mutants.py"),
        "--count",
        "1000",
        "--start",
        str(1000 * part),
        "--memory",
        "2000",
    ]
    found = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr[-5000:]
    assert sum(json.loads(found.stdout).values()) == 1000
