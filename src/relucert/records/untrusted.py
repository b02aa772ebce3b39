"""Reading of files that may be damaged or hostile: every size is checked before anything is allocated.

What a file says of itself is checked here and nowhere else: JSON of bounded length and depth (`bounded_json`), dtypes of a
fixed list (`dtype_of`), shapes (`shape_of`) and the bytes of an array (`array_bytes`). Whoever reads a file does so inside
`reading`: whatever is wrong with the contents becomes one error with the path, the entry and a remedy.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from relucert.core.errors import DamagedData, RelucertError
from relucert.records.atomic import file_access

if TYPE_CHECKING:
    import numpy as np

#: The dtypes of arrays in files: booleans, whole, real and complex numbers, in either byte order. No objects, no texts.
DTYPES = frozenset({"|b1", "|i1", "|u1"}) | {
    order + kind for order in "<>" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
}
#: How many axes an array may have, and how many bytes.
AXES = 32
LARGEST_ARRAY = 2**30

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]")


@contextmanager
def reading(
    path: str | os.PathLike[str], remedy: str, kind: type[DamagedData] = DamagedData, entry: str = ""
) -> Iterator[None]:
    """Turn whatever goes wrong while a file is parsed into `kind` with path, entry and remedy.

    Errors of access are `FileAccessError`. Other errors of relucert pass, and so does a lack of memory: sizes are checked
    before anything is allocated, so that the file is not its cause.
    """
    try:
        yield
    except DamagedData as error:
        found = kind if type(error) is DamagedData else type(error)
        raise found(str(error), path=path, entry=error.entry or entry, remedy=error.remedy or remedy) from error
    except (RelucertError, MemoryError):
        raise
    except Exception as error:  # parsers raise many kinds of errors for wrong bytes
        # Those of the operating system have a number; a wrong place to seek comes from the file.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            with file_access(path, "read"):
                raise
        raise kind(f"{os.fspath(path)} is damaged: {error}", path=path, entry=entry, remedy=remedy) from error


def bounded_json(text: str | bytes, what: str, *, longest: int, deepest: int = 16, strict: bool = True) -> Any:
    """Parse JSON of at most `longest` characters and `deepest` nested brackets; anything else is `DamagedData`.

    A name that occurs twice in an object is refused: readers would disagree about its value. Without `strict` NaN and Infinity
    are numbers.

    >>> bounded_json('{"a": [1, 2]}', "header", longest=100)
    {'a': [1, 2]}
    >>> bounded_json("[" * 100000, "header", longest=10**6)
    Traceback (most recent call last):
    relucert.core.errors.DamagedData: header must be nested at most 16 deep, got more
    """
    if len(text) > longest:
        raise DamagedData(f"{what} must have at most {longest} characters, got {len(text)}")
    try:
        content = text.decode() if isinstance(text, bytes) else text
        if _deeper(content, deepest):
            raise DamagedData(f"{what} must be nested at most {deepest} deep, got more")
        return json.loads(content, parse_constant=_no_constant if strict else None, object_pairs_hook=_once)
    except DamagedData:
        raise
    except (ValueError, RecursionError) as error:
        raise DamagedData(f"{what} must be JSON: {error}") from error


def _deeper(text: str, deepest: int) -> bool:
    """Whether brackets are nested more than `deepest` deep, without parsing."""
    if text.count("[") + text.count("{") <= deepest:
        return False
    depth = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > deepest:
            return True
    return False


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def dtype_of(text: object, what: str) -> np.dtype:
    """The dtype of a text, one of `DTYPES`.

    >>> dtype_of("<f4", "image")
    dtype('float32')
    """
    if not isinstance(text, str) or text not in DTYPES:
        raise DamagedData(f"{what} must have a dtype of numbers or booleans, got {_short(text)}")
    import numpy as np  # lines of records need none

    return np.dtype(text)


def shape_of(value: object, what: str) -> tuple[int, ...]:
    """A shape from whole numbers that are not negative."""
    if not isinstance(value, list | tuple) or len(value) > AXES:
        raise DamagedData(f"{what} must have a shape of at most {AXES} whole numbers, got {_short(value)}")
    if not all(type(size) is int and 0 <= size < 2**63 for size in value):
        raise DamagedData(f"{what} must have a shape of whole numbers, at least 0, got {_short(value)}")
    return tuple(value)


def array_bytes(dtype: np.dtype, shape: tuple[int, ...], what: str, largest: int = LARGEST_ARRAY) -> int:
    """The number of bytes of an array, at most `largest`."""
    size = dtype.itemsize * math.prod(shape)
    # numpy multiplies the sizes of all axes but empty ones: these must fit, too.
    if size > largest or dtype.itemsize * math.prod(side for side in shape if side) > 2**62:
        raise DamagedData(f"{what} must have at most {largest} bytes, got shape {_short(shape)} of {dtype}")
    return size


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
