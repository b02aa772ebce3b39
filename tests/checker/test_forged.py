"""Certificates that are forged by hand about a false claim: none is CHECKED, and none stops the checker."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import exact
from relucert.checker.__main__ import run
from relucert.checker.arithmetic import Outward, Refused
from relucert.checker.check import Certificate, check, digest
from relucert.checker.network import read
from relucert.verification.proofs.prover import NETWORK
from tiny import BOX, Written, claimed, plane_network, points, radius, written

ONE = np.float64(1.0)


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A certificate with a tree, just below the exact radius."""
    net, x = plane_network(6), points(2, 6)[1:]
    eps = 0.97 * radius(net, x[0], int(net.predict(x)[0]), math.inf)
    found = written(net, claimed(net, x, math.inf, eps), tmp_path_factory.mktemp("proof"))
    assert found.certificate.header["trees"]
    assert len(found.certificate.arrays["tree"]) > 3
    return found


def false(proof: Written) -> Certificate:
    """The same with a radius where the class changes."""
    header, claim = proof.certificate.header, proof.claim
    eps = header["eps"] / 0.97 * 1.02
    assert exact.changes_within(proof.net, claim.x[0], int(claim.y[0]), math.inf, eps, BOX)
    return Certificate(header | {"eps": eps}, proof.certificate.arrays)


def filled(value: float) -> Any:
    return lambda array: np.full(array.shape, value, dtype=np.float64)


FORGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "slopes that are no numbers": ({}, {"slopes": filled(math.nan)}),
    "infinite slopes": ({}, {"slopes": filled(math.inf)}),
    "huge slopes": ({}, {"slopes": filled(1e11)}),
    "negative slopes": ({}, {"slopes": filled(-3.0)}),
    "slopes above one": ({}, {"slopes": filled(2.0)}),
    "upper slopes": ({}, {"uppers": lambda _: None}),
    "negative multipliers": ({}, {"betas": lambda array: -np.abs(array) - 1}),
    "huge multipliers": ({}, {"betas": filled(1e11)}),
    "multipliers that are no numbers": ({}, {"betas": filled(math.nan)}),
    "a tree of one leaf": ({}, {"tree": lambda _: np.array([-1], dtype=np.int32)}),
    "no tree": ({"trees": []}, {}),
    "a side is missing": ({}, {"tree": lambda array: array[:-1]}),
    "a split of a stable unit or twice": ({}, {"tree": lambda array: np.where(array >= 0, array[0], array)}),
    "a unit behind the last": ({}, {"tree": lambda array: np.where(array >= 0, 10**6, array)}),
    "a negative unit": ({}, {"tree": lambda array: np.where(array >= 0, -7, array)}),
    "units that are none": ({}, {"units": lambda array: array - 10**6}),
    "the same unit again": ({}, {"units": lambda array: array * 0}),
    "trees of floats": ({}, {"tree": lambda array: array.astype(float)}),
    "a tree in two dimensions": ({}, {"tree": lambda array: array[None]}),
    "slopes of objects": ({}, {"slopes": lambda array: array.astype("U3")}),
    "complex slopes": ({}, {"slopes": lambda array: array.astype(complex)}),
    "half precision boxes": ({}, {"lower": lambda array: np.float16(0.0)}),
    "a longer float": ({}, {"x": lambda array: array.astype(np.longdouble)}),
    "the wrong dtype": ({}, {"x": lambda array: array.astype(np.float32)}),
    "a box that is none": ({}, {"lower": lambda _: np.float64(math.nan)}),
    "a box upside down": ({}, {"lower": lambda _: ONE, "upper": lambda _: np.float64(0.0)}),
    "another row": ({"trees": [5]}, {}),
    "a negative row": ({"trees": [-1]}, {}),
    "a row twice": ({"trees": [0, 0]}, {}),
    "rows that are words": ({"trees": ["0"]}, {}),
    "no rivals": ({"rivals": []}, {}),
    "the class itself": ({"rivals": None}, {}),
    "rivals by truth": ({"rivals": [True]}, {}),
    "radii": ({"radii": True}, {}),
    "radii by number": ({"radii": 1}, {}),
    "norms of its own": ({"norms": {"1": 1e-9, "3": 1e-9, "5": 1e-9}, "radii": True}, {}),
    "the rule of leaves": ({"final": [["leaf", True, False], ["leaf", True, True]]}, {}),
    "steps of another node": ({"steps": {"99": [["parallel", True, False]], "-1": [["flat", True, False]]}}, {}),
    "steps that are words": ({"steps": {"1": "parallel"}}, {}),
    "steps for ReLUs": ({"steps": {str(i): [["parallel", True, False]] * 3 for i in range(6)}}, {}),
    "another norm": ({"p": "2.5"}, {}),
    "no norm": ({"p": "nan"}, {}),
    "a norm in words": ({"p": "two"}, {}),
    "a radius in words": ({"eps": "0"}, {}),
    "an infinite radius": ({"eps": math.inf}, {}),
    "a negative radius": ({"eps": -1.0}, {}),
    "a radius that is no number": ({"eps": math.nan}, {}),
    "a very large radius": ({"eps": 1e200}, {}),
    "another verdict": ({"verdict": "vulnerable"}, {}),
    "an unknown verdict": ({"verdict": "robust "}, {}),
    "another arithmetic": ({"arithmetic": "float16"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_no_forged_certificate_is_checked(name: str, proof: Written, tmp_path: Path, capsys: Any) -> None:
    given, (header, arrays) = false(proof), FORGED[name]
    changed = dict(given.arrays)
    for array, change in arrays.items():
        changed[array] = np.asarray(change(changed.get(array)) if array in changed else 2.0 * changed["slopes"])
    header = header | ({"rivals": [given.header["label"]]} if header.get("rivals", 0) is None else {})
    said = given.header | header
    if "x" in arrays:
        said["point"] = digest(changed["x"], said["label"])
    text = np.frombuffer(json.dumps(said).encode(), dtype=np.uint8)
    np.savez_compressed(tmp_path / "000000.npz", header=text, **changed)
    assert run(tmp_path, proof.path.parent / NETWORK) == 1
    assert "000000.npz: NOT CHECKED: " in capsys.readouterr().out


def test_wrong_slopes_prove_nothing_false(proof: Written) -> None:
    """Any slopes and multipliers give bounds: those of a true claim are never below zero for a false one."""
    draw, given, net = np.random.default_rng(0), false(proof), proof.known
    for _ in range(60):
        arrays = dict(given.arrays)
        scale = 10.0 ** draw.integers(-2, 4)
        arrays["slopes"] = scale * draw.normal(size=arrays["slopes"].shape)
        arrays["betas"] = scale * draw.normal(size=arrays["betas"].shape)
        for radii in (False, True):
            forged = Certificate(given.header | {"radii": radii}, arrays)
            with pytest.raises(Refused, match="is not proved"):
                check(forged, net, Outward())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 3],
        lambda data: data[:-30],
        lambda data: data.replace(b"header.npy", b"hfader.npy"),
        lambda data: data.replace(b"tree.npy", b"x.npy  \0"),
        lambda data: (
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }" + b" " * 40
        ),
        lambda data: b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00N.",
    ],
)
def test_damaged_archives_stop_nothing(damage: Any, proof: Written, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "000000.npz").write_bytes(damage(proof.path.read_bytes()))
    (tmp_path / "000001.npz").write_bytes(proof.path.read_bytes())
    assert run(tmp_path, proof.path.parent / NETWORK) == 1
    printed = capsys.readouterr().out
    assert "000000.npz: NOT CHECKED" in printed
    assert "000001.npz: CHECKED" in printed


