"""Bounds on spectral norms are never below what numpy's singular values say, and close to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relucert.bounding import _spectral as spectral
from relucert.bounding._spectral import conv_bound, node_bound, norm_bounds
from relucert.networks.layers.linear import Conv2d
from relucert.networks.layers.normalisation import BatchNorm
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, Source
from relucert.networks.traversal import Node
from zoo import NETWORKS, network


def matrix_of(node: Node) -> Tensor:
    """The matrix of an affine node, its inputs stacked, by its own linear map on the unit vectors."""
    assert isinstance(node.op, Affine)
    sizes = [math.prod(shape) for shape in node.op.in_shapes]
    unit = torch.eye(sum(sizes), dtype=torch.float64).split(sizes, 1)
    parts = (part.reshape(-1, *shape) for part, shape in zip(unit, node.op.in_shapes, strict=True))
    return node.op.linear(*parts).detach().flatten(1).T


def true_norm(matrix: Tensor) -> float:
    """The largest singular value."""
    return float(np.linalg.svd(matrix.numpy(), compute_uv=False)[0])


def random_matrix(seed: int, rows: int, columns: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    if kind == "flat":  # all singular values equal
        return torch.linalg.qr(a if rows >= columns else a.T)[0]
    if kind == "low rank":
        return a[:, :1] @ a[:1, :]
    if kind == "graded":
        return a * torch.logspace(0, -12, rows, dtype=torch.float64)[:, None]
    if kind == "zero":
        return torch.zeros_like(a)
    if kind == "positive":
        return a.abs()
    return a


@given(
    seed=st.integers(0, 2**20),
    rows=st.integers(1, 130),
    columns=st.integers(1, 130),
    kind=st.sampled_from(["plain", "flat", "low rank", "graded", "zero", "positive"]),
    power=st.integers(-60, 60),
)
@settings(max_examples=40, deadline=None)
def test_never_below_and_hardly_above(seed: int, rows: int, columns: int, kind: str, power: int) -> None:
    matrix = random_matrix(seed, rows, columns, kind) * 10.0**power
    truth, bound = true_norm(matrix), float(norm_bounds(matrix[None]))
    assert truth * (1 - 1e-13) <= bound <= truth * 1.01 + 1e-280


@pytest.mark.parametrize(("rows", "columns"), [(300, 300), (600, 250), (250, 900)])
def test_large_random_matrices(rows: int, columns: int) -> None:
    matrices = torch.stack([random_matrix(seed, rows, columns, "plain") for seed in range(2)])
    bounds = norm_bounds(matrices)
    for matrix, bound in zip(matrices, bounds.tolist(), strict=True):
        assert true_norm(matrix) <= bound <= 1.01 * true_norm(matrix)


def test_covers_every_matrix_within_the_error() -> None:
    matrix = random_matrix(1, 7, 5, "plain")
    u, s, v = torch.linalg.svd(matrix)
    worse = matrix + 0.5 * torch.outer(u[:, 0], v[0])
    bound = float(norm_bounds(matrix[None], 0.5))
    assert true_norm(worse) * (1 - 1e-14) <= bound <= 1.01 * float(s[0]) + 0.51


def test_infinite_and_empty() -> None:
    falsified = torch.ones(2, 3, 3, dtype=torch.float64)
    falsified[0, 1, 1], falsified[1, 0, 0] = math.inf, math.nan
    assert norm_bounds(falsified).tolist() == [math.inf, math.inf]
    assert norm_bounds(torch.zeros(2, 0, 3, dtype=torch.float64)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_affine_node(name: str) -> None:
    net = network(name)
    for node in net.graph:
        if not isinstance(node.op, Affine):
            continue
        truth, bound = true_norm(matrix_of(node)), node_bound(node.op, node.shape)
        assert truth * (1 - 1e-13) <= bound <= truth * 1.01, node.kind


@pytest.mark.parametrize("name", NETWORKS)
def test_every_affine_node_without_its_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "ENTRIES", 0)
    net = network(name)
    for node in net.graph:
        if isinstance(node.op, Affine):
            truth, bound = true_norm(matrix_of(node)), node_bound(node.op, node.shape)
            assert truth * (1 - 1e-13) <= bound <= truth * (2 + math.sqrt(min(matrix_of(node).shape))), node.kind


@given(
    seed=st.integers(0, 2**20),
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.integers(1, 2),
)
@settings(max_examples=40, deadline=None)
def test_convolution_by_its_frequencies(
    seed: int, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    dilation: tuple[int, int], groups: int,
) -> None:  # fmt: skip
    if any(s + 2 * p < d * (k - 1) + 1 for s, p, d, k in zip(size, padding, dilation, kernel, strict=True)):
        return
    torch.manual_seed(seed)
    layer = nn.Conv2d(2, 4, kernel, stride, padding, dilation, groups).double()
    op = Conv2d(
        Source(layer, "weight"), None, (2, *size), stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    shape = tuple(layer(torch.zeros(1, 2, *size).double()).shape[1:])
    truth = true_norm(matrix_of(Node(1, "conv", op, (0,), shape)))
    assert truth * (1 - 1e-13) <= conv_bound(op)
    scale = torch.linspace(-1, 2, 4).double()
    scaled = matrix_of(Node(1, "conv", op, (0,), shape)) * scale.repeat_interleave(shape[1] * shape[2])[:, None]
    assert true_norm(scaled) * (1 - 1e-13) <= conv_bound(op, scale)


def test_frequencies_are_close_for_large_images() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 4, 2, 1).double()
    op = Conv2d(Source(layer, "weight"), None, (2, 24, 24), stride=(2, 2), padding=(1, 1))
    truth = true_norm(matrix_of(Node(1, "conv", op, (0,), (3, 12, 12))))
    assert truth <= conv_bound(op) <= 1.05 * truth


def test_speaks_of_the_weights_of_now() -> None:
    net = Network(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), (3,)).double().eval()
    node = net.graph[1]
    assert isinstance(node.op, Affine)
    assert isinstance(net.graph[2].op, BatchNorm)
    before = node_bound(node.op, node.shape)
    with torch.no_grad():
        net.module[0].weight.mul_(3)  # type: ignore[index]
    assert node_bound(node.op, node.shape) == pytest.approx(3 * before, rel=1e-6)
