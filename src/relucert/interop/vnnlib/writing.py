"""VNN-LIB texts: specifications, and counterexamples in the format of the verification competition."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from relucert.core.errors import InvalidInput
from relucert.interop.vnnlib.specification import Case, Inequality, Specification


def text_of(spec: Specification) -> str:
    """A specification as VNN-LIB 1.0; all numbers must be finite decimals.

    >>> from relucert.interop.vnnlib.reading import parse
    >>> spec = Specification(1, 1, (Case((Fraction(0),), (Fraction(1),), ((Inequality({0: Fraction(2)}, Fraction(1, 2)),),)),))
    >>> parse(text_of(spec)) == spec
    True
    """
    lines = [f"(declare-const X_{i} Real)" for i in range(spec.inputs)]
    lines += [f"(declare-const Y_{i} Real)" for i in range(spec.outputs)]
    if not spec.cases:
        lines.append("(assert (<= 1 0))")
        for i in range(spec.inputs):
            lines.append(f"(assert (= X_{i} 0))")
    elif len(spec.cases) == 1:
        (case,) = spec.cases
        lines += [f"(assert {text})" for text in _box(case)]
        if len(case.conjunctions) == 1:
            lines += [f"(assert {_inequality(each)})" for each in case.conjunctions[0]]
        else:
            lines += [
                "(assert (or",
                *(f"  {_and([_inequality(each) for each in own])}" for own in case.conjunctions),
                "))",
            ]
    else:
        lines.append("(assert (or")
        for case in spec.cases:
            box = _box(case)
            lines += [f"  {_and(box + [_inequality(each) for each in own])}" for own in case.conjunctions]
        lines.append("))")
    return "\n".join(lines) + "\n"


def counterexample(x: Sequence[Fraction], y: Sequence[float]) -> str:
    """The text of a counterexample: ((X_0 value) ... (Y_0 value) ...), in digits that give the numbers back.

    >>> print(counterexample([Fraction(1, 2)], [2.0, -1.0]), end="")
    ((X_0 0.5)
    (Y_0 2.0)
    (Y_1 -1.0))
    """
    pairs = [f"(X_{i} {_short(value)})" for i, value in enumerate(x)] + [
        f"(Y_{i} {value!r})" for i, value in enumerate(y)
    ]
    return f"({chr(10).join(pairs)})\n"


def _short(value: Fraction) -> str:
    """A float64 number in as many digits as give it back, any other decimal in all its digits."""
    near = float(value)
    return repr(near) if Fraction(near) == value else _decimal(value)


def _box(case: Case) -> list[str]:
    return [
        text
        for i, (low, high) in enumerate(zip(case.lower, case.upper, strict=True))
        for text in (f"(>= X_{i} {_decimal(low)})", f"(<= X_{i} {_decimal(high)})")
    ]


def _and(parts: list[str]) -> str:
    return f"(and {' '.join(parts) or '(<= 0 0)'})"


def _inequality(each: Inequality) -> str:
    terms = [f"(* {_decimal(a)} Y_{i})" for i, a in each.coefficients.items()]
    total = f"(+ {' '.join(terms)})" if terms else "0"
    return f"(<= {total} {_decimal(each.bound)})"


def _decimal(value: Fraction) -> str:
    """A rational number as a finite decimal."""
    rest, places = value.denominator, [0, 0]
    for index, prime in enumerate((2, 5)):
        while rest % prime == 0:
            rest, places[index] = rest // prime, places[index] + 1
    if rest != 1:
        raise InvalidInput(f"numbers must be finite decimals, got {value}")
    digits = max(places)
    whole = value.numerator * 10**digits // value.denominator
    text = str(abs(whole)).rjust(digits + 1, "0")
    body = f"{text[:-digits]}.{text[-digits:]}" if digits else text
    return f"-{body}" if whole < 0 else body
