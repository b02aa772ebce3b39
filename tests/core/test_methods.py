from __future__ import annotations

import doctest
import math
from dataclasses import FrozenInstanceError, dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relucert.core import methods
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, parse, spec


@dataclass(frozen=True, kw_only=True)
class PGD(Method):
    name = "pgd"
    steps: int = 40
    restarts: int = 1
    step_size: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise InvalidInput(f"steps must be at least 1, got {self.steps}")


@dataclass(frozen=True, kw_only=True)
class Everything(Method):
    name = "mmr+at"
    number: float
    count: int = 0
    flag: bool = False
    text: str = ""
    kind: Literal["a", "b'", 1] = "a"
    maybe: int | str | None = None
    either: float | int = 0.0
    many: tuple[float, ...] = ()
    pair: tuple[int, str] = (0, "")


@dataclass(frozen=True, kw_only=True)
class Plain(Method):
    name = "plain"


@dataclass(frozen=True, kw_only=True)
class Careless(Method):
    name = "careless"
    eps: float = 1.0

    def __post_init__(self) -> None:
        pass


REGISTRY: dict[str, type[Method]] = {kind.name: kind for kind in (PGD, Everything, Plain, Careless)}

NUMBERS = st.floats(allow_nan=False) | st.integers(-(10**20), 10**20)
EVERYTHING = st.builds(
    Everything,
    number=NUMBERS,
    count=st.integers(),
    flag=st.booleans(),
    text=st.text(),
    kind=st.sampled_from(["a", "b'", 1]),
    maybe=st.integers() | st.text() | st.none(),
    either=NUMBERS,
    many=st.lists(NUMBERS).map(tuple),
    pair=st.tuples(st.integers(), st.text(st.characters(exclude_categories=()))),
)


def test_examples_of_the_documentation_run():
    result = doctest.testmod(methods)
    assert result.attempted > 0
    assert result.failed == 0


def test_spec_has_all_parameters_in_alphabetical_order():
    assert spec(PGD(steps=7)) == "pgd(restarts=1, step_size=None, steps=7)"
    assert spec(PGD(step_size=math.inf)) == "pgd(restarts=1, step_size=inf, steps=40)"
    assert spec(Plain()) == "plain"


@settings(deadline=None)
@given(method=EVERYTHING)
def test_parse_inverts_spec(method):
    again = parse(spec(method), REGISTRY)
    assert again == method
    assert spec(again) == spec(method)


@settings(deadline=None)
@given(a=EVERYTHING, b=EVERYTHING)
def test_methods_are_equal_exactly_if_their_specs_are(a, b):
    # `either` may be 1 or 1.0, equal values with two texts, because its annotation allows both types.
    if (type(a.either), type(a.maybe)) == (type(b.either), type(b.maybe)):
        assert (a == b) == (spec(a) == spec(b))


@pytest.mark.parametrize("kind", [Everything, Careless])
@pytest.mark.parametrize(("value", "same"), [(1, 1.0), (np.float64(0.5), 0.5), (-0.0, 0.0), (np.int64(3), 3.0)])
def test_equal_numbers_have_one_text(kind, value, same):
    name = "number" if kind is Everything else "eps"
    assert spec(kind(**{name: value})) == spec(kind(**{name: same}))


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("pgd", PGD()),
        (" pgd ( ) ", PGD()),
        ("pgd(steps=40, restarts=10)", PGD(restarts=10)),
        ("pgd(\n  step_size = +1e-2,\n)", PGD(step_size=0.01)),
        ("pgd(step_size=2)", PGD(step_size=2.0)),
        ("pgd(step_size=-inf)", PGD(step_size=-math.inf)),
        ("mmr+at(number=inf, flag=True, text='a, b)', maybe=None)", Everything(number=math.inf, flag=True, text="a, b)")),
        ('mmr+at(number=1, kind="b\'", many=[1, 2.5], pair=(-1, "x"))',
         Everything(number=1, kind="b'", many=(1, 2.5), pair=(-1, "x"))),
    ],
)  # fmt: skip
def test_parse_accepts_usual_spellings(text, method):
    assert parse(text, REGISTRY) == method