def test_deep_and_odd_headers_stop_nothing(proof: Written, tmp_path: Path, capsys: Any) -> None:
    for number, text in enumerate(
        ("[" * 100_000, '"robust"', "null", "{}", "3", json.dumps(proof.certificate.header)[:-1])
    ):
        header = np.frombuffer(text.encode(), dtype=np.uint8)
        np.savez_compressed(tmp_path / f"{number}.npz", header=header, **proof.certificate.arrays)
    np.savez_compressed(tmp_path / "9.npz", header=np.array(proof.certificate.header, dtype=object), allow_pickle=True)
    assert run(tmp_path, proof.path.parent / NETWORK) == 1
    assert capsys.readouterr().out.count("NOT CHECKED: ") == 7


def test_one_ulp_decides_in_rational_numbers(tmp_path: Path) -> None:
    """A witness at distance eps is one, at the next larger distance it is none; a network file that is none is an error."""
    net, x = plane_network(1), points(1, 1)
    for damaged in (b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}", b"\x04\0\0\0\0\0\0\0null"):
        (tmp_path / "net.safetensors").write_bytes(damaged)
        assert run(tmp_path, tmp_path / "net.safetensors") == 2
    claim = claimed(net, x, math.inf, 0.25)
    given = written(net, claim, tmp_path).certificate
    point = x[0].numpy()
    step = np.where(point + 0.25 <= 1, 0.25, -0.25)
    header = given.header | {"verdict": "vulnerable", "arithmetic": "real", "eps": 0.25}
    known = read(tmp_path / NETWORK, Outward())
    header |= {"label": int(claim.y[0]), "rivals": list(claim.rivals), "p": "inf", "network": known.digest}
    header |= {"point": digest(point, int(claim.y[0]))}
    for eps in (0.25, math.nextafter(0.25, 0)):
        about = Certificate(header | {"eps": eps}, {**given.arrays, "x": point, "witness": point + step})
        try:
            check(about, known, Outward())
            outside = False
        except Refused as error:
            outside = "outside the ball" in str(error)
        assert outside == (eps < 0.25)
