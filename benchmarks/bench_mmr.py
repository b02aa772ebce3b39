"""A full MMR training step (forward, backward, Adam) against two baselines, in one run.

- All rows: the norms of all rows with gradients, by products of blocks (`geometry.distances.free_distances`). This is how a
  step was made before rows were screened and shared, and what has changed in its functions since is put back
  (`as_before`): torch's own matrix products, gradients of picked rows by adding them up. Steps of both kinds take turns, and
  ratios are of processor seconds, so that they hold on a busy machine. Losses and gradients are compared.
- Dense: the formulation of the paper's code, batch x d identity columns through every layer under autograd, in chunks of 16
  examples, as it needs tens of gigabytes otherwise. For the CNN alone.

The loss is that of l_inf with k_B = 10 % of the units and k_D = K. States are weights after 20 plain steps, on noise and on
MNIST, and those of networks trained with MMR, where `results/` and the data set are there. MNIST has empty borders, where many
patterns are equal; noise has none.

Beside each ratio stands the floor: the multiplications that our step makes, every matrix product and convolution of it counted,
at the rate of one large matrix product in the same run. With these rows a step cannot be faster in any layout of memory. For
the CNN at MNIST's shape, one thread of a busy AMD EPYC, in milliseconds:

    state                     all rows   ours   times faster   floor
    noise                        402      358       1.12        98
    MNIST, 20 plain steps        381      227       1.68        62
    MNIST, trained               388      248       1.57        59

All rows take 5.8 G multiplications at a quarter of that rate, ours 5.7 to 9.0 G: fewer rows of units, but those of hidden
matrix and classes with a gradient are made again one by one. 2.5 times faster, which was aimed at, is not reached.

    python benchmarks/bench_mmr.py [--batch 128] [--repeats 3] [--threads 2]
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import relucert as rc
from measure import interleaved, peak_gigabytes, timed
from relucert.core import products
from relucert.core.norms import norm_slope
from relucert.geometry.distances import free_distances
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms import row_norms
from relucert.geometry.row_norms._product_norms import SharedProductNorms
from relucert.geometry.row_norms.chain_rows import gate, other_classes
from relucert.networks import local_rows
from relucert.networks.affine_map import Step
from relucert.networks.network import Network
from relucert.training._schedules import Count, Schedule
from relucert.training.losses.loss import Loss, StepContext
from relucert.training.losses.maximum_margin import MaximumMargin
from relucert.training.losses.plain import Plain

GAMMA, LAM = 0.2, 1.0
FLOOR, LIMITS = 8.0, {(1, 28, 28): 1.5, (3, 32, 32): 4.0}  # times faster than dense; GB
AT_MOST = {"fc1": 12.0}  # times a plain step
GAP = 1e-5  # of losses and gradients


def dense_loss(module: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy plus MMR (l_inf) of some examples, every row made by columns of the identity; their sum."""
    size = math.prod(x.shape[1:])
    columns = torch.eye(size).reshape(1, size, *x.shape[1:]).expand(len(x), -1, *x.shape[1:]).flatten(0, 1)
    value, distances = x, []
    for layer in module:
        before, value = value, layer(value)
        if isinstance(layer, nn.Conv2d):
            columns = F.conv2d(columns, layer.weight, None, layer.stride, layer.padding)
        elif isinstance(layer, nn.Linear):
            columns = F.linear(columns, layer.weight)
        elif isinstance(layer, nn.Flatten):
            columns = columns.flatten(1)
        elif isinstance(layer, nn.ReLU):
            rows = columns.reshape(len(x), size, -1)
            lengths = rows.abs().sum(1)
            void = lengths == 0
            distances.append((before.flatten(1).abs() / lengths.masked_fill(void, 1.0)).masked_fill(void, math.inf))
            gate = (value > 0).to(rows.dtype).flatten(1)
            columns = (rows * gate[:, None]).reshape(columns.shape)
    rows = columns.reshape(len(x), size, -1)
    own = rows.gather(2, y[:, None, None].expand(-1, size, 1))
    lead = value.gather(1, y[:, None]) - value
    other = ~F.one_hot(y, value.shape[1]).bool()
    classes = (lead / (own - rows).abs().sum(1).masked_fill(~other, 1.0)).masked_fill(~other, math.inf)
    every = torch.cat(distances, 1)
    k_b = round(0.1 * every.shape[1])
    hyperplanes = (1 - every.topk(k_b, largest=False).values / GAMMA).clamp(min=0).sum(1) / k_b
    mmr = hyperplanes + (1 - classes / GAMMA).clamp(min=0).sum(1) / value.shape[1]
    return F.cross_entropy(value, y, reduction="sum") + LAM * mmr.sum()


