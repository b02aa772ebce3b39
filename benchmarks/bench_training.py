"""Steps of KW training: ours against the straightforward formulation, in one run on one thread.

The plain step pulls the rows of all unstable units and of all margins back under autograd. Losses and gradients are compared:
both must agree to 1e-5. The states are random weights, where almost all units are unstable, and a network of results/ on MNIST.
Steps of MMR training are in bench_mmr.py.

In training neither state lasts: the ball grows from a tenth of eps over the first two fifths of a run, and the weights follow.
So a run from scratch goes through the scheme's own schedule in few steps (`--steps`), and the seconds of its steps are printed
for every tenth of it. Weights have fewer steps behind them at each radius than in a run of many epochs, which leaves more units
unstable: what is printed is rather too slow than too fast. With `--schedule` the steps are the first ones of a longer run.

    python benchmarks/bench_training.py [--batch 128] [--repeats 5] [--steps 300] [--schedule 46900]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import relucert as rc
from measure import interleaved
from relucert.bounding._gradient_bounds import GradientBounds
from relucert.core.ball import Ball
from relucert.data import Dataset
from relucert.networks.network import Network
from relucert.training._schedules import Tightening
from relucert.training.losses.bounded import Bounded, worst_cross_entropy
from relucert.training.losses.loss import StepContext
from relucert.training.recipes import EPS, Setting
from relucert.training.schemes.bounded import KWTraining

RESULTS = Path(__file__).resolve().parent.parent / "results"
KW = ((None, 0.1), ("mnist-cnn-kw-inf", 0.0775), ("mnist-cnn-kw-inf", 0.1))  # folder, or fresh weights; eps
EXAMPLES = 60000  # of an epoch of MNIST
STAGES = 10  # of a run, of which seconds are printed


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
    print(f"{now * EXAMPLES / given.batch:.0f} s an epoch; ", end="")
    print(f"losses differ by {gaps[0]:.0e}, gradients by {gaps[1]:.0e}", flush=True)
    return before / now


def along_schedule(data: Dataset, given: argparse.Namespace) -> None:
    """Train from scratch by the scheme's schedule in few steps, and print the seconds of an epoch at each stage of it."""
    torch.manual_seed(0)
    net = rc.build("cnn", (1, 28, 28), 10)
    setting = Setting("mnist", "cnn", math.inf, eps=EPS["mnist"][math.inf])
    loss = KWTraining().filled(setting).loss(setting)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    total = given.schedule or given.steps
    means: list[float] = []
    for stage in range(STAGES):
        seconds, radii, robust = [], [], []
        for number in range(stage * given.steps // STAGES, (stage + 1) * given.steps // STAGES):
            chosen = torch.randint(len(data.x_train), (given.batch,), generator=generator)
            started = time.process_time()
            terms = loss(net, data.x_train[chosen], data.y_train[chosen], StepContext(number / total, generator))
            optimiser.zero_grad(set_to_none=True)
            terms.loss.backward()
            optimiser.step()
            seconds.append(time.process_time() - started)
            radii.append(float(terms.parts["radius"]))
            robust.append(float(terms.parts["robust"]))
        means.append(statistics.fmean(seconds))
        print(f"  from scratch, to step {(stage + 1) * given.steps // STAGES} of {total}: ", end="")
        print(f"eps {radii[0]:.3f} to {radii[-1]:.3f}, robust loss {statistics.fmean(robust):.2f}, ", end="")
        print(f"{means[-1] * 1e3:.0f} ms a step, {means[-1] * EXAMPLES / given.batch:.0f} s an epoch", flush=True)
    epoch = statistics.fmean(means) * EXAMPLES / given.batch
    print(f"from scratch: {epoch:.0f} s an epoch in the mean of {given.steps} steps")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--steps", type=int, default=300, help="of the run from scratch")
    options.add_argument("--schedule", type=int, help="steps of the run that they are the first ones of")
    given = options.parse_args()
    torch.set_num_threads(1)
    data = rc.dataset("mnist")
    print("kw along its schedule (at most 150 s an epoch)", flush=True)
    along_schedule(data, given)
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
