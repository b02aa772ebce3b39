"""Proved radii with box and five regions on FC1 against a Carlini-Wagner attack on the same points, in one run.

The attack is the paper's (untargeted l2, 20 binary-search steps on the constant, Adam with rate 0.01 in tanh space), with
1000 iterations instead of 10000: the baseline is ten times cheaper than what the paper ran.

    python benchmarks/bench_radius.py [--model PATH --data mnist] [--points 100]

With `--curve` the mean proved radius and the share of exact points over the number of neighbours and over the seconds of a
point, beside those of CROWN alone and of the search that starts from CROWN's radius:

    python benchmarks/bench_radius.py --curve --model results/mnist-fc1-mmr-2/model.safetensors --data mnist
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

import relucert as rc

FLOOR = 50.0
NEIGHBOURS = (0, 5, 30, 100, 300, 1000)
SECONDS = (0.05, 0.2, 1.0)


def carlini_wagner(net: rc.Network, x: Tensor, y: Tensor, searches: int = 20, iterations: int = 1000) -> Tensor:
    """The l2 distances of the nearest adversarial points found."""
    low, high = torch.zeros(len(x)), torch.full((len(x),), 1e10)
    constant = torch.full((len(x),), 1e-3)
    best = torch.full((len(x),), torch.inf)
    start = torch.atanh((2 * x - 1) * 0.999999)
    for _ in range(searches):
        w = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([w], lr=0.01)
        hit = torch.zeros(len(x), dtype=torch.bool)
        for _ in range(iterations):
            z = (torch.tanh(w) + 1) / 2
            logits = net(z)
            own = logits.gather(1, y[:, None])[:, 0]
            other = logits.scatter(1, y[:, None], -torch.inf).amax(1)
            square = (z - x).flatten(1).square().sum(1)
            loss = (square + constant * (own - other).clamp(min=0)).sum()
            found = (other > own).detach()
            distance = square.detach().sqrt()
            best = torch.where(found & (distance < best), distance, best)
            hit |= found
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        high = torch.where(hit, torch.minimum(high, constant), high)
        low = torch.where(hit, low, torch.maximum(low, constant))
        constant = torch.where(high < 1e9, (low + high) / 2, constant * 10)
    return best


def curve(net: rc.Network, x: Tensor, y: Tensor) -> None:
    """Print mean lower, share exact and seconds a point of the exploration, by neighbours and by seconds."""
    limited = [rc.Region(regions=count) for count in NEIGHBOURS]
    timed = [rc.Region(regions=None, seconds=seconds) for seconds in SECONDS]
    started = rc.Region(regions=None, seconds=SECONDS[-1], start="crown")
    print(f"{'method':45} {'mean lower':>10} {'mean upper':>10} {'exact':>6} {'s a point':>9}")
    for method in (*limited, *timed, rc.CROWN(), started):
        begun = time.perf_counter()
        found = rc.radius(net, x, y, p=2, box=(0, 1), method=method)
        seconds = (time.perf_counter() - begun) / len(x)
        known = found.upper[found.upper.isfinite()]
        shown = method.name
        if isinstance(method, rc.Region):
            shown += ", no limit" if method.regions is None else f", {method.regions} neighbours"
            shown += "" if method.seconds is None else f", {method.seconds:g} s"
            shown += "" if method.start is None else f", from {method.start}"
        print(
            f"{shown:45} {float(found.lower.mean()):10.4f} {float(known.mean()):10.4f} "
            f"{float(found.exact.float().mean()):6.0%} {seconds:9.4f}",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model")
    options.add_argument("--data", default="mnist")
    options.add_argument("--points", type=int, default=100)
    options.add_argument("--curve", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(2)
    if given.model:
        net, x = rc.load(given.model), rc.dataset(given.data).x_test[: given.points]
    else:
        net = rc.build("fc1", (1, 28, 28), 10).eval()
        x = torch.rand(given.points, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = net.predict(x)
    if given.curve:
        curve(net, x, y)
        return
    started = time.perf_counter()
    found = rc.radius(net, x, y, p=2, box=(0, 1), method=rc.Region(regions=5))
    ours = time.perf_counter() - started
    started = time.perf_counter()
    distance = carlini_wagner(net, x, y)
    baseline = time.perf_counter() - started
    assert bool((found.lower <= distance).all()), "an attack came below a proved radius"
    print(
        f"fc1, {len(x)} points, l2 with box: CW (20 x 1000) {baseline:.1f} s, radius (5 regions) {ours:.2f} s, "
        f"{baseline / ours:.0f} times faster (floor {FLOOR:g}); mean lower {float(found.lower.mean()):.4f}, mean CW "
        f"{float(distance.mean()):.4f}, exact {float(found.exact.float().mean()):.0%}"
    )


if __name__ == "__main__":
    main()
