"""Networks of two inputs, whose claims exact arithmetic decides, with certificate files about them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn

import exact
from relucert.checker.arithmetic import Outward, Refused
from relucert.checker.check import Certificate, check
from relucert.checker.network import Network as CheckedNetwork
from relucert.checker.network import read
from relucert.core.ball import Ball
from relucert.core.verdict import Verdict
from relucert.networks.network import Network
from relucert.verification.proofs.prover import NETWORK, Claim, Prover
from zoo import randomised

BOX = (0.0, 1.0)


def plane_network(seed: int, widths: tuple[int, ...] = (8, 6), dtype: torch.dtype = torch.float64) -> Network:
    """Two inputs, three classes, and weights that are multiples of 1/16."""
    draw = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    sizes = (2, *widths, 3)
    for before, after in itertools.pairwise(sizes):
        layer = nn.Linear(before, after, dtype=dtype)
        for part in layer.parameters():
            part.data = torch.randint(-24, 25, part.shape, generator=draw).to(dtype) / 16
        layers += [layer, nn.ReLU()]
    return Network(nn.Sequential(*layers[:-1]), (2,)).eval()


class _Residual(nn.Module):
    """A convolution, a block that is added to its input, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.last = nn.Linear(3 * 25, 3)

    def forward(self, x: Tensor) -> Tensor:
        before = torch.relu(self.first(x))
        return self.last(torch.relu(before - self.inner(before)).flatten(1))


def plain_residual() -> Network:
    """A residual network without batch norm."""
    return Network(randomised(_Residual(), 3).double(), (1, 5, 5)).eval()


def normalised() -> Network:
    """A network with batch norm and two kinds of average pools."""
    layers: list[nn.Module] = [nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(3, 4, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    return Network(randomised(nn.Sequential(*layers), 4).double(), (1, 6, 6)).eval()


def points(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Inputs in the box."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(1, 64, (count, 2), generator=draw).to(dtype) / 64


def radius(net: Network, x: Tensor, y: int, p: float) -> float:
    """The distance of x (2,) to the nearest change of class, rounded to a float; at most 1."""
    found = exact.distance(net, x, y, p, BOX)
    return min(1.0, math.sqrt(found) if p == 2 and not math.isinf(found) else float(found))


@dataclass(frozen=True, eq=False)
class Written:
    """A certificate file about a tiny network, and both readings of the network."""

    net: Network
    known: CheckedNetwork
    path: Path
    claim: Claim

    @property
    def certificate(self) -> Certificate:
        return Certificate.read(self.path)


def claimed(net: Network, x: Tensor, p: float, eps: float, verdict: Verdict = Verdict.ROBUST) -> Claim:
    """The claim that the predicted class of x (1, 2) stays."""
    y = net.predict(x)
    rivals = [rival for rival in range(net.classes) if rival != int(y[0])]
    return Claim(x, y, Ball(p, eps, BOX), verdict, "test", True, rivals)


def written(net: Network, claim: Claim, folder: Path) -> Written:
    """The certificate of a claim."""
    prover = Prover(net, folder)
    prover.write("000000", claim)
    return Written(net, read(folder / NETWORK, Outward()), folder / "000000.npz", claim)


def outcome(certificate: Certificate, net: CheckedNetwork, num: Outward | None = None) -> str | None:
    """What the checker derives, None if it refuses."""
    try:
        return check(certificate, net, num or Outward())
    except Refused:
        return None


def holds(net: Network, certificate: Certificate) -> bool:
    """Whether the claim of a certificate that the class stays is true, decided in exact arithmetic."""
    header, arrays = certificate.header, certificate.arrays
    kept = [header["label"], *dict.fromkeys(header["rivals"])]
    last = net.module[-1]
    smaller = nn.Linear(last.in_features, len(kept), dtype=last.weight.dtype)
    smaller.weight.data, smaller.bias.data = last.weight.data[kept], last.bias.data[kept]
    part = Network(nn.Sequential(*list(net.module)[:-1], smaller), (2,)).eval()
    p = math.inf if header["p"] == "inf" else float(header["p"])
    x = torch.from_numpy(arrays["x"].copy())
    sides = [torch.from_numpy(arrays[name].copy()).broadcast_to(x.shape) for name in ("lower", "upper")]
    return not exact.changes_within(part, x, 0, p, Fraction(header["eps"]), tuple(sides))
