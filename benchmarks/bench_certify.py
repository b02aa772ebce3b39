"""`rc.certify` to verdicts, as a user calls it, beside convex_adversarial in the same run.

T is the time of PyPI's convex_adversarial 0.4.4, Wong and Kolter's own code, for its margins of 100 MNIST points at l_inf 0.1
against all other classes. Beside it `rc.certify` decides the same points, with the box [0, 1] and the network in float32 as
loaded, by `kw`, `crown` and `alpha`; the rounds of all four alternate, and the fastest of each counts: other load only adds,
and adds more to T, whose threads wait for each other. Then `auto` decides ten times as many points
completely. Floors: kw T/5, crown T/6, alpha T/3, auto 10 T with 0 UNKNOWN, below 1 GB of memory. For comparison the inner call
of kw, margins without rounding charged and without verdicts.

    pip install convex_adversarial==0.4.4
    RELUCERT_DATA=FOLDER python benchmarks/bench_certify.py ../shared/models/mmr_universal/mnist.mat [--points 100 --threads 2]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

import relucert as rc
from bench_bounds import EPS, theirs
from measure import peak_gigabytes
from relucert.bounding.methods.kw import KW
from relucert.core.properties import class_stays

MODEL = Path("../shared/models/mmr_universal/mnist.mat")
#: At most so many times T.
FLOORS = {"kw": 1 / 5, "crown": 1 / 6, "alpha": 1 / 3}
AUTO, GIGABYTES = 10.0, 1.0


def seconds(run: Callable[[], object]) -> float:
    """The seconds of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("model", type=Path, nargs="?", default=MODEL)
    options.add_argument("--points", type=int, default=100)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=2)
    given = options.parse_args()
    if not given.model.exists():
        print(f"certify: skipped, for want of {given.model}")
        return
    torch.set_num_threads(given.threads)
    net, data, ball = rc.load(given.model), rc.dataset("mnist"), rc.Ball(math.inf, EPS)
    x, y = data.x_test[: given.points], data.y_test[: given.points]
    before = peak_gigabytes()
    found = {name: rc.certify(net, x, y, ball, name) for name in FLOORS}
    memory = peak_gigabytes() - before
    prop, free = class_stays(y, net.classes, dtype=x.dtype), rc.Ball(math.inf, EPS, None)

    def margins() -> None:
        with torch.no_grad():
            KW().solve(net, x, free, prop)

    runs: dict[str, Callable[[], object]] = {"T": lambda: theirs(net, x, y), "inner kw": margins}
    runs |= {name: lambda name=name: rc.certify(net, x, y, ball, name) for name in FLOORS}
    every: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(given.rounds):
        for name, run in runs.items():
            every[name].append(seconds(run))
    times = {name: min(some) for name, some in every.items()}
    unit = times["T"]
    print(f"convex_adversarial, {len(x)} points: T = {unit:.2f} s; margins of kw alone {times['inner kw']:.2f} s")
    for name, floor in FLOORS.items():
        robust = found[name].verdict.count(rc.Verdict.ROBUST)
        print(
            f"certify by {name}, {len(x)} points: {times[name]:.2f} s = T / {unit / times[name]:.1f} (floor T / "
            f"{1 / floor:g}); {robust} robust; {memory:.2f} GB more at the peak of all three (limit {GIGABYTES:g})"
        )
    x, y = data.x_test[: 10 * given.points], data.y_test[: 10 * given.points]
    started = time.perf_counter()
    complete = rc.certify(net, x, y, ball, "auto")
    took = time.perf_counter() - started
    counts = {str(verdict): complete.verdict.count(verdict) for verdict in rc.Verdict}
    print(
        f"certify by auto, {len(x)} points: {took:.1f} s = {took / unit:.1f} T (at most {AUTO:g} T); "
        f"{counts['unknown']} unknown, {counts['robust']} robust, {counts['vulnerable']} vulnerable; "
        f"{peak_gigabytes():.2f} GB at the peak of this process"
    )


if __name__ == "__main__":
    main()
