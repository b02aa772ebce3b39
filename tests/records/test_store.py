from __future__ import annotations

import doctest
import math
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from relucert.core.errors import DamagedData, FileAccessError, InvalidInput, RecordConflict
from relucert.records import record as records
from relucert.records import store as store_module
from relucert.records.atomic import AppendFile
from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore

SOURCE = str(Path(store_module.__file__).parents[2])
CHECKED = re.compile(rb'"check":"[0-9a-f]{16}"}\Z')
BALL = ball_fields(p=math.inf, eps=0.1, box=(0, 1))


def make(index: int, **facts) -> Record:
    fields = {
        "model": "5f1e",
        "data": "digits",
        "split": "test",
        "ball": BALL,
        "method": "ibp",
        "seconds": 0.5,
        **facts,
    }
    return Record(index=index, **fields)


def arrays_of(index: int) -> dict[str, np.ndarray]:
    """Two, one or no arrays, of several kinds."""
    arrays = {"image": np.full((1, 2), index, dtype=np.float32), "witness": np.array([index % 2 == 0])}
    return dict(list(arrays.items())[: (index + 2) % 3])


def fill(path: Path, indices, **facts) -> None:
    with RecordStore(path, writable=True) as store:
        for index in indices:
            store.append(make(index, **facts), arrays_of(index))


def contents(path: Path) -> dict[int, tuple[Record, dict[str, list]]]:
    """Everything that a reader sees."""
    store = RecordStore(path)
    return {
        record.index: (record, {name: store.array(record.key, name).tolist() for name in record.arrays})
        for record in store.records()
    }


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def no_fsync(monkeypatch):
    # The effect of a kill does not depend on fsync, which is slow.
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def test_examples_of_the_documentation_run():
    result = doctest.testmod(store_module)
    assert result.attempted > 0
    assert result.failed == 0


def test_everything_appended_is_read_back(tmp_path):
    path = tmp_path / "a.jsonl"
    fill(path, [3, 1, 2], label=4, verdict=Verdict.UNKNOWN, lower=0.0, upper=math.inf)
    store = RecordStore(path)
    assert [record.index for record in store.records()] == [3, 1, 2]
    assert store.keys() == [make(index).key for index in (3, 1, 2)]
    assert len(store) == 3
    assert make(1).key in store
    assert make(9).key not in store
    found = store.record(make(2).key)
    assert (found.label, found.verdict, found.lower, found.upper) == (4, Verdict.UNKNOWN, 0.0, math.inf)
    assert found.seconds == 0.5
    for index in (1, 2, 3):
        record = store.record(make(index).key)
        assert record.arrays.keys() == arrays_of(index).keys()
        for name, array in arrays_of(index).items():
            again = store.array(record.key, name)
            assert again.dtype == array.dtype
            np.testing.assert_array_equal(again, array)


def test_a_writer_reads_what_it_wrote(tmp_path):
    with RecordStore(tmp_path / "a.jsonl", writable=True) as store:
        store.append(make(0), {"image": torch.ones(2, 2)})
        assert make(0).key in store
        assert next(store.records()).index == 0
        np.testing.assert_array_equal(store.array(make(0).key, "image"), np.ones((2, 2), dtype=np.float32))


def test_names_of_the_files(tmp_path):
    fill(tmp_path / "a.jsonl", [1])  # no arrays
    assert sorted(files(tmp_path)) == ["a.jsonl"]
    fill(tmp_path / "a.jsonl", [0])
    assert sorted(files(tmp_path)) == ["a.arrays", "a.jsonl"]


def test_opening_again_appends(tmp_path):
    fill(tmp_path / "a.jsonl", [0, 1])
    fill(tmp_path / "a.jsonl", [1, 2])
    fill(tmp_path / "b.jsonl", [0, 1, 2])
    assert files(tmp_path)["a.jsonl"] == files(tmp_path)["b.jsonl"]
    assert files(tmp_path)["a.arrays"] == files(tmp_path)["b.arrays"]


def test_equal_records_are_written_once(tmp_path):
    path = tmp_path / "a.jsonl"
    with RecordStore(path, writable=True) as store:
        assert store.append(make(2), arrays_of(2)) is True
        before = files(tmp_path)
        assert store.append(make(2, seconds=9, versions={"torch": "3"}), arrays_of(2)) is False
        assert store.append(next(store.records())) is False
    assert files(tmp_path) == before
    assert next(RecordStore(path).records()).seconds == 0.5


