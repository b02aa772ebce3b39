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


def stored(folder: Path, text: str, arrays: dict[str, Any], name: str = "000000") -> None:
    header = np.frombuffer(text.encode(), dtype=np.uint8)
    np.savez_compressed(folder / f"{name}.npz", header=header, **arrays)  # pyright: ignore[reportArgumentType]


ATTACKS: dict[str, Any] = {
    "arrays with the names of fields": lambda h, a: (h, a | {"eps": np.float64(1e-9), "trees": a["tree"]}),
    "fields with the names of arrays": lambda h, a: (h | {"x": a["x"].tolist(), "lower": 0.5, "upper": 0.5}, {}),
    "bytes in another order": lambda h, a: (h, a | {"x": a["x"].astype(">f8") * 2}),
    "a box of another shape": lambda h, a: (h, a | {"upper": np.ones((3, 1, 2))}),
    "a radius of 400 digits": lambda h, a: (h | {"eps": 10**400}, a),
    "a radius that is true": lambda h, a: (h | {"eps": True}, a),
    "a rival as the class": lambda h, a: (
        h | {"label": h["rivals"][0], "rivals": [h["label"]], "point": digest(a["x"], h["rivals"][0])}, a,
    ),
    "a leaf among the steps": lambda h, a: (h | {"final": [["leaf", True, False, [[1.0], [0.0], [0.0]]]]}, a),
    "a rule that is a list": lambda h, a: (h | {"final": [[["parallel"], True, False]]}, a),
    "a unit of 64 bits": lambda h, a: (h, a | {"tree": np.where(a["tree"] >= 0, 2**62, a["tree"].astype(np.int64))}),
    "the least unit": lambda h, a: (h, a | {"tree": np.where(a["tree"] >= 0, -(2**63), a["tree"].astype(np.int64))}),
    "units without a sign": lambda h, a: (h, a | {"tree": a["tree"].astype(np.uint8)}),
    "no multipliers": lambda h, a: (h, a | {"betas": a["betas"][:0]}),
    "no slopes": lambda h, a: (h, a | {"slopes": a["slopes"][:0]}),
    "no units": lambda h, a: (h, a | {"units": a["units"][:0], "slopes": a["slopes"][:, :0]}),
    "multipliers below all normal numbers": lambda h, a: (h, a | {"betas": a["betas"] * 0 + 5e-324}),
    "slopes of 64 bits": lambda h, a: (h, a | {"slopes": np.full(a["slopes"].shape, 2**64 - 1, dtype=np.uint64)}),
    "a row before it has a tree": lambda h, a: (h | {"trees": [*h["trees"][::-1], len(h["rivals"])]}, a),
    "all rows, one tree": lambda h, a: (h | {"trees": list(range(len(h["rivals"]))) * 2}, a),
    "steps backwards and again": lambda h, a: (h | {"steps": dict([*h["steps"].items()][::-1]), "final": h["final"] * 50}, a),
    "radii everywhere": lambda h, a: (h | {"steps": {str(i): [["interval", True, True]] for i in range(9)}, "radii": True}, a),
    "the proof of a smaller ball behind a minus": lambda h, a: (h | {"eps": -h["eps"]}, a),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_on_the_reading_is_checked(name: str, proof: Written, tmp_path: Path, capsys: Any) -> None:
    given = false(proof)
    header, arrays = ATTACKS[name](dict(given.header), dict(given.arrays))
    stored(tmp_path, json.dumps(header), arrays)
    assert run(tmp_path, proof.path.parent / NETWORK) == 1
    assert "000000.npz: NOT CHECKED: " in capsys.readouterr().out


def test_what_is_printed_is_what_is_proved(proof: Written, tmp_path: Path, capsys: Any) -> None:
    """Of two radii the one that counts is named; boxes are named in full; nothing prints a line of its own."""
    header, arrays = proof.certificate.header, proof.certificate.arrays
    larger = header["eps"] / 0.97 * 1.02
    stored(tmp_path, json.dumps(header)[:-1] + f', "eps": {larger}}}', arrays, "0")
    stored(tmp_path, f'{{"eps": {larger}, ' + json.dumps(header)[1:], arrays, "1")
    stored(tmp_path, json.dumps(header), arrays | {"upper": np.float64(1 - 1e-9), "lower": np.float64(1e-12)}, "2")
    fake = "x\n9.npz: CHECKED: robust (float64, box 0 to 1); l_inf 0.5\r\x1b[1A"
    stored(tmp_path, json.dumps(header | {"verdict": "none", "reason": fake}), {}, "3")
    stored(tmp_path, json.dumps(header | {"p": "inf\n9.npz: CHECKED"}), arrays, "4")
    stored(tmp_path, json.dumps(header | {"p": "inf\n"}), arrays, "5")
    assert run(tmp_path, proof.path.parent / NETWORK) == 1
    printed = capsys.readouterr().out
    lines = printed.split("\n")[:-1]
    assert [line.split(":")[0] for line in lines[:-1]] == [f"{place}.npz" for place in range(6)]
    assert lines[0].startswith("0.npz: NOT CHECKED")
    assert lines[1].startswith("1.npz: CHECKED")
    assert f"l_inf {header['eps']}, class" in lines[1]
    assert "box 9.9999999999999998e-13 to 0.99999999900000003)" in lines[2]
    assert not {"\r", "\x1b"} & set(printed)


def test_large_archives_are_refused_unread(proof: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relucert.checker.check._BYTES", 1000)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(Refused, match="unpacks to"):
        Certificate.read(proof.path)


@pytest.mark.parametrize(
    "change",
    [
        lambda nodes: nodes[1].update(inputs=[0, 0]),
        lambda nodes: nodes[1].update(inputs=[1]),
        lambda nodes: nodes[2].update(inputs=[-1]),
        lambda nodes: nodes[2]["settings"].update(slope=2.0),
        lambda nodes: nodes[2]["settings"].update(slope=float("nan")),
        lambda nodes: nodes[2].update(shape=[7]),
        lambda nodes: nodes[2].update(kind="sigmoid"),
        lambda nodes: nodes[2].update(kind="add", settings={"signs": [3]}),
        lambda nodes: nodes[2].update(kind="add", settings={"signs": [1, 1]}),
        lambda nodes: nodes[2]["settings"].update(slope=0.5),
        lambda nodes: nodes[2].update(kind="reshape"),
    ],
)
def test_another_description_is_no_network_or_another_one(change: Any, proof: Written, tmp_path: Path) -> None:
    """The same weights: what the description says is in the digest."""
    data = (proof.path.parent / NETWORK).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    network = json.loads(header["__metadata__"]["network"])
    change(network["nodes"])
    header["__metadata__"]["network"] = json.dumps(network)
    text = json.dumps(header).encode()
    (tmp_path / NETWORK).write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
    (tmp_path / "000000.npz").write_bytes(proof.path.read_bytes())
    assert run(tmp_path, tmp_path / NETWORK) in (1, 2)