def all_rows_loss(net: Network, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy plus MMR (l_inf) from the distances to all hyperplanes; the mean."""
    region, values, logits = LinearRegion.evaluated(net, x)
    every, classes = free_distances(region, region.margins_of(values, x), logits, y, math.inf)
    k_b = round(0.1 * every.shape[1])
    near = (1 - every.topk(k_b, largest=False, sorted=False).values / GAMMA).clamp(min=0).sum(1) / k_b
    hinge = (1 - classes / GAMMA).clamp(min=0)
    # A difference of logits that is a negative constant has no hyperplane, and no gradient.
    hinge = torch.where(classes == -math.inf, torch.zeros_like(hinge), hinge)
    return F.cross_entropy(logits, y) + LAM * (near + hinge.sum(1) / logits.shape[1]).mean()


def coefficients_before(region: LinearRegion, last: Step, y: Tensor) -> Tensor:
    """What `class_coefficients` was: rows are picked, and their gradients added up one by one."""
    weight = last.weight()
    slopes = gate(region, len(region.hyperplanes) - 1).flatten(1)
    return (weight[y][:, None] - weight[other_classes(y, len(weight))]) * slopes[:, None]


def products_before(inner: Tensor, outer: Tensor, kind: tuple[local_rows.Taps, ...]) -> Tensor:
    """What `local_rows.products` was: a product with eight axes."""
    rows_in, rows_out, columns_in, columns_out = (torch.tensor(taps) for taps in kind)
    near = F.pad(inner, (0, 1, 0, 1))[:, :, rows_in][..., columns_in]
    far = F.pad(outer, (0, 1, 0, 1))[:, :, rows_out][..., columns_out]
    near = near.permute(1, 2, 4, 3, 5, 0)[:, :, :, None, None, None]
    return (near * far.permute(2, 4, 0, 3, 5, 1)).flatten(0, 5).flatten(1)


class SharedBefore(SharedProductNorms):
    """What the gradient of `SharedProductNorms` was: rows with a gradient are always copied."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        coefficients, rows, made, lengths = ctx.saved_tensors
        gradient = gradients[0].flatten()
        chosen = gradient.nonzero()[:, 0]
        slope = norm_slope(made[chosen], lengths[chosen, None], ctx.q, None) * gradient[chosen, None]
        found = torch.zeros_like(coefficients)
        found.view(-1, coefficients.shape[2])[chosen] = slope @ rows.T
        return found, coefficients.flatten(0, 1)[chosen].T @ slope, None


@contextmanager
def as_before() -> Iterator[None]:
    """The functions behind `free_distances` as they were before the steps were made faster."""
    with ExitStack() as stack:
        for module, name, value in (
            (products, "LEAST", math.inf),  # no product goes through oneDNN
            (row_norms, "class_coefficients", coefficients_before),
            (row_norms, "SharedProductNorms", SharedBefore),
            (local_rows, "products", products_before),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def multiplications(run: Callable[[], object]) -> float:
    """The multiplications of all matrix products and convolutions of a step."""

    def linear(left: torch.Size, right: torch.Size, *_: object, out_shape: object = None, **__: object) -> int:
        return 2 * math.prod(left) * right[0]

    known = {torch.ops.mkldnn._linear_pointwise: linear}
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        run()
    return counter.get_total_flops() / 2


def seconds_a_multiplication(repeats: int) -> float:
    """Processor seconds of one multiplication in a large matrix product."""
    size = 1536
    left, right = torch.rand(size, size), torch.rand(size, size)
    (seconds,) = interleaved([lambda: products.product(left, right)], repeats)
    return seconds / size**3


def all_rows_step(net: Network, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step of the baseline that makes all rows; the loss before it."""
    with as_before():
        loss = all_rows_loss(net, x, y)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
    optimiser.step()
    return float(loss.detach())


def against_all_rows(mmr: Loss, net: Network, x: Tensor, y: Tensor, repeats: int) -> str:
    """Both kinds of step in turn, from the same weights: how much faster ours is, and whether both are the same."""
    still = torch.optim.SGD(net.parameters(), lr=0.0)  # every repetition has the same weights
    found = []
    for run in (lambda: all_rows_step(net, still, x, y), lambda: step(mmr, net, still, x, y)):
        loss = run()
        slopes = [weight.grad.flatten() for weight in net.parameters() if weight.grad is not None]
        found.append((loss, torch.cat(slopes)))
    (one, first), (two, second) = found
    gap = max(abs(one - two) / abs(one), float((first - second).norm() / first.norm()))
    if gap > GAP:
        raise SystemExit(f"losses or gradients differ by {gap:.1e}, more than {GAP}")
    before, now = interleaved([lambda: all_rows_step(net, still, x, y), lambda: step(mmr, net, still, x, y)], repeats)
    count, rate = multiplications(lambda: step(mmr, net, still, x, y)), seconds_a_multiplication(repeats)
    return (
        f"all rows {before * 1e3:.0f} ms, ours {now * 1e3:.0f} ms, {before / now:.2f} times faster (gap {gap:.0e}); "
        f"floor {count * rate * 1e3:.0f} ms ({count / 1e9:.1f} G multiplications)"
    )


def dense_step(net: Network, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor, chunk: int = 16) -> float:
    """One step of the baseline; the mean loss before it."""
    assert isinstance(net.module, nn.Sequential)
    optimiser.zero_grad(set_to_none=True)
    total = 0.0
    for part, labels in zip(x.split(chunk), y.split(chunk), strict=True):
        loss = dense_loss(net.module, part, labels) / len(x)
        loss.backward()
        total += float(loss.detach())
    optimiser.step()
    return total


def step(scheme: Loss, net: Network, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step of ours; the loss before it."""
    terms = scheme(net, x, y, StepContext(0.999 / 9, torch.Generator()))
    optimiser.zero_grad(set_to_none=True)
    terms.loss.backward()
    optimiser.step()
    return float(terms.loss.detach())


def fresh(model: str, shape: tuple[int, int, int], x: Tensor, y: Tensor) -> tuple[Network, torch.optim.Optimizer]:
    """A network after some plain steps, so that patterns are not those of random weights."""
    net = rc.build(model, shape, 10).eval()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(20):
        step(Plain(), net, optimiser, x, y)
    return net, optimiser


TRAINED = {"fc1": "mnist-fc1-mmr-inf", "cnn": "mnist-cnn-mmr+at-inf"}  # folders of results/


def mnist_states(model: str, batch: int) -> dict[str, tuple[Network, Tensor, Tensor]]:
    """Networks on MNIST with a batch of it, by name; none without the data or the trained weights."""
    path = Path(__file__).parent.parent / "results" / TRAINED[model] / "model.safetensors"
    try:
        known, data = rc.load(path), rc.dataset("mnist")
    except (OSError, ValueError):
        return {}
    known.requires_grad_(True)
    x, y = data.x_train[:batch], data.y_train[:batch]
    net, _ = fresh(model, (1, 28, 28), x, y)
    return {"MNIST, 20 plain steps": (net, x, y), f"MNIST, {TRAINED[model]}": (known, x, y)}


CASES: tuple[tuple[str, tuple[int, int, int]], ...] = (("fc1", (1, 28, 28)), ("cnn", (1, 28, 28)), ("cnn", (3, 32, 32)))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--case", type=int, choices=range(len(CASES)), help="one case only, in this process")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if given.case is not None:
        model, shape = CASES[int(given.case)]
        compare(model, shape, given.batch, given.repeats)
        return
    for case in range(len(CASES)):  # a process each, so that the peak of memory is the case's own
        settings = ["--case", str(case), "--batch", str(given.batch), "--repeats", str(given.repeats)]
        settings += ["--threads", str(given.threads)]
        subprocess.run([sys.executable, __file__, *settings], check=True)


def compare(model: str, shape: tuple[int, int, int], batch: int, repeats: int) -> None:
    """Time plain, MMR and all-rows steps, and for the CNN dense ones, and print them."""
    schedule = Schedule(Count(0.1, 0.1, shares=True), Count(1.0, 1.0, shares=True))
    mmr = MaximumMargin(p=math.inf, lam=LAM, gamma_b=GAMMA, gamma_d=GAMMA, schedule=schedule)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, *shape, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    net, optimiser = fresh(model, shape, x, y)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    plain = timed(lambda: step(Plain(), net, optimiser, x, y), 5 * repeats)
    before = peak_gigabytes()
    ours = timed(lambda: step(mmr, net, optimiser, x, y), repeats)
    memory = peak_gigabytes() - before
    at_most = f" (at most {AT_MOST[model]:g})" if model in AT_MOST else ""
    print(f"{model} {shape}, batch {batch}: plain {plain * 1e3:.1f} ms, mmr {ours * 1e3:.0f} ms, ", end="")
    print(f"{ours / plain:.1f} plain steps{at_most}; {memory:.2f} GB more at the peak", end="", flush=True)
    net.load_state_dict(weights)
    states = mnist_states(model, batch) if shape == (1, 28, 28) else {}
    for name, (some, images, labels) in {"noise": (net, x, y), **states}.items():
        print(f"\n  {name}: {against_all_rows(mmr, some, images, labels, repeats)}", end="", flush=True)
    if model == "cnn":
        mine = step(mmr, net, torch.optim.SGD(net.parameters(), lr=0.0), x, y)
        started = time.perf_counter()
        theirs = dense_step(net, torch.optim.SGD(net.parameters(), lr=0.0), x, y)
        dense = time.perf_counter() - started
        print(
            f"\n  limit of memory {LIMITS[shape]:g} GB; dense {dense:.1f} s, {dense / ours:.1f} times slower ", end=""
        )
        print(f"(floor {FLOOR:g}); losses {mine:.6f} and {theirs:.6f}", end="")
    print()


if __name__ == "__main__":
    main()
