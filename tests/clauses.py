"""Specifications with wide boxes, l2 balls and clauses of several rows, and every answer held against the exact oracle.

    python tests/clauses.py --count 500 --seed 0
    python tests/clauses.py --case 17

A case follows from its seed alone: a network of `fuzz`, one set of inputs, and conjunctions of inequalities that are nearly
reached, or reached by a hair. One line of JSON is printed for each failure, and one with the counts at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

import exact
import fuzz
from relucert.core.errors import Contradiction
from relucert.core.verdict import Verdict
from relucert.interop.vnnlib.specification import Case, Inequality, Round, Specification
from relucert.networks.network import Network, in_double
from relucert.verification.specifications import _Group, decide_specification
from relucert.verification.verifier import Budget

HAIRS = (0.3, 1e-2, 1e-3, 1e-5, 1e-7, 0.0, -1e-7, -1e-5, -1e-3, -1e-2)  # parts of the outputs' spread
WIDTHS = (1e-6, 1e-3, 0.1, 1.0, 1.0, 10.0, 1e3, 1e6)
SECONDS = 1.0
FAULTS = ("wrong unsat", "outside", "inexact", "error")


class Plain:
    """A network as the file of a `Runtime` that runs it in float32."""

    dtype = np.float32

    def __init__(self, net: Network):
        self.net = net

    @torch.no_grad()
    def run(self, x: np.ndarray) -> np.ndarray:
        """The outputs at one input."""
        return self.net(torch.from_numpy(x).to(self.net.dtype)[None])[0].numpy()


@dataclass(eq=False)
class Specified:
    """A network in float32 and a case of a specification about it."""

    seed: int
    net: Network
    case: Case
    kind: str

    def reached(self) -> bool:
        """Whether some point of the set has outputs that satisfy a conjunction, in rational arithmetic."""
        model, case = exact.exact(self.net), self.case
        unit = 1 << model.exponents[-1]
        for cell, forms in model.cells(exact.block(case.lower, case.upper)):
            for conjunction in case.conjunctions:
                part: exact.Polytope | None = cell
                for inequality in conjunction:
                    row = [Fraction(0)] * len(forms[0])
                    for place, factor in inequality.coefficients.items():
                        row = [a - factor * b for a, b in zip(row, forms[place], strict=True)]
                    row[-1] += inequality.bound * unit
                    # A row of zeros is a constant, and its sign is that of the bound.
                    part = None if part is None else part.cut(exact.whole(row))
                if part is not None and (case.ball is None or _near(part, case.ball)):
                    return True
        return False


def _near(part: exact.Polytope, ball: Round) -> bool:
    """Whether a piece has a point in a ball."""
    steps = [
        [Fraction(number, corner[-1]) - at for number, at in zip(corner, ball.centre, strict=False)]
        for corner in part.corners
    ]
    return exact._square(part, steps, ball.centre, 2, float("inf")) <= ball.square


def specified(seed: int) -> Specified:
    """The case of a seed."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    made = next(
        one for one in (fuzz.case(rng.randrange(fuzz.REPORTED)) for _ in range(1000))
        if one.net.dtype == torch.float32 and not one.net.graph.max_pools
    )  # fmt: skip
    net, size = made.net, made.net.input_shape[0]
    net.box = None
    widths = [rng.choice(WIDTHS) for _ in range(size)] if rng.random() < 0.5 else [rng.choice(WIDTHS)] * size
    low, high = [], []
    for at, width in zip(made.x[0].double().tolist(), widths, strict=True):
        low.append(Fraction(at - width * rng.random()))
        high.append(Fraction(at + width * rng.random()))
        if rng.random() < 0.15:
            high[-1] = low[-1]
        elif rng.random() < 0.3:
            low[-1], high[-1] = Fraction(f"{float(low[-1]):.4g}"), Fraction(f"{float(high[-1]):.4g}")
        low[-1], high[-1] = min(low[-1], high[-1]), max(low[-1], high[-1])
    ball = None
    if rng.random() < 0.4:
        centre = tuple(a + (b - a) * Fraction(rng.random()) for a, b in zip(low, high, strict=True))
        ball = Round(centre, (max(b - a for a, b in zip(low, high, strict=True)) * Fraction(rng.random())) ** 2)
    share = torch.rand(256, size, generator=generator, dtype=torch.float64)
    share = torch.where(torch.rand(256, 1, generator=generator) < 0.5, share, share.round())
    sides = torch.tensor([[float(a) for a in side] for side in (low, high)], dtype=torch.float64)
    points = sides[0] + share * (sides[1] - sides[0])
    with torch.no_grad():
        values = in_double(net)(points)
    conjunctions = tuple(_conjunction(rng, values) for _ in range(rng.choice((1, 1, 2, 3))))
    kind = "l2" if ball is not None else "box"
    return Specified(seed, net, Case(tuple(low), tuple(high), conjunctions, ball), f"{kind}, {made.kind}")


