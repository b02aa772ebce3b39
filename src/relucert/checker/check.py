"""Is a certificate a proof? `check` re-derives what it claims, and says what that is, or raises `Refused`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relucert.checker.arithmetic import Array, Outward, Rational, Refused, require
from relucert.checker.ball import Ball
from relucert.checker.bounds import Bounds, Relax
from relucert.checker.certificate import Certificate, digest, leaves
from relucert.checker.network import Network

_TOGETHER = 64  # leaves that go through one backward pass


def check(certificate: Certificate, net: Network, num: Outward) -> str:
    """What is proved, in words."""
    verdict = certificate.field("verdict", str)
    if verdict == "none":
        raise Refused(f"no certificate: {certificate.field('reason', str)}")
    require(certificate.field("network", str) == net.digest, "the certificate is about another network")
    label, rivals = certificate.field("label", int), certificate.field("rivals", list)
    classes, size = net.nodes[-1].size, net.nodes[0].size
    others = [rival for rival in range(classes) if rival != label]
    require(0 <= label < classes and rivals, "there is no such class")
    require(all(type(rival) is int and rival in others for rival in rivals), "rivals must be other classes")
    given = certificate.array("x")
    require(given.dtype.name == net.dtype and given.shape == net.nodes[0].shape, "the input does not fit the network")
    require(
        certificate.field("point", str) == digest(given, label), "the input is not the one that the certificate names"
    )
    x = given.ravel()
    arithmetic = certificate.field("arithmetic", str)
    require(arithmetic in ("real", net.dtype), f"the network is not executed in {arithmetic}")
    executed = None if arithmetic == "real" else arithmetic
    sides = [np.broadcast_to(certificate.array(name), (size,)).astype(np.float64) for name in ("lower", "upper")]
    p = math.inf if certificate.header.get("p") == "inf" else float(certificate.field("p", (int, float)))
    ball = Ball.of(num, p, float(certificate.field("eps", (int, float))), x, *sides)
    rows = num.numbers(np.zeros((len(rivals), classes)))
    rows[:, label], rows[np.arange(len(rivals)), rivals] = num.numbers([1.0])[0], num.numbers([-1.0])[0]
    about = "" if set(rivals) == set(others) else f" against {sorted(rivals)}"
    if verdict == "vulnerable":
        _witness(certificate, net, ball, -rows, executed)
        return f"vulnerable{about} ({arithmetic})"
    require(verdict == "robust", f"there is no verdict {verdict!r}")
    bounds = Bounds(net, ball, num, executed)
    bounds.derive(certificate.field("rules", dict))
    proved = np.zeros(len(rivals), dtype=bool)
    for rule in certificate.field("final", list):
        open_ = np.flatnonzero(~proved)
        if len(open_):
            proved[open_] = bounds.margins(rows[open_], rule) > 0
    _trees(certificate, bounds, rows, proved)
    missing = [rival for rival, done in zip(rivals, proved, strict=True) if not done]
    require(not missing, f"it is not proved that class {label} stays ahead of {missing}")
    return f"robust{about} ({arithmetic})"


def _witness(certificate: Certificate, net: Network, ball: Ball, rows: Array, executed: str | None) -> None:
    """Replay a witness: it lies in ball and box, and some rival is ahead there by more than rounding."""
    witness = certificate.array("witness", net.nodes[0].size)
    require(witness.dtype.name == net.dtype and np.isfinite(witness).all(), "the witness is no input of the network")
    low, high = (np.broadcast_to(certificate.array(name), witness.shape) for name in ("lower", "upper"))
    require((low <= witness).all() and (witness <= high).all(), "the witness lies outside the box")
    require(ball.contains(witness, Rational()), "the witness lies outside the ball")
    free = np.full(witness.shape, math.inf)
    at = Bounds(net, Ball.of(ball.num, math.inf, 0.0, witness, -free, free), ball.num, executed)
    at.derive({})
    require((at.margins(rows, "parallel") > 0).any(), "the witness does not change the class by more than rounding")


def _trees(certificate: Certificate, bounds: Bounds, rows: Array, proved: Array) -> None:
    """Prove rows by trees of splits: all leaves of the tree of a row must have a positive bound."""
    chosen = certificate.field("trees", list)
    if not chosen:
        return
    tree, place, first, spent = certificate.array("tree"), 0, 0, 0
    units, slopes, betas = certificate.array("units"), certificate.array("slopes"), certificate.array("betas")
    require(np.isfinite(slopes).all(), "slopes must be numbers")
    require(np.isfinite(betas).all() and (betas >= 0).all(), "multipliers of splits must not be negative")
    require(
        units.ndim == betas.ndim == tree.ndim == 1 and slopes.ndim == 2, "arrays of the trees have the wrong shapes"
    )
    require(slopes.shape[1] == len(units), "slopes must be given for every leaf and every one of the units")
    total = sum(bounds.net.nodes[at].size for at in bounds.net.relus)
    require(((units >= 0) & (units < total)).all(), "there is no such unit")
    for row in chosen:
        require(type(row) is int and 0 <= row < len(rows), "a tree is about no row of the property")
        every, place = leaves(tree, place)
        require(all(unit < total for splits in every for unit, _ in splits), "there is no such unit")
        ends = np.cumsum([spent] + [len(splits) for splits in every])
        require(ends[-1] <= len(betas) and first + len(every) <= len(slopes), "slopes or multipliers are missing")
        for start in range(0, len(every), _TOGETHER):
            some = range(start, min(start + _TOGETHER, len(every)))
            signs, push = (bounds.num.numbers(np.zeros((len(some), total))) for _ in range(2))
            for place_, leaf in enumerate(some):
                for (unit, sign), beta in zip(every[leaf], betas[ends[leaf] : ends[leaf + 1]], strict=True):
                    signs[place_, unit], push[place_, unit] = sign, sign * bounds.num.numbers([beta])[0]
            given = slopes[first + start : first + some.stop].astype(np.float64)
            given = bounds.num.numbers(given / 255 if slopes.dtype.kind == "u" else given)
            relax = _split(bounds, signs, push, (units, given))
            found = bounds.descend(len(bounds.net.nodes) - 1, np.repeat(rows[row : row + 1], len(some), 0), relax)
            failed = np.flatnonzero(~(bounds.least(found) > 0))
            if len(failed):
                raise Refused(f"leaf {start + int(failed[0])} of the tree against rival {row} is not proved")
        first, spent = first + len(every), int(ends[-1])
        proved[row] = True
    require((place, first, spent) == (len(tree), len(slopes), len(betas)), "trees, slopes or multipliers are left over")


def _split(bounds: Bounds, signs: Array, push: Array, slopes: tuple[Array, Array]) -> Relax:
    """The relaxation where units are split, active (1) or inactive (-1), one row for each leaf.

    A split unit is linear on its side, where sign z >= 0: for every multiplier beta >= 0 the functional may lose beta sign z.
    """
    first, begin = {}, 0
    for at in bounds.net.relus:
        first[at] = begin
        begin += bounds.net.nodes[at].size

    def relax(at: int, units: Any, a: Array) -> tuple[Array, Array, Array, Any]:
        lines, here = bounds.lines[at], slice(first[at], first[at] + bounds.net.nodes[at].size)
        sign, pushed = signs[:, here], push[:, here]
        below = np.repeat(bounds.slopes(at, "adaptive")[None], len(a), 0)
        known = np.flatnonzero((slopes[0] >= first[at]) & (slopes[0] < here.stop))
        where = slopes[0][known] - first[at]
        given = np.minimum(np.maximum(slopes[1][:, known], lines.leak), lines.leak * 0 + 1)
        below[:, where] = np.where(lines.unstable[where], given, below[:, where])
        side = np.where(sign > 0, lines.leak * 0 + 1, lines.leak)
        below = np.where(sign != 0, side, below)
        above = np.where(sign != 0, side, lines.slope)
        positive = np.maximum(a, 0)
        negative = a - positive
        low = np.sum(negative * np.where(sign != 0, lines.leak * 0, lines.offset), axis=1)
        lost: Any = 0
        if not bounds.num.exact:
            reach = bounds.size(bounds.net.nodes[at].inputs[0])
            lost = bounds.num.gamma(4) * ((np.where(sign != 0, np.abs(a), 0.0) + np.abs(pushed)) @ reach)
        return positive * below + negative * above - pushed, low, low * 0, lost

    return relax
