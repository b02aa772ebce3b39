"""VNN-LIB 2.0, parsed by the package `vnnlib` (extra `vnnlib`): one network, linear inequalities, l2 balls of inputs."""

from __future__ import annotations

import importlib
import json
import math
from fractions import Fraction
from typing import Any

from relucert.core.errors import DamagedData, MissingExtra
from relucert.interop.vnnlib._formulas import MOST, Atom, Disjunct, Linear, Name, Quadratic, conjoined
from relucert.interop.vnnlib.specification import Specification


def parse_version_2(text: str) -> Specification:
    """The specification of a text of VNN-LIB 2.0."""
    from relucert.interop.vnnlib.reading import specification

    try:
        vnnlib: Any = importlib.import_module("vnnlib")
    except ImportError as error:
        raise MissingExtra(
            f"VNN-LIB 2.0 needs the package vnnlib: pip install 'relucert[vnnlib]' (import failed: {error})"
        ) from error
    try:
        query = vnnlib.parse_query_string(text)
    except vnnlib.VNNLibException as error:
        raise _explained(str(error)) from error
    if len(query.networks) != 1:
        raise DamagedData(f"there must be one network, got {len(query.networks)}")
    (network,) = query.networks
    if len(network.inputs) != 1 or len(network.outputs) != 1 or network.hidden:
        raise DamagedData(
            f"the network must have one input, one output and no hidden variables, got {len(network.inputs)}, "
            f"{len(network.outputs)} and {len(network.hidden)}"
        )
    names = {network.inputs[0].name: "X", network.outputs[0].name: "Y"}
    base: list[Atom | Quadratic] = []
    choices: list[list[Disjunct]] = []
    for assertion in query.assertions:
        found = _disjuncts(assertion.expr, names)
        if len(found) == 1:
            base += found[0]
        else:
            choices.append(found)
    sizes = [math.prod(one.shape) for one in (network.inputs[0], network.outputs[0])]
    return specification(sizes[0], sizes[1], base, conjoined(choices, "the file"))


def _explained(text: str) -> DamagedData:
    """The error of the package with its line and its token, where it says these."""
    try:
        first = json.loads(text)["errors"][0]
        return DamagedData(
            f"{first['message']}: {first['hint']}, got {first['offendingSymbol']!r}", entry=f"line {first['line']}"
        )
    except (ValueError, KeyError, IndexError, TypeError):
        return DamagedData(text.splitlines()[0] if text else "it is not VNN-LIB 2.0")


def _disjuncts(at: Any, names: dict[str, str]) -> list[Disjunct]:
    kind = type(at).__name__
    if kind in ("And", "Or"):
        parts = [_disjuncts(part, names) for part in at.args]
        return [one for part in parts for one in part] if kind == "Or" else conjoined(parts, _where(at))
    if kind not in ("LessEqual", "GreaterEqual", "Equal"):
        raise DamagedData(f"a comparison must be <=, >= or ==, got {str(at)[:60]!r}", entry=_where(at))
    line = _line(at)
    sides = _polynomial(at.lhs, names), _polynomial(at.rhs, names)
    below, above = (_atom(_sum(dict(sides[i]), sides[1 - i], Fraction(-1)), line) for i in (0, 1))
    return [{"LessEqual": (below,), "GreaterEqual": (above,), "Equal": (below, above)}[kind]]


#: Coefficients of products of variables, at most two, in order; () is the constant.
Polynomial = dict[tuple[Name, ...], Fraction]


def _atom(polynomial: Polynomial, line: int) -> Atom | Quadratic:
    """A polynomial that must not be positive."""
    linear = Linear({term[0]: a for term, a in polynomial.items() if len(term) == 1}, polynomial.get((), Fraction(0)))
    products = {(term[0], term[1]): a for term, a in polynomial.items() if len(term) == 2}
    return Quadratic(products, linear, line) if products else Atom(linear, line)


def _sum(left: Polynomial, right: Polynomial, times: Fraction) -> Polynomial:
    """left + times right, without zeros; `left` is changed."""
    for term, a in right.items():
        left[term] = left.get(term, Fraction(0)) + times * a
        if not left[term]:
            del left[term]
    return left


def _polynomial(at: Any, names: dict[str, str]) -> Polynomial:
    kind = type(at).__name__
    if kind == "Var":
        return {(_variable(at, names),): Fraction(1)}
    if hasattr(at, "lexeme"):
        return _sum({}, {(): Fraction(at.lexeme)}, Fraction(1))  # the digits of the file, not the package's float
    if kind == "Negate":
        return _sum({}, _polynomial(at.expr, names), Fraction(-1))
    if kind in ("Plus", "Minus"):
        total: Polynomial = {}
        for place, part in enumerate(at.args if kind == "Plus" else (at.head, *at.rest)):
            total = _sum(total, _polynomial(part, names), Fraction(1 if kind == "Plus" or place == 0 else -1))
        return total
    if kind == "Multiply":
        total = {(): Fraction(1)}
        for factor in at.args:
            total = _product(total, _polynomial(factor, names), at)
        return total
    raise DamagedData(f"a term must be a polynomial, got {str(at)[:60]!r}", entry=_where(at))


def _product(left: Polynomial, right: Polynomial, at: Any) -> Polynomial:
    """The product of two polynomials, of degree at most 2."""
    if len(left) * len(right) > MOST:
        raise DamagedData(f"a product must have at most {MOST} terms, got {len(left) * len(right)}", entry=_where(at))
    total: Polynomial = {}
    for first, a in left.items():
        for second, b in right.items():
            term = tuple(sorted((*first, *second)))
            if len(term) > 2:
                raise DamagedData(f"a term must be linear or quadratic, got {str(at)[:60]!r}", entry=_where(at))
            _sum(total, {term: a * b}, Fraction(1))
    return total


def _variable(at: Any, names: dict[str, str]) -> Name:
    """The letter and the number of an entry, in the order of its array."""
    place = 0
    for size, index in zip(at.shape, at.indices, strict=True):
        place = place * size + index
    return names[at.name], place


def _line(at: Any) -> int:
    """The first line that a part of an expression names, 0 if none does."""
    found = getattr(at, "line", 0)
    return found or next((line for line in map(_line, at.children()) if line), 0)


def _where(at: Any) -> str:
    line = _line(at)
    return f"line {line}" if line else ""
