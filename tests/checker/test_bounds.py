"""Bounds of the checker hold at every input, and in exact arithmetic; they are as tight as the package's."""

from __future__ import annotations

import math
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import exact
import relucert as rc
from relucert.checker.arithmetic import Outward, Rational
from relucert.checker.bounds import Bounds, Step, stretch
from relucert.checker.minima import Ball
from relucert.checker.network import read
from relucert.networks.checkpoints import save
from relucert.networks.network import Network
from relucert.verification.proofs._rules import inner_steps
from tiny import BOX, normalised, plain_residual, plane_network, points
from zoo import inputs, network

RULES = ("interval", "parallel", "adaptive", "flat", "leaf")


def bounds(
    net: Network, x: torch.Tensor, p: float, eps: float, folder: Path, num: Outward, inner: tuple[str, ...]
) -> Bounds:
    save(net, folder / "net.safetensors")
    known, centre = read(folder / "net.safetensors", num), x.flatten().numpy()
    found = Bounds(
        known,
        Ball(num, p, eps, centre, np.zeros(len(centre)), np.ones(len(centre))),
        num,
        None if isinstance(num, Rational) else known.dtype,
    )
    found.derive(inner_steps(known, p, inner))
    return found


@pytest.mark.parametrize("name", ["fc deep", "fc1", "cnn", "cnn colour", "residual", "leaky", "normalised"])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_no_sampled_input_leaves_an_interval_or_a_margin(name: str, p: float, tmp_path: Path) -> None:
    made = {"residual": plain_residual, "normalised": normalised}
    net = made[name]() if name in made else network(name)
    x = inputs(net, 1)
    eps = {1.0: 0.8, 2.0: 0.4, math.inf: 0.1}[p]
    found = bounds(net, x, p, eps, tmp_path, Outward(), ("parallel", "adaptive"))
    inside = rc.Ball(p, eps).sample(x, torch.Generator().manual_seed(0), 300)[0].flatten(1).numpy()
    seen = [inside]
    for place, node in enumerate(found.net.nodes[1:], 1):
        given = [seen[source] for source in node.inputs]
        seen.append(
            np.where(given[0] > 0, given[0], node.leak * given[0]) if node.kind == "relu" else node.value(*given)
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
                    assert not isinstance(num, Rational) or isinstance(least, Fraction)


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
        found = Bounds(known, Ball(num, 2, 0.1, centre, np.zeros(len(centre)), np.ones(len(centre))), num, executed)
        found.derive(inner_steps(known, 2, ("parallel",)))
        ends.append(found.margins(rows, Step("parallel")))
    assert (ends[0] > ends[1]).all()
    assert (ends[1] > ends[2]).all()
    np.testing.assert_allclose(ends[0], ends[2], atol=1e-3)


@pytest.mark.parametrize("name", ["fc deep", "cnn", "residual", "leaky", "normalised"])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_no_sampled_input_leaves_a_radius_or_a_margin_over_balls(name: str, p: float, tmp_path: Path) -> None:
    made = {"residual": plain_residual, "normalised": normalised}
    net = made[name]() if name in made else network(name)
    x, eps = inputs(net, 1), {1.0: 0.3, 2.0: 0.2, math.inf: 0.05}[p]
    save(net, tmp_path / "net.safetensors")
    known, centre, num = read(tmp_path / "net.safetensors", Outward()), x.flatten().numpy(), Outward()
    ball = Ball(num, p, eps, centre, np.zeros(len(centre)), np.ones(len(centre)))
    found = Bounds(known, ball, num, "float64")
    found.derive(inner_steps(known, p, ("parallel",)), radii=True)
    seen = [rc.Ball(p, eps).sample(x, torch.Generator().manual_seed(0), 300)[0].flatten(1).numpy()]
    for place, node in enumerate(known.nodes[1:], 1):
        seen.append(node.value(*(seen[source] for source in node.inputs)))
        moved = np.linalg.norm(seen[-1] - found.centre[place], axis=1)
        assert (moved <= found.radius[place] + 1e-12).all()
        if node.kind == "linear":
            assert found.radius[place] <= np.linalg.norm(node.filters, 2) * found.radius[place - 1] * 1.001
    rows = np.eye(3)[:1] - np.eye(3)[1:]
    for rule in RULES:
        with_radii = found.margins(rows, Step(rule, radii=True))
        assert (seen[-1] @ rows.T >= with_radii - 1e-9).all()
        assert (with_radii >= found.margins(rows, Step(rule))).all()


@pytest.mark.parametrize("name", ["cnn", "normalised", "fc1"])
def test_spectral_norms_are_upper_bounds_and_near(name: str, tmp_path: Path) -> None:
    """No vector is stretched more, in rational numbers where the layer is small, and the bound is near what numpy finds."""
    save(normalised() if name == "normalised" else network(name), tmp_path / "net.safetensors")
    draw = np.random.default_rng(0)
    for num in (Outward(), Rational()) if name == "cnn" else (Outward(),):
        for node in read(tmp_path / "net.safetensors", num).nodes:
            if node.filters is None or (isinstance(num, Rational) and node.size > 20):
                continue
            matrix, bound = node.adjoint(num.numbers(np.eye(node.size)))[0], stretch(num, node)
            norm = np.linalg.norm(matrix.astype(float), 2)
            assert norm * (1 - 1e-12) <= float(bound) <= norm * (1 + 1e-4)
            for vector in (*draw.integers(-9, 9, size=(5, matrix.shape[1])), np.linalg.svd(matrix.astype(float))[2][0]):
                exactly = Rational().numbers(vector)
                image = Rational().numbers(matrix) @ exactly
                assert np.sum(image * image) <= Fraction(bound) ** 2 * np.sum(exactly * exactly)


def test_a_wrong_factor_of_a_norm_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `eigvalsh` and `cholesky` answer, the bound is none too small, or there is none."""
    save(network("cnn"), tmp_path / "net.safetensors")
    nodes, num = (
        [node for node in read(tmp_path / "net.safetensors", Outward()).nodes if node.filters is not None],
        Outward(),
    )
    true, eigenvalues, factor = (
        [np.linalg.norm(node.adjoint(np.eye(node.size))[0], 2) for node in nodes],
        np.linalg.eigvalsh,
        np.linalg.cholesky,
    )
    for scale in (0.0, 0.25, 0.999, -1.0, math.nan):
        monkeypatch.setattr(np.linalg, "eigvalsh", lambda matrix, scale=scale: scale * eigenvalues(matrix))
        for wrong in (factor, lambda gap: 0 * gap, lambda gap: 0.5 * np.abs(gap)):
            monkeypatch.setattr(np.linalg, "cholesky", wrong)
            for node, norm in zip(nodes, true, strict=True):
                try:
                    bound = stretch(num, node)
                except np.linalg.LinAlgError:
                    continue
                assert not bound < norm


class _Leaky(torch.nn.Module):
    """Two inputs, and a block of leaky ReLUs that is subtracted from its input."""

    def __init__(self, leak: float) -> None:
        super().__init__()
        self.first, self.inner, self.last = torch.nn.Linear(2, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
        self.act = torch.nn.LeakyReLU(leak)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.act(self.first(x))
        return self.last(self.act(z - self.inner(z)))


@pytest.mark.parametrize("seed", range(9))
def test_any_steps_slopes_splits_and_multipliers_give_bounds(seed: int, tmp_path: Path) -> None:
    """On a grid of the ball, and of the part of it where the splits of a leaf hold, nothing is below what is proved."""
    torch.manual_seed(seed)
    draw, num = np.random.default_rng(seed), Outward()
    net = plane_network(seed) if seed % 3 == 0 else Network(_Leaky(0.25 * (seed % 3 - 1)).double(), (2,)).eval()
    save(net, tmp_path / "net.safetensors")
    known = read(tmp_path / "net.safetensors", num)
    line, rules, ends = np.linspace(-1, 1, 81), list(RULES), np.cumsum([0, *known.relus.values()])
    grid = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    for p in (1, 2, math.inf):
        x, eps = draw.uniform(size=2), float(draw.choice([0.02, 0.1, 0.4]))
        z = x + eps * grid[np.linalg.norm(grid, ord=p, axis=1) <= 1]
        seen = [z[((z >= 0) & (z <= 1)).all(1)]]
        for node in known.nodes[1:]:
            seen.append(node.value(*(seen[source] for source in node.inputs)))
        steps = {
            str(place): [
                Step(str(draw.choice(rules)), *(draw.integers(2, size=2) > 0)) for _ in range(draw.integers(3))
            ]
            for place in range(len(known.nodes))
        }
        found = Bounds(known, Ball(num, p, eps, x, np.zeros(2), np.ones(2)), num, "float64")
        found.derive(steps, radii=True)
        for value, low, high, centre, radius in zip(
            seen, found.low, found.high, found.centre, found.radius, strict=True
        ):
            assert ((value >= low - 1e-12) & (value <= high + 1e-12)).all()
            assert (np.linalg.norm(value - centre, axis=1) <= radius + 1e-12).all()
        before = np.hstack([seen[known.nodes[at].inputs[0]] for at in known.relus])
        for rule in (*RULES, "leaf", "leaf", "leaf"):
            rows, given, inside = (
                draw.normal(size=(3, 3)),
                np.zeros((3, before.shape[1])),
                np.ones(len(before), dtype=bool),
            )
            if rule == "leaf":
                given[1] = (
                    draw.uniform(size=len(given[1])) if draw.integers(2) else draw.normal(size=len(given[1]), scale=3)
                )
                for unit in draw.choice(len(given[1]), draw.integers(4), replace=False):
                    sign = draw.choice([-1, 1])
                    given[:, unit] = sign, given[1, unit], draw.normal(scale=draw.choice([0.1, 10]))
                    inside &= sign * before[:, unit] >= 0
            leaf = dict(zip(known.relus, np.split(given, ends[1:-1], axis=1), strict=True))
            margins = found.margins(rows, Step(rule, *(draw.integers(2, size=2) > 0), leaf if rule == "leaf" else None))
            assert (seen[-1][inside] @ rows.T >= margins - 1e-12).all()


def test_balls_prove_what_boxes_do_not() -> None:
    """relu(z) - relu(-z) pairs of rotated units: over a ball the sum of 32 such terms moves by its length, not by its parts."""
    draw, num, n = np.random.default_rng(0), Outward(), 32
    turned = np.linalg.qr(draw.normal(size=(n, n)))[0]
    first, last = torch.nn.Linear(n, n, dtype=torch.float64), torch.nn.Linear(n, 2, dtype=torch.float64)
    first.weight.data, first.bias.data = torch.from_numpy(turned), torch.zeros(n, dtype=torch.float64)
    last.weight.data, last.bias.data = torch.zeros(2, n).double(), torch.tensor([1.02, 0.0]).double()
    last.weight.data[0] = -1 / math.sqrt(n)
    with tempfile.TemporaryDirectory() as folder:
        save(Network(torch.nn.Sequential(first, torch.nn.ReLU(), last), (n,)).eval(), Path(folder) / "net.safetensors")
        net = read(Path(folder) / "net.safetensors", num)
    free = np.full(n, math.inf)
    for eps, proved in ((1.0, True), (1.03, False)):
        bounds = Bounds(net, Ball(num, 2, eps, np.zeros(n), -free, free), num, None)
        bounds.derive({}, radii=True)
        rows = np.array([[1.0, -1.0]])
        assert (bounds.margins(rows, Step("interval", radii=True)) > 0).all() == proved
        assert not (bounds.margins(rows, Step("interval")) > 0).any()
