"""CIFAR-10's pickles in a tar: read correctly, without executing code."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from data.official import (
    Arrays,
    cifar_members,
    cifar_pickle,
    python2_pickle,
    random_arrays,
    small_spec,
    write_cifar,
    write_tar,
)
from relucert.core.errors import DamagedData, FileAccessError
from relucert.data import cifar10
from relucert.data.cifar10 import ARCHIVE, read

FIRST = "cifar-10-batches-py/data_batch_1"


@pytest.fixture
def arrays() -> Arrays:
    return random_arrays("cifar10", train=20, test=10)


def convert(path: Path, arrays: Arrays) -> Arrays:
    files = {ARCHIVE: path}
    return read(small_spec("cifar10", files, arrays), files)


def test_archive_gives_the_arrays_in_order(arrays: Arrays, tmp_path: Path) -> None:
    found = convert(write_cifar(tmp_path, arrays)[ARCHIVE], arrays)
    assert found.keys() == arrays.keys()
    for key in arrays:
        assert found[key].dtype == arrays[key].dtype
        np.testing.assert_array_equal(found[key], arrays[key])
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]


def test_planes_are_red_green_blue(arrays: Arrays, tmp_path: Path) -> None:
    arrays["x_test"][:] = [10, 20, 30]
    found = convert(write_cifar(tmp_path, arrays)[ARCHIVE], arrays)
    assert (found["x_test"] == np.array([10, 20, 30])).all()


class Evil:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ((os.mkdir, "proof"), f"{os.mkdir.__module__}.mkdir"),
        ((eval, "__import__('os').mkdir('proof')"), "__builtin__.eval"),
        ((getattr, "abc", "upper"), "__builtin__.getattr"),
        ((np.frombuffer, "abc"), "numpy.*.frombuffer"),
    ],
)
def test_pickles_run_nothing(call, name: str, arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    members = cifar_members(arrays) | {FIRST: python2_pickle({"data": Evil(*call), "labels": []})}
    write_tar(tmp_path / ARCHIVE, members)
    with pytest.raises(
        DamagedData, match=rf"data_batch_1 is not a batch of CIFAR-10: UnpicklingError.*asks for {name}"
    ):
        convert(tmp_path / ARCHIVE, arrays)
    assert not (tmp_path / "proof").exists()


def broken_batches() -> dict[str, tuple[bytes, str]]:
    x, y = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
    good, rows, labels = cifar_pickle(x, y), x.reshape(4, 3072), y.tolist()
    return {
        "empty": (b"", "is not a batch"),
        "cut": (good[: len(good) // 2], "is not a batch"),
        "not a dictionary": (python2_pickle([1, 2]), "is not a batch"),
        "no data": (python2_pickle({"labels": labels}), "is not a batch"),
        "no labels": (python2_pickle({"data": rows}), "is not a batch"),
        "list of data": (python2_pickle({"data": [0] * 4, "labels": labels}), "must be uint8 .* got list"),
        "other width": (python2_pickle({"data": rows[:, 1:], "labels": labels}), r"got uint8 \(4, 3071\)"),
        "flat": (python2_pickle({"data": rows.ravel(), "labels": labels}), r"got uint8 \(12288,\)"),
        "floats": (python2_pickle({"data": rows.astype(np.float32), "labels": labels}), "got float32"),
        "fewer labels": (cifar_pickle(x, y[:-1]), "labels must be a list of 4 integers"),
        "text": (python2_pickle({"data": rows, "labels": ["1"] * 4}), "labels must be a list of 4 integers"),
        "booleans": (python2_pickle({"data": rows, "labels": [True] * 4}), "labels must be a list of 4 integers"),
        "array of labels": (python2_pickle({"data": rows, "labels": y}), "labels must be a list of 4 integers"),
    }


@pytest.mark.parametrize("case", broken_batches())
def test_damaged_batches_are_named(case: str, arrays: Arrays, tmp_path: Path) -> None:
    content, message = broken_batches()[case]
    write_tar(tmp_path / ARCHIVE, cifar_members(arrays) | {FIRST: content})
    with pytest.raises(DamagedData, match=message) as caught:
        convert(tmp_path / ARCHIVE, arrays)
    assert str(tmp_path / ARCHIVE) in str(caught.value)


def test_members_elsewhere_do_not_count(arrays: Arrays, tmp_path: Path) -> None:
    members = cifar_members(arrays)
    for name in (f"../{FIRST}", f"/{FIRST}", "data_batch_1"):
        moved = {name if old == FIRST else old: content for old, content in members.items()}
        write_tar(tmp_path / ARCHIVE, moved)
        with pytest.raises(DamagedData, match=f"must hold {FIRST};"):
            convert(tmp_path / ARCHIVE, arrays)
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]


def test_links_do_not_count(arrays: Arrays, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(cifar_pickle(arrays["x_train"][:4], arrays["y_train"][:4]))
    write_tar(tmp_path / "rest", {name: c for name, c in cifar_members(arrays).items() if name != FIRST})
    with tarfile.open(tmp_path / "rest") as old, tarfile.open(tmp_path / ARCHIVE, "w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
        link = tarfile.TarInfo(FIRST)
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        new.addfile(link)
    with pytest.raises(DamagedData, match=f"must hold {FIRST};"):
        convert(tmp_path / ARCHIVE, arrays)


def test_truncated_archives_are_damaged(arrays: Arrays, tmp_path: Path) -> None:
    path = write_cifar(tmp_path, arrays)[ARCHIVE]
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 2000):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedData, match=ARCHIVE):
            convert(path, arrays)


def test_not_an_archive(arrays: Arrays, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(b"<html>not found</html>")
    with pytest.raises(DamagedData, match="is damaged"):
        convert(tmp_path / ARCHIVE, arrays)


def test_file_that_cannot_be_read(arrays: Arrays, tmp_path: Path) -> None:
    spec = small_spec("cifar10", write_cifar(tmp_path, arrays), arrays)
    with pytest.raises(FileAccessError, match=f"{tmp_path} cannot be read"):
        read(spec, {ARCHIVE: tmp_path})


def test_archives_unpack_up_to_a_limit(arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that are skipped count, too, and so do headers, which tarfile reads at once."""
    monkeypatch.setattr(cifar10, "LARGEST_ARCHIVE", 2**20)
    for kind in (tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
            info = tarfile.TarInfo("elsewhere")
            info.type, info.size = kind, 2**23
            tar.addfile(info, io.BytesIO(bytes(2**23)))
        with pytest.raises(DamagedData, match="it must unpack to at most 1048576 bytes, got more") as caught:
            convert(tmp_path / ARCHIVE, arrays)
        assert "delete the file" in caught.value.remedy


def test_pickles_take_no_memory_and_make_nothing_of_numpy(arrays: Arrays, tmp_path: Path) -> None:
    """A place of 2**31 in the table of names takes 32 GB in Python's unpickler in C."""
    good = cifar_pickle(np.zeros((2, 32, 32, 3), np.uint8), np.arange(2))
    place = b"\x80\x02Nr" + (2**31 - 1).to_bytes(4, "little") + b"0"
    write_tar(tmp_path / ARCHIVE, cifar_members(arrays) | {FIRST: place + good[2:]})
    assert len(convert(tmp_path / ARCHIVE, arrays)["x_train"]) > 0
    huge = good.replace(b"K\x02M\x00\x0c", b"J\xff\xff\xff\x7fM\x00\x0c")
    assert huge != good
    write_tar(tmp_path / ARCHIVE, cifar_members(arrays) | {FIRST: huge})
    with pytest.raises(DamagedData, match="data must have the bytes of shape"):
        convert(tmp_path / ARCHIVE, arrays)
