"""Certificates of every verdict, and bugs of the prover that the checker must catch."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import exact
import relucert as rc
from relucert.checker.__main__ import run
from relucert.checker.arithmetic import Outward
from relucert.checker.bounds import Bounds
from relucert.checker.check import Certificate, check
from relucert.checker.network import read
from relucert.core.verdict import Verdict
from relucert.networks.network import Network
from relucert.verification.proofs import _trees, prover
from relucert.verification.proofs.prover import NETWORK, Prover
from tiny import BOX, claimed, normalised, outcome, plane_network, points, radius, written
from zoo import inputs, network

EPS = {1.0: 0.3, 2.0: 0.15, math.inf: 0.04}


@pytest.mark.parametrize(
    ("name", "dtype", "p"),
    [("cnn", torch.float32, 2.0), ("fc deep", torch.float64, math.inf), ("fc", torch.float32, 1.0)],
)
def test_every_verdict_has_a_certificate(name: str, dtype: torch.dtype, p: float, tmp_path: Path, capsys: Any) -> None:
    net = network(name, dtype)
    x = inputs(net, 4)
    found = rc.certify(net, x, net.predict(x), rc.Ball(p, EPS[p]), "auto", proofs=tmp_path)
    decided = [str(place) for place, verdict in enumerate(found.verdict) if verdict in ("robust", "vulnerable")]
    assert len(decided) >= 3
    assert run(tmp_path, tmp_path / NETWORK) == 0
    printed = capsys.readouterr().out
    assert printed.count("npz: CHECKED") == len(decided)
    for place in decided:
        assert f"{int(place):06d}.npz: CHECKED: {found.verdict[int(place)]}" in printed


@pytest.mark.parametrize("method", ["lipschitz", "sdp"])
@pytest.mark.parametrize("name", ["normalised", "cnn"])
def test_verdicts_over_balls_have_certificates(name: str, method: str, tmp_path: Path, capsys: Any) -> None:
    net = normalised() if name == "normalised" else network(name)
    x = inputs(net, 4)
    found = rc.certify(net, x, net.predict(x), rc.Ball(2, 0.02), method, proofs=tmp_path)
    robust = [place for place, verdict in enumerate(found.verdict) if verdict is Verdict.ROBUST]
    assert len(robust) >= 2
    assert run(tmp_path, tmp_path / NETWORK) == 0
    assert capsys.readouterr().out.count("npz: CHECKED: robust") == len(robust)
    known = read(tmp_path / NETWORK, Outward())
    given = [Certificate.read(tmp_path / f"{place:06d}.npz") for place in robust]
    assert all(one.header["radii"] for one in given)
    for one in given:
        assert outcome(Certificate(one.header | {"eps": 50 * one.header["eps"]}, one.arrays), known) is None


def test_a_verdict_without_a_certificate_says_why(tmp_path: Path) -> None:
    net = network("max pool")
    x = inputs(net, 2)
    found = rc.certify(net, x, net.predict(x), rc.Ball(math.inf, 1e-4), "crown", proofs=tmp_path)
    assert found.verdict[0] is Verdict.ROBUST
    header = Certificate.read(tmp_path / "000000.npz").header
    assert header["verdict"] == "none"
    assert "max_pool2d" in header["reason"]
    fc = network("fc")
    x = inputs(fc, 1)
    for number, ball in enumerate(
        (rc.Ball(1.5, 1e-3), rc.Ball(math.inf, math.inf), rc.Ball(2, 1e-3, scale=torch.ones(4)))
    ):
        ended = Prover(fc, tmp_path / str(number))
        claim = copy.copy(claimed(fc, x, 2, 0.1))
        object.__setattr__(claim, "ball", ball)
        assert ended.write("one", claim) == "none"
        assert Certificate.read(tmp_path / str(number) / "one.npz").header["reason"]


def test_a_wrong_verdict_gets_no_certificate(tmp_path: Path) -> None:
    net = plane_network(6)
    x = points(1, 6)
    exactly = radius(net, x[0], int(net.predict(x)[0]), math.inf)
    one = written(net, claimed(net, x, math.inf, 1.001 * exactly), tmp_path)
    assert one.certificate.header["verdict"] == "none"
    assert one.certificate.header["claimed"] == "robust"


def test_several_balls_and_targets(tmp_path: Path) -> None:
    net = network("fc", torch.float32)
    x = inputs(net, 2)
    y = net.predict(x)
    balls = [rc.Ball(2, 1e-3), rc.Ball(math.inf, 1e-3)]
    rc.certify(net, x, y, balls, "crown", proofs=tmp_path / "several", targets=((y + 1) % 3)[:, None])
    assert {path.name for path in (tmp_path / "several").glob("*.npz")} == {
        f"00000{i}-{k}.npz" for i in (0, 1) for k in (0, 1)
    }
    known = read(tmp_path / "several" / NETWORK, Outward())
    found = Certificate.read(tmp_path / "several" / "000001-0.npz")
    assert check(found, known, Outward()) == f"robust against [{(int(y[1]) + 1) % 3}] (float32, box 0 to 1)"


@pytest.fixture
def hard() -> tuple[Network, Tensor, float]:
    """A network, an input and a radius just below the exact one, where splits are needed."""
    net = plane_network(6)
    x = points(2, 6)[1:]
    return net, x, 0.97 * radius(net, x[0], int(net.predict(x)[0]), math.inf)


def planted(
    hard: tuple[Network, Tensor, float], folder: Path, monkeypatch: pytest.MonkeyPatch, factor: float = 1.0
) -> bool:
    """Whether the checker accepts what a prover with a bug has written, which does not check its certificates itself."""
    monkeypatch.setattr(prover, "check", lambda *_: "robust")
    net, x, eps = hard
    one = written(net, claimed(net, x, math.inf, factor * eps), folder)
    assert one.certificate.header["verdict"] == "robust", "the prover with a bug believes itself"
    return outcome(one.certificate, one.known) is not None


def test_without_a_bug_it_is_accepted(hard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_trees, "shortened", lambda arrays: arrays)
    monkeypatch.setattr(prover, "shortened", lambda arrays: arrays)
    assert planted(hard, tmp_path, monkeypatch)
    assert not exact.changes_within(hard[0], hard[1][0], int(hard[0].predict(hard[1])[0]), math.inf, hard[2], BOX)


def changed(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Pass the arrays of trees through a change."""
    monkeypatch.setattr(prover, "shortened", change)


