from __future__ import annotations

import doctest
import json
import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from relucert.core.errors import DamagedData, FileAccessError, InvalidInput
from relucert.records import _sidecar as sidecar

ARRAYS = npst.arrays(
    dtype=npst.boolean_dtypes()
    | npst.integer_dtypes()
    | npst.unsigned_integer_dtypes()
    | npst.floating_dtypes(sizes=(16, 32, 64))
    | npst.complex_number_dtypes(sizes=(64, 128)),
    shape=npst.array_shapes(min_dims=0, min_side=0, max_side=3),
)


def write(path, *arrays: tuple[str, str, np.ndarray]) -> list[int]:
    """A file of chunks; the offsets where they end."""
    chunks = [sidecar.chunk(*array)[0] for array in arrays]
    path.write_bytes(b"".join(chunks))
    return np.cumsum([len(chunk) for chunk in chunks]).tolist()


THREE = [
    ("k1", "image", np.arange(6, dtype=np.float32).reshape(2, 3)),
    ("k1", "witness", np.array(True)),
    ("k2", "image", np.zeros((0, 4))),
]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_examples_of_the_documentation_run():
    result = doctest.testmod(sidecar)
    assert result.attempted > 0
    assert result.failed == 0


@settings(deadline=None)
@given(arrays=st.dictionaries(st.tuples(st.text(), st.text()), ARRAYS, max_size=4))
def test_every_array_comes_back_bit_for_bit(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("sidecar") / "x.arrays"
    ends = write(path, *[(key, name, array) for (key, name), array in arrays.items()])
    index, end = sidecar.scan(path)
    assert end == (ends[-1] if ends else 0)
    assert index.keys() == arrays.keys()
    for name, entry in index.items():
        found = sidecar.read(path, entry)
        assert same(found, arrays[name])
        assert found.flags.writeable


def test_the_order_in_memory_does_not_matter(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    twisted = np.asfortranarray(array)[:, ::2]
    write(tmp_path / "x", ("k", "a", twisted))
    index, _ = sidecar.scan(tmp_path / "x")
    assert same(sidecar.read(tmp_path / "x", index["k", "a"]), array[:, ::2].copy())


@settings(deadline=None)
@given(a=ARRAYS, b=ARRAYS)
def test_digests_are_equal_exactly_if_arrays_are(a, b):
    assert (sidecar.array_digest(a) == sidecar.array_digest(b)) == same(a, b)
    assert sidecar.array_digest(a) == sidecar.array_digest(a.copy())


def test_a_file_cut_at_any_byte_has_the_chunks_before_the_cut(tmp_path):
    path = tmp_path / "x.arrays"
    ends = write(path, *THREE)
    whole = path.read_bytes()
    names = [(key, name) for key, name, _ in THREE]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        index, end = sidecar.scan(path)
        done = sum(length <= cut for length in ends)
        assert list(index) == names[:done]
        assert end == (ends[done - 1] if done else 0)


def test_any_changed_byte_is_found(tmp_path):
    path = tmp_path / "x.arrays"
    write(path, *THREE)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(
            DamagedData, match=r"x\.arrays is damaged at byte \d+: .* Restore it from a copy, or delete it"
        ):
            read_all(path)


def read_all(path) -> None:
    index, end = sidecar.scan(path)
    for entry in index.values():
        sidecar.read(path, entry)
    assert end == path.stat().st_size, "a changed byte was taken for a cut"


@pytest.mark.parametrize("count", [1, 7, 8, 100])
def test_zeros_at_the_end_are_a_cut(tmp_path, count):
    path = tmp_path / "x.arrays"
    ends = write(path, *THREE)
    path.write_bytes(path.read_bytes() + b"\0" * count)
    assert sidecar.scan(path)[1] == ends[-1]
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DamagedData, match=f"at byte {ends[-1]}: no array begins there"):
        sidecar.scan(path)


def test_of_two_arrays_with_one_name_the_later_counts(tmp_path):
    write(tmp_path / "x", ("k", "a", np.zeros(2)), ("k", "a", np.ones(3)))
    index, _ = sidecar.scan(tmp_path / "x")
    assert same(sidecar.read(tmp_path / "x", index["k", "a"]), np.ones(3))


def test_a_missing_file_is_empty_but_what_cannot_be_read_is_an_error(tmp_path):
    assert sidecar.scan(tmp_path / "x") == ({}, 0)
    (tmp_path / "y").mkdir()
    with pytest.raises(FileAccessError, match="y cannot be read: Is a directory"):
        sidecar.scan(tmp_path / "y")
    with pytest.raises(FileAccessError, match="x cannot be read: No such file"):
        sidecar.read(tmp_path / "x", sidecar.Entry(0, "<f8", (1,), ""))


def test_missing_tells_absent_and_different_arrays(tmp_path):
    write(tmp_path / "x", *THREE)
    index, _ = sidecar.scan(tmp_path / "x")
    digests = {name: sidecar.array_digest(array) for key, name, array in THREE if key == "k1"}
    assert sidecar.missing(index, "k1", digests.items()) == []
    assert sidecar.missing(index, "k1", {"image": "0" * 64, "other": "1"}.items()) == ["image", "other"]
    assert sidecar.missing(index, "k3", digests.items()) == ["image", "witness"]


@pytest.mark.parametrize("value", ["text", [object()], np.array(["a"]), np.array("2020-01-01", dtype="datetime64[D]")])
def test_only_numbers_and_booleans_are_stored(value):
    with pytest.raises(InvalidInput, match="array 'image' must hold numbers or booleans, got dtype"):
        sidecar.as_array("image", value)


@settings(deadline=None)
@given(array=ARRAYS)
def test_entries_know_their_size(array):
    assert sidecar.chunk("k", "n", array)[1].size == array.nbytes == array.itemsize * math.prod(array.shape)


# Headers that lie, with checksums that fit.


def forged(**changes) -> bytes:
    """A chunk of four numbers whose header says something else, sealed with checksums that fit."""
    array = np.arange(4.0)
    described = {"key": "k", "name": "a", "dtype": "<f8", "shape": [4], "sha256": sidecar.array_digest(array)} | changes
    return sealed(json.dumps({name: value for name, value in described.items() if value != "drop"}).encode(), array)


def sealed(header: bytes, array: np.ndarray) -> bytes:
    lead = struct.pack("<8sII", sidecar.MAGIC, len(header), zlib.crc32(header))
    return lead + struct.pack("<I", zlib.crc32(lead)) + header + array.tobytes()


LIES = {
    "objects": ({"dtype": "|O", "shape": [4]}, "dtype of numbers or booleans, got '|O'"),
    "text": ({"dtype": "<U4"}, "dtype of numbers or booleans"),
    "fields": ({"dtype": [["a", "<f8"]]}, "dtype of numbers or booleans"),
    "long double": ({"dtype": "<f16"}, "dtype of numbers or booleans"),
    "unknown": ({"dtype": "what"}, "dtype of numbers or booleans, got 'what'"),
    "number": ({"dtype": 3}, "dtype of numbers or booleans, got 3"),
    "negative": ({"shape": [-4]}, r"whole numbers, at least 0, got \[-4\]"),
    "fraction": ({"shape": [4.0]}, "whole numbers, at least 0"),
    "boolean": ({"shape": [True]}, "whole numbers, at least 0"),
    "words": ({"shape": "four"}, "at most 32 whole numbers"),
    "axes": ({"shape": [1] * 33}, "at most 32 whole numbers"),
    "too large": ({"shape": [2**40]}, "must have at most 1073741824 bytes"),
    "overflowing": ({"shape": [0, 2**62, 2**62]}, "must have at most 1073741824 bytes"),
    "no shape": ({"shape": "drop"}, "must have the fields dtype, key, name, sha256, shape"),
    "more": ({"more": 1}, "must have the fields"),
    "key": ({"key": None}, "texts for key and name"),
    "digest": ({"sha256": "0"}, "a sha256 in hexadecimal"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_one_clear_error(lie, tmp_path):
    changes, message = LIES[lie]
    path = tmp_path / "x.arrays"
    write(path, *THREE)
    whole = path.read_bytes()
    path.write_bytes(whole + forged(**changes))
    with pytest.raises(DamagedData, match=rf"x\.arrays is damaged at byte {len(whole)}: .*{message}") as caught:
        sidecar.scan(path)
    assert caught.value.path == str(path)
    assert caught.value.entry == f"byte {len(whole)}"
    assert caught.value.remedy in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [b"", b"no JSON", b"[1]", b"[" * 50_000, b'{"key": "\xff"}', b'{"key":1,"key":2}', b"1" * 60_000, b"x" * 2**17],
)
def test_a_header_that_is_no_header_is_one_clear_error(header, tmp_path):
    path = tmp_path / "x.arrays"
    path.write_bytes(sealed(header, np.zeros(2)))
    with pytest.raises(DamagedData, match=r"x\.arrays is damaged at byte 0: its header must"):
        sidecar.scan(path)


def test_a_size_that_reaches_over_the_next_array_is_damage_and_no_cut(tmp_path):
    path = tmp_path / "x.arrays"
    path.write_bytes(forged(shape=[1000]) + forged(name="b"))
    with pytest.raises(DamagedData, match=r"its size must end before the next array at byte \d+"):
        sidecar.scan(path)
    path.write_bytes(forged(shape=[1000]))
    assert sidecar.scan(path) == ({}, 0)
    assert sidecar.torn(path, 0) == ("k", "a")
    write(path, *THREE)
    assert sidecar.torn(path, path.stat().st_size) is None


def test_entries_are_checked_before_they_are_read(tmp_path):
    path = tmp_path / "x.arrays"
    write(path, *THREE)
    for dtype, shape in (("|O", (2,)), ("<f8", (2**40,)), ("<f8", (-1,))):
        with pytest.raises(DamagedData, match=r"x\.arrays: byte 0: it must have"):
            sidecar.read(path, sidecar.Entry(0, dtype, shape, "0" * 64))


def test_what_could_not_be_read_is_not_written():
    with pytest.raises(InvalidInput, match="array 'image' must hold numbers or booleans, got dtype"):
        sidecar.as_array("image", np.zeros(2, np.longdouble))
    with pytest.raises(InvalidInput, match="array 'image' must have at most 1073741824 bytes, got"):
        sidecar.as_array("image", np.broadcast_to(np.zeros(1), (2**28,)))
    with pytest.raises(InvalidInput, match="name of an array must fit a header of 65536 bytes"):
        sidecar.chunk("k", "x" * 2**16, np.zeros(1))
