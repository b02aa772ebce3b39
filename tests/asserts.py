"""Theorems as named assertions, used over tables of all methods, norms and networks."""

from __future__ import annotations

import torch
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.results import Adversarial
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
