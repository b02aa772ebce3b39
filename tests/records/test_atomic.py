from __future__ import annotations

import doctest
import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from relucert.core.errors import FileAccessError
from relucert.records import atomic
from relucert.records.atomic import AppendFile, atomic_write, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_examples_of_the_documentation_run():
    result = doctest.testmod(atomic)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(("data", "stored"), [(b"\x00\r\n\xff", b"\x00\r\n\xff"), ("ä\n", b"\xc3\xa4\n"), (b"", b"")])
def test_contents_are_exactly_what_was_written(tmp_path, data, stored):
    target = tmp_path / "file"
    target.write_bytes(b"something longer that was there before")
    write_atomically(target, data)
    assert target.read_bytes() == stored
    assert names(tmp_path) == ["file"]


def test_text_mode_keeps_line_ends(tmp_path):
    with atomic_write(tmp_path / "file", "w") as file:
        file.write("a\nb\r\nü")
    assert (tmp_path / "file").read_bytes() == "a\nb\r\nü".encode()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, OSError])
@pytest.mark.parametrize("existed", [True, False])
def test_an_error_in_the_block_passes_through_and_leaves_everything_as_it_was(tmp_path, error, existed):
    target = tmp_path / "file"
    if existed:
        target.write_bytes(b"old")

    def write() -> None:
        with atomic_write(target) as file:
            file.write(b"new")
            file.flush()
            assert len(names(tmp_path)) == 1 + existed  # the temporary file is in the same folder
            raise error("stop")

    with pytest.raises(error) as caught:
        write()
    assert type(caught.value) is error
    assert names(tmp_path) == (["file"] if existed else [])
    assert not existed or target.read_bytes() == b"old"


def test_the_target_is_the_old_file_until_the_block_ends(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with atomic_write(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"


def test_bytes_reach_the_disk_before_the_rename(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    write_atomically(tmp_path / "file", b"new")
    assert calls == ["fsync", "replace", "fsync"]  # the last is the folder's


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_system_call_leaves_everything_as_it_was(tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(FileAccessError, match=r"file cannot be written: No space left on device"):
        write_atomically(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_missing_folder_is_named_with_the_reason(tmp_path):
    with pytest.raises(FileAccessError, match=r"nowhere/file cannot be written: No such file or directory"):
        write_atomically(tmp_path / "nowhere" / "file", b"")
    with pytest.raises(FileAccessError, match=r"nowhere/file cannot be written: No such file or directory"):
        AppendFile(tmp_path / "nowhere" / "file")


def test_an_unwritable_folder_is_named_with_the_reason(tmp_path, monkeypatch):
    # The superuser may write everywhere, so the error of the system is simulated.
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileAccessError, match=r"file cannot be written: Permission denied"):
        write_atomically(tmp_path / "file", b"")


def test_a_folder_at_the_target_path_is_an_error(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(FileAccessError, match="file cannot be written"):
        write_atomically(tmp_path / "file", b"")
    assert names(tmp_path) == ["file"]


def test_a_link_is_followed_and_permissions_are_kept(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_append_returns_where_the_entry_starts(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    file = AppendFile(tmp_path / "file")
    assert [file.append(b"de"), file.append(b""), file.append(b"f")] == [3, 5, 5]
    assert (tmp_path / "file").read_bytes() == b"abcdef"
    file.truncate(4)
    assert file.append(b"g") == 4
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abcdg"


def test_an_entry_that_does_not_fit_leaves_no_part_behind(tmp_path):
    file = AppendFile(tmp_path / "file")
    file.append(b"whole")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The system writes the part that fits below the limit and then fails, as it does on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(FileAccessError, match=r"file cannot be written: File too large"):
            file.append(b"too long")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "file").read_bytes() == b"whole"
    file.append(b"next")
    file.close()
    assert (tmp_path / "file").read_bytes() == b"wholenext"


class Broken(io.FileIO):
    """A file on a disk that fails in the middle of a write and stays failed."""

    def write(self, data) -> int:
        super().write(bytes(data)[:2])
        raise OSError(5, "Input/output error")

    def truncate(self, size=None) -> int:
        raise OSError(5, "Input/output error")


def test_nothing_is_appended_after_a_part_that_cannot_be_removed(tmp_path):
    file = AppendFile(tmp_path / "file")
    file._file = Broken(tmp_path / "file", "ab")
    with pytest.raises(FileAccessError, match="Input/output error"):
        file.append(b"whole")
    with pytest.raises(FileAccessError, match="file cannot be written: it is closed"):
        file.append(b"whole")
    file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == b"wh"


def test_one_writer_at_a_time_even_within_a_process(tmp_path):
    first, second = AppendFile(tmp_path / "file"), AppendFile(tmp_path / "file")
    first.lock()
    (tmp_path / "file").read_bytes()  # opening and closing the file elsewhere must not release the lock
    with pytest.raises(FileAccessError, match=r"file is being written by someone else"):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_importing_what_reports_read_does_not_import_torch():
    source = Path(atomic.__file__).parents[2]
    code = (
        "import sys\n"
        "from relucert.core import methods\n"
        "from relucert.records import atomic, record\n"
        "assert 'numpy' not in sys.modules, 'numpy'\n"
        "from relucert.records import _sidecar as sidecar, store\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(source)})
