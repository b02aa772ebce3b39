"""VNN-LIB files: all files of four benchmarks, malformed ones, and the round trip of random specifications."""

from __future__ import annotations

import gzip
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

from relucert.core.errors import DamagedData, MissingExtra
from relucert.interop.vnnlib.reading import load_vnnlib, parse
from relucert.interop.vnnlib.specification import Case, Inequality, Specification
from relucert.interop.vnnlib.writing import text_of

BENCHMARKS = Path(__file__).resolve().parents[4] / "shared" / "benchmarks"
GOOD = """; a comment
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (<= X_0 0.5))
(assert (>= X_0 -0.5))
(assert (or (and (<= X_1 1) (>= X_1 0.25)) (and (<= X_1 -1) (>= X_1 -2e0))))
(assert (or (and (<= Y_0 Y_1) (>= (+ (* 2.5 Y_0) Y_1) 1.0)) (>= (- Y_1) 3)))
"""


def test_boxes_and_clauses() -> None:
    spec = parse(GOOD)
    assert (spec.inputs, spec.outputs, len(spec.cases)) == (2, 2, 2)
    first = spec.cases[0]
    assert first.lower == (Fraction(-1, 2), Fraction(1, 4))
    assert first.upper == (Fraction(1, 2), Fraction(1))
    assert [len(each) for each in first.conjunctions] == [2, 1]
    prop = first.prop(2)
    assert prop.rows.tolist() == [[[1.0, -1.0], [-2.5, -1.0], [0.0, 1.0]]]
    assert prop.offsets.tolist() == [[0.0, 1.0, 3.0]]
    assert prop.clauses is not None
    assert prop.clauses.tolist() == [0, 0, 1]
    # Unsafe where the first two hold, or the third: y = (1, -4) satisfies -y_1 >= 3.
    assert spec.violated([Fraction(0), Fraction(1)], [Fraction(1), Fraction(-4)])
    assert not spec.violated([Fraction(0), Fraction(0)], [Fraction(1), Fraction(-4)])  # between the boxes
    assert not spec.violated([Fraction(0), Fraction(1)], [Fraction(1), Fraction(0)])


def test_boxes_are_rounded_outwards_and_offsets_down() -> None:
    third = Fraction("0.1")
    case = Case((third,), (third,), ((Inequality({0: Fraction("0.1")}, Fraction("0.3")),),))
    low, high = case.box()
    assert Fraction(float(low)) <= third <= Fraction(float(high))
    prop = case.prop(1)
    # 0.1 y <= 0.3 is y <= 3 with a coefficient that is a number.
    assert prop.rows.tolist() == [[[1.0]]]
    assert Fraction(-float(prop.offsets)) >= 3


def test_an_empty_box_is_safe() -> None:
    text = GOOD.replace("(>= X_0 -0.5)", "(>= X_0 0.75)")
    assert parse(text).cases == ()


@pytest.mark.skipif(not BENCHMARKS.exists(), reason="the benchmarks of ../shared are not here")
@pytest.mark.parametrize("name", ["acasxu", "collins_rul", "safenlp", "sat_relu"])
def test_all_files_of_the_benchmarks(name: str) -> None:
    files = sorted((BENCHMARKS / name / "vnnlib").rglob("*.vnnlib.gz"))
    assert files
    for file in files:
        spec = load_vnnlib(file)
        assert spec.cases
        for case in spec.cases:
            prop = case.prop(spec.outputs)
            assert prop.rows.shape[2] == spec.outputs
            assert prop.rows.shape[1] == sum(map(len, case.conjunctions))


#: What breaks the file, the line where, and the token that the message must show.
RULES = [
    ("(declare-const X_1 Real)", "(declare-const X_1 Int)", "Int"),
    ("(declare-const X_1 Real)", "(declare-const Z_1 Real)", "Z_1"),
    ("(declare-const X_1 Real)", "(declare-const  X_0 Real)", "X_0"),
    ("(declare-const X_1 Real)", "(declare-const X_1)", "declare-const"),
    ("(declare-const X_1 Real)", "(define-fun X_1 Real)", "define-fun"),
    ("(assert (<= X_0 0.5))", "(assert (< X_0 0.5))", "<"),
    ("(assert (<= X_0 0.5))", "(assert (<= X_0 0.5)", "("),
    ("(assert (<= X_0 0.5))", "(assert (<= X_0 0.5)))", ")"),
    ("(assert (<= X_0 0.5))", "(assert (<= X_0 0.5.1))", "0.5.1"),
    ("(assert (<= X_0 0.5))", "(assert (<= X_0 nan))", "nan"),
    ("(assert (<= X_0 0.5))", "(assert (<= X_7 0.5))", "X_7"),
    ("(assert (<= X_0 0.5))", "(assert (<= X_0 0.5 0.7))", "0.7"),
    ("(assert (<= X_0 0.5))", "(assert (<= X_0))", "<="),
    ("(assert (<= X_0 0.5))", "(assert)", "assert"),
    ("(assert (<= X_0 0.5))", "(assert (and))", "and"),
    ("(assert (<= X_0 0.5))", "assert (<= X_0 0.5)", "assert"),
    ("(assert (<= X_0 0.5))", "(assert (<= (* X_0 X_0) 0.5))", "X_0"),
    ("(assert (<= X_0 0.5))", "(assert (<= (+ X_0 X_1) 0.5))", "X_0, X_1"),
    ("(assert (<= X_0 0.5))", "(assert (<= X_0 Y_0))", "X_0, Y_0"),
    ("(assert (<= X_0 0.5))", "(assert (<= (/ X_0 2) 0.5))", "/"),
    ("(assert (<= X_0 0.5))", "()", "()"),
]


