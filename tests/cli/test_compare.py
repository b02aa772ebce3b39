import json

from relucert.cli.main import run
from relucert.records.record import Record, ball_fields
from relucert.records.store import RecordStore


def write(path, model, verdicts, eps=0.5, p=2):
    with RecordStore(path, writable=True) as store:
        for index, verdict in enumerate(verdicts):
            store.append(
                Record(
                    model=model * 64, data="digits", split="test", index=index, ball=ball_fields(p, eps, (0, 1)),
                    method="certify by kw", label=1, prediction=0 if verdict == "misclassified" else 1, verdict=verdict,
                    seconds=0.5,
                )
            )  # fmt: skip
    return str(path)


def test_verdicts_are_counted_in_pairs_and_points_that_differ_are_shown(tmp_path, capsys):
    a = write(tmp_path / "a.jsonl", "a", ["robust", "unknown", "misclassified", "robust"])
    b = write(tmp_path / "b.jsonl", "b", ["robust", "robust", "vulnerable"])
    assert run(["compare", a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["shared"], found["differing"]) == (3, [1, 2])
    assert {(pair["first"], pair["second"]): pair["points"] for pair in found["verdicts"]} == {
        ("robust", "robust"): 1, ("unknown", "robust"): 1, ("misclassified", "vulnerable"): 1,
    }  # fmt: skip
    assert [model["most_error"] for model in found["models"]] == [0.5, 1 - 2 / 3]
    assert run(["compare", a, b, "--show", "5"]) == 0
    out = capsys.readouterr().out
    assert "verdicts on the 3 points that both have" in out
    assert "robust error, at most" in out
    assert "0.5000 to inf" in out


def test_records_about_other_norms_are_refused(tmp_path, capsys):
    a, b = write(tmp_path / "a.jsonl", "a", ["robust"]), write(tmp_path / "b.jsonl", "b", ["robust"], p=float("inf"))
    assert run(["compare", a, b]) == 2
    assert (
        "must have records about the same data and norm, got digits in l_2 and digits in l_inf"
        in capsys.readouterr().err
    )
