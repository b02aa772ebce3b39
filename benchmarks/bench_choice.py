"""What schemes cost and what bounds prove: the figures of the tables in docs/choosing.md, as Markdown.

Schemes: one step (loss and gradient, without the update) of a batch of 128 on the paper's trained CNN on MNIST, all in one
run, over the time of a plain step. Bounds: on the first test points, the share that is proved and the processor seconds a
point, on networks of results/ that were trained in different ways. Both need MNIST.

    python benchmarks/bench_choice.py [--points 20] [--repeats 3]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

import relucert as rc
from measure import interleaved

RESULTS = Path(__file__).resolve().parent.parent / "results"
CNN = "mnist-cnn-mmr+at-inf"
BATCH = 128
#: Folder, how it was trained, norm, eps.
NETWORKS = (
    ("mnist-cnn-plain-inf", "CNN, plain", math.inf, 0.1),
    ("mnist-cnn-mmr+at-inf", "CNN, mmr+at", math.inf, 0.1),
    ("mnist-cnn-kw-inf", "CNN, kw", math.inf, 0.1),
    ("mnist-cnn-crown-ibp-inf", "CNN, crown-ibp", math.inf, 0.1),
    ("mnist-fc1-at-inf", "FC1, at", math.inf, 0.1),
    ("mnist-fc1-mmr-2", "FC1, mmr", 2.0, 0.3),
    ("mnist-cnn-spectral-2", "CNN, spectral", 2.0, 0.3),
)
METHODS = ("ibp", "kw", "crown", "alpha", "lipschitz", "sdp")


def losses(net: rc.Network, x: Tensor, y: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The loss of one step of every scheme, with the settings of the paper or of its authors."""
    ball, pgd, units = rc.Ball(math.inf, 0.1), rc.PGD(steps=40), net.hidden_units
    margin = rc.MMRParameters(p=math.inf, gamma_b=0.2, gamma_d=0.2, k_b=round(0.05 * units), k_d=net.classes)
    return {
        "plain": lambda: rc.losses.plain(net, x, y),
        "at (40 steps)": lambda: rc.losses.at(net, x, y, ball, pgd),
        "mmr": lambda: rc.losses.mmr(net, x, y, margin),
        "mmr+at (40 steps)": lambda: rc.losses.mmr(net, x, y, margin, ball=ball),
        "mmr-universal": lambda: rc.losses.mmr_universal(net, x, y, (1.0, 1.0), (1.0, 0.2), margin.k_b, margin.k_d),
        "cross-lipschitz": lambda: rc.losses.cross_lipschitz(net, x, y),
        "ibp": lambda: rc.losses.ibp(net, x, y, ball),
        "crown-ibp": lambda: rc.losses.crown_ibp(net, x, y, ball),
        "mtl-ibp, cc-ibp (1 step)": lambda: rc.losses.mtl_ibp(net, x, y, ball, 0.02, rc.PGD(steps=1)),
        "sabr (8 steps)": lambda: rc.losses.sabr(net, x, y, ball, 0.4, rc.PGD(steps=8)),
        "mmr+ibp (10 steps)": lambda: rc.losses.mmr_ibp(net, x, y, ball, 0.02, margin),
        "kw": lambda: rc.losses.kw(net, x, y, ball),
        "kw (50 projections)": lambda: rc.losses.kw(net, x, y, ball, projections=50),
        "rs (40 steps)": lambda: rc.losses.stability(net, x, y, ball, attack=pgd),
        "spectral": lambda: rc.losses.spectral(net, x, y, 0.3),
    }


def schemes(x: Tensor, y: Tensor, repeats: int) -> None:
    """Print the table of schemes."""
    net = rc.load(RESULTS / CNN)
    runs = losses(net, x, y)

    def step(loss: Callable[[], Tensor]) -> Callable[[], None]:
        return lambda: loss().mean().backward()

    seconds = dict(zip(runs, interleaved([step(loss) for loss in runs.values()], repeats), strict=True))
    print("| scheme | a step, in plain steps |\n|---|---|")
    for name, value in seconds.items():
        print(f"| `{name}` | {value / seconds['plain']:.1f} |", flush=True)


def shares(folder: str, p: float, eps: float, x: Tensor, y: Tensor) -> list[str]:
    """A cell for every bound: the share that it proves, and the processor seconds a point."""
    net, cells = rc.load(RESULTS / folder), []
    for method in METHODS:
        if p != 2 and method in ("lipschitz", "sdp"):
            cells.append("")
            continue
        started = time.process_time()
        found = rc.certify(net, x, y, rc.Ball(p, eps), method, workers=1)
        seconds = (time.process_time() - started) / len(x)
        robust = sum(verdict == rc.Verdict.ROBUST for verdict in found.verdict) / len(x)
        cells.append(f"{robust:.0%}, {seconds:.2g} s")
    return cells


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    try:
        data = rc.dataset("mnist")
    except rc.RelucertError as error:
        print(f"skipped: {error}")
        return
    schemes(data.x_train[:BATCH], data.y_train[:BATCH], given.repeats)
    print(f"\n| network | {' | '.join(METHODS)} |\n|---|{'---|' * len(METHODS)}")
    for folder, name, p, eps in NETWORKS:
        x, y = data.x_test[: given.points], data.y_test[: given.points]
        norm = "l_inf" if math.isinf(p) else f"l_{p:g}"
        print(f"| {name}, {norm} {eps:g} | {' | '.join(shares(folder, p, eps, x, y))} |", flush=True)


if __name__ == "__main__":
    main()
