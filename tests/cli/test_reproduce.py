"""`relucert reproduce` from the command line: the list, an experiment as JSON, and errors in one line."""

from __future__ import annotations

import json

from relucert.cli.main import run


def test_the_list_names_every_experiment(capsys):
    assert run(["reproduce", "list"]) == 0
    text = capsys.readouterr().out
    for name in ("table1", "table2", "table3", "bounds", "l2", "cross-lipschitz", "cw", "lambda", "figures"):
        assert f"\n{name}: " in f"\n{text}"
    assert "data mnist, fmnist, gts, cifar10; 72 networks" in text


def test_an_experiment_as_json(tmp_path, capsys):
    flags = [
        "--quick",
        "--epochs",
        "1",
        "--points",
        "3",
        "--models",
        "fc1",
        "--schemes",
        "plain",
        "--json",
        "--workers",
        "1",
    ]
    assert run(["reproduce", "table3", *flags, "--out", str(tmp_path), "--runs", str(tmp_path / "none")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == str(tmp_path)
    assert f"{tmp_path}/table3.md" in found["files"]


def test_errors_are_one_line(tmp_path, capsys):
    assert run(["reproduce", "table9", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("relucert: error: name must be one of table1, table2,")
    assert not (tmp_path / "out").exists()