@pytest.mark.parametrize(
    ("record", "arrays", "different"),
    [
        (make(0, lower=0.25), arrays_of(0), r"lower 0\.5 and 0\.25"),
        (make(0, lower=0.5), {"image": np.zeros(3), "witness": np.array([True])}, r"arrays"),
        (make(0, lower=0.5), {}, r"arrays"),
        (make(0, lower=0.5, verdict="robust"), arrays_of(0), r"verdict None and <Verdict.ROBUST: 'robust'>"),
    ],
)
def test_unequal_records_with_one_key_conflict(tmp_path, record, arrays, different):
    path = tmp_path / "a.jsonl"
    fill(path, [5, 0], lower=0.5)
    before = files(tmp_path)
    with (
        RecordStore(path, writable=True) as store,
        pytest.raises(RecordConflict, match=rf"a\.jsonl line 2 and the record to append .* {record.key} .*{different}"),
    ):
        store.append(record, arrays)
    assert files(tmp_path) == before


def test_a_conflict_with_a_line_just_written_names_that_line(tmp_path):
    fill(tmp_path / "a.jsonl", [0])
    with RecordStore(tmp_path / "a.jsonl", writable=True) as store:
        store.append(make(1))
        store.append(make(4))
        with pytest.raises(RecordConflict, match=r"a\.jsonl line 3 and the record to append"):
            store.append(make(4, lower=0.5))


def test_arrays_must_be_those_of_the_record(tmp_path):
    fill(tmp_path / "a.jsonl", [0])
    record = next(RecordStore(tmp_path / "a.jsonl").records())
    with RecordStore(tmp_path / "b.jsonl", writable=True) as store:
        with pytest.raises(InvalidInput, match=r"missing: image, witness"):
            store.append(record)
        with pytest.raises(InvalidInput, match=r"arrays\['image'\] must have the sha256 that the record says"):
            store.append(record, {**arrays_of(0), "image": np.zeros(1)})
        with pytest.raises(InvalidInput, match=r"arrays\['other'\] must have the sha256"):
            store.append(record, {**arrays_of(0), "other": np.zeros(1)})
        with pytest.raises(InvalidInput, match=r"array 'image' must hold numbers"):
            store.append(make(1), {"image": "cat"})
        assert len(store) == 0
        assert store.append(record, arrays_of(0))
    assert contents(tmp_path / "a.jsonl") == contents(tmp_path / "b.jsonl")


# A kill at every byte.