def test_a_dropped_sign_is_caught(hard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sides of all splits are exchanged."""
    original = _trees.Recording.proved

    def exchanged(self: Any, found: Any, which: Tensor, leaves: Any) -> Tensor:
        return original(
            self, found, which, leaves._replace(splits={node: -value for node, value in leaves.splits.items()})
        )

    monkeypatch.setattr(_trees.Recording, "proved", exchanged)
    changed(monkeypatch, lambda arrays: arrays)
    assert not planted(hard, tmp_path, monkeypatch)


def test_a_forgotten_split_is_caught(hard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inactive side of the last split is missing; or the split is not there, and one side speaks for both."""
    with monkeypatch.context() as inner:
        changed(inner, lambda arrays: arrays | {"tree": arrays["tree"][:-1], "slopes": arrays["slopes"][:-1]})
        assert not planted(hard, tmp_path, inner)

    def joined(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert len(arrays["tree"]) > 3
        leaf = np.array([-1], dtype=np.int32)
        return arrays | {"tree": leaf, "slopes": arrays["slopes"][:1], "betas": arrays["betas"][:0]}

    changed(monkeypatch, joined)
    assert not planted(hard, tmp_path, monkeypatch)


@pytest.mark.parametrize("factor", [1.04, 1.2])
def test_a_stale_intermediate_bound_is_caught(
    hard: Any, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search uses intervals of a smaller ball, and proves what is false."""
    net, x, eps = hard
    assert exact.changes_within(net, x[0], int(net.predict(x)[0]), math.inf, factor * eps, BOX)
    original = _trees.Recording.__init__

    def stale(self: Any, query: Any, known: Bounds, seconds: float) -> None:
        original(self, rc_query(query, eps), known, seconds)

    def rc_query(query: Any, radius: float) -> Any:
        copied = copy.copy(query)
        object.__setattr__(copied, "ball", query.ball.with_eps(radius))
        return copied

    def older(known: Any, ball: Any, num: Any, executed: Any) -> Bounds:
        smaller = copy.copy(ball)
        for side in ("below", "above"):
            object.__setattr__(smaller, side, np.minimum(getattr(ball, side), eps))
        return Bounds(known, smaller, num, executed)

    monkeypatch.setattr("relucert.verification.proofs._rules.Bounds", older)
    monkeypatch.setattr(_trees.Recording, "__init__", stale)
    changed(monkeypatch, lambda arrays: arrays)
    assert not planted(hard, tmp_path, monkeypatch, factor)


def test_a_radius_that_was_rounded_down_is_caught(hard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prover works with the next smaller multiple of 1/16, the certificate names the radius that was wanted."""
    net, x, eps = hard
    factor = 1.05
    assert exact.changes_within(net, x[0], int(net.predict(x)[0]), math.inf, factor * eps, BOX)
    original = Prover._proofs

    def rounded(self: Prover, claim: Any, arithmetic: str) -> Any:
        smaller = copy.copy(claim)
        object.__setattr__(smaller, "ball", claim.ball.with_eps(math.floor(16 * float(claim.ball.eps)) / 16))
        return original(self, smaller, arithmetic)

    monkeypatch.setattr(Prover, "_proofs", rounded)
    changed(monkeypatch, lambda arrays: arrays)
    assert not planted(hard, tmp_path, monkeypatch, factor)


def test_a_wrong_box_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prover cuts the ball with the box of pixels, the certificate speaks of the whole ball, where the class changes."""
    net, found = plane_network(6), None
    for place in points(40, 6):
        y = int(net.predict(place[None])[0])
        inside, outside = (exact.distance(net, place, y, math.inf, box, 1.5) for box in (BOX, None))
        if float(outside) < 0.8 * min(1.0, float(inside)):
            found = place[None], 0.5 * (float(outside) + min(1.0, float(inside)))
            break
    assert found is not None
    x, eps = found
    original = Prover._proofs

    def cut(self: Prover, claim: Any, arithmetic: str) -> Any:
        smaller = copy.copy(claim)
        object.__setattr__(smaller, "ball", rc.Ball(math.inf, eps, BOX))
        return original(self, smaller, arithmetic)

    monkeypatch.setattr(Prover, "_proofs", cut)
    monkeypatch.setattr(prover, "check", lambda *_: "robust")
    changed(monkeypatch, lambda arrays: arrays)
    claim = copy.copy(claimed(net, x, math.inf, eps))
    object.__setattr__(claim, "ball", rc.Ball(math.inf, eps, None))
    one = written(net, claim, tmp_path)
    assert one.certificate.header["verdict"] == "robust"
    assert outcome(one.certificate, one.known) is None
