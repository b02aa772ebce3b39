"""MMR training steps on graphs of every kind, per multiplication of the network, against the paper's CNN in the same run.

A step is forward, backward and SGD with l_inf, k_B = 10 % of the units and k_D = K, with the weights after 20 plain steps.
Multiplications are those of one forward pass of one example through convolutions and matrices. No step may take more than
three times what a step of the paper's CNN takes for as many multiplications. Beside this ratio stands the one to the CNN's step
that makes all rows (`bench_mmr.py`), a measure that does not move when the CNN's own step becomes faster.

    python benchmarks/bench_mmr_graphs.py [--batch 64] [--repeats 3] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import relucert as rc
from bench_mmr import all_rows_step
from measure import interleaved
from relucert.networks.layers.linear import Conv2d, Linear
from relucert.networks.network import Network
from relucert.training._schedules import Count, Schedule
from relucert.training.losses.loss import Loss, StepContext
from relucert.training.losses.maximum_margin import MaximumMargin
from relucert.training.losses.plain import Plain

LIMIT = 3.0  # times the paper's CNN, at equal multiplications


class Residual(nn.Module):
    """relu(z + conv(relu(conv(z))))."""

    def __init__(self, channels: int):
        super().__init__()
        self.near, self.far = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, z: Tensor) -> Tensor:
        return F.relu(z + self.far(F.relu(self.near(z))))


class Dense(nn.Module):
    """Two layers that read all values before them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(9, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.cat([x, F.relu(self.first(x))], 1)
        return F.relu(self.second(z))


def layers(*maps: int, norm: bool = False) -> list[nn.Module]:
    """3 x 3 convolutions with ReLUs, from channels to channels."""
    made: list[nn.Module] = []
    for before, behind in pairwise(maps):
        made += [nn.Conv2d(before, behind, 3, padding=1), *([nn.BatchNorm2d(behind)] if norm else []), nn.ReLU()]
    return made


def head(size: int, *hidden: int) -> list[nn.Module]:
    """Matrices with ReLUs between them, to ten classes."""
    made: list[nn.Module] = [nn.Flatten()]
    for before, behind in zip((size, *hidden), hidden, strict=False):
        made += [nn.Linear(before, behind), nn.ReLU()]
    return [*made, nn.Linear((size, *hidden)[-1], 10)]


SMALL, MIDDLE = (1, 8, 8), (1, 16, 16)
CASES: dict[str, tuple[tuple[int, int, int], Callable[[], list[nn.Module]]]] = {
    "three convolutions": (SMALL, lambda: [*layers(1, 8, 8, 8), *head(512)]),
    "and a hidden matrix": (SMALL, lambda: [*layers(1, 8, 8, 8), *head(512, 50)]),
    "max pool": (SMALL, lambda: [*layers(1, 8, 8), nn.MaxPool2d(2), *layers(8, 8), *head(128)]),
    "average pool": (SMALL, lambda: [*layers(1, 8, 8), nn.AvgPool2d(2), *layers(8, 8), *head(128)]),
    "residual block": (SMALL, lambda: [*layers(1, 8), Residual(8), *head(512)]),
    "batch norm": (SMALL, lambda: [*layers(1, 8, 8, 8, norm=True), *head(512)]),
    "concatenation": (SMALL, lambda: [Dense(), *layers(8, 8), *head(512)]),
    "strides": (
        MIDDLE,
        lambda: [
            *layers(1, 8), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 4, 2, 1), nn.ReLU(), *head(256, 50)
        ],
    ),
    "residual, 16 x 16": (
        MIDDLE, lambda: [*layers(1, 8), Residual(8), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), Residual(16), *head(1024)]
    ),
}  # fmt: skip


def multiplications(net: Network) -> int:
    """Those of one example through convolutions and matrices."""
    total = 0
    for node in net.graph.affine_nodes:
        if isinstance(node.op, Conv2d | Linear):
            total += math.prod(node.shape) * node.op.weight.value[0].numel()
    return total


def step(scheme: Loss, net: Network, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """One training step."""
    terms = scheme(net, x, y, StepContext(0.0, torch.Generator()))
    optimiser.zero_grad(set_to_none=True)
    terms.loss.backward()
    optimiser.step()


def prepared(net: Network, batch: int) -> Callable[[], None]:
    """An MMR step of a network after some plain steps; the weights stay what they are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, *net.input_shape, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(20):
        step(Plain(), net, adam, x, y)
    schedule = Schedule(Count(0.1, 0.1, shares=True), Count(1.0, 1.0, shares=True))
    mmr = MaximumMargin(p=math.inf, lam=1.0, gamma_b=0.2, gamma_d=0.2, schedule=schedule)
    still = torch.optim.SGD(net.parameters(), lr=0.0)
    return lambda: step(mmr, net, still, x, y)


def all_rows(net: Network, batch: int) -> Callable[[], object]:
    """The step of a network on noise with all rows, with the weights that it has."""
    x = torch.rand(batch, *net.input_shape, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 10, (batch,), generator=torch.Generator().manual_seed(1))
    still = torch.optim.SGD(net.parameters(), lr=0.0)
    return lambda: all_rows_step(net, still, x, y)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    given = options.parse_args()
    torch.manual_seed(0)
    paper = rc.build("cnn", (1, 28, 28), 10).eval()
    nets = [paper, *(Network(nn.Sequential(*CASES[name][1]()), CASES[name][0]).eval() for name in given.only)]
    steps = [prepared(net, given.batch) for net in nets]
    every, *seconds = interleaved([all_rows(paper, given.batch), *steps], given.repeats)
    count = multiplications(paper)
    print(f"the paper's CNN, batch {given.batch}: {seconds[0] * 1e3:.0f} ms for {count:,} multiplications, ", end="")
    print(f"{every * 1e3:.0f} ms with all rows")
    for name, net, taken in zip(given.only, nets[1:], seconds[1:], strict=True):
        now, then = (taken / multiplications(net) / (base / count) for base in (seconds[0], every))
        print(f"{name}: {taken * 1e3:.0f} ms for {multiplications(net):,}, ", end="")
        print(f"{now:.2f} times the CNN's step (at most {LIMIT:g}), {then:.2f} times its step with all rows")


if __name__ == "__main__":
    main()