def history(folder: Path, count: int, monkeypatch) -> list[tuple[int, int]]:
    """The sizes of (lines, arrays) after each byte that a writer of `count` records writes, in the order it writes them."""
    sizes = [(0, 0)]
    append = AppendFile.append

    def logged(file: AppendFile, data: bytes) -> int:
        lines, arrays = sizes[-1]
        steps = range(1, len(data) + 1)
        sizes.extend((lines + n, arrays) if file.path.suffix == ".jsonl" else (lines, arrays + n) for n in steps)
        return append(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(AppendFile, "append", logged)
        fill(folder / "whole.jsonl", range(count))
    return sizes


def kill_and_resume(folder: Path, cuts: list[tuple[int, int]], count: int, *, arrays_lost: bool = False) -> None:
    whole = contents(folder / "whole.jsonl")
    lines, arrays = (folder / "whole.jsonl").read_bytes(), (folder / "whole.arrays").read_bytes()
    path = folder / "cut.jsonl"
    for cut_lines, cut_arrays in cuts:
        path.write_bytes(lines[:cut_lines])
        path.with_suffix(".arrays").write_bytes(arrays[:cut_arrays])
        # A line whose end alone is missing is complete.
        complete = list(range(lines[:cut_lines].count(b"\n") + bool(CHECKED.search(lines[:cut_lines]))))

        # A reader finds every whole line and changes nothing.
        assert [record.index for record in RecordStore(path).records()] == complete
        assert path.stat().st_size == cut_lines
        assert path.with_suffix(".arrays").stat().st_size == cut_arrays

        with RecordStore(path, writable=True) as store:
            assert list(store.records()) == [whole[index][0] for index in complete]
            done = [index for index in range(count) if make(index).key in store]
            assert done == complete or arrays_lost
            for index in done:
                assert {n: store.array(make(index).key, n).tolist() for n in arrays_of(index)} == whole[index][1]
            for index in range(count):
                if index not in done:
                    store.append(make(index), arrays_of(index))
        assert path.read_bytes() == lines
        assert path.with_suffix(".arrays").read_bytes() == arrays


def test_a_kill_at_every_byte_loses_only_the_unfinished_record(tmp_path, no_fsync, monkeypatch):
    sizes = history(tmp_path, 3, monkeypatch)
    assert sizes[-1] == ((tmp_path / "whole.jsonl").stat().st_size, (tmp_path / "whole.arrays").stat().st_size)
    kill_and_resume(tmp_path, sizes, 3)


def test_lines_cut_at_every_byte_beside_whole_arrays(tmp_path, no_fsync, monkeypatch):
    lines, arrays = history(tmp_path, 3, monkeypatch)[-1]
    kill_and_resume(tmp_path, [(cut, arrays) for cut in range(lines + 1)], 3)


def test_arrays_cut_at_every_byte_beside_whole_lines(tmp_path, no_fsync, monkeypatch):
    # Only a crash of the machine does this. Records with lost arrays count as not done and are restored by appending.
    lines, arrays = history(tmp_path, 3, monkeypatch)[-1]
    kill_and_resume(tmp_path, [(lines, cut) for cut in range(arrays + 1)], 3, arrays_lost=True)


def test_lost_arrays_are_an_error_until_they_are_put_back(tmp_path):
    path = tmp_path / "a.jsonl"
    fill(path, [0, 1])
    (tmp_path / "a.arrays").unlink()
    store = RecordStore(path)
    assert store.keys() == [make(1).key]
    assert len(store) == 1
    assert [record.index for record in store.records()] == [0, 1]
    with pytest.raises(
        DamagedData, match=r"a\.arrays has lost array 'image' of record .* \(.*a\.jsonl line 1\): run the"
    ):
        store.array(make(0).key, "image")
    fill(path, [0])
    assert make(0).key in RecordStore(path)
    fill(tmp_path / "b.jsonl", [0, 1])
    assert contents(path) == contents(tmp_path / "b.jsonl")


def test_arrays_without_their_record_are_replaced_by_those_of_the_record(tmp_path):
    # A writer died after the arrays; the next one finds another witness.
    path = tmp_path / "a.jsonl"
    fill(path, [0])
    path.write_bytes(b"")
    with RecordStore(path, writable=True) as store:
        store.append(make(0), {"image": np.zeros(3), "witness": np.ones(2)})
    store = RecordStore(path)
    np.testing.assert_array_equal(store.array(make(0).key, "image"), np.zeros(3))
    np.testing.assert_array_equal(store.array(make(0).key, "witness"), np.ones(2))


@pytest.mark.parametrize("tail", [b"\0" * 5, b'{"sch', b'{"schema":1,"key":"\0\0\0'])
def test_zeros_left_by_a_dead_machine_are_cut_off(tmp_path, tail):
    path = tmp_path / "a.jsonl"
    fill(path, [0, 1])
    before = path.read_bytes()
    path.write_bytes(before + tail)
    assert len(RecordStore(path)) == 2
    RecordStore(path, writable=True).close()
    assert path.read_bytes() == before


WRITER = """
import sys
import zlib
import numpy as np
sys.path.insert(0, sys.argv[2])
from relucert.records.record import Record, ball_fields
from relucert.records.store import RecordStore
store = RecordStore(sys.argv[1], writable=True)
print("open", flush=True)
for index in range(int(sys.argv[3]), int(sys.argv[4])):
    record = Record(model="5f1e", data="digits", split="test", index=index, ball=ball_fields(2, 1.0), method="ibp")
    store.append(record, {"image": np.full(2000, index)})
    print(index, flush=True)
sys.stdin.read()
"""


def start_writer(path: Path, first: int, last: int) -> subprocess.Popen[str]:
    """A process that appends records `first` to `last` and reports each, then keeps the store open until it is killed."""
    command = [sys.executable, "-c", WRITER, str(path), SOURCE, str(first), str(last)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_killed_while_appending_loses_nothing_it_reported(tmp_path):
    path = tmp_path / "a.jsonl"
    first = 0
    for round_number in range(4):
        process = start_writer(path, first, 10**9)
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(lines) == "open\n"
        reported = [int(next(lines)) for _ in range(20 + 7 * round_number)]
        process.send_signal(signal.SIGKILL)
        reported += [int(line) for line in lines if line.endswith("\n")]
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        with RecordStore(path, writable=True) as store:
            found = [record.index for record in store.records()]
            assert found == list(range(len(found)))
            assert len(found) >= reported[-1] + 1
            assert len(store) == len(found)
            for record in store.records():
                np.testing.assert_array_equal(store.array(record.key, "image"), np.full(2000, record.index))
        first = len(found)


def test_two_writers(tmp_path):
    path, count = tmp_path / "a.jsonl", 400
    process = start_writer(path, 0, count)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(
            FileAccessError, match=r"a\.jsonl is being written by someone else: wait .* or write another"
        ):
            RecordStore(path, writable=True)
        # Readers need no lock and never see half a record, however fast the writer is.
        seen = 0
        while seen < count:
            assert process.poll() is None
            store = RecordStore(path)
            assert len(store) >= seen
            seen = len(store)
            assert [record.index for record in store.records()] == list(range(seen))
            if seen:
                assert store.array(store.keys()[-1], "image")[0] == seen - 1
    finally:
        process.kill()
        process.communicate()
    RecordStore(path, writable=True).close()


def test_a_writer_that_failed_to_open_or_was_closed_lets_others_in(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"no record\n")
    with pytest.raises(DamagedData) as kept:  # with its traceback, which keeps the failed store alive
        RecordStore(path, writable=True)
    path.write_bytes(b"")
    first = RecordStore(path, writable=True)
    with pytest.raises(FileAccessError, match="is being written by someone else"):
        RecordStore(path, writable=True)
    assert kept.tb is not None
    first.close()
    first.close()
    with pytest.raises(FileAccessError, match=r"a\.jsonl is not open for writing: open it with writable=True"):
        first.append(make(0))
    fill(path, [0])


# Damage other than by a kill.


def test_a_garbled_line_in_the_middle_is_an_error_and_never_repaired(tmp_path):
    path = tmp_path / "a.jsonl"
    fill(path, [0, 1, 2])
    whole = path.read_bytes()
    end_of_first, end_of_second = whole.index(b"\n"), whole.index(b"\n", whole.index(b"\n") + 1)
    for place in [end_of_first, *range(end_of_first + 1, end_of_second, 5), end_of_second]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :])
        before = files(tmp_path)
        number = 1 if place == end_of_first else 2
        for writable in (False, True):
            with pytest.raises(DamagedData, match=rf"a\.jsonl line {number} is damaged: .* delete that line and run"):
                RecordStore(path, writable=writable)
        assert files(tmp_path) == before


