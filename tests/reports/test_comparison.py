from dataclasses import replace

import pytest

from relucert.core.errors import InvalidInput
from relucert.core.verdict import Verdict
from relucert.reports.comparison import comparisons
from relucert.reports.intervals import Point, Subject


def point(index, lower, upper, content=None, correct=True):
    return Point(
        index=index, content=content, label=0, prediction=0 if correct else 1, correct=correct, lower=lower, upper=upper,
        lower_by="kw", upper_by="", arithmetic=None, margin=None, reason=None, seconds=1.0,
    )  # fmt: skip


def subject(*points, p=2.0, eps=0.5):
    return Subject(
        name="net", model="a", data="digits", split="test", p=p, box=(0, 1), eps=eps, radii=(eps,), points=points,
        seconds={"kw": 1.0}, outdated=0, searched=False,
    )  # fmt: skip


def test_verdicts_at_a_radius_are_counted_in_pairs():
    one = subject(point(0, 0.6, 1.0), point(1, 0.2, 0.4), point(2, 0.1, 0.9))
    other = subject(point(0, 0.3, 1.0), point(1, 0.7, 0.9))
    (found,) = comparisons([one], [other])
    assert found.shared == 2
    assert found.verdicts == {(Verdict.ROBUST, Verdict.UNKNOWN): 1, (Verdict.VULNERABLE, Verdict.ROBUST): 1}
    assert [first.index for first, _ in found.differing] == [0, 1]
    (near,) = comparisons([one], [other], eps=0.1)
    assert near.verdicts == {(Verdict.ROBUST, Verdict.ROBUST): 2}
    assert near.differing == []


def test_points_with_other_contents_are_other_points():
    one, other = subject(point(0, 0.6, 1.0, content="a" * 64)), subject(point(0, 0.6, 1.0, content="b" * 64))
    (found,) = comparisons([one], [other])
    assert found.shared == 0


def test_subjects_without_a_partner_are_refused():
    one = subject(point(0, 0.6, 1.0))
    with pytest.raises(InvalidInput, match="must have records about the same data and norm"):
        comparisons([one], [replace(one, p=1.0)])
