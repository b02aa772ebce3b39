from __future__ import annotations

import doctest
import json
import math
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relucert.core.errors import DamagedData, InvalidInput
from relucert.records import record as records
from relucert.records.record import Record, Verdict, ball_fields

ANY_TEXT = st.text(st.characters(exclude_categories=()))
TEXT = ANY_TEXT.filter(bool)
RADIUS = st.floats(0, math.inf)
NUMBER = st.none() | st.floats(allow_nan=False)
SHA256 = st.binary(min_size=32, max_size=32).map(bytes.hex)
BOX = st.none() | st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)).map(sorted)
BALL = st.builds(ball_fields, p=st.floats(1, math.inf) | st.integers(1, 9), eps=RADIUS, box=BOX)


@st.composite
def any_record(draw) -> Record:
    lower, upper = sorted(draw(st.tuples(RADIUS, RADIUS)))
    ball = draw(BALL)
    eps = float(ball["eps"])
    verdict = draw(st.none() | st.sampled_from(Verdict))
    label = draw(st.none() | st.integers(0))
    prediction = draw(st.none() | st.integers(0))
    margin, executed, covers = draw(NUMBER), draw(NUMBER), None
    # No fact contradicts the verdict.
    if verdict is Verdict.ROBUST:
        covers = draw(st.none() | st.sampled_from(["executed", "real"]))
        margin = None if margin is None else abs(margin)
        executed = 0.5 if covers == "executed" and executed is not None and executed <= 0 else executed
        upper = upper if upper > eps else math.inf
        prediction = None if prediction is None else label
    if verdict is Verdict.VULNERABLE:
        margin = None if margin is None else -abs(margin)
        lower, upper = min(lower, eps), min(upper, eps)
    if verdict is Verdict.MISCLASSIFIED and prediction == label:
        prediction = None if label is None else label + 1
    return Record(
        model=draw(TEXT),
        data=draw(TEXT),
        split=draw(TEXT),
        index=draw(st.integers(0)),
        ball=ball,
        method=draw(TEXT),
        content=draw(st.none() | SHA256),
        label=label,
        prediction=prediction,
        verdict=verdict,
        lower=draw(st.none() | st.just(lower)),
        upper=draw(st.none() | st.just(upper)),
        margin=margin,
        executed=executed,
        rounding=draw(st.none() | RADIUS),
        arithmetic=covers,
        seconds=draw(st.none() | RADIUS),
        versions=draw(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3)),
        arrays=draw(st.dictionaries(ANY_TEXT, SHA256, max_size=3)),
    )


def example(**changes) -> Record:
    base = Record(model="5f", data="digits", split="test", index=7, ball=ball_fields(2, 0.5, (0, 1)), method="ibp")
    return replace(base, **changes)


def test_examples_of_the_documentation_run():
    result = doctest.testmod(records)
    assert result.attempted > 0
    assert result.failed == 0


@settings(deadline=None)
@given(record=any_record())
def test_a_line_gives_back_every_field(record):
    line = record.to_line()
    again = Record.from_line(line)
    assert vars(again) == vars(record)  # with seconds and versions, which == passes over
    assert again.to_line() == line
    assert again.key == record.key


def refuse(text: str) -> float:
    raise AssertionError(f"{text} is not strict JSON")


@settings(deadline=None)
@given(record=any_record())
def test_a_line_is_one_line_of_strict_json(record):
    line = record.to_line()
    assert line.isascii()
    assert line.isprintable()
    assert line.encode().startswith(records.LINE_START)
    loaded = json.loads(line, parse_constant=refuse)
    assert loaded["schema"] == records.SCHEMA
    assert loaded["key"] == record.key


@settings(deadline=None)
@given(record=any_record(), data=st.data())
def test_a_changed_or_cut_line_is_damaged(record, data):
    line = record.to_line()
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(DamagedData):
        Record.from_line(line[:cut])
    other = chr(data.draw(st.integers(32, 126).filter(lambda code: chr(code) != line[cut])))
    with pytest.raises(DamagedData):
        Record.from_line(line[:cut] + other + line[cut + 1 :])


def reseal(line: str, **changes) -> str:
    """The line with other fields and a checksum that fits."""
    fields = {**json.loads(line), **changes}
    del fields["check"]
    body = json.dumps({name: value for name, value in fields.items() if value != "drop"}, separators=(",", ":"))[:-1]
    return f'{body},"check":"{records._check(body)}"}}'