def test_parse_returns_an_instance_unchanged():
    method = PGD(steps=3)
    assert parse(method, REGISTRY) is method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fgsm", r"method must be one of careless, mmr\+at, pgd, plain, got 'fgsm'"),
        ("pgd(step=3)", r"pgd has no parameter 'step'; it has restarts, step_size, steps"),
        ("plain(step=3)", r"plain has no parameter 'step'; it has none"),
        ("pgd(steps=4.5)", r"steps of pgd must be an int, got 4.5"),
        ("pgd(steps=True)", r"steps of pgd must be an int, got True"),
        ("pgd(step_size='big')", r"step_size of pgd must be a number or None, got 'big'"),
        ("pgd(steps=0)", r"^steps must be at least 1, got 0$"),
        ("pgd(steps=1, steps=2)", r"parameter 'steps' is given twice"),
        ("pgd(40)", r"given by name, 'parameter=value', got 'pgd\(40\)'"),
        ("pgd(**x)", r"given by name"),
        ("pgd(steps=forty)", r"steps must be a number, inf, True.*got forty"),
        ("pgd(steps=__import__('os').getpid())", r"steps must be a number, inf.*got __import__"),
        ("pgd(steps=2*20)", r"got 2 \* 20"),
        ("pgd(steps=-True)", r"got -True"),
        ("pgd(steps=b'4')", r"got b'4'"),
        ("pgd(steps=...)", r"steps must be a number"),
        ("pgd(steps=4", r"must read 'name' or 'name\(parameter=value, ...\)', got 'pgd\(steps=4'"),
        ("pgd(steps=)", r"must read 'name\(parameter=value, ...\)', got 'pgd\(steps=\)'"),
        ("pgd(steps=4)(restarts=2)", r"must read"),
        ("pgd(steps=4)+(2)", r"must read"),
        ("pgd(steps='\0')", r"must read"),
        ("pgd(steps=" + "(" * 10000 + ")" * 10000 + ")", r"must read"),
        ("", r"must read"),
        ("mmr+at", r"mmr\+at needs a value for number"),
        ("mmr+at(number=1, kind='c')", r"""kind of mmr\+at must be one of 'a', "b'", 1, got 'c'"""),
        ("mmr+at(number=1, kind=True)", r"kind of mmr\+at must be one of .*, got True"),
        ("mmr+at(number=1, flag=1)", r"flag of mmr\+at must be True or False, got 1"),
        ("mmr+at(number=1, text=1)", r"text of mmr\+at must be a string, got 1"),
        ("mmr+at(number=1, pair=(1,))", r"pair of mmr\+at must be tuple\[int, str\], got \(1,\)"),
        ("mmr+at(number=1, many=(1, 'a'))", r"many of mmr\+at must be tuple"),
        ("mmr+at(number=1, many=1)", r"many of mmr\+at must be tuple"),
        ("mmr+at(number=" + "9" * 400 + ")", r"number of mmr\+at must be a number"),
    ],
)  # fmt: skip
def test_errors_name_parameter_rule_and_value(text, message):
    with pytest.raises(InvalidInput, match=message):
        parse(text, REGISTRY)


def test_a_method_of_another_kind_is_refused():
    with pytest.raises(InvalidInput, match=r"method must be one of plain, got an instance of PGD"):
        parse(PGD(), {"plain": Plain})
    with pytest.raises(InvalidInput, match=r"got 7"):
        parse(7, {"plain": Plain})  # type: ignore[arg-type]


def test_parameters_are_checked_frozen_and_named():
    with pytest.raises(InvalidInput, match=r"steps of pgd must be an int, got '40'"):
        PGD(steps="40")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"number of mmr\+at must be a number, got nan"):
        Everything(number=math.nan)
    with pytest.raises(FrozenInstanceError):
        PGD().steps = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        PGD(40)  # type: ignore[misc]


def test_an_annotation_that_has_no_text_is_a_programming_error():
    @dataclass(frozen=True, kw_only=True)
    class Odd(Method):
        name = "odd"
        values: dict = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match="cannot be annotated"):
        Odd()
