"""Bounds on networks trained by others: the published figures of Wong and Kolter's relaxation, to a tenth of a point."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.bounding.kw import KW
from relucert.core.properties import class_stays
from zoo import published as network_of


def robust_error(net: rc.Network, x, y, ball: rc.Ball) -> float:
    """Misclassified, or not proved by the relaxation as published: in the network's dtype, without error terms, in percent."""
    wrong = 0
    with torch.no_grad():
        for part, labels in zip(x.split(200), y.split(200), strict=True):
            margins = KW().solve(net, part, ball, class_stays(labels, net.classes, dtype=part.dtype))[1]
            wrong += int((margins <= 0).any(1).sum())
    return 100 * wrong / len(x)


@pytest.mark.parametrize(
    ("file", "data", "p", "eps", "box", "published"),
    [
        ("kw_fmnist.safetensors", "fmnist", math.inf, 0.1, None, 34.7),
        ("wk17a_mnist.safetensors", "mnist", math.inf, 0.1, None, 7.9),
        ("kw_mnist.safetensors", "mnist", math.inf, 0.1, None, 6.7),
        ("mmr_universal/mnist.mat", "mnist", math.inf, 0.1, None, 27.7),
        ("mmr_universal/mnist.mat", "mnist", math.inf, 0.1, (0.0, 1.0), 18.4),
        ("mmr_universal/mnist.mat", "mnist", 2.0, 0.3, None, 10.4),
    ],
)
def test_kw_on_the_first_thousand(shared, real_data, file, data, p, eps, box, published):
    net, images = network_of(shared / "models" / file), real_data(data)
    found = robust_error(net, images.x_test[:1000], images.y_test[:1000], rc.Ball(p, eps, box))
    assert found == pytest.approx(published, abs=0.1001)


def test_kw_on_the_whole_test_set(shared, real_data):
    net, images = network_of(shared / "models" / "lpd_mlp_mnist.safetensors"), real_data("mnist")
    found = robust_error(net, images.x_test, images.y_test, rc.Ball(math.inf, 0.1))
    assert found == pytest.approx(18.32, abs=0.1)


def test_the_box_helps_in_l2(shared, real_data):
    net, images = network_of(shared / "models" / "mmr_universal/mnist.mat"), real_data("mnist")
    x, y = images.x_test[:1000], images.y_test[:1000]
    within, without = (robust_error(net, x, y, rc.Ball(2, 0.3, box)) for box in ((0.0, 1.0), None))
    assert within < without
