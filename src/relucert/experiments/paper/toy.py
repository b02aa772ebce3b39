"""The paper's toy networks: one hidden layer of 100 units on 128 points of two classes in the plane, plain and with MMR."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from relucert.experiments.paper.planes import plane_arrays
from relucert.geometry.distances import distances
from relucert.geometry.slices.slices import Plane
from relucert.networks.network import Network
from relucert.training.problem import train

POINTS, UNITS = 128, 100
#: Copies of the points in an epoch: a run is saved after every epoch, and steps are what counts.
COPIES = 16
EPOCHS, QUICK_EPOCHS = 60, 4
SCHEMES = {"plain": "plain", "mmr": "mmr(lam=2.0, gamma_b=0.3, gamma_d=0.15, k_b=(100, 50), k_d=(1, 1))"}


def toy_points(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two half moons in the unit square: inputs (points, 2), and classes."""
    random = np.random.default_rng(seed)
    half = POINTS // 2
    angle = random.uniform(0, math.pi, half)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)
    angle = random.uniform(0, math.pi, half)
    lower = np.stack([1 - np.cos(angle), 0.45 - np.sin(angle)], 1)
    x = np.concatenate([upper, lower]) + random.normal(0, 0.09, (POINTS, 2))
    low, high = x.min(0), x.max(0)
    x = 0.08 + 0.84 * (x - low) / (high - low)
    return torch.tensor(x, dtype=torch.float32), torch.arange(POINTS) // half


def toy_network(scheme: str, folder: Path, quick: bool = False) -> Network:
    """The trained network of a scheme; its run is kept in a folder, and goes on there."""
    x, y = toy_points()
    random = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Linear(2, UNITS), nn.ReLU(), nn.Linear(UNITS, 2))
    with torch.no_grad():
        weight, bias, last, offset = module.parameters()
        weight.normal_(0, 1, generator=random)
        # Hyperplanes lie all over the square, and do not all go through its corner.
        bias.copy_(-(weight * torch.rand(UNITS, 2, generator=random)).sum(1))
        last.normal_(0, (2 / UNITS) ** 0.5, generator=random)
        offset.zero_()
    run = train(
        module, (x.repeat(COPIES, 1), y.repeat(COPIES)), scheme=SCHEMES[scheme], p=2.0, batch=POINTS, rate=3e-3,
        epochs=QUICK_EPOCHS if quick else EPOCHS, evaluate_every=0, out=folder / f"toy-{scheme}{'-quick' if quick else ''}",
    )  # fmt: skip
    return run.net


def toy_plane() -> Plane:
    """The unit square as a plane."""
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    return Plane.through(corners[0], corners[1], corners[2], margin=0.0)


def toy_arrays(net: Network) -> dict[str, np.ndarray]:
    """The regions of a network on the unit square, and the points."""
    x, y = toy_points()
    return plane_arrays(net, toy_plane()) | {"inputs": x.numpy(), "labels": y.numpy()}


@dataclass(frozen=True)
class _Ends:
    """For every point d_B and d_D, and the nearest points of the region boundary and of the decision hyperplane."""

    d_b: Tensor
    d_d: Tensor
    on_region: Tensor
    on_decision: Tensor
    normal: Tensor


def _ends(net: Network, x: Tensor) -> _Ends:
    """Closed forms of a network with two classes and one hidden layer."""
    weight, bias, last, offset = (value.detach().double() for value in net.module.parameters())
    values = x.double() @ weight.T + bias
    lengths = weight.norm(dim=1).clamp_min(1e-12)
    d_b, unit = (values.abs() / lengths).min(1)
    step = values.gather(1, unit[:, None]) / lengths[unit, None] ** 2
    difference = last[0] - last[1]
    normal = ((values > 0) * difference) @ weight
    margin = values.clamp_min(0) @ difference + offset[0] - offset[1]
    length = normal.norm(dim=1).clamp_min(1e-12)
    return _Ends(
        d_b, margin.abs() / length, x.double() - step * weight[unit],
        x.double() - margin[:, None] / length[:, None] ** 2 * normal, normal / length[:, None],
    )  # fmt: skip


def theorem_arrays(net: Network) -> dict[str, np.ndarray]:
    """Two points of the square, one for each case of the theorem, as arrays whose names end in 0 and 1."""
    places = torch.linspace(0.2, 0.8, 61)
    grid = torch.cartesian_prod(places, places)
    ends = _ends(net, grid)
    labels = net.predict(grid)
    seen = distances(net, grid, labels, 2.0)  # the package's own distances choose the points
    arrays = plane_arrays(net, toy_plane())
    found: dict[str, np.ndarray] = {}
    for number, ratio in enumerate((seen.region / seen.decision, seen.decision / seen.region)):
        least = torch.minimum(seen.region, seen.decision)
        largest = torch.maximum(seen.region, seen.decision)
        # Both distances are to be seen, and the window around the point lies in the square.
        fits = (ratio > 0.45) & (ratio < 0.8) & _window_inside(grid, largest)
        score = torch.where(fits, least, -torch.ones_like(least))
        if not bool(fits.any()):
            score = -(ratio - 0.6).abs()
        index = int(score.argmax())
        point = grid[index].double().numpy()
        along = np.array([-ends.normal[index, 1], ends.normal[index, 0]])
        own = {
            "point": point,
            "region": _cell(arrays["vertices"], arrays["count"], point),
            "d_b": np.array(float(ends.d_b[index])),
            "d_d": np.array(float(ends.d_d[index])),
            "on_region": ends.on_region[index].numpy(),
            "on_decision": ends.on_decision[index].numpy(),
            "hyperplane": np.stack([ends.on_decision[index].numpy() + sign * 3 * along for sign in (-1, 1)]),
            "decisions": arrays["decisions"],
        }
        found |= {f"{name}{number}": value for name, value in own.items()}
    return found


def _window_inside(grid: Tensor, reach: Tensor) -> Tensor:
    edge = torch.minimum(grid, 1 - grid).amin(1)
    return edge > reach


def _cell(vertices: np.ndarray, count: np.ndarray, point: np.ndarray) -> np.ndarray:
    """The convex polygon that holds a point."""
    following = np.roll(vertices, -1, 1)
    last = np.arange(vertices.shape[1]) == (count - 1)[:, None]
    following[last] = vertices[:, 0]
    way, offset = following - vertices, point - vertices
    side = way[..., 0] * offset[..., 1] - way[..., 1] * offset[..., 0]
    outside = (side < -1e-12) & (np.arange(vertices.shape[1]) < count[:, None])
    inside = np.flatnonzero(~outside.any(1))
    index = int(inside[0])
    return vertices[index, : count[index]]
