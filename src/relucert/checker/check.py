"""Is a certificate a proof? `check` re-derives what it claims, and says what that is, or raises `Refused`.

A certificate is an npz archive without pickles, whose `header` is JSON; docs/proofs.md has the fields. Splits are binary trees
in preorder: a unit, then the tree where it is active, then the tree where it is inactive; -1 is a leaf. Every such sequence
covers all inputs, since a unit is active or inactive.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relucert.checker.arithmetic import Array, Outward, Rational, Refused, require
from relucert.checker.bounds import Bounds, Step
from relucert.checker.minima import Ball
from relucert.checker.network import Network

FORMAT, VERSION = "relucert-proof", 3
#: Types of the fields of the header, and kinds of the dtypes of arrays.
KINDS: dict[str, Any] = dict.fromkeys(("verdict", "network", "point", "arithmetic", "p"), str)
KINDS |= dict.fromkeys(("rivals", "final", "trees"), list) | {"steps": dict, "label": int, "eps": float, "radii": bool}
KINDS |= dict.fromkeys(("x", "lower", "upper", "witness", "betas"), "f") | {"tree": "i", "units": "i", "slopes": "uf"}
_LARGEST, _BYTES = 1e12, 2**30  # of a slope or multiplier, and of a file


@dataclass(frozen=True, eq=False)
class Certificate:
    """The fields of the header, and the arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, Array]

    @classmethod
    def read(cls, path: str | Path) -> Certificate:
        """The contents of a file; a file that is none is refused."""
        try:
            with zipfile.ZipFile(path) as archive:
                size = sum(part.file_size for part in archive.infolist())
            require(size < _BYTES, f"the file unpacks to {size} bytes")
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            header = json.loads(arrays.pop("header").tobytes())
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise Refused(f"the file cannot be read: {error}") from error
        kind = [header.get(name) for name in ("format", "version")] if isinstance(header, dict) else header
        require(kind == [FORMAT, VERSION], f"the file is {kind}, and not {[FORMAT, VERSION]}")
        return cls(header, arrays)

    def get(self, name: str) -> Any:
        """A field of the header or an array, which must be there and of its kind."""
        value, kind = self.arrays.get(name, self.header.get(name)), KINDS[name]
        fits = type(value) is kind
        if type(kind) is str:
            fits = isinstance(value, np.ndarray) and value.dtype.kind in kind and value.dtype.itemsize <= 8
        require(fits, f"{name} is missing or of the wrong kind")
        return value


