"""A certificate file: an npz archive without pickles, whose `header` is JSON. docs/proofs.md has the fields.

Splits are binary trees in preorder: a unit, then the tree where it is active, then the tree where it is inactive; -1 is a leaf.
Every such sequence covers all inputs, since a unit is active or inactive.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relucert.checker.arithmetic import Array, Refused, require

FORMAT, VERSION = "relucert-proof", 1
KINDS = {
    "x": "f", "lower": "f", "upper": "f", "witness": "f", "tree": "i", "units": "i", "slopes": "uf", "betas": "f",
}  # fmt: skip
LONGEST = 10_000_000  # nodes of the trees of one certificate


@dataclass(frozen=True, eq=False)
class Certificate:
    """The fields of the header, and the arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, Array]

    @classmethod
    def read(cls, path: str | Path) -> Certificate:
        """The contents of a file; a file that is none, or lacks a field, is refused."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            header = json.loads(arrays.pop("header").tobytes())
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise Refused(f"the file cannot be read: {error}") from error
        require(isinstance(header, dict), "the header must be an object")
        require(header.get("format") == FORMAT, "the file is no certificate of relucert")
        require(
            header.get("version") == VERSION,
            f"the format has version {header.get('version')}, this checker knows {VERSION}",
        )
        for name, array in arrays.items():
            require(array.dtype.kind in KINDS.get(name, ""), f"array {name} is unknown or has the wrong kind")
        return cls(header, arrays)

    def field(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """A field of the header, which must be there and of a kind."""
        value = self.header.get(name)
        require(
            isinstance(value, kind) and not isinstance(value, bool), f"field {name} is missing or of the wrong kind"
        )
        return value

    def array(self, name: str, size: int | None = None) -> Array:
        """A finite vector, which must be there; of so many numbers if that is given."""
        require(name in self.arrays, f"array {name} is missing")
        found = self.arrays[name]
        require(size is None or found.shape == (size,), f"array {name} must have {size} numbers, has {found.shape}")
        return found


def digest(x: Array, label: int) -> str:
    """The hash of an input with its dtype, shape and label: the `content` of its record."""
    about = json.dumps([x.dtype.str, list(x.shape), label], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(about.encode() + x.tobytes()).hexdigest()


def leaves(tree: Array, start: int) -> tuple[list[list[tuple[int, int]]], int]:
    """The leaves of the tree that starts at a position, as lists of (unit, sign), and the position behind the tree."""
    found, waiting = [], [[]]  # type: ignore[var-annotated]
    while waiting:
        require(start < len(tree) <= LONGEST, "a tree of splits ends early: a side of a split is missing")
        splits, unit = waiting.pop(), int(tree[start])
        start += 1
        if unit < 0:
            require(unit == -1, f"a tree of splits has the unit {unit}")
            found.append(splits)
            continue
        require(all(unit != other for other, _ in splits), f"unit {unit} is split twice")
        waiting += [[*splits, (unit, -1)], [*splits, (unit, 1)]]
    return found, start