def test_resealing_nothing_changes_nothing():
    line = example(lower=0.5, upper=math.inf).to_line()
    assert reseal(line) == line


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"schema": 6}, InvalidInput, r"schema must be at most 5, got 6"),
        ({"schema": 6, "extra": 3}, InvalidInput, r"schema must be at most 5, got 6"),
        ({"schema": True}, DamagedData, r"schema must be a whole number"),
        ({"schema": "x" * 5000}, DamagedData, r"schema must be a whole number"),
        ({"lower": ["inf"]}, DamagedData, r"lower must be a number"),
        ({"content": "abc"}, DamagedData, r"content must be a sha256"),
        (
            {"verdict": "robust", "margin": -5},
            DamagedData,
            r"margin must not be negative where the verdict is robust, got -5",
        ),
        ({"extra": 3}, DamagedData, r"wrong fields: extra"),
        ({"lower": "drop"}, DamagedData, r"wrong fields: lower"),
        ({"key": "0" * 32}, DamagedData, r"key must be"),
        ({"index": 8}, DamagedData, r"key must be"),
        ({"index": 7.0}, DamagedData, r"index must be an integer"),
        ({"lower": "nan"}, DamagedData, r"lower must be a number"),
        ({"lower": math.nan}, DamagedData, r"not a record"),
        ({"lower": math.inf}, DamagedData, r"not a record"),
        ({"verdict": "fine"}, DamagedData, r"verdict must be one of robust, vulnerable, unknown, misclassified"),
        ({"schema": "drop"}, DamagedData, r"not a record"),
    ],
)
def test_a_line_with_other_contents_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        Record.from_line(reseal(example().to_line(), **changes))


@pytest.mark.parametrize("body", ["[1", '"text"', "{", '{"schema":1'])
def test_other_json_is_refused(body):
    with pytest.raises(DamagedData):
        Record.from_line(f'{body},"check":"{records._check(body)}"}}')


def test_a_name_that_occurs_twice_is_refused():
    body = example(margin=0.5).to_line().rpartition(',"check"')[0].replace('"margin":0.5', '"margin":-5,"margin":0.5')
    with pytest.raises(DamagedData, match="a name occurs twice"):
        Record.from_line(f'{body},"check":"{records._check(body)}"}}')


def test_nested_and_long_lines_are_refused_without_parsing():
    for body in ('{"schema":' + "[" * 100_000, '{"schema":"' + "x" * records.LONGEST_LINE + '"'):
        with pytest.raises(DamagedData, match=r"must be nested at most 4 deep|must have at most"):
            Record.from_line(f'{body},"check":"{records._check(body)}"}}')


KEY_CHANGES = {
    "content": "0" * 64,
    "model": "60",
    "data": "mnist",
    "split": "train",
    "index": 8,
    "ball": ball_fields(2, 0.25, (0, 1)),
    "method": "crown",
}
FACT_CHANGES = {
    "label": 1,
    "prediction": 1,
    "verdict": Verdict.ROBUST,
    "lower": 0.1,
    "upper": 0.1,
    "margin": 0.1,
    "arrays": {"image": "0" * 64},
}
REST_CHANGES = {"seconds": 2.0, "versions": {"torch": "2"}}


@pytest.mark.parametrize("field", [*KEY_CHANGES, *FACT_CHANGES, *REST_CHANGES])
def test_key_and_equality_depend_on_the_right_fields(field):
    base, other = example(), example(**{field: (KEY_CHANGES | FACT_CHANGES | REST_CHANGES)[field]})
    assert (base.key == other.key) == (field not in KEY_CHANGES)
    assert (base == other) == (field in REST_CHANGES)
    assert base.differences(other) == ([] if field in REST_CHANGES else [field])
    assert len({base, other}) == (1 if field in REST_CHANGES else 2)


def test_the_key_never_changes_between_versions():
    # Existing stores are keyed by it: this value must not change.
    assert example().key == "3e406602b489250d171526fab67f4267"


@pytest.mark.parametrize(
    "box", [(0, 1), (0.0, 1.0), [0, 1], (-0.0, 1), (np.float32(0), np.array(1.0)), (torch.tensor(0.0), torch.ones(1))]
)
@pytest.mark.parametrize("p", [2, 2.0, np.int64(2)])
def test_equal_balls_have_one_key(p, box):
    assert example(ball=ball_fields(p, 0.5, box)).key == example().key
    assert ball_fields(**ball_fields(p, 0.5, box)) == ball_fields(p, 0.5, box)


def test_different_boxes_of_arrays_have_different_keys():
    low, high = torch.zeros(2, 3), torch.ones(2, 3)
    boxes = [
        (low, high),
        (low.reshape(3, 2), high.reshape(3, 2)),
        (low, high + 1),
        (low - 1, high),
        (low, torch.ones(1)),
    ]
    fields = [ball_fields(math.inf, math.inf, box) for box in boxes]
    assert len({field["box"] for field in fields}) == len(boxes)
    assert ball_fields(math.inf, math.inf, (low.numpy(), high.double())) == fields[0]
    assert ball_fields(**fields[0]) == fields[0]
    record = example(ball=fields[0])
    assert Record.from_line(record.to_line()).ball == {"p": "inf", "eps": "inf", "box": fields[0]["box"]}


