"""A full step of l2-MMR behind matrices, with rows of inputs and without, in turns in one run.

Behind one hidden layer the decision hyperplanes come from a Gram matrix where that is less work, behind several from rows in as
many coordinates as the first layer has units (`geometry/row_norms/_gram_norms.py`). The baseline makes the rows of inputs, by
the same code but for that. Losses and gradients are compared. Settings are those of the paper's Table 1 (FC10, which it does
not have, takes the CNN's), weights fresh and after some steps of MMR, when fewer hinges are active. Without the data sets,
images are noise.

    python benchmarks/bench_mmr_l2.py [--batch 128] [--repeats 5] [--steps 60]
"""

from __future__ import annotations

import argparse
from functools import partial
from unittest import mock

import torch
from torch import Tensor

import relucert as rc
from measure import interleaved
from relucert.geometry.row_norms import chosen_norms, row_norms
from relucert.networks.network import Network
from relucert.training.losses.loss import Loss, StepContext
from relucert.training.recipes import Setting
from relucert.training.schemes.maximum_margin import MMRTraining

CASES = (("gts", "fc1"), ("gts", "fc10"), ("mnist", "fc1"), ("mnist", "fc10"))
SHAPES = {"gts": ((3, 32, 32), 43), "mnist": ((1, 28, 28), 10)}
GAP = 1e-5  # of losses and gradients
PROGRESS = 0.5  # of the run


def images(data: str, count: int) -> tuple[Tensor, Tensor]:
    """Some images of a data set with their labels, or noise."""
    shape, classes = SHAPES[data]
    generator = torch.Generator().manual_seed(0)
    try:
        known = rc.dataset(data)
    except (OSError, ValueError):
        return torch.rand(count, *shape, generator=generator), torch.randint(classes, (count,), generator=generator)
    chosen = torch.randperm(len(known.x_train), generator=generator)[:count]
    return known.x_train[chosen], known.y_train[chosen]


def step(loss: Loss, net: Network, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step; the loss before it."""
    terms = loss(net, x, y, StepContext(PROGRESS, torch.Generator()))
    optimiser.zero_grad(set_to_none=True)
    terms.loss.backward()
    optimiser.step()
    return float(terms.loss.detach())


def rows_step(loss: Loss, net: Network, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step with rows of inputs."""

    def never(*_: int) -> bool:
        return False

    with mock.patch.object(chosen_norms, "gram_pays", never), mock.patch.object(row_norms, "rotation_pays", never):
        return step(loss, net, optimiser, x, y)


def compare(data: str, model: str, given: argparse.Namespace) -> None:
    """Print the seconds of both kinds of step, for both states of the weights."""
    torch.manual_seed(0)
    x, y = images(data, given.batch * max(1, given.steps))
    shape, classes = SHAPES[data]
    net = rc.build(model, shape, classes)
    loss = MMRTraining().filled(Setting(data, model if model == "fc1" else "cnn", 2.0)).loss(Setting(data, model, 2.0))
    still, adam = torch.optim.SGD(net.parameters(), lr=0.0), torch.optim.Adam(net.parameters(), lr=1e-3)
    for taken in (0, given.steps):
        for start in range(0, taken * given.batch, given.batch):
            step(loss, net, adam, x[start : start + given.batch], y[start : start + given.batch])
        some = x[: given.batch], y[: given.batch]
        found = []
        for run in (rows_step, step):
            value = run(loss, net, still, *some)
            found.append((value, torch.cat([w.grad.flatten() for w in net.parameters() if w.grad is not None])))
        (one, first), (two, second) = found
        gap = max(abs(one - two) / abs(one), float((first - second).norm() / first.norm()))
        if gap > GAP:
            raise SystemExit(f"losses or gradients differ by {gap:.1e}, more than {GAP}")
        both = [partial(run, loss, net, still, *some) for run in (rows_step, step)]
        before, now = interleaved(both, given.repeats)
        print(f"{data} {model}, l2, after {taken} steps: rows {before * 1e3:.0f} ms, ours {now * 1e3:.0f} ms, ", end="")
        print(f"{before / now:.2f} times faster (gap {gap:.0e})", flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--steps", type=int, default=60, help="of MMR before the second state")
    given = options.parse_args()
    torch.set_num_threads(1)
    for data, model in CASES:
        compare(data, model, given)


if __name__ == "__main__":
    main()
