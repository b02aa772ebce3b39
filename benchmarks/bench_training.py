"""Steps of MMR and KW training: ours against the straightforward formulation, in one run on one thread.

The plain step of MMR makes all rows of V under autograd and takes the nearest hyperplanes from them. The plain step of KW pulls
the rows of all unstable units and of all margins back under autograd. Both are what this package did before rows were
screened. Losses and gradients are compared: both must agree to 1e-5.

The networks are those of results/ on MNIST, if the data is there: trained ones, because on random weights nothing is like
training.

    python benchmarks/bench_training.py [--batch 128] [--repeats 5]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import relucert as rc
from measure import interleaved
from relucert.bounding._gradient_bounds import GradientBounds
from relucert.core.ball import Ball
from relucert.geometry.distances import free_distances
from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.regularizers.mmr import MMRParameters, mmr_terms
from relucert.training._schedules import Tightening
from relucert.training.losses.bounded import Bounded, worst_cross_entropy

RESULTS = Path(__file__).resolve().parent.parent / "results"
#: Folder, gamma, share k_B of the units; how many times faster than the plain step it should be.
MMR = (
    ("mnist-cnn-mmr+at-inf", 0.2, 0.1, 2.5),
    ("mnist-cnn-mmr+at-inf", 0.2, 0.02, 2.5),
    ("mnist-fc1-mmr-inf", 0.1, 0.1, 1.6),
)
KW = (("mnist-cnn-kw-inf", 0.0775), ("mnist-cnn-kw-inf", 0.1))
STEPS = 469  # of an epoch of MNIST


def mmr_loss(net: Network, x: Tensor, y: Tensor, gamma: float, share: float, *, plain: bool) -> Tensor:
    """Cross-entropy plus MMR (l_inf) with k_B hyperplanes of units and all decision hyperplanes."""
    region, values, logits = LinearRegion.evaluated(net, x)
    margins = region.margins_of(values, x)
    k_b, k_d = round(share * region.count), net.classes
    if not plain:
        parameters = MMRParameters(p=math.inf, gamma_b=gamma, gamma_d=gamma, k_b=k_b, k_d=k_d)
        return F.cross_entropy(logits, y) + mmr_terms(region, margins, logits, y, parameters).total.mean()
    units, classes = free_distances(region, margins, logits, y, math.inf)
    near = (1 - units.topk(k_b, largest=False).values / gamma).clamp(min=0).sum(1) / k_b
    return F.cross_entropy(logits, y) + (near + (1 - classes / gamma).clamp(min=0).sum(1) / k_d).mean()


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
    for folder, gamma, share, floor in MMR:
        net = rc.load(RESULTS / folder / "model.safetensors").eval()
        plain, ours = (
            lambda plain=plain, net=net, gamma=gamma, share=share: mmr_loss(net, x, y, gamma, share, plain=plain)
            for plain in (True, False)
        )
        compare(f"{folder}, mmr, k_B {share:.0%} (floor {floor:g})", net, plain, ours, given)
    for folder, eps in KW:
        net = rc.load(RESULTS / folder / "model.safetensors").eval()
        plain, ours = (
            lambda plain=plain, net=net, eps=eps: kw_loss(net, x, y, eps, plain=plain) for plain in (True, False)
        )
        compare(f"{folder}, kw, eps {eps:g} (at most 150 s an epoch)", net, plain, ours, given)


if __name__ == "__main__":
    main()
