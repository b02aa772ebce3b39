"""Formulas over linear inequalities: from expressions to disjuncts."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from relucert.core.errors import DamagedData
from relucert.interop.vnnlib._expressions import Expression, Form, Word, wrong

MOST = 200_000  # inequalities of all disjuncts of one formula

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\Z")
Name = tuple[str, int]


@dataclass(frozen=True)
class Linear:
    """A linear function: coefficients of variables, by letter and number, and a constant."""

    coefficients: dict[Name, Fraction]
    constant: Fraction

    def plus(self, other: Linear, times: Fraction) -> Linear:
        """This function plus another one times a number."""
        total = dict(self.coefficients)
        for name, value in other.coefficients.items():
            total[name] = total.get(name, Fraction(0)) + times * value
        return Linear({name: value for name, value in total.items() if value}, self.constant + times * other.constant)


@dataclass(frozen=True)
class Atom:
    """A linear function that must not be positive; `line` is where the file says so."""

    function: Linear
    line: int


@dataclass(frozen=True)
class Quadratic:
    """linear + sum of products of two variables, by the pair, that must not be positive; `line` is where the file says so."""

    products: dict[tuple[Name, Name], Fraction]
    linear: Linear
    line: int


Disjunct = tuple[Atom | Quadratic, ...]


def disjuncts(at: Expression, known: Container[Name]) -> list[Disjunct]:
    """The disjunctive normal form of a formula over declared variables."""
    if not isinstance(at, Form) or at.head not in ("and", "or", "<=", ">=", "="):
        raise wrong("a formula must begin with '(and', '(or', '(<=', '(>=' or '(='", _first(at))
    if at.head in ("<=", ">=", "="):
        return [_comparison(at, known)]
    if not at.rest:
        raise wrong(f"'{at.head}' must have at least one formula", at)
    parts = [disjuncts(part, known) for part in at.rest]
    if at.head == "or":
        found = [disjunct for part in parts for disjunct in part]
    else:
        found = conjoined(parts, f"line {at.line}")
    return found


def conjoined(parts: list[list[Disjunct]], where: str) -> list[Disjunct]:
    """The disjuncts of a conjunction of formulas, at most so many that they can be handled."""
    many, longest = 1, 0
    for part in parts:
        many *= len(part)
        longest += max(map(len, part), default=0)
    if many > 1 and many * longest > MOST:
        raise DamagedData(
            f"a formula must have at most {MOST} inequalities in normal form, got {many * longest}", entry=where
        )
    return [tuple(atom for disjunct in choice for atom in disjunct) for choice in product(*parts)]


def _comparison(at: Form, known: Container[Name]) -> Disjunct:
    if len(at.rest) != 2:
        raise wrong(f"'{at.head}' must compare two terms", at.rest[2] if len(at.rest) > 2 else at)
    left, right = (_term(part, known) for part in at.rest)
    below = Atom(left.plus(right, Fraction(-1)), at.line)
    above = Atom(right.plus(left, Fraction(-1)), at.line)
    return {"<=": (below,), ">=": (above,), "=": (below, above)}[at.head]


def _term(at: Expression, known: Container[Name]) -> Linear:
    if isinstance(at, Word):
        if _NUMBER.match(at.text):
            return Linear({}, Fraction(at.text))
        return Linear({variable(at, known): Fraction(1)}, Fraction(0))
    if at.head not in ("+", "-", "*") or not at.rest:
        raise wrong("a term must be a number, a variable, or begin with '(+', '(-' or '(*'", _first(at))
    parts = [_term(part, known) for part in at.rest]
    if at.head == "*":
        total = Linear({}, Fraction(1))
        for place, part in enumerate(parts):
            if part.coefficients and total.coefficients:
                raise wrong("a product must have at most one factor with variables", at.rest[place])
            total = _times(part, total.constant) if part.coefficients else _times(total, part.constant)
        return total
    if at.head == "-" and len(parts) == 1:
        return _times(parts[0], Fraction(-1))
    total = parts[0]
    for part in parts[1:]:
        total = total.plus(part, Fraction(1 if at.head == "+" else -1))
    return total


def _times(part: Linear, factor: Fraction) -> Linear:
    return Linear({}, Fraction(0)).plus(part, factor)


def variable(at: Expression, known: Container[Name] | None = None) -> Name:
    """The letter and the number of a variable X_i or Y_i; declared, if the declared ones are given."""
    found = re.match(r"([XY])_(0|[1-9]\d{0,8})\Z", at.text) if isinstance(at, Word) else None
    if found is None:
        raise wrong("a variable must be X_ or Y_ and a number", at)
    name = found[1], int(found[2])
    if known is not None and name not in known:
        raise wrong("a variable must be declared before it is used", at)
    return name


def _first(at: Expression) -> Expression:
    """The word that an error about an expression should show."""
    return at.parts[0] if isinstance(at, Form) and at.parts and isinstance(at.parts[0], Word) else at
