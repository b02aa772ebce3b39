"""Bounds of the checker hold at every input, and in exact arithmetic; they are as tight as the package's."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import exact
import relucert as rc
from relucert.checker.arithmetic import Outward, Rational
from relucert.checker.ball import Ball
from relucert.checker.bounds import RULES, Bounds, Step
from relucert.checker.network import read
from relucert.networks.checkpoints import save
from relucert.networks.network import Network
from relucert.verification.proofs._rules import inner_steps
from tiny import BOX, plain_residual, plane_network, points
from zoo import inputs, network


def bounds(
    net: Network, x: torch.Tensor, p: float, eps: float, folder: Path, num: Outward, inner: tuple[str, ...]
) -> Bounds:
    save(net, folder / "net.safetensors")
    known, centre = read(folder / "net.safetensors", num), x.flatten().numpy()
    found = Bounds(
        known,
        Ball.of(num, p, eps, centre, np.zeros(len(centre)), np.ones(len(centre))),
        num,
        None if num.exact else known.dtype,
    )
    found.derive(inner_steps(known, p, inner), {})
    return found


@pytest.mark.parametrize("name", ["fc deep", "fc1", "cnn", "cnn colour", "residual"])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_no_sampled_input_leaves_an_interval_or_a_margin(name: str, p: float, tmp_path: Path) -> None:
    net = plain_residual() if name == "residual" else network(name)
    x = inputs(net, 1)
    eps = {1.0: 0.8, 2.0: 0.4, math.inf: 0.1}[p]
    found = bounds(net, x, p, eps, tmp_path, Outward(), ("parallel", "adaptive"))
    inside = rc.Ball(p, eps).sample(x, torch.Generator().manual_seed(0), 300)[0].flatten(1).numpy()
    seen = [inside]
    for place, node in enumerate(found.net.nodes[1:], 1):
        given = [seen[source] for source in node.inputs]
        seen.append(
            np.where(given[0] > 0, given[0], node.leak * given[0]) if node.kind == "relu" else node.map[0](*given) + node.bias
        )
        assert (seen[-1] >= found.low[place] - 1e-9).all()
        assert (seen[-1] <= found.high[place] + 1e-9).all()
    rows = np.eye(3)[:1] - np.eye(3)[1:]
    for rule in RULES:
        assert (seen[-1] @ rows.T >= found.margins(rows, Step(rule)) - 1e-9).all()
    margins = np.max([found.margins(rows, Step(rule)) for rule in RULES], 0)
    y = torch.zeros(1, dtype=torch.long)
    known = rc.certify(net, x, y, rc.Ball(p, eps), "crown", batch=1)
    if str(known.verdict[0]) != "misclassified":
        assert margins.min() >= float(known.margin[0]) - 0.02 * abs(float(known.margin[0])) - 1e-6, "looser than crown"
    assert np.isfinite(margins).all()


@pytest.mark.parametrize("num", [Outward(), Rational()], ids=["outward", "exact"])
@pytest.mark.parametrize("p", [1.0, math.inf])
def test_margins_are_below_the_exact_ones(num: Outward, p: float, tmp_path: Path) -> None:
    for seed in (1, 6):
        net = plane_network(seed, dtype=torch.float32)
        for x in points(2, seed, torch.float32):
            y = int(net.predict(x[None])[0])
            rows = num.numbers(np.eye(3)[[y, y]] - np.delete(np.eye(3), y, 0))
            for eps in (0.05, 0.3):
                found = bounds(net, x, p, eps, tmp_path, num, ("parallel",))
                truth = exact.least_margin(net, x, y, p, eps, BOX)
                for rule in RULES:
                    least = min(found.margins(rows, Step(rule)))
                    assert Fraction(least) <= truth
                    assert not num.exact or isinstance(least, Fraction)


def test_intervals_of_float64_hold_those_of_rational_numbers(tmp_path: Path) -> None:
    net = plane_network(6)
    x = points(1, 6)[0]
    near, exactly = (bounds(net, x, math.inf, 0.2, tmp_path, num, ()) for num in (Outward(), Rational()))
    for place in range(len(near.net.nodes)):
        for a, b in zip(near.low[place], exactly.low[place], strict=True):
            assert Fraction(a) <= b
        for a, b in zip(near.high[place], exactly.high[place], strict=True):
            assert Fraction(a) >= b


def test_single_precision_costs_more(tmp_path: Path) -> None:
    net = network("cnn", torch.float32)
    x = inputs(net, 1)
    save(net, tmp_path / "net.safetensors")
    known, num, rows = read(tmp_path / "net.safetensors", Outward()), Outward(), np.eye(3)[:1] - np.eye(3)[1:]
    ends = []
    for executed in (None, "float64", "float32"):
        centre = x.flatten().numpy()
        found = Bounds(known, Ball.of(num, 2, 0.1, centre, np.zeros(len(centre)), np.ones(len(centre))), num, executed)
        found.derive(inner_steps(known, 2, ("parallel",)), {})
        ends.append(found.margins(rows, Step("parallel")))
    assert (ends[0] > ends[1]).all()
    assert (ends[1] > ends[2]).all()
    np.testing.assert_allclose(ends[0], ends[2], atol=1e-3)
