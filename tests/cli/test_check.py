"""Certificate files from the command line, and the checker's answers about them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import relucert as rc
from relucert.checker.__main__ import run as check
from relucert.cli.main import run

POINTS = 40


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proofs")
    torch.manual_seed(0)
    net = rc.build("fc1", (1, 8, 8), 10).eval()
    rc.save(net, folder / "net.safetensors")
    arguments = ["--data", "digits", "--eps", "1e-4", "--p", "2", "--points", str(POINTS), "--method", "crown"]
    given = ["certify", str(folder / "net.safetensors"), *arguments]
    assert run([*given, "--out", str(folder / "records.jsonl"), "--proofs", str(folder / "proofs")]) == 0
    return folder


def test_what_certify_writes_is_checked(proofs: Path, capsys: Any) -> None:
    written = sorted((proofs / "proofs").glob("*.npz"))
    assert run(["check", str(proofs / "proofs"), "--network", str(proofs / "net.safetensors")]) == 0
    printed = capsys.readouterr().out
    assert len(written) > 0, "a network with random weights has some labels right"
    assert printed.count("CHECKED: robust (") == len(written)
    assert f"{len(written)} files" in printed


def test_another_network_is_noticed(proofs: Path, tmp_path: Path, capsys: Any) -> None:
    other = rc.load(proofs / "net.safetensors")
    with torch.no_grad():
        next(other.parameters()).mul_(1.0001)
    rc.save(other, tmp_path / "other.safetensors")
    assert run(["check", str(proofs / "proofs"), "--network", str(tmp_path / "other.safetensors")]) == 1
    assert "NOT CHECKED: the certificate is about another network" in capsys.readouterr().out


def test_files_that_are_none_stop_nothing(proofs: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "000000.npz").write_bytes(b"nothing")
    assert check(tmp_path, proofs / "net.safetensors") == 1
    assert "000000.npz: NOT CHECKED: the file cannot be read" in capsys.readouterr().out
    assert check(tmp_path, tmp_path / "none.safetensors") == 2
    assert check(tmp_path, tmp_path / "000000.npz") == 2
    assert run(["check", str(tmp_path / "nowhere"), "--network", str(proofs / "net.safetensors")]) == 2
    assert "folder must be" in capsys.readouterr().err


def test_the_checker_runs_without_torch(proofs: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; from relucert.checker.__main__ import run; "
        f"sys.exit(run(Path({str(proofs / 'proofs')!r}), Path({str(proofs / 'net.safetensors')!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "CHECKED" in done.stdout


def test_a_union_has_no_single_certificate(proofs: Path, capsys: Any) -> None:
    arguments = ["--data", "digits", "--union", "inf:0.001,2:0.001", "--proofs", str(proofs / "union")]
    assert run(["certify", str(proofs / "net.safetensors"), *arguments]) == 2
    assert "proofs must be left out with --union" in capsys.readouterr().err


def test_answers_as_json(proofs: Path, capsys: Any) -> None:
    written = sorted((proofs / "proofs").glob("*.npz"))
    given = ["check", str(proofs / "proofs"), "--network", str(proofs / "net.safetensors"), "--json"]
    assert run(given) == 0
    *lines, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [line["file"] for line in lines] == [path.name for path in written]
    assert all(line["result"] == "CHECKED" and float(line["eps"]) == 1e-4 for line in lines)
    assert last["summary"]["CHECKED"] == len(written)
