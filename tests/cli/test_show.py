import json

import pytest

from relucert.cli.main import run
from relucert.records.record import Record, ball_fields
from relucert.records.store import RecordStore

BALL = ball_fields(2, 0.5, (0, 1))


def record(index, verdict, method="certify by crown(budget=1)", **facts):
    prediction = 1 - index % 2 if verdict == "misclassified" else index % 2
    return Record(
        model="a" * 64, data="digits", split="test", index=index, ball=BALL, method=method, label=index % 2,
        prediction=prediction, verdict=verdict, by="crown(budget=1)", seconds=0.25, **facts,
    )  # fmt: skip


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.jsonl"
    with RecordStore(path, writable=True) as store:
        store.append(record(0, "robust", margin=0.75, rounding=0.25, arithmetic="executed", executed=0.5))
        store.append(record(1, "unknown", reason="bound", margin=-1.0))
        store.append(record(2, "misclassified"))
        store.append(record(3, "unknown", reason="bound"))
        store.append(record(3, "unknown", method="certify by ibp"))
    return path


def test_points_are_shown_by_verdict_class_and_method(file, capsys):
    assert run(["show", str(file), "--verdict", "unknown"]) == 0
    out = capsys.readouterr().out
    assert "certify by crown(budget=1): 2 points" in out
    assert "certify by ibp: 1 points" in out
    assert "no: bound" in out
    assert "robust" not in out
    assert run(["show", str(file), "--label", "0", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["index"] for line in lines] == [0, 2]
    assert lines[0]["margin"] == 0.75
    assert run(["show", str(file), "--index", "3", "--method", "ibp", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert run(["show", str(file), "--by", "bab"]) == 0
    assert "no record of" in capsys.readouterr().out


def test_rows_beyond_the_limit_are_counted(file, capsys):
    assert run(["show", str(file), "--most", "1"]) == 0
    assert "4 of 5 rows are left out; --most 5 shows them all" in capsys.readouterr().out


def test_the_bound_before_rounding_stands_beside_the_margin(file, capsys):
    assert run(["show", str(file), "--verdict", "robust"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "executed" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "0", "0", "0", "robust", "executed", "crown", "1.0000", "2.5e-01", "0.7500", "250.0",
    ]  # fmt: skip
