"""What files say of themselves: bounded JSON, dtypes, shapes, and one error for everything else."""

from __future__ import annotations

import doctest
import errno
import pickle

import numpy as np
import pytest

from relucert.core import errors
from relucert.core.errors import CheckpointError, DamagedData, FileAccessError, InvalidInput
from relucert.records import untrusted
from relucert.records.untrusted import array_bytes, bounded_json, dtype_of, reading, shape_of


@pytest.mark.parametrize("module", [untrusted, errors])
def test_examples_of_the_documentation_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 17 + "]" * 17, "nested at most 16 deep"),
        ('{"a":' * 10**5, "nested at most 16 deep"),
        ("x" * 10**6 + " ", "at most 1000000 characters"),
        ('{"a": 1, "a": 2}', "a name occurs twice"),
        ('[{"a": {"b": 1, "b": 1}}]', "a name occurs twice"),
        ("NaN", "NaN is not JSON"),
        ("[1", "must be JSON"),
        ("", "must be JSON"),
        (b"\xff", "must be JSON"),
        ("9" * 5000, "must be JSON"),
    ],
)
def test_json_that_is_refused(text, message):
    with pytest.raises(DamagedData, match=f"header must.*{message}|{message}"):
        bounded_json(text, "header", longest=10**6)


def test_json_that_is_read():
    deep = "[" * 16 + "]" * 16
    assert bounded_json(deep, "header", longest=100) == eval(deep)
    many = [[]] * 1000
    assert bounded_json(str(many), "header", longest=10**6) == many  # many brackets, but not deep
    quoted = '["' + "[" * 100 + '", "\\"[[[[[[[[[[[[[[[[[[[[[[[", []]'
    assert bounded_json(quoted, "header", longest=10**6)[0] == "[" * 100
    assert bounded_json(b'{"a": "\\ud800"}', "header", longest=100) == {"a": "\ud800"}


def test_dtypes_are_numbers_of_a_fixed_list():
    for text in untrusted.DTYPES:
        assert dtype_of(text, "it").kind in "biufc"
        assert not dtype_of(text, "it").hasobject
    for text in ("O", "|O", "<U3", "<M8[D]", "<f16", "f8,f8", "V8", None, 3, ["<f8"], "(2,)<f8"):
        with pytest.raises(DamagedData, match="image must have a dtype of numbers or booleans"):
            dtype_of(text, "image")


def test_shapes_and_sizes():
    assert shape_of([2, 0, 3], "it") == (2, 0, 3)
    assert array_bytes(np.dtype("<f8"), (2, 3), "it") == 48
    for value in ([-1], [True], [1.0], ["1"], 3, None, "12", [1] * 33, [2**63], [[1]]):
        with pytest.raises(DamagedData, match="image must have a shape of"):
            shape_of(value, "image")
    for shape in ((2**27 + 1,), (2**40, 2**40), (0, 2**61)):
        with pytest.raises(DamagedData, match="image must have at most 1073741824 bytes"):
            array_bytes(np.dtype("<f8"), shape, "image")


def test_whatever_goes_wrong_is_one_error_with_path_entry_and_remedy():
    for error in (
        ValueError("x"),
        KeyError("x"),
        RecursionError("x"),
        OSError("not zipped"),
        OSError(errno.EINVAL, "x"),
    ):
        with (
            pytest.raises(CheckpointError, match=r"a.bin is damaged: .*; restore it") as caught,
            reading("a.bin", "restore it", CheckpointError, entry="byte 3"),
        ):
            raise error
        assert (caught.value.path, caught.value.entry, caught.value.remedy) == ("a.bin", "byte 3", "restore it")
    with (
        pytest.raises(DamagedData, match=r"^a.bin: line 2: it is empty; delete the line$") as caught,
        reading("a.bin", "restore it"),
    ):
        raise DamagedData("it is empty", entry="line 2", remedy="delete the line")
    again = pickle.loads(pickle.dumps(caught.value))  # errors of workers are sent to another process
    assert (str(again), again.path, again.entry, again.remedy) == (
        str(caught.value), "a.bin", "line 2", "delete the line",
    )  # fmt: skip
    with (
        pytest.raises(FileAccessError, match=r"a.bin cannot be read: Permission denied"),
        reading("a.bin", "restore it"),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
    for error in (InvalidInput("x must be 1, got 2"), MemoryError()):
        with pytest.raises(type(error)), reading("a.bin", "restore it"):
            raise error


def test_messages_do_not_quote_whole_files():
    found = DamagedData("x" * 10**6, path="a.bin", remedy="restore it")
    assert len(str(found)) < 1100
    assert str(found).endswith("; restore it")