@pytest.mark.parametrize("text", [b"hello\n", b"\n", b'{"a": 1}\n', b'{"a": 1}', b"word", b"\xff\xfe\n"])
def test_a_file_of_something_else_is_never_cut(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_bytes(text)
    for writable in (False, True):
        with pytest.raises(DamagedData, match=r"a\.jsonl line 1 is damaged"):
            RecordStore(path, writable=writable)
    assert path.read_bytes() == text


def test_damaged_arrays_are_an_error_and_never_repaired(tmp_path):
    path = tmp_path / "a.jsonl"
    fill(path, [0, 2])
    whole = (tmp_path / "a.arrays").read_bytes()
    (tmp_path / "a.arrays").write_bytes(b"x" + whole[1:])
    for writable in (False, True):
        with pytest.raises(DamagedData, match=r"a\.arrays is damaged at byte 0"):
            RecordStore(path, writable=writable)
    assert (tmp_path / "a.arrays").read_bytes() == b"x" + whole[1:]
    # A changed pixel is found when the array is read.
    (tmp_path / "a.arrays").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    store = RecordStore(path)
    with pytest.raises(DamagedData, match=r"a\.arrays is damaged at byte \d+: the sha256 does not fit"):
        store.array(store.keys()[-1], list(arrays_of(2))[-1])


def test_a_line_of_a_newer_version_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    fill(path, [0])
    body = '{"schema":6,"extra":1'
    newer = f'{body},"check":"{records._check(body)}"}}\n'.encode()
    path.write_bytes(path.read_bytes() + newer)
    with pytest.raises(InvalidInput, match=r"a\.jsonl line 2: schema must be at most 5, got 6"):
        RecordStore(path)


def test_files_joined_by_hand(tmp_path):
    fill(tmp_path / "a.jsonl", [1, 4])
    fill(tmp_path / "b.jsonl", [4, 7], seconds=3.0)
    fill(tmp_path / "c.jsonl", [4], lower=0.5)
    joined = tmp_path / "d.jsonl"
    joined.write_bytes(b"".join((tmp_path / f"{name}.jsonl").read_bytes() for name in "ab"))
    assert [record.index for record in RecordStore(joined).records()] == [1, 4, 7]
    joined.write_bytes(b"".join((tmp_path / f"{name}.jsonl").read_bytes() for name in "ac"))
    with pytest.raises(RecordConflict, match=r"d\.jsonl lines 2 and 3 have the same key .* differ in lower"):
        RecordStore(joined)


# Merging.


def test_merging_overlapping_stores_gives_their_union(tmp_path):
    fill(tmp_path / "a.jsonl", [0, 1, 2, 3])
    fill(tmp_path / "b.jsonl", [2, 3, 4, 5], seconds=7.0)
    fill(tmp_path / "c.jsonl", [5, 0, 6])
    fill(tmp_path / "all.jsonl", range(7))
    with RecordStore(tmp_path / "a.jsonl", writable=True) as store:
        assert store.merge([tmp_path / "b.jsonl", tmp_path / "c.jsonl"]) == 3
        assert store.merge([tmp_path / "b.jsonl", tmp_path / "a.jsonl"]) == 0
    assert contents(tmp_path / "a.jsonl") == contents(tmp_path / "all.jsonl")
    assert RecordStore(tmp_path / "a.jsonl").record(make(2).key).seconds == 0.5


def test_merging_puts_lost_arrays_back(tmp_path):
    fill(tmp_path / "a.jsonl", [0, 1, 2])
    fill(tmp_path / "b.jsonl", [0, 2])
    fill(tmp_path / "all.jsonl", [0, 1, 2])
    (tmp_path / "a.arrays").unlink()
    with RecordStore(tmp_path / "a.jsonl", writable=True) as store:
        assert store.merge([tmp_path / "b.jsonl"]) == 0
        assert len(store) == 3
    assert contents(tmp_path / "a.jsonl") == contents(tmp_path / "all.jsonl")


def test_a_conflict_names_both_places(tmp_path):
    fill(tmp_path / "a.jsonl", [0, 1])
    fill(tmp_path / "b.jsonl", [3, 7, 1], lower=0.5)
    with RecordStore(tmp_path / "a.jsonl", writable=True) as store:
        with pytest.raises(RecordConflict, match=r"a\.jsonl line 2 and .*b\.jsonl line 3 have .* lower None and 0\.5"):
            store.merge([tmp_path / "b.jsonl"])
        assert [record.index for record in store.records()] == [0, 1, 3, 7]


def test_a_missing_store_to_merge_is_named(tmp_path):
    with (
        RecordStore(tmp_path / "a.jsonl", writable=True) as store,
        pytest.raises(FileAccessError, match=r"b\.jsonl cannot be read: No such file"),
    ):
        store.merge([tmp_path / "b.jsonl"])


# The disk.


def recorded(monkeypatch) -> list[str]:
    """The names of the files that are forced to the disk, as it happens."""
    calls: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name))
    return calls


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are read from /proc")