def test_infinite_boxes_round_trip():
    ball = ball_fields(1, 2, (-math.inf, math.inf))
    assert ball["box"] == ["-inf", "inf"]
    assert ball_fields(**ball) == ball


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, r"model must be a text that is not empty, got ''"),
        ({"data": 3}, r"data must be a text"),
        ({"index": -1}, r"index must be an integer, at least 0, got -1"),
        ({"index": True}, r"index must be an integer"),
        ({"label": 1.5}, r"label must be an integer"),
        ({"label": torch.tensor(1)}, r"label must be an integer"),
        ({"lower": math.nan}, r"lower must not be NaN, got nan"),
        ({"lower": -1}, r"lower must be at least 0, got -1.0"),
        ({"seconds": -1}, r"seconds must be at least 0"),
        ({"lower": 2, "upper": 1}, r"lower must not exceed upper, got 2.0 and 1.0"),
        ({"margin": "1"}, r"margin must be a number"),
        ({"margin": 10**400}, r"margin must fit a float"),
        ({"verdict": "sure"}, r"verdict must be one of robust, vulnerable, unknown, misclassified, got 'sure'"),
        ({"versions": {"torch": 2}}, r"versions must be a dict of texts"),
        ({"versions": "2"}, r"versions must be a dict of texts"),
        ({"arrays": {"image": "abc"}}, r"arrays\['image'\] must be a sha256"),
        ({"ball": {"p": 2}}, r"ball must be a dict of p, eps and box"),
        ({"ball": {"p": 0.5, "eps": 1, "box": None}}, r"ball\['p'\] must be at least 1, got 0.5"),
        ({"ball": {"p": 2, "eps": -1, "box": None}}, r"ball\['eps'\] must be at least 0"),
        ({"ball": {"p": 2, "eps": math.nan, "box": None}}, r"ball\['eps'\] must not be NaN"),
        ({"ball": {"p": 2, "eps": 1, "box": (1, 0)}}, r"ball\['box'\] must have lower <= upper, got 1.0 and 0.0"),
        ({"ball": {"p": 2, "eps": 1, "box": 1}}, r"ball\['box'\] must be None, two numbers or a sha256"),
        ({"ball": {"p": 2, "eps": 1, "box": "unit"}}, r"ball\['box'\] as a text must be 'sha256:'"),
    ],
)
def test_errors_name_field_rule_and_value(changes, message):
    with pytest.raises(InvalidInput, match=message):
        example(**changes)


def test_a_box_that_is_no_pair_is_refused():
    with pytest.raises(InvalidInput, match=r"box must be None or a pair"):
        ball_fields(2, 1, (0, 1, 2))


def test_a_record_does_not_change_with_what_it_was_made_of():
    ball, versions = ball_fields(2, 0.5, (0, 1)), {"torch": "2"}
    record = example(ball=ball, versions=versions)
    ball["box"][0] = 0.5
    versions["torch"] = "3"
    assert record.key == example().key
    assert record.versions == {"torch": "2"}
    with pytest.raises(FrozenInstanceError):
        record.index = 3  # type: ignore[misc]


@settings(deadline=None)
@given(record=any_record())
def test_records_can_be_sent_to_another_process(record):
    assert pickle.loads(pickle.dumps(record)) == record


LATER = ("arithmetic", "executed", "rounding", "content")


@pytest.mark.parametrize(
    ("schema", "missing"),
    [(1, ("by", "reason", "claim", *LATER)), (2, ("reason", "claim", *LATER)), (3, LATER), (4, LATER[3:])],
)
def test_lines_of_older_schemas_are_read(schema, missing):
    record = Record(model="5f1e", data="digits", split="test", index=7, ball=ball_fields(2, 0.5), method="ibp")
    old = record.to_line().replace(f'"schema":{records.SCHEMA}', f'"schema":{schema}')
    for name in missing:
        old = old.replace(f'"{name}":null,', "")
    read = Record.from_line(reseal(old))
    assert read == record
    assert read.lacks == ["a digest of input and label"]
    assert example(content="0" * 64).lacks == []


