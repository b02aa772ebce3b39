"""Files that are no certificates are refused, and a sequence of splits that is accepted covers all inputs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from relucert.checker.arithmetic import Refused
from relucert.checker.check import FORMAT, VERSION, Certificate, digest, leaves
from relucert.records.record import content_digest


def test_every_pattern_lies_in_one_leaf() -> None:
    draw, accepted = np.random.default_rng(0), 0
    for _ in range(2000):
        tree = draw.integers(-1, 3, size=draw.integers(1, 12))
        try:
            found, end = leaves(tree, 0)
        except Refused:
            continue
        accepted += 1
        assert end <= len(tree)
        for signs in itertools.product((1, -1), repeat=3):
            holding = [splits for splits in found if all(signs[unit] == sign for unit, sign in splits)]
            assert len(holding) == 1
    assert accepted > 100


@pytest.mark.parametrize(
    ("tree", "says"), [([], "early"), ([0, -1], "early"), ([0, 0, -1, -1, -1], "twice"), ([-2], "unit -2")]
)
def test_trees_that_do_not_cover_are_refused(tree: list[int], says: str) -> None:
    with pytest.raises(Refused, match=says):
        leaves(np.array(tree, dtype=np.int32), 0)


def test_the_digest_of_an_input_is_that_of_its_record() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest(x, 4) == content_digest(x, 4) != digest(x, 5)


def stored(folder: Path, header: object, **arrays: np.ndarray) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    np.savez_compressed(folder / "one.npz", header=np.frombuffer(text, dtype=np.uint8), **arrays)
    return folder / "one.npz"


@pytest.mark.parametrize(
    ("header", "arrays", "says"),
    [
        ({"format": FORMAT, "version": VERSION + 1}, {}, f"{VERSION + 1}.*not"),
        ({"format": "other", "version": VERSION}, {}, "other"),
        ([], {}, "the file is"),
        (b"{", {}, "cannot be read"),
    ],
)
def test_files_that_are_none_are_refused(
    tmp_path: Path, header: object, arrays: dict[str, np.ndarray], says: str
) -> None:
    with pytest.raises(Refused, match=says):
        Certificate.read(stored(tmp_path, header, **arrays))


def test_fields_have_their_kinds(tmp_path: Path) -> None:
    header = {"format": FORMAT, "version": VERSION, "label": True, "eps": 1, "radii": 0, "p": 2}
    arrays = {"tree": np.zeros(1), "units": np.zeros(1, dtype=np.int64), "x": np.zeros(1, dtype=complex)}
    given = Certificate.read(stored(tmp_path, header, **arrays))
    assert given.get("units").shape == (1,)
    for name in ("label", "eps", "radii", "p", "tree", "x", "betas", "final"):
        with pytest.raises(Refused, match=f"{name} is missing or of the wrong kind"):
            given.get(name)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = stored(tmp_path, {"format": FORMAT, "version": VERSION}, x=np.zeros(100)).read_bytes()
    for size in (0, 10, len(whole) // 2):
        (tmp_path / "half.npz").write_bytes(whole[:size])
        with pytest.raises(Refused, match="cannot be read"):
            Certificate.read(tmp_path / "half.npz")
    with pytest.raises(Refused, match="cannot be read"):
        Certificate.read(tmp_path / "none.npz")