@needs_proc
def test_arrays_reach_the_disk_before_the_lines_that_refer_to_them(tmp_path, monkeypatch):
    calls = recorded(monkeypatch)
    with RecordStore(tmp_path / "a.jsonl", writable=True, sync_seconds=0) as store:
        store.append(make(1))
        assert calls == [tmp_path.name, "a.jsonl"]  # the folder, for the new name
        store.append(make(0), arrays_of(0))
        assert calls[2:] == [tmp_path.name, "a.arrays", "a.jsonl"]


@needs_proc
def test_syncs_happen_at_intervals_and_at_the_end(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now)
    RecordStore(tmp_path / "a.jsonl", writable=True).close()
    calls = recorded(monkeypatch)
    store = RecordStore(tmp_path / "a.jsonl", writable=True)
    counts = []
    for index in range(10):
        now += 0.3
        store.append(make(3 * index + 1))
        counts.append(len(calls))
    assert counts == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]  # after 1.2, 2.4 seconds
    store.close()
    assert calls == ["a.jsonl"] * 3


def test_a_store_continues_after_a_full_disk(tmp_path):
    path = tmp_path / "a.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RecordStore(path, writable=True) as store:
        store.append(make(0), arrays_of(0))
        for file in (path, store.arrays_path):
            resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 50, limits[1]))
            try:
                with pytest.raises(FileAccessError, match="cannot be written: File too large"):
                    store.append(make(3), arrays_of(3))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert len(store) == 1
        store.append(make(3), arrays_of(3))
    fill(tmp_path / "b.jsonl", [0, 3])
    assert contents(path) == contents(tmp_path / "b.jsonl")


