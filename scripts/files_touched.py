"""How many files of the package run for one input of `certify`; `make lint` fails when there are more than `FILES`.

python scripts/files_touched.py            prints the count of every case: norm, and method that decides
python scripts/files_touched.py --verbose  prints the files as well

A small network on the embedded digits, trained with a fixed seed, and a few radii of each norm: attacks, CROWN and branch and
bound each decide some inputs. Of every norm, radius and method that decides, one input is counted. Code
that runs when a module is imported does not count.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from types import FrameType

import torch

import relucert as rc
from relucert.networks.architectures import mlp

PACKAGE = str(Path(rc.__file__).parent)
FILES = 40
INPUTS = 60
RADII = {math.inf: (1e-4, 0.05), 2.0: (1e-3, 0.4), 1.0: (1e-3, 2.0)}
NEEDED = {"pgd", "crown", "apgd", "bab"}


def small_network() -> rc.Network:
    """Two hidden layers of 30 units, after 60 steps of Adam."""
    torch.manual_seed(1)
    data = rc.dataset("digits")
    net = rc.Network(mlp((1, 8, 8), 10, [30, 30]), (1, 8, 8))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(data.x_train), data.y_train).backward()
        optimiser.step()
    return net.eval()


def files_touched(net: rc.Network, x: torch.Tensor, y: torch.Tensor, ball: rc.Ball) -> tuple[str, set[str]]:
    """The method that decides one input, and the files whose functions ran."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE) and frame.f_code.co_name != "<module>":
            files.add(file[len(PACKAGE) + 1 :])

    certify = rc.certify
    sys.settrace(note)
    try:
        found = certify(net, x, y, ball, "auto", progress=False)
    finally:
        sys.settrace(None)
    return found.method[0].partition("(")[0], files


def count(verbose: bool) -> bool:
    """Print the count of every case; whether all of them are within the limit."""
    net, data = small_network(), rc.dataset("digits")
    x, y = data.x_test[:INPUTS], data.y_test[:INPUTS]
    most: dict[tuple[float, str], set[str]] = {}
    for p, radii in RADII.items():
        for ball in (rc.Ball(p, eps) for eps in radii):
            methods = [text.partition("(")[0] for text in rc.certify(net, x, y, ball, "auto").method]
            for place in {method: place for place, method in enumerate(methods)}.values():
                method, files = files_touched(net, x[place : place + 1], y[place : place + 1], ball)
                most[p, method] = max(most.get((p, method), set()), files, key=len)
    fine = True
    for (p, method), files in most.items():
        fine &= len(files) <= FILES
        print(f"{'ok  ' if len(files) <= FILES else 'OVER'} {len(files):4d} (at most {FILES}) files: l_{p:g}, {method}")
        if verbose:
            print(*(f"       {file}" for file in sorted(files)), sep="\n")
    for p in RADII:
        missing = NEEDED - {method for norm, method in most if norm == p}
        if missing:
            print(f"OVER no input of l_{p:g} is decided by {', '.join(sorted(missing))}: choose other radii")
    return fine and all((p, method) in most for p in RADII for method in NEEDED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="print the files that are counted")
    sys.exit(0 if count(parser.parse_args().verbose) else 1)