@pytest.mark.parametrize(("old", "new", "token"), RULES, ids=[new for _, new, _ in RULES])
def test_errors_name_line_and_token(old: str, new: str, token: str) -> None:
    text = GOOD.replace(old, new)
    with pytest.raises(DamagedData) as found:
        parse(text)
    line = text[: text.index(new)].count("\n") + 1
    assert found.value.entry == f"line {line}"
    assert token in str(found.value)


def test_what_is_missing_is_named() -> None:
    for removed, words in [
        ("(assert (>= X_0 -0.5))\n", "lower bound, got none for X_0"),
        ("(declare-const X_0 Real)\n", "declared before it is used, got 'X_0'"),
        ("(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n", "declared"),
    ]:
        with pytest.raises(DamagedData, match=re.escape(words)):
            parse(GOOD.replace(removed, ""))


def test_two_hundred_malformed_files_are_errors_with_a_line(tmp_path: Path) -> None:
    """One token removed, doubled, or replaced by one that may not stand there; whatever is no error must mean something."""
    rng = random.Random(0)
    tokens = list(re.finditer(r"[()]|[^\s()]+", GOOD[GOOD.index("\n") :]))
    offset, errors = GOOD.index("\n"), 0
    for number in range(400):
        token = rng.choice(tokens)
        start, end = token.start() + offset, token.end() + offset
        new = rng.choice(["", "(", ")", "X_99", "1..2", "foo", "\x00", "(+)", "<", "Y_-1", "1e9999"])
        file = tmp_path / "one.vnnlib"
        file.write_text(GOOD[:start] + new + GOOD[end:])
        message = _message(file)
        if message:
            errors += 1
            assert str(file) in message
            assert re.search(r"line \d+", message), (number, message)
            assert re.search(r"got .*('.+'|[XY]_\d+|'\(')", message), (number, message)
    assert errors >= 200, errors


def _message(file: Path) -> str:
    """The error about a file, "" without one."""
    try:
        load_vnnlib(file)
    except DamagedData as error:
        return str(error)
    return ""


def test_damaged_bytes(tmp_path: Path) -> None:
    whole = gzip.compress(GOOD.encode())
    for name, data in [("a.vnnlib.gz", whole[:-12]), ("b.vnnlib.gz", b"no gzip"), ("c.vnnlib", b"\xff\xfe")]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DamagedData):
            load_vnnlib(tmp_path / name)
    (tmp_path / "d.vnnlib.gz").write_bytes(whole)
    assert load_vnnlib(tmp_path / "d.vnnlib.gz") == parse(GOOD)
    with pytest.raises(DamagedData, match="nested"):
        parse("(" * 100_000)


def _random(rng: random.Random) -> Specification:
    inputs, outputs = rng.randint(1, 4), rng.randint(1, 4)

    def number() -> Fraction:
        return Fraction(rng.randint(-(10**6), 10**6), 10 ** rng.randint(0, 12))

    def inequality() -> Inequality:
        row = {place: value for place in range(outputs) if rng.random() < 0.7 and (value := number())}
        return Inequality(row or {0: Fraction(1)}, number())

    cases = {}
    for _ in range(rng.randint(1, 3)):
        sides = [sorted((number(), number())) for _ in range(inputs)]
        box = tuple(a for a, _ in sides), tuple(b for _, b in sides)
        cases[box] = tuple(tuple(inequality() for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 3)))
    return Specification(inputs, outputs, tuple(Case(*box, own) for box, own in cases.items()))


def test_round_trip_of_random_specifications() -> None:
    rng = random.Random(1)
    for _ in range(300):
        spec = _random(rng)
        assert parse(text_of(spec)) == spec


def test_version_2() -> None:
    text = """(vnnlib-version <2.0>)
(declare-network f
  (declare-input X float32 [1,2])
  (declare-output Y float32 [2])
)
(assert (and (<= X[0,0] 0.5) (>= X[0,0] (- 0.1)) (<= -0.01 X[0,1]) (<= X[0,1] 1.0)))
(assert (or (<= Y[0] Y[1]) (>= (+ (* 2.0 Y[0]) (* -1.0 Y[1])) 3.25)))
"""
    pytest.importorskip("vnnlib", reason="the package vnnlib is not installed")
    one = """(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
    (assert (and (<= X_0 0.5) (>= X_0 -0.1) (<= -0.01 X_1) (<= X_1 1.0)))
    (assert (or (<= Y_0 Y_1) (>= (+ (* 2.0 Y_0) (* -1.0 Y_1)) 3.25)))"""
    assert parse(text) == parse(one)
    with pytest.raises(DamagedData, match=r"line 6.*linear"):
        parse(text.replace("(<= X[0,0] 0.5)", "(<= (* X[0,0] X[0,0]) 0.5)"))
    with pytest.raises(DamagedData, match=r"line 7.*Z"):
        parse(text.replace("(<= Y[0] Y[1])", "(<= Z[0] Y[1])"))


def test_version_2_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "vnnlib", None)
    with pytest.raises(MissingExtra, match=r"relucert\[vnnlib\]"):
        parse("(vnnlib-version <2.0>)")
