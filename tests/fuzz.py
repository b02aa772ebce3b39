"""Hostile tiny networks, and every claim of every method about them held against the exact oracle.

    python tests/fuzz.py --count 300 --seed 0
    python tests/fuzz.py --case 17 --methods "certify mip(seconds=2)"

A case follows from its seed alone. One line of JSON is printed for each failure and one for each method at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

import exact
import relucert as rc
from relucert.core.errors import Contradiction, UnsupportedLayer
from relucert.core.results import Verdict
from relucert.networks.network import Network

SCALES = (1e-6, 1e-3, 1.0, 100.0, 300.0, 1e3, 1e4, 1e5, 1e6)
SLOPES = (0.01, 0.1, 0.25, 0.5)
#: kernel, stride and padding along the units
POOLS = ((2, 1, 0), (2, 2, 0), (3, 1, 1), (3, 2, 1), (2, 1, 1))
ROWS = ("plain", "plain", "near", "near", "duplicate", "cancelling", "equal planes", "zero bias", "through")
REPORTED = 1_000_000  # seeds from here on are networks of the reported recipe
EXTREME = 2_000_000  # seeds from here on are networks with numbers of all sizes that a dtype has

CERTIFY = (
    "region", "region(regions=1)", "universal", "ibp", "kw", "crown", "alpha", "alpha(inner=3, steps=5)", "lipschitz",
    "sdp(steps=5)", "moments(steps=20)", "bab(nodes=100)", "mip(seconds=2)", "mip(seconds=2, tighten='crown')",
    "mip(seconds=2, tighten='lp')",
    "mip(seconds=2, solver='scip')", "auto(nodes=50, restarts=1)",
)  # fmt: skip
RADIUS = (
    "region", "region(regions=1)", "universal", "crown", "alpha", "bab(nodes=100)", "mip(seconds=0.5)",
    "mip(seconds=0.5, solver='scip')", "region + best",
)  # fmt: skip
ATTACK = ("pgd(steps=10)", "apgd(steps=10, restarts=1)")
MINIMAL = ("best", "region(regions=4)", "fab(steps=10)", "ddn(steps=20)")
METHODS = (
    *(f"certify {name}" for name in CERTIFY), *(f"radius {name}" for name in RADIUS),
    *(f"attack {name}" for name in ATTACK), *(f"minimal {name}" for name in MINIMAL),
)  # fmt: skip

#: Methods that take milliseconds, and those that take a good part of a second; see `mixed`.
QUICK = (
    "certify ibp",
    "certify kw",
    "certify crown",
    "certify lipschitz",
    "attack pgd(steps=10)",
    "minimal ddn(steps=20)",
)
DEAR = (
    "certify moments(steps=20)", "certify bab(nodes=100)", "certify mip(seconds=2, solver='scip')",
    "certify auto(nodes=50, restarts=1)", "radius crown", "radius alpha", "radius bab(nodes=100)", "radius mip(seconds=0.5)",
    "radius mip(seconds=0.5, solver='scip')", "radius region + best", "minimal best", "minimal region(regions=4)",
)  # fmt: skip

#: What is a fault whatever the arithmetic; `misread`: a radius above 0 around an input that is of another class exactly.
#: `hair`: a witness outside by less than 1e-14, relative; `inexact`: a witness of the network as executed that is none in exact
#: arithmetic. Counted beside these: `tie`, a proof that reaches the nearest tie to the last digit.
FAULTS = (
    "false_robust", "bad_witness", "radius_beyond", "bad_margin", "contradiction", "misread", "error", "hair", "inexact",
)  # fmt: skip


# Networks.


class Residual(nn.Module):
    """A layer with a shortcut around it."""

    def __init__(self, inner: nn.Linear, act: nn.Module):
        super().__init__()
        self.inner, self.act = inner, act

    def forward(self, z: Tensor) -> Tensor:
        return z + self.act(self.inner(z))


def pool(units: int, kernel: int, stride: int, padding: int) -> nn.Sequential:
    """A max pool over the units of a layer."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 1, units)), nn.MaxPool2d((1, kernel), (1, stride), (0, padding)), nn.Flatten()
    )


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer with these weights, in float64."""
    made = nn.Linear(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        made.weight.copy_(weight)
        made.bias.copy_(bias)
    return made


class _Maker:
    """Draws the layers of a network one after the other; `at` is the value of a reference point at the last of them."""

    def __init__(self, rng: random.Random, at: Tensor):
        self.rng, self.at = rng, at
        self.generator = torch.Generator().manual_seed(rng.getrandbits(40))
        self.parts: list[nn.Module] = []
        self.words: list[str] = []

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def add(self, part: nn.Module, word: str) -> None:
        self.parts.append(part)
        self.words.append(word)
        with torch.no_grad():
            self.at = part(self.at)

    def weights(self, units: int, scale: float, kind: str) -> tuple[Tensor, Tensor]:
        rng, inputs = self.rng, self.at.shape[1]
        weight = scale * self.normal(units, inputs)
        if kind == "near":
            spread = 1 / scale if scale >= 1 else scale * 1e-6
            weight = weight[:1] + spread * self.normal(units, inputs)
            weight[0] -= spread * self.normal(inputs)
        elif kind == "duplicate":
            weight[1:] = weight[torch.tensor([rng.randrange(units) for _ in range(units - 1)], dtype=torch.long)]
        elif kind == "cancelling":
            weight[1::2] = -weight[: units // 2 * 2 : 2]
        factors = torch.ones(units, 1, dtype=torch.float64)
        if kind == "equal planes":
            factors = torch.tensor([[rng.choice((1.0, 2.0, 0.5, -1.0, -2.0))] for _ in range(units)]).double()
            weight = factors * weight[:1]
        size = weight.abs().sum(1)
        through = -(weight @ self.at[0])
        if kind == "zero bias":
            bias = torch.zeros(units, dtype=torch.float64)
        elif kind == "equal planes":
            bias = factors[:, 0] * (through[0] / factors[0, 0]) * rng.choice((1.0, 0.9))
        elif kind == "through":
            bias = through
        elif kind == "near" and rng.random() < 0.5:
            bias = size * (0.6 * self.normal(units))
        elif rng.random() < 0.7:
            bias = through + size * 0.3 * float(self.at.abs().max()) * self.normal(units)
        else:
            bias = size * self.normal(units)
        if kind == "duplicate":
            bias = bias[0] + (weight != weight[0]).any(1) * (bias - bias[0])
        return weight, bias

    def act(self) -> nn.Module:
        rng = self.rng
        return nn.ReLU() if rng.random() < 0.7 else nn.LeakyReLU(rng.choice(SLOPES))

    def layer(self, units: int, scale: float) -> None:
        rng, kind = self.rng, self.rng.choice(ROWS)
        if units == self.at.shape[1] and rng.random() < 0.2:
            self.add(Residual(linear(*self.weights(units, scale, kind)), self.act()), f"residual {kind}")
            return
        self.add(linear(*self.weights(units, scale, kind)), kind)
        draw = rng.random()
        if draw < 0.72:
            self.add(self.act(), "act")
        elif draw < 0.86:
            self.add(self.act(), "act")
            self.add(pool(units, *rng.choice(POOLS)), "pool")
        else:
            self.add(pool(units, *rng.choice(POOLS)), "pool")
            if rng.random() < 0.5:
                self.add(self.act(), "act")


def reported(seed: int) -> tuple[Network, str]:
    """The reported recipe: rows that are nearly equal, large weights, leaky units and a pool over ReLUs; float32."""
    rng = random.Random(seed)
    scale = rng.choice((1e3, 3e3, 1e4, 1e4, 3e4, 1e5))
    generator = torch.Generator().manual_seed(seed)

    def rows(units: int, inputs: int) -> nn.Linear:
        row = scale * torch.randn(inputs, generator=generator, dtype=torch.float64)
        weight = row + torch.randn(units, inputs, generator=generator, dtype=torch.float64) / scale
        size = weight.abs().sum(1)
        return linear(weight, size * (2 * torch.rand(units, generator=generator, dtype=torch.float64) - 1))

    module = nn.Sequential(
        rows(3, 2), nn.LeakyReLU(0.25), rows(5, 3), nn.ReLU(), pool(5, 2, 1, 0), rows(2, 4)
    )  # fmt: skip
    with torch.no_grad():
        module[-1].weight.copy_(torch.randn(2, 4, generator=generator))  # type: ignore[operator,union-attr]
        module[-1].bias.copy_(torch.randn(2, generator=generator))  # type: ignore[operator,union-attr]
    # The last offset puts the border between the classes within reach.
    with torch.no_grad():
        values = module(torch.rand(64, 2, generator=generator, dtype=torch.float64))
        lead = (values[:, 0] - values[:, 1]).quantile(rng.random())
        module[-1].bias[1] += lead  # type: ignore[index,operator]
    return Network(module.float(), (2,)).eval(), f"reported, scale {scale:g}"


def extreme(seed: int) -> tuple[Network, Tensor, tuple[Tensor, Tensor]]:
    """Units and inputs whose sizes differ by many powers of two, which weights make up for: a network, inputs, their box.

    The first that a network accepts, and at whose inputs no number overflows.
    """
    for turn in range(1000):
        with contextlib.suppress(UnsupportedLayer):
            net, x, box = _extreme(1000 * seed + turn)
            if all(bool(part.isfinite().all()) for part in (*net.parameters(), x, *box, net(x))):
                return net, x, box
    raise AssertionError("no network of a thousand is one")


def _extreme(seed: int) -> tuple[Network, Tensor, tuple[Tensor, Tensor]]:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = rng.choice((torch.float32, torch.float32, torch.float64))
    least, most = (-149, 120) if dtype == torch.float32 else (-1074, 1000)

    def exponents(count: int) -> Tensor:
        wide = rng.random() < 0.7
        drawn = [
            rng.randint(least, most // 2) if wide and rng.random() < 0.5 else rng.randint(-20, 20) for _ in range(count)
        ]
        return torch.tensor(drawn, dtype=torch.float64)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sizes = exponents(rng.choice((1, 2, 2, 3)))
    x = torch.ldexp(torch.rand(2, len(sizes), generator=generator, dtype=torch.float64), sizes).to(dtype)
    if rng.random() < 0.3:
        x = torch.zeros_like(x)
    room = torch.ldexp(
        torch.rand(2, *x.shape, generator=generator, dtype=torch.float64), sizes + rng.choice((0, 0, -3, 1))
    )
    box = (x - room[0].to(dtype), x + room[1].to(dtype))
    if rng.random() < 0.5:
        box = (x, box[1])
    layers: list[nn.Module] = []
    for _ in range(rng.choice((1, 1, 2))):
        after = exponents(rng.randint(2, 3))
        scale = (after[:, None] - sizes).clamp(least, most)
        made = linear(
            torch.ldexp(numbers(len(after), len(sizes)), scale),
            torch.ldexp(numbers(len(after)), after.clamp(least, most)),
        )
        layers += [made, nn.ReLU() if rng.random() < 0.8 else nn.LeakyReLU(rng.choice(SLOPES))]
        sizes = after
    layers.append(linear(torch.ldexp(numbers(2, len(sizes)), (-sizes).clamp(least, most)), numbers(2)))
    module = nn.Sequential(*layers).to(dtype)
    # The border between the classes is near the least lead that points of the box have.
    share = torch.rand(64, *x.shape[1:], generator=generator, dtype=torch.float64).round()
    with torch.no_grad():
        corners = (box[0][:1].double() + share * (box[1][:1].double() - box[0][:1].double())).to(dtype)
        values = module(corners)
        lead = (values[:, 0] - values[:, 1]).double()
        spread = lead.max() - lead.min()
        module[-1].bias[0] -= (lead.min() - rng.choice((0.3, 0.01, -0.01)) * spread).to(dtype)  # type: ignore[index,operator]
    return Network(module, tuple(x.shape[1:])).eval(), x, box


@dataclass(eq=False)
class Case:
    """A network, a few points and a question, all of which follow from the seed."""

    seed: int
    kind: str
    net: Network
    x: Tensor
    y: Tensor
    p: float
    box: Any
    eps: Tensor = field(default_factory=lambda: torch.zeros(0))
    truths: list[Truth] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """What the case is, for a person."""
        box = self.box if not isinstance(self.box, tuple) else [
            side.tolist() if isinstance(side, Tensor) else side for side in self.box
        ]  # fmt: skip
        return {
            "case": self.seed, "kind": self.kind, "dtype": str(self.net.dtype).removeprefix("torch."), "p": str(self.p),
            "box": box,
        }  # fmt: skip


class Truth:
    """The exact answers about one point, computed on first use."""

    def __init__(self, net: Network, x: Tensor, y: int, p: float, box: Any):
        self.net, self.x, self.y, self.p, self.box = net, x, y, p, box
        self.within, self.distance = -1.0, math.inf
        self._margins: dict[float, Fraction] = {}

    def changes(self, r: Any) -> bool:
        """Whether the decision changes, or ties, within r."""
        if r > self.within:
            self.within = math.inf if self.box is not None else max(1.0, 2.0 * float(r))
            self.distance = exact.distance(self.net, self.x, self.y, self.p, self.box, self.within)  # type: ignore[assignment]
        return exact.reached(self.distance, self.p, r)

    def strictly(self, r: Any) -> bool:
        """Whether another class is ahead within r, or arbitrarily near to that: ties alone do not count."""
        return exact.changes_within(self.net, self.x, self.y, self.p, r, self.box, strict=True)

    def length(self) -> float:
        """The distance as a float."""
        self.changes(0.5)
        return math.sqrt(self.distance) if self.p == 2 else float(self.distance)

    def exceeds(self, margin: float, eps: float) -> bool:
        """Whether a lower bound on the margin over the ball is too large (in l_2: by more than 1e-9, relative)."""
        if self.p in (1, math.inf):
            if eps not in self._margins:
                self._margins[eps] = exact.least_margin(self.net, self.x, self.y, self.p, eps, self.box)
            return Fraction(margin) > self._margins[eps]
        lead = Fraction(margin) * (1 - Fraction(1, 10**9))
        return exact.changes_within(self.net, self.x, self.y, self.p, eps, self.box, lead)


def case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    if seed >= EXTREME:
        net, x, box = extreme(seed)
        p = rng.choice((1.0, 2.0, math.inf, math.inf))
        made = Case(seed, "extreme", net, x, net.predict(x), p, box)
        far = torch.maximum(x - box[0], box[1] - x).double().amax(1)
        made.eps = far * 2.0 if rng.random() < 0.6 else far * rng.choice((1.0, 0.5, 1e-3))
        made.truths = [Truth(net, x[i], int(made.y[i]), p, (box[0][i], box[1][i])) for i in range(len(x))]
        return made
    if seed >= REPORTED:
        net, kind = reported(seed)
        made = Case(
            seed, kind, net, torch.full((1, 2), 0.5), net.predict(torch.full((1, 2), 0.5)), math.inf, (0.0, 1.0)
        )
        made.eps = torch.tensor([0.5], dtype=torch.float64)
        made.truths = [Truth(net, made.x[0], int(made.y[0]), math.inf, made.box)]
        return made
    inputs = rng.choice((2, 2, 2, 2, 2, 2, 3, 3, 1))
    dtype = rng.choice((torch.float32, torch.float64))
    count = rng.choice((1, 1, 2, 2, 3, 4))
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    tie = rng.random() < 0.15
    points = torch.rand(rng.choice((1, 2, 2)), inputs, generator=generator, dtype=torch.float64)
    if tie:
        points = (points * 8).round() / 8
    p = rng.choice(
        (1.0, 2.0, 2.0, math.inf, math.inf) if inputs == 3 else (1.0, 2.0, 2.0, math.inf, math.inf, 3.0, 1.5)
    )
    maker = _Maker(rng, points[:1].clone())
    if inputs > 1 and rng.random() < 0.03:
        maker.add(pool(inputs, 2, 1, rng.choice((0, 1))), "pool")
    common, mixed = rng.choice(SCALES), rng.random() < 0.4
    for _ in range(count):
        units = rng.randint(2, 5 if inputs < 3 and count < 4 else 3)
        maker.layer(units, rng.choice(SCALES) if mixed else common)
    classes = rng.choice((2, 3))
    last = rng.choice((*ROWS, "plain", "plain", "plain"))
    weight, bias = maker.weights(classes, rng.choice((1.0, common)), last)
    if rng.random() < 0.06:
        weight[1], bias[1] = weight[0], bias[0]
        last = "tied"
    elif rng.random() < 0.7:  # the border between the classes within reach
        bias = bias.clone()
        bias -= (weight @ maker.at[0] + bias) * rng.choice((1.0, 0.99, 0.9, 0.5))
    maker.add(linear(weight, bias), f"out {last}")
    first = maker.parts[0]
    if tie and isinstance(first, nn.Linear):
        with torch.no_grad():
            unit = rng.randrange(len(first.weight))
            power = torch.floor(torch.log2(first.weight[unit].abs().max().clamp(min=1e-300))) - 6
            first.weight[unit] = (first.weight[unit] / 2**power).round() * 2**power
            first.bias[unit] = -(first.weight[unit] @ points[0])
    net = Network(nn.Sequential(*maker.parts).to(dtype), (inputs,)).eval()
    x = points.to(dtype)
    box: Any = (0.0, 1.0)
    draw = rng.random()
    if draw < 0.15:
        box = None
    elif draw < 0.3:
        room = torch.rand(2, *x.shape, generator=generator, dtype=torch.float64).to(dtype)
        if rng.random() < 0.2:
            room[:, :, 0] = 0.0  # a coordinate that cannot move
        box = (x - room[0], x + room[1])
    elif draw < 0.4:
        box = (-0.1, 1.1)
    if draw >= 0.4 and rng.random() < 0.25:
        which = 0 if rng.random() < 0.5 else slice(None)
        x[:, which] = x[:, which].round()
    with torch.no_grad():
        y = net.predict(x)
    if rng.random() < 0.03:
        y = (y + 1) % classes
    scales = "mixed scales" if mixed else f"scale {common:g}"
    made = Case(seed, f"{inputs} inputs, {scales}: {', '.join(maker.words)}{', tie' if tie else ''}", net, x, y, p, box)
    radii = []
    for i in range(len(x)):
        sides = tuple(side[i] for side in box) if box is not None and isinstance(box[0], Tensor) else box
        truth = Truth(net, x[i], int(y[i]), p, sides)
        made.truths.append(truth)
        length, eps = truth.length(), rng.choice((1.0, 0.5, 0.1, 0.01, 1e-4))
        if 0 < length < math.inf and rng.random() < 0.75:
            eps = length * rng.choice((0.3, 0.9, 0.99, 0.999, 1 - 1e-6, 1 + 1e-6, 1.001, 1.1, 2.0))
        radii.append(eps)
    made.eps = torch.tensor(radii, dtype=torch.float64)
    return made


# Claims.


@dataclass
class Failure:
    """A claim that the exact oracle refutes."""

    case: Case
    method: str
    what: str
    point: int
    detail: str

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps({
            "failure": self.what, "method": self.method, "point": self.point, "detail": self.detail, **self.case.describe()
        })  # fmt: skip


def supported(method: str, p: float) -> bool:
    """Whether a method knows the norm, and its solver is installed."""
    if "scip" in method and importlib.util.find_spec("pyscipopt") is None:
        return False
    name = method.split(" ", 1)[1]
    if name.startswith("mip"):
        return p in ((1.0, 2.0, math.inf) if "scip" in name else (1.0, math.inf))
    if method.startswith("minimal region"):
        return p in (1.0, 2.0, math.inf)
    return p == 2.0 if name.startswith(("ddn", "cw")) else True


def mixed(seed: int, dear: float = 0.2) -> list[str]:
    """Three of the methods that take milliseconds, two others, and in a share `dear` of the cases one that takes longer."""
    rng = random.Random(seed + 7)
    middle = [method for method in METHODS if method not in DEAR and method not in QUICK]
    drawn = {*rng.sample(QUICK, 3), *rng.sample(middle, 2), *(rng.sample(DEAR, 1) if rng.random() < dear else ())}
    return [method for method in METHODS if method in drawn]


def check(made: Case, methods: Sequence[str] = METHODS) -> tuple[dict[str, Counter[str]], list[Failure]]:
    """Ask the methods about a case: counts of answers for each, and the claims that are false."""
    counts: dict[str, Counter[str]] = {}
    failures: list[Failure] = []
    for method in methods:
        if not supported(method, made.p):
            continue
        count = counts[method] = Counter(inputs=len(made.x))
        started = time.perf_counter()
        try:
            found = list(_failures(made, method, count))
        except Contradiction as error:
            found = [("contradiction", -1, str(error))]
        except Exception as error:
            found = [("error", -1, f"{type(error).__name__}: {error}")]
        count["milliseconds"] += round(1000 * (time.perf_counter() - started))
        for what, point, detail in found:
            count[what] += 1
            failures.append(Failure(made, method, what, point, detail))
    return counts, failures


Claim = tuple[str, int, str]


def _failures(made: Case, method: str, count: Counter[str]) -> Iterator[Claim]:
    """Ask one method, and yield what is wrong with its answers."""
    question, name = method.split(" ", 1)
    net, x, y, p, box = made.net, made.x, made.y, made.p, made.box
    if question == "certify":
        found = rc.certify(net, x, y, rc.Ball(p, made.eps, box), name, timeout=2.0)
        for i, truth in enumerate(made.truths):
            verdict, eps = found.verdict[i], float(made.eps[i])
            count[str(verdict)] += 1
            if verdict is Verdict.ROBUST:
                if truth.changes(eps):
                    word = "" if truth.strictly(eps) else " (of a tie alone)"
                    yield "false_robust", i, f"eps {eps!r}, distance {truth.length()!r}{word}; by {found.method[i]}"
                elif truth.exceeds(float(found.margin[i]), eps):
                    yield "bad_margin", i, f"margin {float(found.margin[i])!r} at eps {eps!r}; by {found.method[i]}"
            if verdict is Verdict.VULNERABLE:
                assert found.witness is not None
                for what, detail in witness(made, i, found.witness[i], eps):
                    yield what, i, f"{detail}; by {found.method[i]}"
        return
    if question == "radius":
        name, _, attack = name.partition(" + ")
        found = rc.radius(net, x, y, p, box, name, attack=attack or None, timeout=0.3)
        for i, truth in enumerate(made.truths):
            lower, upper = float(found.lower[i]), float(found.upper[i])
            count["exact" if bool(found.exact[i]) else "open"] += 1
            yield from ((what, i, detail) for what, detail in proved(truth, lower))
            if math.isfinite(upper):
                assert found.witness is not None
                yield from ((what, i, detail) for what, detail in witness(made, i, found.witness[i], upper))
        return
    if question == "attack":
        falsified = rc.attack(net, x, y, rc.Ball(p, made.eps, box), name)
    else:
        falsified = rc.minimal_attack(net, x, y, p, box, name)
    for i in range(len(x)):
        count["found" if bool(falsified.success[i]) else "open"] += 1
        if bool(falsified.success[i]):
            reach = made.eps[i] if question == "attack" else falsified.distance[i]
            yield from ((what, i, detail) for what, detail in witness(made, i, falsified.x[i], float(reach)))


def proved(truth: Truth, lower: float) -> Iterator[tuple[str, str]]:
    """What is wrong with a radius within which nothing is said to change."""
    if lower == 0:
        return
    inner = lower if math.isinf(lower) else Fraction(lower) * (1 - Fraction(1, 2**50))
    if math.isinf(lower) and truth.box is None:
        inner = 100.0
    if truth.changes(inner):
        what = "misread" if exact.margin(truth.net, truth.x, truth.y) < 0 else "radius_beyond"
        yield what, f"lower {lower!r}, but the distance is {truth.length()!r}"
    elif math.isfinite(lower) and truth.changes(lower):
        yield "tie", f"lower {lower!r}, and the distance is {truth.length()!r}"


def witness(made: Case, i: int, point: Tensor, eps: float) -> Iterator[tuple[str, str]]:
    """What is wrong with a point that is said to lie within eps and in the box and to be of another class."""
    truth, y = made.truths[i], int(made.y[i])
    at, centre = exact.fractions(point), exact.fractions(made.x[i])
    if not exact.inside(made.x[i], point, made.p, math.inf, truth.box):
        yield "bad_witness", f"{point.tolist()} lies outside the box"
    if exact.excess(centre, at, made.p, eps) > 0:
        if exact.excess(centre, at, made.p, Fraction(eps) * (1 + Fraction(1, 10**14))) > 0:
            yield "bad_witness", f"{point.tolist()} lies outside the radius {eps!r} around {made.x[i].tolist()}"
        else:
            yield "hair", f"{point.tolist()} lies a hair outside the radius {eps!r} around {made.x[i].tolist()}"
    with torch.no_grad():
        run = int(made.net.predict(point[None].to(made.net.dtype))[0]) != y
    if run and bool((point == made.x[i]).all()):
        return  # the network as executed misclassifies the input: that is no claim about a neighbour
    if not run:
        yield "bad_witness", f"the network does not change its class at {point.tolist()}"
    elif exact.margin(made.net, at, y) >= 0:
        yield "inexact", f"exact margin {float(exact.margin(made.net, at, y)):.3g} at {point.tolist()}"


# Runs.


def run(
    seeds: Sequence[int], methods: Sequence[str] | None = None, callback: Any = None, dear: float = 0.2
) -> tuple[dict[str, Any], list[Failure]]:
    """Check the cases of some seeds: counts for each method and in all, and the failures; `callback` hears of each at once.

    Without `methods` each case asks those of `mixed`.
    """
    total: dict[str, Counter[str]] = {method: Counter() for method in methods or METHODS}
    failures: list[Failure] = []
    started, built = time.perf_counter(), 0.0
    for seed in seeds:
        begun = time.perf_counter()
        try:
            made = case(seed)
        except Exception as error:
            raise RuntimeError(f"case {seed} cannot be made") from error
        built += time.perf_counter() - begun
        counts, found = check(made, methods or mixed(seed, dear))
        for method, count in counts.items():
            total[method].update(count)
        failures += found
        if callback is not None:
            for failure in found:
                callback(failure)
    seconds = time.perf_counter() - started
    everything = {"cases": len(seeds), "seconds": round(seconds, 1), "making and oracle": round(built, 1)}
    return {"all": everything, **{name: dict(count) for name, count in total.items() if count}}, failures


def faults(failures: Sequence[Failure], kinds: Sequence[str] = FAULTS) -> list[str]:
    """The failures of some kinds as lines."""
    return [failure.line() for failure in failures if failure.what in kinds]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first case; the others follow")
    parser.add_argument("--case", type=int, nargs="*", help="these cases alone")
    parser.add_argument("--reported", action="store_true", help="cases of the reported recipe")
    parser.add_argument("--extreme", action="store_true", help="cases with numbers of all sizes")
    parser.add_argument("--methods", nargs="*", help="such as 'certify crown'; a prefix takes all, '' every one")
    parser.add_argument(
        "--dear", type=float, default=0.2, help="the share of cases that also ask a method that takes long"
    )
    parser.add_argument("--quiet", action="store_true", help="only faults and the summary")
    given = parser.parse_args()
    torch.set_num_threads(1)
    methods = [
        name for prop in given.methods or ()
        for name in ([known for known in METHODS if known.startswith(prop)] or [prop])
    ]  # fmt: skip
    first = given.seed + (EXTREME if given.extreme else REPORTED if given.reported else 0)
    seeds = given.case or range(first, first + given.count)
    kinds = FAULTS if given.quiet else (*FAULTS, "tie")
    summary, failures = run(
        seeds, methods, lambda failure: print(failure.line(), flush=True) if failure.what in kinds else None, given.dear
    )
    for name, count in summary.items():
        print(json.dumps({"method": name, **count}))
    return 1 if faults(failures) else 0


if __name__ == "__main__":
    sys.exit(main())