def _conjunction(rng: random.Random, values: torch.Tensor) -> tuple[Inequality, ...]:
    """Inequalities whose largest excess is near zero at the point of `values` (points, outputs) where it is smallest."""
    outputs, rows = values.shape[1], []
    for _ in range(rng.choice((1, 2, 2, 3))):
        one, other = rng.sample(range(outputs), 2)
        draw = rng.random()
        if draw < 0.5:
            rows.append({one: Fraction(1), other: Fraction(-1)})
        elif draw < 0.8:
            rows.append({one: Fraction(rng.choice((-1, 1)))})
        else:
            rows.append(
                {one: Fraction(rng.choice(("0.1", "-0.3", "7", "1e-3"))), other: Fraction(rng.randint(-9, 9) or 1, 8)}
            )
    heights = torch.stack([sum(float(a) * values[:, place] for place, a in row.items()) for row in rows], 1)  # type: ignore[misc]
    usual = heights.median(0).values
    worst = (heights - usual).amax(1)
    spread = float(worst.max() - worst.min()) + 1e-9 * float(values.abs().max())
    shift = float(worst.min()) - rng.choice(HAIRS) * spread
    return tuple(
        Inequality(row, Fraction(float(middle) + shift)) for row, middle in zip(rows, usual.tolist(), strict=True)
    )


def answers(made: Specified) -> dict[str, str]:
    """What every verifier says, by its name: unsat, sat or unknown."""
    double, runtime, outputs = in_double(made.net), Plain(made.net), made.net.classes
    spec = Specification(made.net.input_shape[0], outputs, (made.case,))
    found = {"all": decide_specification(double, spec, runtime, time.monotonic() + SECONDS).word}  # type: ignore[arg-type]
    open_ = torch.zeros(1, dtype=torch.long)
    names = ("relus",) if made.case.ball is not None else ("boxes", "relus", "envelopes")
    for name in names:
        group = _Group(double, [made.case], outputs, runtime)  # type: ignore[arg-type]
        if name == "envelopes" and not (group._one_layer() and group.query.prop.clauses is None):
            continue
        budget = Budget(deadline=time.monotonic() + SECONDS)
        with torch.no_grad():
            decisions = list(getattr(group, f"_{name}")(open_, budget, 300))
        robust = any(one.verdict is Verdict.ROBUST for one in decisions)
        assert not (robust and group.found), "two answers"
        found[name] = "sat" if group.found else "unsat" if robust else "unknown"
        if group.found is not None:
            found[f"{name} point"] = _judged(made, group.found.x)
    return found


def _judged(made: Specified, x: Sequence[Fraction]) -> str:
    """What is wrong with a counterexample, in rational arithmetic."""
    if not made.case.contains(x):
        return "outside"
    return "fine" if made.case.unsafe(exact.logits(made.net, x)) else "inexact"


def check(made: Specified) -> tuple[Counter[str], list[str]]:
    """Counts of the answers, and lines about those that are wrong."""
    count, lines = Counter[str](), []
    truth = made.reached()
    try:
        found = answers(made)
    except Exception as error:
        # Float32 may be too far from real arithmetic for an answer.
        apart = isinstance(error, Contradiction) and "onnxruntime must agree" in str(error)
        found = {"refused": ""} if apart else {"error": f"{type(error).__name__}: {error}"}
    for name, word in found.items():
        fault = ""
        if name == "error":
            fault = "error"
        elif word == "unsat" and truth:
            fault = "wrong unsat"
        elif word in ("outside", "inexact"):
            fault = word
        elif word == "sat" and not truth:
            fault = "inexact"
        if not name.endswith("point"):
            count[f"{name} {word if name != 'error' else ''}".strip()] += 1
        if fault:
            count[fault] += 1
            lines.append(json.dumps({"failure": fault, "by": name, "word": word, "case": made.seed, "kind": made.kind}))
    count["reached" if truth else "missed"] += 1
    return count, lines


def run(seeds: Sequence[int]) -> tuple[Counter[str], list[str]]:
    """Check the cases of some seeds."""
    total, lines = Counter[str](cases=len(seeds)), []
    for seed in seeds:
        count, more = check(specified(seed))
        total.update(count)
        for line in more:
            print(line, flush=True)
        lines += more
    return total, lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first case; the others follow")
    parser.add_argument("--case", type=int, nargs="*", help="these cases alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    total, lines = run(given.case or range(given.seed, given.seed + given.count))
    print(json.dumps(dict(sorted(total.items()))))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
