"""Steps of KW training: ours against the straightforward formulation, in one run on one thread.

The plain step pulls the rows of all unstable units and of all margins back under autograd. Losses and gradients are compared:
both must agree to 1e-5. The states are random weights, where almost all units are unstable, and a network of results/ on MNIST.
Steps of MMR training are in bench_mmr.py.

    python benchmarks/bench_training.py [--batch 128] [--repeats 5]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import relucert as rc
from measure import interleaved
from relucert.bounding._gradient_bounds import GradientBounds
from relucert.core.ball import Ball
from relucert.networks.network import Network
from relucert.training._schedules import Tightening
from relucert.training.losses.bounded import Bounded, worst_cross_entropy

RESULTS = Path(__file__).resolve().parent.parent / "results"
KW = ((None, 0.1), ("mnist-cnn-kw-inf", 0.0775), ("mnist-cnn-kw-inf", 0.1))  # folder, or fresh weights; eps
STEPS = 469  # of an epoch of MNIST


def kw_loss(net: Network, x: Tensor, y: Tensor, eps: float, *, plain: bool) -> Tensor:
    """Kolter and Wong's worst-case cross-entropy over the ball."""
    serves = GradientBounds.serves
    loss = Bounded(method="kw", ball=Ball(math.inf, eps), tightening=Tightening(0, 1))
    try:
        if plain:
            GradientBounds.serves = lambda self, relaxations: False  # type: ignore[method-assign]
        return worst_cross_entropy(loss.margins(net, x, y)).mean()
    finally:
        GradientBounds.serves = serves  # type: ignore[method-assign]


def step(net: Network, loss: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """The loss and the gradient of one step, all weights in one tensor."""
    net.zero_grad(set_to_none=True)
    value = loss()
    value.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in net.parameters() if weight.grad is not None])
    return float(value.detach()), gradient


def compare(
    name: str, net: Network, plain: Callable[[], Tensor], ours: Callable[[], Tensor], given: argparse.Namespace
) -> float:
    """Print a line about two steps, and return the ratio of their seconds."""
    (loss, gradient), (same, other) = step(net, plain), step(net, ours)
    gaps = abs(same - loss) / abs(loss), float((other - gradient).norm() / gradient.norm())
    if max(gaps) > 1e-5:
        raise AssertionError(f"{name}: losses differ by {gaps[0]:.1e}, gradients by {gaps[1]:.1e}")
    before, now = interleaved([lambda: step(net, plain), lambda: step(net, ours)], given.repeats)
    print(f"{name}: plain {before * 1e3:.0f} ms, ours {now * 1e3:.0f} ms, {before / now:.2f} times faster; ", end="")
    print(f"{now * STEPS:.0f} s an epoch; losses differ by {gaps[0]:.0e}, gradients by {gaps[1]:.0e}", flush=True)
    return before / now


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    torch.set_num_threads(1)
    data = rc.dataset("mnist")
    x, y = data.x_train[: given.batch], data.y_train[: given.batch]
    for folder, eps in KW:
        torch.manual_seed(0)
        net = rc.load(RESULTS / folder / "model.safetensors") if folder else rc.build("cnn", (1, 28, 28), 10)
        net.eval().requires_grad_(True)
        plain, ours = (
            lambda plain=plain, net=net, eps=eps: kw_loss(net, x, y, eps, plain=plain) for plain in (True, False)
        )
        compare(f"{folder or 'fresh weights'}, kw, eps {eps:g} (at most 150 s an epoch)", net, plain, ours, given)


if __name__ == "__main__":
    main()
