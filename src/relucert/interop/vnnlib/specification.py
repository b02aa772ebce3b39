"""`Specification`: the unsafe set that a VNN-LIB file describes, in rational numbers.

A specification is a list of cases. A case is a box of inputs, cut with an l2 ball if there is one, and a list of conjunctions:
the network is unsafe if some x in some case has outputs y that satisfy all inequalities <a, y> <= b of some conjunction of the
case. Numbers are the decimals of the file, without rounding; `Case.box`, `Round.around` and `Case.prop` round them so that a
proof covers the file's set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from jaxtyping import Float
from torch import Tensor

from relucert.core.errors import InvalidInput
from relucert.core.properties import Property

_EXACT = 2**53  # whole numbers up to here are float64 numbers


@dataclass(frozen=True)
class Inequality:
    """<coefficients, y> <= bound; coefficients by the number of the output, without zeros.

    >>> Inequality({0: Fraction(1), 2: Fraction(-1)}, Fraction(1, 2)).holds([Fraction(1), Fraction(9), Fraction(1, 2)])
    True
    """

    coefficients: dict[int, Fraction]
    bound: Fraction

    def holds(self, outputs: Sequence[Fraction]) -> bool:
        """Whether outputs satisfy the inequality, in rational arithmetic."""
        return sum((a * outputs[place] for place, a in self.coefficients.items()), Fraction(0)) <= self.bound

    def scaled(self) -> Inequality:
        """The same inequality with coefficients that are float64 numbers, times a whole number where they are not."""
        if all(Fraction(float(a)) == a for a in self.coefficients.values()):
            return self
        factor = math.lcm(*(a.denominator for a in self.coefficients.values()))
        whole = {place: a * factor for place, a in self.coefficients.items()}
        common = math.gcd(*(int(a) for a in whole.values()))
        whole = {place: a / common for place, a in whole.items()}
        if any(abs(a) > _EXACT for a in whole.values()):
            raise InvalidInput("coefficients of outputs must have at most 15 digits between them, got more")
        return Inequality(whole, self.bound * factor / common)


@dataclass(frozen=True)
class Round:
    """An l2 ball of inputs, sum_i (x_i - centre_i)^2 <= square, with square >= 0."""

    centre: tuple[Fraction, ...]
    square: Fraction

    def contains(self, x: Sequence[Fraction]) -> bool:
        """Whether a point lies in the ball, in rational arithmetic."""
        return sum(((a - b) ** 2 for a, b in zip(x, self.centre, strict=True)), Fraction(0)) <= self.square

    def reach(self) -> Fraction:
        """At least the radius, and at most the smallest part of a millionth of a millionth more."""
        scale = 10**30
        return Fraction(math.isqrt(math.ceil(self.square * scale * scale)) + 1, scale)

    def around(self) -> tuple[Float[Tensor, " inputs"], float]:
        """A centre and a radius in float64 of a ball that holds this one."""
        centre = [float(value) for value in self.centre]
        moved = sum((abs(Fraction(a) - b) for a, b in zip(centre, self.centre, strict=True)), Fraction(0))
        return torch.tensor(centre, dtype=torch.float64), _rounded(self.reach() + moved, math.inf)


@dataclass(frozen=True)
class Case:
    """A set of inputs and the conjunctions of which one must hold for the outputs to be unsafe.

    The set is a box, [lower, upper] for each input, cut with the l2 ball `ball` if there is one.
    """

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]
    conjunctions: tuple[tuple[Inequality, ...], ...]
    ball: Round | None = None

    def box(self) -> tuple[Float[Tensor, " inputs"], Float[Tensor, " inputs"]]:
        """The box in float64, rounded outwards."""
        low = [_rounded(value, -math.inf) for value in self.lower]
        return torch.tensor(low, dtype=torch.float64), torch.tensor(
            [_rounded(value, math.inf) for value in self.upper], dtype=torch.float64
        )

    def prop(self, outputs: int) -> Property:
        """What must hold for the case to be safe, in float64: one clause for each conjunction, of the negated inequalities.

        Offsets are rounded down: where the property holds, the inequalities of the file fail.
        """
        rows: list[list[float]] = []
        offsets: list[float] = []
        clauses: list[int] = []
        for clause, conjunction in enumerate(self.conjunctions):
            # Without inequalities every output is unsafe: 0 > 0 never holds.
            for inequality in conjunction or (Inequality({}, Fraction(0)),):
                exact = inequality.scaled()
                row = [0.0] * outputs
                for place, a in exact.coefficients.items():
                    row[place] = float(a)
                rows.append(row)
                offsets.append(-_rounded(exact.bound, math.inf))
                clauses.append(clause)
        single = len(set(clauses)) == len(clauses)
        return Property(
            torch.tensor([rows], dtype=torch.float64),
            torch.tensor([offsets], dtype=torch.float64),
            None if single else torch.tensor(clauses),
        )

    def contains(self, x: Sequence[Fraction]) -> bool:
        """Whether a point lies in the box and in the ball, in rational arithmetic."""
        inside = all(low <= value <= high for low, value, high in zip(self.lower, x, self.upper, strict=True))
        return inside and (self.ball is None or self.ball.contains(x))

    def unsafe(self, y: Sequence[Fraction]) -> bool:
        """Whether outputs satisfy all inequalities of some conjunction, in rational arithmetic."""
        return any(all(inequality.holds(y) for inequality in conjunction) for conjunction in self.conjunctions)


@dataclass(frozen=True)
class Specification:
    """The numbers of inputs and outputs, and the cases; without cases the unsafe set is empty."""

    inputs: int
    outputs: int
    cases: tuple[Case, ...]

    def violated(self, x: Sequence[Fraction], y: Sequence[Fraction]) -> bool:
        """Whether a point with these outputs is a counterexample, in rational arithmetic."""
        return any(case.contains(x) and case.unsafe(y) for case in self.cases)


def _rounded(value: Fraction, towards: float) -> float:
    """The float64 number at a rational number, or the next one towards an infinity."""
    try:
        near = float(value)
    except OverflowError as error:
        raise InvalidInput(
            f"numbers must be at most 1e308 in absolute value, got one of {len(str(value))} digits"
        ) from error
    exact = Fraction(near)
    if exact == value or (exact > value) == (towards > 0):
        return near
    return math.nextafter(near, towards)