def test_errors_name_the_path_and_the_reason(tmp_path):
    with pytest.raises(InvalidInput, match=r"must end in \.jsonl, got '.*a\.json'"):
        RecordStore(tmp_path / "a.json")
    with pytest.raises(InvalidInput, match=r"sync_seconds must be at least 0, got -1"):
        RecordStore(tmp_path / "a.jsonl", writable=True, sync_seconds=-1)
    with pytest.raises(FileAccessError, match=r"a\.jsonl cannot be read: No such file"):
        RecordStore(tmp_path / "a.jsonl")
    with pytest.raises(FileAccessError, match=r"nowhere/a\.jsonl cannot be written: No such file"):
        RecordStore(tmp_path / "nowhere" / "a.jsonl", writable=True)
    assert files(tmp_path) == {}
    fill(tmp_path / "a.jsonl", [0])
    store = RecordStore(tmp_path / "a.jsonl")
    with pytest.raises(FileAccessError, match=r"not open for writing"):
        store.append(make(1))
    with pytest.raises(InvalidInput, match=r"key must be that of a record in .*a\.jsonl, got 'abc'"):
        store.record("abc")
    with pytest.raises(InvalidInput, match=r"one of the record's arrays \(image, witness\), got 'picture'"):
        store.array(make(0).key, "picture")
    assert "1 records, readable" in repr(store)


# Files that lie.


def test_an_array_that_a_line_refers_to_is_never_cut_away(tmp_path):
    """A forged size makes the last array look incomplete: the next writer keeps its bytes in a file beside."""
    path = tmp_path / "a.jsonl"
    fill(path, [2])
    arrays = tmp_path / "a.arrays"
    raw = arrays.read_bytes()
    header = raw[20 : raw.index(b"}") + 1]
    longer = header.replace(b"[1, 2]", b"[1, 9]")
    lead = raw[:8] + struct.pack("<II", len(longer), zlib.crc32(longer))
    forged = lead + struct.pack("<I", zlib.crc32(lead)) + longer + raw[20 + len(header) :]
    for number in (1, 2):
        arrays.write_bytes(forged)
        assert len(RecordStore(path)) == 0
        with RecordStore(path, writable=True) as store:
            assert len(store) == 0
        assert (tmp_path / f"a.arrays.cut{number}").read_bytes() == forged
    assert arrays.read_bytes() == b""


def test_a_line_whose_end_alone_is_missing_is_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    fill(path, [0, 1, 2])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert len(RecordStore(path)) == 3
    fill(path, [3])
    assert path.read_bytes().startswith(whole)
    assert len(RecordStore(path)) == 4
    for changed in (whole[:-1] + b"x", whole[:-1] + b" ", whole[:-4] + b'0"}'):
        path.write_bytes(changed)
        for writable in (False, True):
            with pytest.raises(DamagedData, match="line 3 is damaged"):
                RecordStore(path, writable=writable)
        assert path.read_bytes() == changed


def test_a_line_without_an_end_takes_no_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as file:
        file.write(records.LINE_START)
        file.truncate(2**36)  # zeros that take no room on the disk
    with pytest.raises(DamagedData, match="line 1 is damaged: it must have at most 1048576 bytes, got more") as caught:
        RecordStore(path)
    assert (caught.value.path, caught.value.entry) == (str(path), "line 1")
    with (
        RecordStore(tmp_path / "b.jsonl", writable=True) as store,
        pytest.raises(InvalidInput, match="the line of a record must have at most 1048576 bytes, got"),
    ):
        store.append(make(0, method="x" * 2**20))
    assert (tmp_path / "b.jsonl").read_bytes() == b""


def test_a_forged_verdict_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    fill(path, [1], verdict="unknown", margin=-5)
    body = path.read_text().rpartition(',"check"')[0].replace('"verdict":"unknown"', '"verdict":"robust"')
    path.write_text(f'{body},"check":"{records._check(body)}"}}\n')
    with pytest.raises(
        DamagedData, match=r"line 1 is damaged: .*margin must not be negative where the verdict is robust"
    ):
        RecordStore(path)


def test_records_of_the_same_question_about_other_contents_are_told_apart(tmp_path):
    path = tmp_path / "a.jsonl"
    new = make(4, content="1" * 64)
    with RecordStore(path, writable=True) as store:
        for content in (None, "0" * 64):
            store.append(make(4, content=content))
        assert new.key not in store
        assert [record.content for record in store.others(new)] == [None, "0" * 64]
        store.append(new)
    store = RecordStore(path)
    assert len(store) == 3
    assert [record.content for record in store.others(new)] == [None, "0" * 64]
    assert store.others(make(5)) == []
