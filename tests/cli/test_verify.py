"""`relucert verify` and `relucert supports` as a shell sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planted import planted
from relucert.cli.main import run

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


@pytest.mark.parametrize(("safe", "word"), [(True, "unsat"), (False, "sat")])
def test_one_word_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str], safe: bool, word: str) -> None:
    onnx, vnnlib = planted(tmp_path, 5, safe=safe)
    where = tmp_path / "found"
    assert run(["verify", str(onnx), str(vnnlib), "--timeout", "20", "--counterexample", str(where)]) == 0
    assert capsys.readouterr().out == f"{word}\n"
    assert where.exists() == (word == "sat")


def test_a_list_with_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx, vnnlib = planted(tmp_path, 5, safe=True)
    (tmp_path / "instances.csv").write_text(f"{onnx.name},{vnnlib.name},20\n")
    arguments = ["verify", "--instances", str(tmp_path / "instances.csv"), "--out", str(tmp_path / "out.csv")]
    assert run(arguments) == 0
    assert "1 instances: 1 unsat; 0 differ" in capsys.readouterr().out


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["verify"],
        ["verify", "--instances", "a.csv"],
        ["verify", "a.onnx", "b.vnnlib", "--out", "c.csv"],
    ):
        assert run(arguments) == 2
        assert "must" in capsys.readouterr().err


def test_supports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx, vnnlib = planted(tmp_path, 5, safe=True)
    assert run(["supports", str(onnx), str(vnnlib)]) == 0
    assert capsys.readouterr().out == "yes\n"
    vnnlib.write_text("(declare-const X_0 Real)\n(assert (< X_0 1))\n")
    assert run(["supports", str(onnx), str(vnnlib)]) == 1
    assert capsys.readouterr().out.startswith("no: ")
    assert run(["supports", str(onnx), str(tmp_path / "none.vnnlib")]) == 2


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx, vnnlib = planted(tmp_path, 5, safe=False)
    files, where = [str(onnx), str(vnnlib)], tmp_path / "found"
    assert run(["verify", *files, "--timeout", "20", "--counterexample", str(where), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["result"], answer["counterexample"], answer["onnx"]) == ("sat", str(where), str(onnx))
    assert answer["seconds"] > 0
    (tmp_path / "instances.csv").write_text(f"{onnx.name},{vnnlib.name},20\n")
    arguments = ["verify", "--instances", str(tmp_path / "instances.csv"), "--out", str(tmp_path / "out.csv"), "--json"]
    assert run(arguments) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("result") for line in lines] == ["sat", None]
    assert lines[1]["summary"] == {
        "instances": 1, "answers": {"sat": 1}, "different": 0, "results": str(tmp_path / "out.csv")
    }  # fmt: skip
    assert run(["supports", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"supported": True, "reason": None}
    vnnlib.write_text("(declare-const X_0 Real)\n(assert (< X_0 1))\n")
    assert run(["supports", *files, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["supported"] is False
    assert "line 2" in found["reason"]
