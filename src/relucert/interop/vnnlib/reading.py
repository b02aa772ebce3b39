"""`load_vnnlib`: the specification of a VNN-LIB file (`.vnnlib`, `.vnnlib.gz`)."""

from __future__ import annotations

import gzip
import zlib
from fractions import Fraction
from pathlib import Path

from relucert.core.errors import DamagedData
from relucert.interop.vnnlib._expressions import Form, Word, expressions, wrong
from relucert.interop.vnnlib._formulas import Atom, Disjunct, Name, conjoined, disjuncts, variable
from relucert.interop.vnnlib.specification import Case, Inequality, Specification
from relucert.records.untrusted import reading

LARGEST = 2**28  #: bytes of a file after it is unpacked
REMEDY = "see https://www.vnnlib.org for the format"


def load_vnnlib(path: str | Path) -> Specification:
    """Read a VNN-LIB file; an error names the line and the token that break a rule."""
    path = Path(path)
    with reading(path, REMEDY):
        return parse(_text(path))


def parse(text: str) -> Specification:
    """The specification of a text of VNN-LIB 1.0, or 2.0 if it begins with its version.

    >>> parse("(declare-const X_0 Real) (declare-const Y_0 Real)"
    ...       "(assert (<= X_0 1)) (assert (>= X_0 0)) (assert (>= Y_0 0.5))").cases[0].upper
    (Fraction(1, 1),)
    """
    forms = expressions(text)
    if forms and forms[0].head == "vnnlib-version":
        from relucert.interop.vnnlib._version_2 import parse_version_2

        return parse_version_2(text)
    known: set[Name] = set()
    base: list[Atom] = []
    choices: list[list[Disjunct]] = []
    for form in forms:
        if form.head == "declare-const":
            known.add(_declared(form, known))
        elif form.head == "assert":
            if len(form.rest) != 1:
                raise wrong("'assert' must have one formula", form)
            found = disjuncts(form.rest[0], known)
            if len(found) == 1:
                base += found[0]
            else:
                choices.append(found)
        else:
            raise wrong("a line must begin with '(declare-const' or '(assert'", form.parts[0] if form.parts else form)
    sizes = [_count(letter, known) for letter in "XY"]
    return specification(sizes[0], sizes[1], base, conjoined(choices, "the file"))


def _text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            data = unpacker.decompress(data, LARGEST)
        except (zlib.error, gzip.BadGzipFile) as error:
            raise DamagedData(f"it must be a gzip file: {error}") from error
        if not unpacker.eof:
            raise DamagedData(
                f"it must be a whole gzip file of at most {LARGEST} bytes, got an end too early or too late"
            )
    if len(data) > LARGEST:
        raise DamagedData(f"it must have at most {LARGEST} bytes, got {len(data)}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedData(f"it must be UTF-8 text, got byte {data[error.start]:#04x} at {error.start}") from error


def _declared(form: Form, known: set[Name]) -> Name:
    if len(form.rest) != 2:
        raise wrong("a declaration must be (declare-const NAME Real)", form)
    name = variable(form.rest[0])
    kind = form.rest[1]
    if not isinstance(kind, Word) or kind.text != "Real":
        raise wrong("a variable must be of the type Real", kind)
    if name in known:
        raise wrong("a variable must be declared once", form.rest[0])
    return name


def _count(letter: str, known: set[Name]) -> int:
    """The number of variables of a letter, which must be numbered from 0 without gaps."""
    numbers = {number for own, number in known if own == letter}
    if not numbers:
        raise DamagedData(f"there must be a variable {letter}_0, got none")
    missing = min(set(range(len(numbers))) - numbers, default=None)
    if missing is not None:
        raise DamagedData(
            f"variables {letter} must be numbered without gaps, got {letter}_{max(numbers)} without {letter}_{missing}"
        )
    return len(numbers)


def specification(inputs: int, outputs: int, base: list[Atom], choices: list[Disjunct]) -> Specification:
    """The specification of inequalities that always hold and disjuncts of which one holds; equal boxes make one case."""
    cases: dict[tuple[tuple[Fraction, ...], tuple[Fraction, ...]], list[tuple[Inequality, ...]]] = {}
    low: list[Fraction | None] = [None] * inputs
    high: list[Fraction | None] = [None] * inputs
    always: list[Inequality] = []
    possible = _collect(base, low, high, always)
    for disjunct in choices if possible else []:
        lower, upper, own = low.copy(), high.copy(), always.copy()
        if not _collect(disjunct, lower, upper, own):
            continue
        box = _complete(lower, "lower"), _complete(upper, "upper")
        if all(a <= b for a, b in zip(*box, strict=True)):
            cases.setdefault(box, []).append(tuple(own))
    return Specification(inputs, outputs, tuple(Case(*box, tuple(found)) for box, found in cases.items()))


def _collect(
    atoms: list[Atom] | Disjunct, low: list[Fraction | None], high: list[Fraction | None], own: list[Inequality]
) -> bool:
    """Add inequalities to the sides of the box and to those of the outputs; False if one holds for no values."""
    for atom in atoms:
        function = atom.function
        letters = {letter for letter, _ in function.coefficients}
        if not letters:
            if function.constant > 0:
                return False
        elif letters == {"Y"}:
            row = {number: value for (_, number), value in function.coefficients.items()}
            own.append(Inequality(row, -function.constant))
        elif letters == {"X"} and len(function.coefficients) == 1:
            ((_, number), slope), *_ = function.coefficients.items()
            side = -function.constant / slope
            if slope > 0:
                high[number] = side if high[number] is None else min(high[number], side)  # type: ignore[type-var]
            else:
                low[number] = side if low[number] is None else max(low[number], side)  # type: ignore[type-var]
        else:
            names = ", ".join(sorted(f"{letter}_{number}" for letter, number in function.coefficients))
            raise DamagedData(
                f"an inequality must be about one input or about outputs alone, got one of {names}",
                entry=f"line {atom.line}",
            )
    return True


def _complete(side: list[Fraction | None], name: str) -> tuple[Fraction, ...]:
    found = tuple(value for value in side if value is not None)
    if len(found) < len(side):
        raise DamagedData(f"every input must have a {name} bound, got none for X_{side.index(None)}")
    return found