@pytest.mark.parametrize("verdict", ["robust", "vulnerable", "misclassified", None])
def test_only_an_unknown_verdict_has_a_claim(verdict):
    given = {
        "model": "5f1e",
        "data": "digits",
        "split": "test",
        "index": 7,
        "ball": ball_fields(2, 0.5),
        "method": "mip",
    }
    assert Record(**given, verdict="unknown", claim="highs").claim == "highs"
    with pytest.raises(InvalidInput, match=r"claim must be left out unless the verdict is unknown, got 'highs'"):
        Record(**given, verdict=verdict, claim="highs")


def test_a_line_of_the_third_schema_keeps_its_key():
    line = (
        '{"schema":3,"key":"KEY","model":"5f","data":"digits","split":"test","index":7,'
        '"ball":{"p":2.0,"eps":0.5,"box":null},"method":"certify by crown","label":3,"prediction":3,"verdict":"robust",'
        '"lower":null,"upper":null,"margin":0.25,"by":"crown","reason":null,"claim":null,"seconds":0.1,"versions":{},'
        '"arrays":{},"check":"0000000000000000"}'
    )
    record = example(method="certify by crown", ball=ball_fields(2, 0.5))
    read = Record.from_line(reseal(line.replace("KEY", record.key)))
    assert (read.verdict, read.margin, read.arithmetic, read.executed, read.rounding) == (
        "robust", 0.25, None, None, None,
    )  # fmt: skip


def test_only_a_proof_covers_an_arithmetic():
    assert example(verdict="robust", arithmetic="executed", executed=0.1, rounding=0).arithmetic == "executed"
    with pytest.raises(InvalidInput, match="arithmetic must be left out unless the verdict is robust, got 'real'"):
        example(verdict="unknown", arithmetic="real")
    with pytest.raises(InvalidInput, match="arithmetic must be 'executed', 'real' or None, got 'exact'"):
        example(verdict="robust", arithmetic="exact")
    with pytest.raises(InvalidInput, match="rounding must be at least 0, got -1"):
        example(rounding=-1)


def test_fields_of_later_schemas_contradict_nothing_where_they_are_missing():
    """A record of an older line and one of today, of the same question and with the same answer, are one record."""
    box = ball_fields(2, 0.3, (0, 1))
    old = Record(model="m", data="mnist", split="test", index=0, ball=box, method="auto", verdict="robust", margin=0.5)
    new = replace(old, arithmetic="executed", executed=0.4, rounding=1e-6)
    assert old.differences(new) == new.differences(old) == []
    assert new.differences(replace(new, executed=0.3)) == ["executed"]
    assert old.differences(replace(new, margin=0.6)) == ["margin"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"verdict": "robust", "margin": -5}, "margin must not be negative where the verdict is robust, got -5"),
        ({"verdict": "robust", "margin": -math.inf}, "margin must not be negative"),
        ({"verdict": "robust", "arithmetic": "executed", "executed": -1}, "executed must be positive where"),
        ({"verdict": "robust", "upper": 0.5}, r"upper must lie outside the ball \(eps 0.5\) where the verdict is robust"),
        ({"verdict": "robust", "label": 1, "prediction": 2}, "prediction must be the label where the verdict is robust"),
        ({"verdict": "vulnerable", "margin": 0.1}, "margin must not be positive where the verdict is vulnerable"),
        ({"verdict": "vulnerable", "upper": 0.51}, r"upper must lie in the ball \(eps 0.5\) where the verdict is vulner"),
        ({"verdict": "vulnerable", "upper": math.inf}, "upper must lie in the ball"),
        ({"verdict": "vulnerable", "lower": 0.6, "upper": None}, "lower must not exceed the ball"),
        ({"verdict": "misclassified", "label": 2, "prediction": 2}, "prediction must not be the label where"),
        ({"lower": 0.4, "upper": 0.3}, "lower must not exceed upper"),
    ],
)  # fmt: skip
def test_contradictory_facts_are_refused(facts, message):
    with pytest.raises(InvalidInput, match=message):
        example(**facts)


def test_a_robust_record_of_the_whole_space_has_no_counterexample():
    whole = ball_fields(2, math.inf)
    assert example(ball=whole, verdict="robust", upper=math.inf, margin=1).upper == math.inf
    assert example(verdict="vulnerable", upper=0.5 * (1 + 1e-7)).upper > 0.5  # a distance in float32, rounded up


def test_questions_and_keys():
    """Records of one question about several contents have different keys."""
    old, new = example(), example(content=records.content_digest(np.zeros(3, np.float32), 1))
    assert old.question == old.key == new.question != new.key
    digests = {
        records.content_digest(np.array(values, dtype).reshape(shape), label)
        for values in ([0, 1, 2, 3], [0, 1, 2, 4]) for dtype in (np.float32, np.float64)
        for shape in ((4,), (2, 2)) for label in (0, 1)
    }  # fmt: skip
    assert len(digests) == 16
