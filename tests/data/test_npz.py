"""NAME.npz: what is accepted, and that no damage goes unnoticed."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.official import Arrays, random_arrays, write_npz
from relucert.core.errors import DamagedData, FileAccessError
from relucert.data import SPECS, Spec, dataset
from relucert.data.npz import check, read, sha256, write

GREY = replace(SPECS["mnist"], train=12, test=10)
COLOUR = replace(SPECS["gts"], train=6, test=5)


def arrays_of(spec: Spec) -> Arrays:
    return random_arrays(spec.name, train=spec.train, test=spec.test)


@pytest.mark.parametrize("spec", [GREY, COLOUR], ids=lambda spec: spec.name)
def test_what_is_written_is_read(spec: Spec, tmp_path: Path) -> None:
    arrays = arrays_of(spec)
    path = tmp_path / "file.npz"
    write(path, spec, arrays, "here")
    check(path, spec)
    for key, array in arrays.items():
        found = read(path, key)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert [p.name for p in tmp_path.iterdir()] == ["file.npz"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_files_of_others_are_read(save, tmp_path: Path) -> None:
    arrays = arrays_of(GREY)
    save(tmp_path / "mnist.npz", **arrays, comment=np.array([1.5]))
    check(tmp_path / "mnist.npz", GREY)
    np.testing.assert_array_equal(read(tmp_path / "mnist.npz", "x_test"), arrays["x_test"])


WRONG = {
    "missing array": (lambda a: a.pop("x_test"), "must hold the array x_test, got x_train"),
    "image dtype": (
        lambda a: a.update(x_train=a["x_train"].astype(np.float32)),
        "x_train of mnist must be uint8, got",
    ),
    "label dtype": (
        lambda a: a.update(y_test=a["y_test"].astype(np.int32)),
        "y_test of mnist must be int64, got int32",
    ),
    "byte order": (lambda a: a.update(y_test=a["y_test"].astype(">i8")), "must be int64, got >i8"),
    "size": (lambda a: a.update(x_train=a["x_train"][:, :27]), r"must have shape \(12, 28, 28\), got \(12, 27, 28\)"),
    "channels": (lambda a: a.update(x_train=a["x_train"][..., None]), r"got \(12, 28, 28, 1\)"),
    "layout": (lambda a: a.update(x_train=a["x_train"][:, None]), r"got \(12, 1, 28, 28\)"),
    "label shape": (lambda a: a.update(y_train=a["y_train"][:, None]), r"must have shape \(12,\), got \(12, 1\)"),
    "fewer labels": (lambda a: a.update(y_train=a["y_train"][1:]), r"must have shape \(12,\), got \(11,\)"),
    "fewer examples": (
        lambda a: a.update(x_test=a["x_test"][1:], y_test=a["y_test"][1:]),
        r"x_test of mnist must have shape \(10, 28, 28\), got \(9, 28, 28\)",
    ),
    "label too large": (lambda a: a["y_test"].__setitem__(3, 10), r"y_test of mnist must lie in 0..9, got 0..10"),
    "label negative": (lambda a: a["y_train"].__setitem__(0, -1), r"y_train of mnist must lie in 0..9, got -1..9"),
    "objects": (lambda a: a.update(x_test=np.array([{}] * 10)), "x_test"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_contents_are_named(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, message = WRONG[case]
    arrays = arrays_of(GREY)
    spoil(arrays)
    path = write_npz(tmp_path / "mnist.npz", arrays)
    monkeypatch.setitem(SPECS, "mnist", GREY)
    with pytest.raises(DamagedData, match=message) as caught:
        dataset("mnist", tmp_path)
    assert str(path) in str(caught.value)
    assert "delete the file" in str(caught.value)


@pytest.mark.parametrize("case", [case for case in WRONG if case not in ("missing array", "objects")])
def test_wrong_contents_are_not_written(case: str, tmp_path: Path) -> None:
    spoil, message = WRONG[case]
    arrays = arrays_of(GREY)
    spoil(arrays)
    with pytest.raises(DamagedData, match=message):
        write(tmp_path / "mnist.npz", GREY, arrays, "the archives")
    assert list(tmp_path.iterdir()) == []


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    write(path, GREY, arrays_of(GREY), "here")
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedData, match="is damaged"):
            check(path, GREY)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_changed_bytes_are_noticed_or_harmless(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    arrays = arrays_of(GREY)
    path = tmp_path_factory.getbasetemp() / "changed.npz"
    write(path, GREY, arrays, "here")
    content = bytearray(path.read_bytes())
    # Half of the changes in the last array's header and the directory, where the structure is.
    place = data.draw(st.one_of(st.integers(0, len(content) - 1), st.integers(len(content) - 900, len(content) - 1)))
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        check(path, GREY)
        found = {key: read(path, key) for key in arrays}
    except DamagedData:
        return
    for key in arrays:
        np.testing.assert_array_equal(found[key], arrays[key])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_pixels_that_do_not_fit_their_checksum_are_damage(save, tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    save(path, **arrays_of(GREY))
    with zipfile.ZipFile(path) as archive:
        crc = archive.getinfo("x_test.npy").CRC
    content = path.read_bytes()
    path.write_bytes(content.replace(crc.to_bytes(4, "little"), (crc ^ 1).to_bytes(4, "little")))
    check(path, GREY)
    assert read(path, "x_train").shape == (12, 28, 28)
    with pytest.raises(DamagedData, match="Bad CRC-32"):
        read(path, "x_test")


def test_headers_that_are_not_python_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    for header in (b"{'descr': '|u1', (", b"{'a': 01}", b"(", b"'''", b"\xff", b"{'descr': 'O', 'fortran_order': 0"):
        with zipfile.ZipFile(path, "w") as file:
            text = header.ljust(117) + b"\n"
            file.writestr("x_train.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        with pytest.raises(DamagedData, match="is damaged"):
            check(path, GREY)


def test_array_shorter_than_its_header_says(tmp_path: Path) -> None:
    whole = write_npz(tmp_path / "whole.npz", arrays_of(GREY))
    path = tmp_path / "mnist.npz"
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name)[: -1 if name == "x_test.npy" else None])
    with pytest.raises(DamagedData, match=r"x_test must take 7968 bytes, got 7967"):
        check(path, GREY)


def test_not_a_zip(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"<html>not found</html>")
    with pytest.raises(DamagedData, match=r"mnist\.npz is damaged"):
        dataset("mnist", tmp_path)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match=f"{tmp_path} cannot be read"):
        read(tmp_path, "x_train")  # a folder


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileAccessError, match=f"{tmp_path / 'taken'} cannot be written"):
        write(tmp_path / "taken" / "mnist.npz", GREY, arrays_of(GREY), "here")


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# Headers and archives that lie, with checksums that fit.


def lying(path: Path, content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> None:
    """A data set whose x_test is some other bytes."""
    whole = write_npz(path.with_name("whole.npz"), arrays_of(GREY))
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, content if name == "x_test.npy" else old.read(name))


def npy(descr: object, shape: object, version: int = 1, length: int | None = None) -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(header) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + bytes(7840)


LIES = {
    "objects": (npy("|O", (10, 28, 28)), r"x_test must have a dtype of numbers or booleans, got '\|O'"),
    "records": (npy([("a", "<f8")], (10,)), "it must have descr, fortran_order and shape"),
    "huge": (npy("|u1", (2**40,)), "must take 1099511627"),
    "overflow": (npy("|u1", (2**62, 2**62)), "must take"),
    "negative": (npy("|u1", (-10, 28, 28)), "it must have descr, fortran_order and shape"),
    "digits": (npy("|u1", ()).replace(b"()", b"(" + b"9" * 5000 + b")"), "must"),
    "axes": (npy("|u1", (1,) * 40), "at most 32 whole numbers"),
    "long header": (npy("|u1", (10, 28, 28), 2, 2**32 - 1) + bytes(2**24), "a header of at most 10000 bytes, got 4294967295"),
    "version": (npy("|u1", (10, 28, 28), 9), r"format 1.0 or 2.0, got \(9, 0\)"),
    "minus signs": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"-" * 9000, "it must have descr"),
    "brackets": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000, "it must have descr"),
    "twice": (npy("|u1", (10, 28, 28)).replace(b"'fortran_order': False", b"'descr': '|O'"), "it must have descr"),
    "nothing": (b"", "must be an array in numpy's format"),
    "bomb": (npy("|u1", (10, 28, 28)) + bytes(2**25), "x_test must take 79"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_headers_that_lie_are_one_clear_error(lie: str, tmp_path: Path) -> None:
    content, message = LIES[lie]
    path = tmp_path / "mnist.npz"
    lying(path, content)
    for read_it in (lambda: check(path, GREY), lambda: read(path, "x_test", GREY), lambda: read(path, "x_test")):
        with pytest.raises(DamagedData, match=message) as caught:
            read_it()
        assert caught.value.path == str(path)
        assert "delete the file" in caught.value.remedy


def test_only_deflated_members_are_unpacked(tmp_path: Path) -> None:
    """Other methods unpack to any size at once."""
    for compression in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        lying(tmp_path / "mnist.npz", npy("|u1", (10, 28, 28)), compression)
        with pytest.raises(DamagedData, match="must be stored or deflated, got method"):
            check(tmp_path / "mnist.npz", GREY)


def test_data_that_changed_shape_behind_the_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are read when they are needed: what was checked before may be another file by then."""
    monkeypatch.setitem(SPECS, "mnist", GREY)
    write(tmp_path / "mnist.npz", GREY, arrays_of(GREY), "here")
    data = dataset("mnist", tmp_path)
    other = random_arrays("mnist", train=12, test=20)
    write_npz(tmp_path / "mnist.npz", other)
    with pytest.raises(DamagedData, match=r"x_test of mnist must have shape \(10, 28, 28\), got \(20, 28, 28\)"):
        _ = data.x_test


def test_long_lists_of_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relucert.data._zipped.LARGEST_DIRECTORY", 100)
    write(tmp_path / "mnist.npz", GREY, arrays_of(GREY), "here")
    with pytest.raises(DamagedData, match="its list of members must have at most 100 bytes, got"):
        check(tmp_path / "mnist.npz", GREY)


def test_labels_out_of_range_have_path_and_remedy(tmp_path: Path) -> None:
    arrays = arrays_of(GREY)
    arrays["y_test"][0] = 10
    path = write_npz(tmp_path / "mnist.npz", arrays)
    with pytest.raises(DamagedData, match=r"must lie in 0..9, got 0..10; delete the file") as caught:
        check(path, GREY)
    assert (caught.value.path, caught.value.entry) == (str(path), "y_test")
