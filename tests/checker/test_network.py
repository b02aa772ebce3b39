"""The checker's reading of a checkpoint is the network: values, adjoints, windows and digest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from relucert.checker.arithmetic import Outward, Rational, Refused
from relucert.checker.network import Network, read
from relucert.networks.checkpoints import digest, save
from relucert.networks.network import Network as Traced
from tiny import normalised, plain_residual
from zoo import inputs, network

KNOWN = ("linear", "fc", "fc deep", "fc1", "cnn", "cnn colour", "residual", "zero bias", "leaky", "normalised")


def named(name: str) -> torch.nn.Module:
    made = {"residual": plain_residual, "normalised": normalised}
    return made[name]() if name in made else network(name)


def values(net: Network, x: np.ndarray) -> np.ndarray:
    found: list[np.ndarray] = [x]
    for node in net.nodes[1:]:
        found.append(node.value(*(found[source] for source in node.inputs)))
    return found[-1]


@pytest.mark.parametrize("name", KNOWN)
def test_values_and_digest(name: str, tmp_path: Path) -> None:
    net = named(name)
    save(net, tmp_path / "net.safetensors")
    found = read(tmp_path / "net.safetensors", Outward())
    x = inputs(net, 3)
    with torch.no_grad():
        np.testing.assert_allclose(values(found, x.flatten(1).numpy()), net(x).numpy(), rtol=1e-9, atol=1e-9)
    assert found.digest == digest(net)
    assert found.dtype == "float64"


@pytest.mark.parametrize("name", KNOWN)
def test_adjoints_sizes_and_windows(name: str, tmp_path: Path) -> None:
    save(named(name), tmp_path / "net.safetensors")
    net, draw = read(tmp_path / "net.safetensors", Outward()), np.random.default_rng(0)
    for node in net.nodes[1:]:
        if node.kind == "relu":
            continue
        given = [draw.normal(size=(2, net.nodes[source].size)) for source in node.inputs]
        rows, linear = draw.normal(size=(2, node.size)), node.value(*given) - node.bias
        across = sum((a * b).sum(1) for a, b in zip(given, node.adjoint(rows), strict=True))
        np.testing.assert_allclose((linear * rows).sum(1), across, rtol=1e-9, atol=1e-12)
        sizes = node.value(*(np.abs(part) for part in given), sizes=True)
        assert (np.abs(linear) <= sizes * (1 + 1e-12) + 1e-14).all()
        assert (np.abs(node.bias) <= node.bias_size).all()
        if node.kind in ("linear", "conv2d"):
            np.testing.assert_array_equal(node.rows(np.arange(node.size)), node.adjoint(np.eye(node.size))[0])


def test_weights_are_exact_in_rational_numbers(tmp_path: Path) -> None:
    save(network("fc", torch.float32), tmp_path / "net.safetensors")
    near, exactly = (read(tmp_path / "net.safetensors", num) for num in (Outward(), Rational()))
    assert near.dtype == "float32"
    for a, b in zip(near.nodes, exactly.nodes, strict=True):
        if a.filters is not None:
            assert (a.filters == b.filters.astype(float)).all()
            assert all(float(value) == value for value in b.filters.ravel())


@pytest.mark.parametrize(
    ("name", "kind"),
    [("max pool", "max_pool2d"), ("grouped", "pad"), ("transposed", "conv_transpose2d")],
)
def test_other_layers_are_refused_by_name(name: str, kind: str, tmp_path: Path) -> None:
    save(network(name), tmp_path / "net.safetensors")
    with pytest.raises(Refused, match=kind):
        read(tmp_path / "net.safetensors", Outward())


def test_average_pools_of_uneven_windows_are_refused(tmp_path: Path) -> None:
    """From 5 entries to 2 windows have 3 entries and overlap, which 5 // 2 would not show."""
    layers = nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 2))
    save(Traced(layers, (1, 5, 5)).eval(), tmp_path / "net.safetensors")
    with pytest.raises(Refused, match="uneven"):
        read(tmp_path / "net.safetensors", Outward())
