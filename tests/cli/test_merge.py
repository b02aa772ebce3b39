import json

from relucert.cli.main import run
from relucert.records.record import Record, ball_fields
from relucert.records.store import RecordStore


def record(index, verdict="unknown"):
    return Record(
        model="a" * 64, data="digits", split="test", index=index, ball=ball_fields(2, 0.5, (0, 1)), method="certify by kw",
        label=1, prediction=1, verdict=verdict,
    )  # fmt: skip


def write(path, *records):
    with RecordStore(path, writable=True) as store:
        for one in records:
            store.append(one, {"note": [float(one.index)]})
    return str(path)


def test_records_of_several_files_become_one_and_the_same_record_counts_once(tmp_path, capsys):
    a, b = write(tmp_path / "a.jsonl", record(0), record(1)), write(tmp_path / "b.jsonl", record(1), record(2))
    out = str(tmp_path / "c.jsonl")
    assert run(["merge", a, b, "-o", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": out, "new": 3, "records": 3}
    store = RecordStore(out)
    assert sorted(one.index for one in store.records()) == [0, 1, 2]
    assert [float(store.array(one.key, "note")[0]) for one in store.records()] == [0.0, 1.0, 2.0]
    assert run(["merge", a, out, "-o", out]) == 0
    assert "has 3 records, 0 of them new" in capsys.readouterr().out


def test_records_that_differ_are_refused_and_nothing_is_lost(tmp_path, capsys):
    a, b = write(tmp_path / "a.jsonl", record(0)), write(tmp_path / "b.jsonl", record(0, "robust"))
    assert run(["merge", b, "-o", a]) == 2
    assert "have the same key" in capsys.readouterr().err
    assert [str(one.verdict) for one in RecordStore(a).records()] == ["unknown"]


def test_nothing_is_written_where_a_source_cannot_be_read(tmp_path, capsys):
    a = write(tmp_path / "a.jsonl", record(0))
    assert run(["merge", a, str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "c.jsonl")]) == 2
    assert not (tmp_path / "c.jsonl").exists()
    assert "none.jsonl" in capsys.readouterr().err
