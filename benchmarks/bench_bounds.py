"""Bounds of the paper's CNN on MNIST points against all nine other classes, in one run on two threads.

- `kw` against PyPI's convex_adversarial 0.4.4, Wong and Kolter's own code: the same margins (no box, float32), times faster.
- `alpha` with 20 steps against `crown`.
- certified radii to 1 % of 1000 points by `crown` against one `crown` pass over them.

    pip install convex_adversarial==0.4.4
    RELUCERT_DATA=FOLDER python benchmarks/bench_bounds.py [--model results/mnist-cnn-kw-inf] [--points 100]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch
from torch import Tensor

import relucert as rc
from measure import peak_gigabytes, timed
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.bounding.methods.kw import KW
from relucert.core.properties import class_stays
from relucert.networks.architectures import cnn

EPS = 0.1
FASTER, GIGABYTES, AGREE = 5.0, 1.0, 1e-4  # than convex_adversarial; of memory; of margins
ALPHA, RADII = 6.0, 12.0  # times crown, at most
CASES = ("kw", "alpha", "radii")


def theirs(net: rc.Network, x: Tensor, y: Tensor, chunk: int = 10) -> Tensor:
    """The margins of convex_adversarial, (batch, classes), 0 for the own class; in pieces, as its memory grows fast."""
    from convex_adversarial import RobustBounds  # pyright: ignore[reportMissingImports]

    module = cnn(net.input_shape, net.classes)
    with torch.no_grad():
        for mine, weight in zip(module.parameters(), net.parameters(), strict=True):
            mine.copy_(weight)
        assert bool(torch.isclose(module(x[:5]), net(x[:5]), atol=1e-4).all()), "the network is not the paper's CNN"
        bounds = RobustBounds(module, EPS)
        return torch.cat([-bounds(part, labels) for part, labels in zip(x.split(chunk), y.split(chunk), strict=True)])


def compare_kw(net: rc.Network, x: Tensor, y: Tensor, repeats: int) -> None:
    prop, ball = class_stays(y, net.classes, dtype=x.dtype), rc.Ball(float("inf"), EPS, None)
    before = peak_gigabytes()
    with torch.no_grad():
        ours = timed(lambda: KW().solve(net, x, ball, prop), repeats)
        mine = KW().solve(net, x, ball, prop)[1]
    memory = peak_gigabytes() - before
    started = time.perf_counter()
    other = theirs(net, x, y)
    seconds = time.perf_counter() - started
    own = torch.nn.functional.one_hot(y, net.classes).bool()
    apart = float((other[~own].reshape(len(x), -1) - mine).abs().max())
    print(
        f"kw, {len(x)} points: {ours:.2f} s, convex_adversarial {seconds:.1f} s, {seconds / ours:.1f} times slower (floor "
        f"{FASTER:g}); {memory:.2f} GB more at the peak (limit {GIGABYTES:g}); margins agree to {apart:.1e} (limit {AGREE:g})"
    )


def compare_alpha(net: rc.Network, x: Tensor, y: Tensor, repeats: int) -> None:
    for p, eps in ((float("inf"), EPS), (2.0, 0.3)):
        prop, ball = class_stays(y, net.classes, dtype=x.dtype), rc.Ball(p, eps)
        with torch.no_grad():
            crown = timed(lambda ball=ball, prop=prop: CROWN().solve(net, x, ball, prop), repeats)
        alpha = timed(lambda ball=ball, prop=prop: Alpha(steps=20).solve(net, x, ball, prop), repeats)
        print(
            f"alpha (20 steps), {len(x)} points, l_{p:g} with box: {alpha:.2f} s, crown {crown:.2f} s, "
            f"{alpha / crown:.1f} times (at most {ALPHA:g} in l_inf)"
        )


def compare_radii(net: rc.Network, x: Tensor, y: Tensor) -> None:
    started = time.perf_counter()
    once = rc.certify(net, x, y, rc.Ball(float("inf"), EPS), "crown")
    passing = time.perf_counter() - started
    started = time.perf_counter()
    found = rc.radius(net, x, y, p=float("inf"), method="crown")
    radii = time.perf_counter() - started
    robust = sum(str(verdict) == "robust" for verdict in once.verdict)
    assert int((found.lower >= EPS).sum()) >= robust - len(x) // 100, "a pass proves much more than the search"
    print(
        f"radii by crown, {len(x)} points: {radii:.1f} s, one pass {passing:.1f} s, {radii / passing:.1f} times (at most "
        f"{RADII:g}); mean {float(found.lower.mean()):.4f}, {robust} proved at {EPS:g}"
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model", default="results/mnist-cnn-kw-inf")
    options.add_argument("--points", type=int, default=100)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--case", choices=CASES, help="one case only, in this process")
    given = options.parse_args()
    if given.case is None:
        for case in CASES:  # a process each, so that the peak of memory is the case's own
            settings = ["--case", case, "--model", given.model, "--points", str(given.points)]
            subprocess.run([sys.executable, __file__, *settings, "--repeats", str(given.repeats)], check=True)
        return
    torch.set_num_threads(2)
    net, data = rc.load(given.model), rc.dataset("mnist")
    count = 10 * given.points if given.case == "radii" else given.points
    x = data.x_test[:count]
    y = net.predict(x)
    if given.case == "kw":
        compare_kw(net, x, y, given.repeats)
    elif given.case == "alpha":
        compare_alpha(net, x, y, given.repeats)
    else:
        compare_radii(net, x, y)


if __name__ == "__main__":
    main()
