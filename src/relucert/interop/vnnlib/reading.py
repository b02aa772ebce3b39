"""`load_vnnlib`: the specification of a VNN-LIB file (`.vnnlib`, `.vnnlib.gz`)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from relucert.core.errors import DamagedData
from relucert.interop.vnnlib._expressions import Form, Word, expressions, wrong
from relucert.interop.vnnlib._formulas import Atom, Disjunct, Name, Quadratic, conjoined, disjuncts, variable
from relucert.interop.vnnlib.specification import Case, Inequality, Round, Specification
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
    known: dict[Name, int] = {}  # the line of every declaration
    base: list[Atom | Quadratic] = []
    choices: list[list[Disjunct]] = []
    for form in forms:
        if form.head == "declare-const":
            known[_declared(form, known)] = form.line
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
    lines = [known["X", number] for number in range(sizes[0])]
    return specification(sizes[0], sizes[1], base, conjoined(choices, "the file"), lines)


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


def _declared(form: Form, known: Mapping[Name, int]) -> Name:
    if len(form.rest) != 2:
        raise wrong("a declaration must be (declare-const NAME Real)", form)
    name = variable(form.rest[0])
    kind = form.rest[1]
    if not isinstance(kind, Word) or kind.text != "Real":
        raise wrong("a variable must be of the type Real", kind)
    if name in known:
        raise wrong("a variable must be declared once", form.rest[0])
    return name


def _count(letter: str, known: Mapping[Name, int]) -> int:
    """The number of variables of a letter, which must be numbered from 0 without gaps."""
    numbers = {number for own, number in known if own == letter}
    if not numbers:
        raise DamagedData(f"there must be a variable {letter}_0, got none")
    missing = min(set(range(len(numbers))) - numbers, default=None)
    if missing is not None:
        raise DamagedData(
            f"variables {letter} must be numbered without gaps, got {letter}_{max(numbers)} without {letter}_{missing}",
            entry=f"line {known[letter, max(numbers)]}",
        )
    return len(numbers)


def specification(
    inputs: int,
    outputs: int,
    base: list[Atom | Quadratic],
    choices: list[Disjunct],
    lines: Sequence[int] | None = None,
) -> Specification:
    """The specification of inequalities that always hold and disjuncts of which one holds; equal sets make one case.

    `lines`: where the inputs are declared, if that is known; errors name the line.
    """
    cases: dict[tuple[tuple[Fraction, ...], tuple[Fraction, ...], Round | None], list[tuple[Inequality, ...]]] = {}
    always = _Sides.free(inputs)
    possible = always.add(base)
    for disjunct in choices if possible else []:
        sides = always.copy()
        if not sides.add(disjunct):
            continue
        lower, upper = sides.complete(sides.low, "lower", lines), sides.complete(sides.high, "upper", lines)
        if all(a <= b for a, b in zip(lower, upper, strict=True)):
            cases.setdefault((lower, upper, sides.ball), []).append(tuple(sides.outputs))
    found = tuple(Case(lower, upper, tuple(own), ball) for (lower, upper, ball), own in cases.items())
    return Specification(inputs, outputs, found)


@dataclass
class _Sides:
    """The sides of a box that are known, the ball if there is one, and the inequalities about outputs."""

    low: list[Fraction | None]
    high: list[Fraction | None]
    outputs: list[Inequality]
    ball: Round | None = None

    @staticmethod
    def free(inputs: int) -> _Sides:
        """All inputs."""
        return _Sides([None] * inputs, [None] * inputs, [])

    def copy(self) -> _Sides:
        """The same, to be changed."""
        return _Sides(self.low.copy(), self.high.copy(), self.outputs.copy(), self.ball)

    def add(self, atoms: Sequence[Atom | Quadratic]) -> bool:
        """Add inequalities; False if one holds for no values."""
        for atom in atoms:
            if isinstance(atom, Quadratic):
                own = round_of(atom, len(self.low))
                if self.ball not in (None, own):
                    raise DamagedData(
                        "inputs must lie in at most one ball, got a second one", entry=f"line {atom.line}"
                    )
                self.ball = own
                if own.square < 0:
                    return False
            elif not self._add(atom):
                return False
        return True

    def _add(self, atom: Atom) -> bool:
        function = atom.function
        letters = {letter for letter, _ in function.coefficients}
        if not letters:
            return function.constant <= 0
        if letters == {"Y"}:
            row = {number: value for (_, number), value in function.coefficients.items()}
            self.outputs.append(Inequality(row, -function.constant))
        elif letters == {"X"} and len(function.coefficients) == 1:
            ((_, number), slope), *_ = function.coefficients.items()
            side, low, high = -function.constant / slope, self.low[number], self.high[number]
            if slope > 0:
                self.high[number] = side if high is None else min(high, side)
            else:
                self.low[number] = side if low is None else max(low, side)
        else:
            names = ", ".join(sorted(f"{letter}_{number}" for letter, number in function.coefficients))
            raise DamagedData(
                f"an inequality must be about one input or about outputs alone, got one of {names}",
                entry=f"line {atom.line}",
            )
        return True

    def complete(self, side: list[Fraction | None], name: str, lines: Sequence[int] | None) -> tuple[Fraction, ...]:
        """All sides of one direction; where none is given, that of the box around the ball."""
        if self.ball is not None:
            reach = self.ball.reach() * (-1 if name == "lower" else 1)
            side = [c + reach if value is None else value for c, value in zip(self.ball.centre, side, strict=True)]
        found = tuple(value for value in side if value is not None)
        if len(found) < len(side):
            place = side.index(None)
            raise DamagedData(
                f"every input must have a {name} bound, got none for X_{place}",
                entry="" if lines is None else f"line {lines[place]}",
            )
        return found


def round_of(atom: Quadratic, inputs: int) -> Round:
    """The l2 ball of a quadratic inequality a sum_i x_i^2 + <b, x> + c <= 0 about all inputs, a > 0."""
    squares = {
        first[1]: value for (first, second), value in atom.products.items() if first == second and first[0] == "X"
    }
    slopes = {number: value for (letter, number), value in atom.linear.coefficients.items() if letter == "X"}
    a = next(iter(squares.values()), Fraction(0))
    about_inputs = len(squares) == len(atom.products) == inputs and len(slopes) == len(atom.linear.coefficients)
    if not about_inputs or a <= 0 or any(value != a for value in squares.values()):
        raise DamagedData(
            "a term must be linear, or an inequality an l2 ball of all inputs, sum_i (x_i - c_i)^2 <= r^2, got another "
            f"polynomial, with {len(atom.products)} products",
            entry=f"line {atom.line}",
        )
    centre = tuple(-slopes.get(number, Fraction(0)) / (2 * a) for number in range(inputs))
    return Round(centre, sum((c * c for c in centre), Fraction(0)) - atom.linear.constant / a)
