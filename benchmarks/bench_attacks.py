"""The smallest l2 perturbations of an FC1 by relucert and by foolbox 3.3.4 on the same points, in one run.

foolbox (`pip install foolbox==3.3.4`) is a dependency of this benchmark alone. Its DDN has 100 steps, its Carlini-Wagner
attack 9 binary-search steps of 1000 iterations; both are given the predicted classes, as ours is. Every distance is measured
anew from the returned points, and those that do not change the decision count as infinite.

    python benchmarks/bench_attacks.py [--model results/mnist-fc1-plain-inf --data mnist] [--points 100]
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import relucert as rc

ABOVE_DDN, BELOW_CW, SHARE = 1.005, 0.99, 0.2


def measured(net: rc.Network, x: Tensor, y: Tensor, run: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """The l2 distances of the points that an attack returns, and its seconds."""
    started = time.perf_counter()
    points = run()
    seconds = time.perf_counter() - started
    with torch.no_grad():
        changed = net.predict(points) != y
    inside = ((points >= 0) & (points <= 1)).flatten(1).all(1)
    distance = (points.double() - x.double()).flatten(1).norm(dim=1)
    return torch.where(changed & inside, distance, torch.inf), seconds


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model", default="results/mnist-fc1-plain-inf")
    options.add_argument("--data", default="mnist")
    options.add_argument("--points", type=int, default=100)
    given = options.parse_args()
    try:
        foolbox: Any = importlib.import_module("foolbox")
    except ModuleNotFoundError:
        print("attacks: skipped, for want of foolbox (pip install foolbox==3.3.4)")
        return
    torch.set_num_threads(2)
    net, x = rc.load(given.model), rc.dataset(given.data).x_test[: given.points]
    y = net.predict(x)
    model = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")

    def theirs(attack: Any) -> Callable[[], Tensor]:
        return lambda: attack(model, x, y, epsilons=None)[1]

    def ours(method: str) -> Callable[[], Tensor]:
        return lambda: rc.minimal_attack(net, x, y, 2, method=method).x

    ours("ddn(steps=2)")()  # warm up
    runs = {
        "foolbox DDN (100 steps)": theirs(foolbox.attacks.DDNAttack(steps=100)),
        "relucert ddn": ours("ddn"),
        "foolbox CW (9 x 1000)": theirs(foolbox.attacks.L2CarliniWagnerAttack(binary_search_steps=9, steps=1000)),
        "relucert best": ours("best"),
    }
    found: dict[str, tuple[Tensor, float]] = {}
    print(f"{given.model}, first {len(x)} points of {given.data}, l2 in the box")
    for name, run in runs.items():
        distance, seconds = found[name] = measured(net, x, y, run)
        print(
            f"  {name:24s} mean {float(distance.mean()):.5f}  median {float(distance.median()):.5f}  "
            f"failures {int(distance.isinf().sum())}  {seconds:7.2f} s",
            flush=True,
        )
    for name, beside, most, share in (
        ("relucert ddn", "foolbox DDN (100 steps)", ABOVE_DDN, 1.0),
        ("relucert best", "foolbox CW (9 x 1000)", BELOW_CW, SHARE),
    ):
        (distance, seconds), (other, baseline) = found[name], found[beside]
        print(
            f"  {name} against {beside}: {float(distance.mean() / other.mean()):.4f} times the mean norm (at most {most:g}) "
            f"in {seconds / baseline:.3f} of its time (at most {share:g}); never farther on "
            f"{float((distance <= other * (1 + 1e-6)).double().mean()):.0%} of the points"
        )


if __name__ == "__main__":
    main()
