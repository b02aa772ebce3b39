"""Networks whose smallest output is known exactly, with specifications just above and just below it, as files."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import torch
from torch import nn

from relucert.interop.onnx.writing import save_onnx
from relucert.interop.vnnlib.specification import Case, Inequality, Specification
from relucert.interop.vnnlib.writing import text_of
from relucert.networks.network import Network


def planted(folder: Path, seed: int, *, safe: bool) -> tuple[Path, Path]:
    """An ONNX file and a VNN-LIB file whose unsafe set is known to be reached, or known to be missed, by 1e-2 to 1e-6.

    y_0 - y_1 = sum_j v_j relu(sum_k u_jk |w_k (x - c)|) with v, u >= 0 is 0 at c and nowhere smaller. All weights are small
    multiples of 1/16, so that the file has them without rounding. Every third network has one layer of ReLUs: there
    y_0 - y_1 = sum_k (t_k - a_k) |w_k (x - c)| with t_k > a_k, from different units.
    """
    rng = random.Random(seed)
    inputs, rows, hidden = rng.randint(2, 4), rng.randint(3, 6), rng.randint(2, 5)

    def numbers(count: int, least: int, most: int) -> torch.Tensor:
        return torch.tensor([rng.randint(least, most) / 16 for _ in range(count)])

    w, c = numbers(rows * inputs, -16, 16).reshape(rows, inputs), numbers(inputs, -12, 12)
    u, v = numbers(hidden * rows, 0, 16).reshape(hidden, rows), numbers(hidden, 1, 16)
    first, third = nn.Linear(inputs, 2 * rows), nn.Linear(hidden, 2)
    layers = [first, nn.ReLU(), second := nn.Linear(2 * rows, hidden), nn.ReLU(), third]
    with torch.no_grad():
        first.weight.copy_(torch.cat([w, -w]))
        first.bias.copy_(torch.cat([-w @ c, w @ c]))
        second.weight.copy_(torch.cat([u, u], 1))
        second.bias.zero_()
        third.weight.copy_(torch.stack([v, torch.zeros(hidden)]))
        if seed % 3 == 2:
            layers = _one_layer(first, numbers(rows, 9, 16), numbers(rows, 0, 8))
            third = layers[-1]
        third.bias.copy_(torch.full((2,), rng.randint(-16, 16) / 16))
    net = Network(nn.Sequential(*layers), (inputs,)).eval()
    net.box = None
    onnx, vnnlib = folder / f"{seed}.onnx", folder / f"{seed}.vnnlib"
    save_onnx(net, onnx)
    margin = Fraction(rng.choice(["0.01", "0.001", "0.0001", "0.00001", "0.000001"]))
    wanted = Inequality({0: Fraction(1), 1: Fraction(-1)}, -margin if safe else margin)
    # The other conjunction never holds: y_1 is a constant.
    never = Inequality({1: Fraction(1)}, Fraction(-100))
    conjunctions: list[tuple[Inequality, ...]] = [(wanted,)]
    if rng.random() < 0.5:
        conjunctions = [(never,), (wanted, Inequality({1: Fraction(1)}, Fraction(100)))]
    case = Case((Fraction(-1),) * inputs, (Fraction(1),) * inputs, tuple(conjunctions))
    vnnlib.write_text(text_of(Specification(inputs, 2, (case,))))
    return onnx, vnnlib


def _one_layer(first: nn.Linear, t: torch.Tensor, a: torch.Tensor) -> list[nn.Module]:
    """The layers with the units of `first` twice, with weights t and -a."""
    units, inputs = first.weight.shape
    twice, last = nn.Linear(inputs, 2 * units), nn.Linear(2 * units, 2)
    twice.weight.copy_(torch.cat([first.weight, first.weight]))
    twice.bias.copy_(torch.cat([first.bias, first.bias]))
    last.weight.copy_(torch.stack([torch.cat([t, t, -a, -a]), torch.zeros(2 * units)]))
    return [twice, nn.ReLU(), last]
