import pytest

from relucert.core.errors import InvalidInput
from relucert.records.store import RecordStore
from relucert.reports.sources import RECORDS, named_stores, open_records


def test_folders_and_files_are_named_after_themselves_and_by_their_path_where_names_repeat(tmp_path):
    paths = [tmp_path / "one" / "run", tmp_path / "two" / "run", tmp_path / "three"]
    for path in paths:
        path.mkdir(parents=True)
        RecordStore(path / RECORDS, writable=True).close()
    RecordStore(tmp_path / "net.records.jsonl", writable=True).close()
    found = named_stores([*paths, tmp_path / "net.records.jsonl"])
    assert [name for name, _ in found] == [str(paths[0]), str(paths[1]), "three", "net"]


def test_what_has_no_records_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(InvalidInput, match=r"sources must be run folders with records\.jsonl or files of records"):
            open_records(path)