def digest(x: Array, label: int) -> str:
    """The hash of an input with its dtype, shape and label: the `content` of its record."""
    about = json.dumps([x.dtype.str, list(x.shape), label], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(about.encode() + x.tobytes()).hexdigest()


def leaves(tree: Array, start: int) -> tuple[list[list[tuple[int, int]]], int]:
    """The leaves of the tree that starts at a position, as lists of (unit, sign), and the position behind the tree."""
    found, waiting = [], [[]]  # type: ignore[var-annotated]
    while waiting:
        require(start < len(tree), "a tree of splits ends early: a side of a split is missing")
        splits, unit, start = waiting.pop(), int(tree[start]), start + 1
        require(unit >= -1 and all(unit != other for other, _ in splits), f"unit {unit} is none, or is split twice")
        if unit < 0:
            found.append(splits)
        else:
            waiting += [[*splits, (unit, -1)], [*splits, (unit, 1)]]
    return found, start


def check(certificate: Certificate, net: Network, num: Outward) -> str:
    """What is proved, in words."""
    get, classes = certificate.get, net.nodes[-1].size
    verdict, label, rivals, x, arithmetic = (get(name) for name in ("verdict", "label", "rivals", "x", "arithmetic"))
    others = [rival for rival in range(classes) if rival != label]
    require(get("network") == net.digest, "the certificate is about another network")
    require(0 <= label < classes and rivals, "there is no such class")
    require(all(type(rival) is int and rival in others for rival in rivals), "rivals must be other classes")
    require(x.dtype.name == net.dtype and x.shape == net.nodes[0].shape, "the input does not fit the network")
    require(get("point") == digest(x, label), "the input is not the one that the certificate names")
    require(arithmetic in ("real", net.dtype), f"the network is not executed in {arithmetic}")
    executed = None if arithmetic == "real" else arithmetic
    low, high = (np.broadcast_to(get(name), x.size).astype(float) for name in ("lower", "upper"))
    ball = Ball(num, float(get("p")), get("eps"), x.ravel(), low, high)
    rows = num.numbers(np.eye(classes)[[label] * len(rivals)] - np.eye(classes)[rivals])
    sides = [f"{side[0]:.17g}" if (side == side[0]).all() else "by entry" for side in (low, high)]
    about = "" if set(rivals) == set(others) else f" against {sorted(rivals)}"
    about += f" ({arithmetic}, box {' to '.join(sides)})"
    if verdict == "vulnerable":
        _witness(get("witness"), net, ball, (low, high), -rows, executed)
        return f"vulnerable{about}"
    require(verdict == "robust", f"there is no verdict {verdict!r}")
    bounds, proved = Bounds(net, ball, num, executed), np.zeros(len(rivals), dtype=bool)
    steps = {place: [Step(*step[:3]) for step in some] for place, some in get("steps").items()}
    final = [Step(*step[:3]) for step in get("final")]
    bounds.derive(steps, get("radii") or any(step.radii for some in (final, *steps.values()) for step in some))
    for step in final:
        if not proved.all():
            proved[~proved] = bounds.margins(rows[~proved], step) > 0
    if get("trees"):
        _trees(certificate, bounds, rows, proved)
    missing = [rival for rival, done in zip(rivals, proved, strict=True) if not done]
    require(not missing, f"it is not proved that class {label} stays ahead of {missing}")
    return f"robust{about}"


def _witness(z: Array, net: Network, ball: Ball, box: tuple[Array, Array], rows: Array, executed: str | None) -> None:
    """Replay a witness: it lies in ball and box, decided exactly, and some rival is ahead there by more than rounding."""
    require(z.dtype.name == net.dtype and z.shape == ball.x.shape, "the witness is no input of the network")
    require((box[0] <= z).all() and (z <= box[1]).all(), "the witness lies outside the box")
    exact, free = Rational(), np.full(z.shape, math.inf)
    d, eps = exact.numbers(z) - exact.numbers(ball.x), exact.numbers([ball.eps])[0]
    length = np.sum(d * d) if ball.p == 2 else np.sum(np.abs(d)) if ball.p == 1 else np.max(np.abs(d))
    require(length <= (eps * eps if ball.p == 2 else eps), "the witness lies outside the ball")
    at = Bounds(net, Ball(ball.num, math.inf, 0.0, z, -free, free), ball.num, executed)
    at.derive({})
    ahead = at.margins(rows, Step("parallel")) > 0
    require(ahead.any(), "the witness does not change the class by more than rounding")


def _trees(certificate: Certificate, bounds: Bounds, rows: Array, proved: Array) -> None:
    """Prove rows by trees of splits: every leaf of the tree of a row must have a positive bound."""
    names = ("trees", "tree", "units", "betas", "slopes", "radii")
    chosen, tree, units, betas, slopes, radii = (certificate.get(name) for name in names)
    num, relus, place, leaf, spent = bounds.num, bounds.net.relus, 0, 0, 0
    total, ends = sum(relus.values()), np.cumsum([*relus.values()])[:-1]
    require(tree.ndim == units.ndim == betas.ndim == 1 and (tree < total).all(), "the trees have wrong shapes or units")
    require(((units >= 0) & (units < total)).all(), "slopes are given for a unit that is none")
    require(slopes.ndim == 2 and slopes.shape[1] == len(units), "slopes have the wrong shape")
    require(all((np.abs(part) < _LARGEST).all() for part in (slopes, betas)), "slopes and multipliers must be numbers")
    whole = np.issubdtype(slopes.dtype, np.unsignedinteger)
    lines, betas = num.numbers(slopes / 255 if whole else slopes), num.numbers(betas)
    for row in chosen:
        require(type(row) is int and 0 <= row < len(rows), "a tree is about no row of the property")
        paths, place = leaves(tree, place)
        for path in paths:
            require(leaf < len(lines) and spent + len(path) <= len(betas), "slopes or multipliers are missing")
            given = num.numbers(np.zeros((3, total)))
            given[1, units] = lines[leaf]
            for unit, sign in path:
                given[:, unit], spent = (sign, given[1, unit], sign * betas[spent]), spent + 1
            parts = dict(zip(relus, np.split(given, ends, axis=1), strict=True))
            margin = bounds.margins(rows[[row]], Step("leaf", True, radii, parts))
            require(margin[0] > 0, f"leaf {leaf} of the tree of row {row} is not proved")
            leaf += 1
        proved[row] = True
    require(place == len(tree), "something is left over behind the trees")
