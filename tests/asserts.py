"""Theorems as named assertions, used over tables of all methods, norms and networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.results import Adversarial, RadiusInterval
from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network


def assert_adversarial(net: Network, x: Tensor, y: Tensor, ball: Ball, found: Adversarial) -> None:
    """Every success lies in ball and box, changes the decision alone and in the batch, at the distance it says."""
    inside = ball.contains(x, found.x)
    assert bool(inside[found.success].all()), "a success lies outside ball or box"
    assert bool((net.predict(found.x) != y)[found.success].all()), "a success does not change the decision"
    for i in found.success.nonzero()[:, 0].tolist():
        assert int(net.predict(found.x[i : i + 1])) != int(y[i]), "a success does not change the decision by itself"
    distance = norm(found.x.double() - x.double(), ball.p)
    assert bool((found.distance.double() >= distance)[found.success].all()), "a distance is too small"
    slack = 1 + 4 * torch.finfo(x.dtype).eps
    assert bool((found.distance.double() <= distance * slack)[found.success].all()), "a distance is too large"
    assert bool(found.distance[~found.success].isinf().all()), "a failure has a finite distance"
    assert bool(found.success[net.predict(x) != y].all()), "a misclassified input is no success"


def assert_affine_on_region(net: Network, x: Tensor, z: Tensor) -> None:
    """At points z of the regions of x the network's own values, logits and all others, are those of the region's map."""
    region = LinearRegion.at(net, x)
    inner, logits = region.values(z)
    torch.testing.assert_close(logits, net(z), rtol=1e-11, atol=1e-11)
    for node, found, expected in zip(net.switches, inner, net.preactivations(z), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11, msg=f"{node.name} is not affine")
    rows, offsets = region.logits_map()
    explicit = (rows * z[:, None]).flatten(2).sum(2) + offsets
    torch.testing.assert_close(explicit, net(z), rtol=1e-10, atol=1e-10)


def assert_below_attack(found: RadiusInterval, attacked: Adversarial) -> None:
    """No attack's success is nearer than what was proved."""
    nearer = attacked.success & (attacked.distance < found.lower)
    assert not bool(nearer.any()), f"example {nearer.nonzero()[:, 0].tolist()} was attacked below its proved radius"


def assert_witness(net: Network, x: Tensor, y: Tensor, p: float, box: Any, found: RadiusInterval) -> None:
    """Every witness lies in the box, changes the decision in float32 and in float64, at the distance `upper`."""
    assert bool((found.lower <= found.upper).all())
    has = found.upper.isfinite()
    if not bool(has.any()):
        return
    assert found.witness is not None
    witness, x, y, upper = found.witness[has], x[has], y[has], found.upper[has]
    if box is not None:
        low, high = (torch.as_tensor(side, dtype=x.dtype).expand(x.shape[1:]) for side in box)
        assert bool(((witness >= low) & (witness <= high)).all()), "a witness lies outside the box"
    assert bool((net.predict(witness) != y).all()), "a witness does not change the decision"
    distance = norm(witness.double() - x.double(), p)
    assert bool((upper.double() >= distance).all()), "an upper end is too small"
    assert bool((upper.double() <= distance * (1 + 4 * torch.finfo(x.dtype).eps)).all()), "an upper end is too large"
    wrong = net.predict(x) != y
    assert bool((upper[wrong] == 0).all())
    assert bool((upper[~wrong] > 0).all())


def assert_around(found: RadiusInterval, truth: Tensor) -> None:
    """The interval holds the truth, and is the truth where it says so."""
    lower, upper = found.lower.double(), found.upper.double()
    assert bool((lower <= truth * (1 + 1e-9) + 1e-12).all()), f"lower {lower.tolist()} above {truth.tolist()}"
    assert bool((upper >= truth * (1 - 1e-9) - 1e-12).all()), f"upper {upper.tolist()} below {truth.tolist()}"
    torch.testing.assert_close(lower[found.exact], truth[found.exact], rtol=1e-6, atol=1e-9)
