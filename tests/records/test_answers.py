import pytest

from relucert.core.verdict import CLOCK, Verdict
from relucert.records.answers import decider, method_of, why
from relucert.records.record import Record, ball_fields


def record(method="certify by auto(budget=1)", **facts):
    return Record(
        model="a" * 64, data="digits", split="test", index=0, ball=ball_fields(2, 0.1), method=method, **facts
    )


@pytest.mark.parametrize(
    ("method", "by", "name"),
    [
        ("certify by crown(budget=1)", None, "crown"),
        ("certify by auto as executed in 5 s", None, "auto"),
        ("certify by auto", "alpha(steps=50)", "alpha"),
        ("certify by auto", f"{CLOCK}bab(nodes=3)", "bab"),
        ("radius by region(regions=5) and fab(steps=20)", None, "region"),
        ("smallest by ddn(steps=20), about the predicted class", None, "ddn"),
        ("pgd(steps=40)", None, "pgd"),
    ],
)
def test_the_method_is_named_without_parameters(method, by, name):
    assert method_of(record(method, by=by)) == name


def test_undecided_points_have_a_reason_in_a_word():
    unknown = {"verdict": Verdict.UNKNOWN}
    assert why(record(**unknown, by=f"{CLOCK}bab", reason="bound")) == "time"
    assert why(record(**unknown, reason="bound")) == "bound"
    assert why(record(**unknown, reason="highs did not solve the program")) == ""
    assert decider(record(**unknown, by="crown", reason="bound")) == "undecided (bound)"
    assert decider(record(**unknown, by="mip", claim="highs")) == "robust on the word of highs"
    assert decider(record(verdict=Verdict.ROBUST, by="crown(budget=1)")) == "crown"
