"""Records of all verbs join into one interval for each point, which gives the verdict at every radius."""

from __future__ import annotations

import math

import pytest

from relucert.core.errors import RecordConflict
from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore
from relucert.reports.intervals import subjects, summary

CERTIFY, RADIUS, PGD = "certify by auto", "radius by crown and fab(steps=20)", "pgd(steps=40)"


def line(index, eps, method, **facts):
    ball = ball_fields(math.inf, eps, (0, 1))
    known = {"label": 3, "prediction": 3, "seconds": 0.5} | facts
    return Record(model="5f1e", data="digits", split="test", index=index, ball=ball, method=method, **known)


def joined(folder, *records, eps=None):
    with RecordStore(folder / "r.jsonl", writable=True) as store:
        for record in records:
            store.append(record)
    return subjects([("run", RecordStore(folder / "r.jsonl"))], eps)


def test_every_verb_tightens_the_interval(tmp_path):
    (found,) = joined(
        tmp_path,
        line(0, 0.1, CERTIFY, verdict="robust", by="bab", margin=0.2),
        line(0, math.inf, RADIUS, lower=0.05, upper=0.3),
        line(0, 0.2, PGD, verdict="vulnerable", upper=0.15),
        line(1, 0.1, CERTIFY, verdict="unknown", by="stopped by the clock: bab", margin=-1.0),
        line(2, 0.1, CERTIFY, verdict="misclassified", prediction=5),
        line(3, 0.1, CERTIFY, verdict="vulnerable", by="apgd"),
    )
    first, second, third, fourth = found.points
    assert (first.lower, first.lower_by, first.upper, first.upper_by, first.margin) == (0.1, "bab", 0.15, "pgd", 0.2)
    assert [first.verdict(eps) for eps in (0.1, 0.12, 0.15)] == [Verdict.ROBUST, Verdict.UNKNOWN, Verdict.VULNERABLE]
    assert (second.lower, second.upper, second.reason) == (0.0, math.inf, "time")
    assert third.verdict(0.0) is Verdict.MISCLASSIFIED
    assert (fourth.upper, fourth.upper_by) == (0.1, "apgd")
    assert found.eps == 0.1
    assert found.searched
    figures = summary(found)
    assert (figures.test_error, figures.least_error, figures.most_error) == (0.25, 0.5, 0.75)
    assert figures.mean_lower == pytest.approx(0.1 / 3)
    assert figures.witnessed == 2
    assert figures.seconds == 3.0


def test_ends_that_meet_are_exact_and_a_counterexample_goes_first(tmp_path):
    (found,) = joined(tmp_path, line(0, math.inf, RADIUS, lower=0.25, upper=0.25), eps=0.25)
    assert found.points[0].exact
    assert found.points[0].verdict(0.25) is Verdict.VULNERABLE
    assert found.points[0].upper_by == "fab"


def test_a_proof_beyond_a_counterexample_is_refused(tmp_path):
    with pytest.raises(RecordConflict, match="point 0, contradict each other"):
        joined(
            tmp_path,
            line(0, 0.1, CERTIFY, verdict="robust"),
            line(0, math.inf, "smallest by fab", verdict="vulnerable", upper=0.09),
        )


def test_norms_and_networks_are_subjects_of_their_own_and_old_contents_are_left_out(tmp_path):
    other = Record(
        model="77", data="digits", split="test", index=0, ball=ball_fields(2, 0.3), method="ibp", label=1, prediction=1
    )
    first = line(0, 0.1, CERTIFY, verdict="unknown", content="0" * 64)
    found = joined(tmp_path, other, first, line(0, 0.1, CERTIFY, verdict="robust", content="1" * 64))
    assert [one.name for one in found] == ["run 77", "run 5f1e"]
    assert (found[1].outdated, found[1].points[0].lower) == (1, 0.1)
