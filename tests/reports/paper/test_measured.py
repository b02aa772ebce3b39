"""Figures of one network from its records: every witness lowers, every proof raises; foreign records are refused."""

from __future__ import annotations

import math

import pytest

from relucert.core.errors import DamagedData, RecordConflict
from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore
from relucert.reports.paper.measured import CW, IMPROVED, KW, THEOREM, MeasuredNetwork, measured
from relucert.reports.published import Key

KEY = Key("digits", "fc1", "mmr", 2.0)
ABOUT = ", about the predicted class"
METHODS = {
    KW: f"radius by kw(budget=1, intervals=False){ABOUT}",
    THEOREM: f"radius by region(budget=1, facets=None, regions=0){ABOUT}",
    IMPROVED: f"radius by region(budget=1, facets=None, regions=5){ABOUT}",
    CW: f"smallest by cw(iterations=10){ABOUT}",
}


def network(folder, **facts):
    """A network whose records are in a folder."""
    known = {
        "model": "a" * 64,
        "source": "runs/x",
        "command": "relucert train",
        "epochs": 3,
        "test_error": 0.25,
        "eps": 0.3,
    }
    return MeasuredNetwork(name="x", key=KEY, records=folder / "x.jsonl", **(known | facts))


def write(folder, *records):
    with RecordStore(folder / "x.jsonl", writable=True) as store:
        for index, method, eps, facts in records:
            store.append(
                Record(
                    model="a" * 64, data="digits", split="test", index=index, ball=ball_fields(2.0, eps, (0, 1)),
                    method=method, label=1, seconds=2.0, **({"prediction": 1} | facts),
                )
            )  # fmt: skip


def test_errors_join_all_witnesses_and_all_proofs(tmp_path):
    write(
        tmp_path,
        (0, "pgd(steps=4)", 0.3, {"verdict": Verdict.VULNERABLE, "upper": 0.3}),
        (1, "pgd(steps=4)", 0.3, {"verdict": Verdict.UNKNOWN}),
        (1, "apgd(steps=4)", 0.3, {"verdict": Verdict.VULNERABLE, "upper": 0.2}),
        (2, "pgd(steps=4)", 0.3, {"verdict": Verdict.UNKNOWN}),
        (2, "certify by auto(nodes=5)", 0.3, {"verdict": Verdict.ROBUST, "margin": 0.1, "by": "crown"}),
        (3, "pgd(steps=4)", 0.3, {"verdict": Verdict.UNKNOWN}),
        (3, "certify by auto(nodes=5)", 0.3, {"verdict": Verdict.UNKNOWN, "reason": "nodes"}),
        (4, "pgd(steps=4)", 0.3, {"verdict": Verdict.MISCLASSIFIED, "prediction": 2}),
        (5, "smallest by region(regions=5)", math.inf, {"verdict": Verdict.VULNERABLE, "upper": 0.25}),
        (6, "smallest by region(regions=5)", math.inf, {"verdict": Verdict.VULNERABLE, "upper": 0.5}),
        (7, METHODS[KW], math.inf, {"lower": 0.31, "upper": math.inf}),
    )
    found = network(tmp_path)
    assert found.errors() == (50.0, 75.0)  # 0, 1, 4 and 5 of 8; all but 2 and 7
    assert found.undecided() == [3, 6]
    by = {("vulnerable", name): 1 for name in ("pgd", "apgd", "region")} | {
        ("robust", name): 1 for name in ("crown", "kw")
    }
    assert found.deciders() == by
    assert found.seconds(lambda record: record.method.startswith("certify")) == 4.0


def test_distances_are_means_over_the_first_points_with_all_answers(tmp_path):
    write(
        tmp_path,
        (0, METHODS[KW], math.inf, {"lower": 0.2, "upper": math.inf}),
        (1, METHODS[KW], math.inf, {"lower": 0.4, "upper": math.inf, "prediction": 2}),
        (3, METHODS[KW], math.inf, {"lower": 9.0, "upper": math.inf}),
        (0, METHODS[THEOREM], math.inf, {"lower": 0.5, "upper": 0.5}),
        (1, METHODS[THEOREM], math.inf, {"lower": 0.1, "upper": math.inf, "prediction": 2}),
        (2, METHODS[THEOREM], math.inf, {"lower": 0.1, "upper": math.inf}),
        (0, METHODS[CW], math.inf, {"verdict": Verdict.VULNERABLE, "upper": 0.55}),
        (1, METHODS[CW], math.inf, {"verdict": Verdict.VULNERABLE, "upper": 0.9, "prediction": 2}),
    )
    found = network(tmp_path)
    # Point 1 is misclassified, and counts: the question is about the predicted class. Points 2 and 3 lack answers.
    assert found.distances((KW, THEOREM, CW)) == pytest.approx(((0.5 + 0.4) / 2, (0.5 + 0.9) / 2))
    assert found.distances((KW, THEOREM), KW) == pytest.approx((0.3, math.nan), nan_ok=True)
    assert found.distances((KW, IMPROVED)) is None
    assert found.optima == {0: 0.5}
    assert found.share_optimal() == pytest.approx(100 / 3)
    assert found.optimum_excess() == pytest.approx(150.0)
    assert found.ratios() == pytest.approx([1.1])


def test_points_without_a_counterexample_count_in_neither_mean(tmp_path):
    write(
        tmp_path,
        *((index, METHODS[KW], math.inf, {"lower": 0.2 + index, "upper": math.inf}) for index in range(3)),
        *((index, METHODS[THEOREM], math.inf, {"lower": 0.1, "upper": math.inf}) for index in range(3)),
        (0, METHODS[CW], math.inf, {"verdict": Verdict.VULNERABLE, "upper": 0.3}),
        (1, METHODS[CW], math.inf, {"upper": math.inf}),
        (2, METHODS[CW], math.inf, {"verdict": Verdict.VULNERABLE, "upper": 2.5}),
    )
    found = network(tmp_path)
    assert found.distances((KW, THEOREM, CW)) == pytest.approx((1.2, 1.4))
    assert found.left_out((KW, THEOREM, CW)) == 1
    assert found.distances((KW, THEOREM)) == pytest.approx((1.2, 1.4))  # the lower end is over all three
    assert found.left_out((KW, THEOREM)) == 0


def test_without_records_nothing_is_known(tmp_path):
    found = network(tmp_path)
    assert found.errors() is None
    assert found.distances((KW,)) is None
    assert found.share_optimal() is None
    assert found.optimum_excess() is None
    assert found.ratios() == []
    assert found.seconds(lambda record: True) is None


def test_records_of_another_network_are_refused(tmp_path):
    write(tmp_path, (0, "pgd(steps=4)", 0.3, {"verdict": Verdict.UNKNOWN}))
    with pytest.raises(RecordConflict, match=r"x.jsonl must hold records of network bbbbbbbbbbbb alone"):
        network(tmp_path, model="b" * 64).errors()


def test_a_description_is_read_as_it_was_written(tmp_path):
    (tmp_path / "x.json").write_text(network(tmp_path, eps=None).to_json())
    assert measured(tmp_path) == {"x": network(tmp_path, eps=None)}


@pytest.mark.parametrize("text", ["", "[]", '{"key": ["a"]}', '{"key": ["a", "b", "c", 2]}', '{"key": 1, "model": 2}'])
def test_a_damaged_description_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DamagedData, match=r"x.json.*delete the file, it is made again"):
        measured(tmp_path)
