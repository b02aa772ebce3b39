"""Row norms of the paper's CNN, all hidden units: ours against the dense formulation, in one run on two threads.

The baseline is the formulation of the paper's code: batch x d identity columns go through every layer (in chunks of 16
examples; at once they need some 6 GB), and the norms are taken over the d columns.

    python benchmarks/bench_row_norms.py [--batch 128] [--repeats 3]
"""

from __future__ import annotations

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from measure import peak_gigabytes, timed
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import row_norms
from relucert.networks.architectures import build

FLOORS = {(1, 28, 28): (7.0, 1.0), (3, 32, 32): (12.0, 2.0)}  # times faster, GB


def dense_norms(module: nn.Sequential, x: Tensor, chunk: int = 16) -> list[Tensor]:
    """l1 norms of the rows of V of every hidden layer, by columns of the identity."""
    size = math.prod(x.shape[1:])
    found: list[list[Tensor]] = []
    for part in x.split(chunk):
        columns = torch.eye(size).reshape(1, size, *x.shape[1:]).expand(len(part), -1, *x.shape[1:]).flatten(0, 1)
        value, norms = part, []
        for layer in module:
            value = layer(value)
            if isinstance(layer, nn.Conv2d):
                columns = F.conv2d(columns, layer.weight, None, layer.stride, layer.padding)
            elif isinstance(layer, nn.Linear):
                columns = F.linear(columns, layer.weight)
            elif isinstance(layer, nn.Flatten):
                columns = columns.flatten(1)
            elif isinstance(layer, nn.ReLU):
                rows = columns.reshape(len(part), size, -1)
                norms.append(rows.abs().sum(1))
                gate = (value > 0).to(rows.dtype).flatten(1)
                columns = (rows * gate[:, None]).reshape(columns.shape)
        found.append(norms)
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--repeats", type=int, default=3)
    given = options.parse_args()
    torch.set_num_threads(2)
    for shape in FLOORS:
        compare(shape, given.batch, given.repeats)


@torch.no_grad()
def compare(shape: tuple[int, int, int], batch: int, repeats: int) -> None:
    net = build("cnn", shape, 10).eval()
    x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
    assert isinstance(net.module, nn.Sequential)
    region = LinearRegion.at(net, x)
    before = peak_gigabytes()
    ours = timed(lambda: row_norms(region, 1.0), repeats)
    memory = peak_gigabytes() - before
    started = time.perf_counter()
    expected = torch.cat(dense_norms(net.module, x), 1)
    baseline = time.perf_counter() - started
    gap = float((expected / row_norms(region, 1.0) - 1).abs().nan_to_num().max())
    floor, limit = FLOORS[shape]
    print(
        f"cnn {shape}, batch {batch}, q = 1: dense {baseline:.2f} s, ours {ours:.3f} s, {baseline / ours:.1f} times faster "
        f"(floor {floor:g}); {memory:.2f} GB more at the peak (limit {limit:g}); largest relative gap {gap:.1e}"
    )


if __name__ == "__main__":
    main()
