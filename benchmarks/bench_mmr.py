"""A full MMR training step (forward, backward, Adam): ours against the dense formulation, in one run on two threads.

The baseline is the formulation of the paper's code: batch x d identity columns go through every layer under autograd, so
that norms of all rows, and the class differences, come with gradients. It is run in chunks of 16 examples whose gradients
are added up, as it needs tens of gigabytes otherwise. Both compute the same loss (l_inf, k_B = 10 % of the units, k_D = K),
which is checked. The ratio of an MMR step to a plain step is reported for FC1 and the CNN, with the weights after 20 plain
steps and with those of networks trained with MMR, on MNIST, where `results/` and the data set are there.

Commit fa17fb1, which made all rows, took on two threads of an EPYC with AVX-512: FC1 40 ms (27.5 ms with trained weights), CNN
248 ms on (1, 28, 28) and 749 ms on (3, 32, 32). These figures hold for that machine alone: for a ratio run both commits.

    python benchmarks/bench_mmr.py [--batch 128] [--repeats 3]
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import relucert as rc
from measure import peak_gigabytes, timed
from relucert.networks.network import Network
from relucert.training._schedules import Count, Schedule
from relucert.training.losses.loss import Loss, StepContext
from relucert.training.losses.maximum_margin import MaximumMargin
from relucert.training.losses.plain import Plain

GAMMA, LAM = 0.2, 1.0
FLOOR, LIMITS = 8.0, {(1, 28, 28): 1.5, (3, 32, 32): 4.0}  # times faster; GB
AT_MOST = {"fc1": 12.0}  # times a plain step


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


def trained(model: str, shape: tuple[int, int, int], x: Tensor, y: Tensor) -> tuple[Network, torch.optim.Optimizer]:
    """A network after some plain steps, so that patterns are not those of random weights."""
    net = rc.build(model, shape, 10).eval()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(20):
        step(Plain(), net, optimiser, x, y)
    return net, optimiser


TRAINED = {"fc1": "mnist-fc1-mmr-inf", "cnn": "mnist-cnn-mmr+at-inf"}  # folders of results/


def trained_step(model: str, mmr: Loss, batch: int, repeats: int) -> float | None:
    """The seconds of an MMR step from the weights of a network trained with MMR; None without its file or the data."""
    path = Path(__file__).parent.parent / "results" / TRAINED[model] / "model.safetensors"
    try:
        net, data = rc.load(path), rc.dataset("mnist")
    except (OSError, ValueError):
        return None
    net.requires_grad_(True)
    still = torch.optim.SGD(net.parameters(), lr=0.0)  # every repetition has the same weights
    return timed(lambda: step(mmr, net, still, data.x_train[:batch], data.y_train[:batch]), repeats)


CASES: tuple[tuple[str, tuple[int, int, int]], ...] = (("fc1", (1, 28, 28)), ("cnn", (1, 28, 28)), ("cnn", (3, 32, 32)))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--case", type=int, choices=range(len(CASES)), help="one case only, in this process")
    given = options.parse_args()
    torch.set_num_threads(2)
    if given.case is not None:
        model, shape = CASES[int(given.case)]
        compare(model, shape, given.batch, given.repeats)
        return
    for case in range(len(CASES)):  # a process each, so that the peak of memory is the case's own
        settings = ["--case", str(case), "--batch", str(given.batch), "--repeats", str(given.repeats)]
        subprocess.run([sys.executable, __file__, *settings], check=True)


def compare(model: str, shape: tuple[int, int, int], batch: int, repeats: int) -> None:
    """Time plain, MMR and, for the CNN, dense steps of one network, and print a line."""
    schedule = Schedule(Count(0.1, 0.1, shares=True), Count(1.0, 1.0, shares=True))
    mmr = MaximumMargin(p=math.inf, lam=LAM, gamma_b=GAMMA, gamma_d=GAMMA, schedule=schedule)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, *shape, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    net, optimiser = trained(model, shape, x, y)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    plain = timed(lambda: step(Plain(), net, optimiser, x, y), 5 * repeats)
    before = peak_gigabytes()
    ours = timed(lambda: step(mmr, net, optimiser, x, y), repeats)
    memory = peak_gigabytes() - before
    known = trained_step(model, mmr, batch, repeats) if shape == (1, 28, 28) else None
    at_most = f" (at most {AT_MOST[model]:g})" if model in AT_MOST else ""
    print(f"{model} {shape}, batch {batch}: plain {plain * 1e3:.1f} ms, mmr {ours * 1e3:.0f} ms, ", end="")
    print(f"{ours / plain:.1f} plain steps{at_most}; {memory:.2f} GB more at the peak", end="", flush=True)
    if known is not None:
        print(f"; mmr with the weights of {TRAINED[model]} {known * 1e3:.0f} ms", end="")
    if model == "cnn":
        net.load_state_dict(weights)
        mine = step(mmr, net, torch.optim.SGD(net.parameters(), lr=0.0), x, y)
        started = time.perf_counter()
        theirs = dense_step(net, torch.optim.SGD(net.parameters(), lr=0.0), x, y)
        dense = time.perf_counter() - started
        print(
            f" (limit {LIMITS[shape]:g}); dense {dense:.1f} s, {dense / ours:.1f} times slower (floor {FLOOR:g}); ",
            end="",
        )
        print(f"losses {mine:.6f} and {theirs:.6f}", end="")
    print()


if __name__ == "__main__":
    main()
