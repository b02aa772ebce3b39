"""VNN-LIB 2.0, parsed by the package `vnnlib` (extra `vnnlib`): one network, one input and output, linear inequalities."""

from __future__ import annotations

import importlib
import json
import math
from fractions import Fraction
from typing import Any

from relucert.core.errors import DamagedData, MissingExtra
from relucert.interop.vnnlib._formulas import Atom, Disjunct, Linear, Name, conjoined
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
    base: list[Atom] = []
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
    left, right = _linear(at.lhs, names), _linear(at.rhs, names)
    line = _line(at)
    below = Atom(left.plus(right, Fraction(-1)), line)
    above = Atom(right.plus(left, Fraction(-1)), line)
    return [{"LessEqual": (below,), "GreaterEqual": (above,), "Equal": (below, above)}[kind]]


def _linear(at: Any, names: dict[str, str]) -> Linear:
    kind, none = type(at).__name__, Linear({}, Fraction(0))
    if kind == "Var":
        return Linear({_variable(at, names): Fraction(1)}, Fraction(0))
    if hasattr(at, "lexeme"):
        return Linear({}, Fraction(at.lexeme))  # the digits of the file, not the package's float
    if kind == "Negate":
        return none.plus(_linear(at.expr, names), Fraction(-1))
    if kind in ("Plus", "Minus"):
        parts = [_linear(part, names) for part in (at.args if kind == "Plus" else (at.head, *at.rest))]
        total = parts[0]
        for part in parts[1:]:
            total = total.plus(part, Fraction(1 if kind == "Plus" else -1))
        return total
    if kind == "Multiply":
        total = Linear({}, Fraction(1))
        for part in (_linear(factor, names) for factor in at.args):
            if part.coefficients and total.coefficients:
                raise DamagedData(f"a term must be linear, got {str(at)[:60]!r}", entry=_where(at))
            total = none.plus(part, total.constant) if part.coefficients else none.plus(total, part.constant)
        return total
    raise DamagedData(f"a term must be linear, got {str(at)[:60]!r}", entry=_where(at))


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
