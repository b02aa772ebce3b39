from __future__ import annotations

import doctest
import math
from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relucert.core import results
from relucert.core.errors import InvalidInput
from relucert.core.results import Adversarial, Certificate, Distances, RadiusInterval, Verdict, concatenate, meets
from relucert.records import record as records

INF = math.inf
RADIUS = {
    "lower": torch.tensor([0.5, 0.25, 0.0, INF]),
    "upper": torch.tensor([0.5, INF, 0.0, INF]),
    "exact": torch.tensor([True, False, True, True]),
    "witness": torch.arange(4.0 * 6).reshape(4, 1, 2, 3),
    "seconds": torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "method": ["region", "region", "bab", "bab"],
}
CERTIFICATE = {
    "verdict": [Verdict.ROBUST, Verdict.VULNERABLE, Verdict.UNKNOWN, Verdict.MISCLASSIFIED],
    "margin": torch.tensor([0.5, -0.25, -INF, -1.0]),
    "witness": torch.arange(4.0 * 6).reshape(4, 1, 2, 3),
    "method": ["ibp", "pgd", "bab", ""],
    "seconds": torch.tensor([1.0, 2.0, 3.0, 4.0]),
}
ADVERSARIAL = {
    "x": torch.arange(4.0 * 6).reshape(4, 1, 2, 3),
    "success": torch.tensor([True, False, True, False]),
    "distance": torch.tensor([0.5, INF, 0.0, INF]),
}
DISTANCES = {"region": torch.tensor([0.5, 1.0, 2.0, INF]), "decision": torch.tensor([0.5, -1.0, 2.0, INF])}
ALL = [(RadiusInterval, RADIUS), (Certificate, CERTIFICATE), (Adversarial, ADVERSARIAL), (Distances, DISTANCES)]
every_kind = pytest.mark.parametrize(("kind", "values"), ALL)


def entries(result) -> dict:
    """Contents that can be compared: tensors as text, because NaN != NaN."""
    found = {field.name: getattr(result, field.name) for field in fields(result)}
    return {name: str(value.tolist()) if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def test_examples_of_the_documentation_run():
    result = doctest.testmod(results)
    assert result.attempted > 0
    assert result.failed == 0


def test_verdicts_are_strings_shared_with_the_records():
    assert results.Verdict is records.Verdict
    assert [str(verdict) for verdict in Verdict] == ["robust", "vulnerable", "unknown", "misclassified"]
    assert Verdict("robust") is Verdict.ROBUST


@every_kind
def test_every_result_has_a_length_and_is_frozen(kind, values):
    result = kind(**values)
    assert len(result) == 4
    with pytest.raises(FrozenInstanceError):
        setattr(result, next(iter(values)), None)


@every_kind
@pytest.mark.parametrize(
    ("index", "positions"),
    [
        (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2]),
        (slice(0, 0), []),
        (torch.tensor([3, 0, 0]), [3, 0, 0]),
        (torch.tensor([-1]), [3]),
        (torch.tensor([True, False, False, True]), [0, 3]),
        (torch.zeros(4, dtype=torch.bool), []),
        (2, [2]),
        (-1, [3]),
    ],
)
def test_indexing_picks_the_same_examples_in_every_field(kind, values, index, positions):
    result = kind(**values)
    part = result[index]
    assert type(part) is kind
    assert len(part) == len(positions)
    for name in values:
        whole, picked = getattr(result, name), getattr(part, name)
        if isinstance(whole, torch.Tensor):
            torch.testing.assert_close(picked, whole[positions], equal_nan=True, rtol=0, atol=0)
        else:
            assert picked == [whole[position] for position in positions]


@every_kind
def test_iterating_gives_batches_of_one(kind, values):
    result = kind(**values)
    assert [len(one) for one in result] == [1, 1, 1, 1]
    assert entries(concatenate(list(result))) == entries(result)


@every_kind
@pytest.mark.parametrize("cut", range(5))
def test_concatenate_undoes_slicing(kind, values, cut):
    result = kind(**values)
    assert entries(concatenate([result[:cut], result[cut:]])) == entries(result)


@every_kind
@pytest.mark.parametrize("index", [4, -5])
def test_an_index_outside_the_batch_is_an_error(kind, values, index):
    with pytest.raises(IndexError, match=f"batch of 4, got {index}"):
        kind(**values)[index]


def test_other_indices_are_refused():
    with pytest.raises(InvalidInput, match="index must be an integer, a slice, a mask or positions"):
        Distances(**DISTANCES)[torch.tensor([[0]])]


def test_concatenate_fills_missing_witnesses():
    without = RadiusInterval(
        **{**RADIUS, "upper": torch.full((4,), INF), "exact": torch.zeros(4).bool(), "witness": None}
    )
    assert concatenate([without, without]).witness is None
    both = concatenate([without, RadiusInterval(**RADIUS)])
    assert both.witness is not None
    assert both.witness.isnan().flatten(1).all(1).tolist() == [True] * 4 + [False, True, False, True]


def test_concatenate_refuses_an_empty_list_and_mixed_kinds():
    with pytest.raises(InvalidInput, match="at least one, all of one kind, got none"):
        concatenate([])
    with pytest.raises(InvalidInput, match="all of one kind, got Adversarial, Distances"):
        concatenate([Adversarial(**ADVERSARIAL), Distances(**DISTANCES)])  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (RadiusInterval(**RADIUS), "RadiusInterval(4 examples, lower 0 to inf, upper 0 to inf, 3 exact)"),
        (RadiusInterval(**RADIUS)[0], "RadiusInterval(1 example, lower 0.5 to 0.5, upper 0.5 to 0.5, 1 exact)"),
        (RadiusInterval(**RADIUS)[:0], "RadiusInterval(0 examples, lower none, upper none, 0 exact)"),
        (Certificate(**CERTIFICATE), "Certificate(4 examples, 1 robust, 1 vulnerable, 1 unknown, 1 misclassified)"),
        (Certificate(**CERTIFICATE)[:2], "Certificate(2 examples, 1 robust, 1 vulnerable)"),
        (Adversarial(**ADVERSARIAL), "Adversarial(4 examples, 2 successful, distance 0 to 0.5)"),
        (Adversarial(**ADVERSARIAL)[1], "Adversarial(1 example, 0 successful)"),
        (Distances(**DISTANCES), "Distances(4 examples, region 0.5 to inf, decision -1 to inf)"),
    ],
)
def test_the_repr_is_short(result, text):
    assert repr(result) == text


# Witnesses.


@pytest.mark.parametrize(("kind", "values"), ALL[:2])
def test_rows_without_a_witness_are_nan(kind, values):
    result = kind(**values)
    shown = [True, False, True, False] if kind is RadiusInterval else [False, True, False, False]
    assert result.witness.isfinite().flatten(1).all(1).tolist() == shown
    assert result.witness.isnan().flatten(1).all(1).tolist() == [not found for found in shown]
    torch.testing.assert_close(result.witness[shown], values["witness"][shown], rtol=0, atol=0)
    assert values["witness"].isfinite().all(), "the tensor that was given must not change"


def changed(values: dict, **changes) -> dict:
    return {**values, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower": torch.tensor([0.6, 0.25, 0.0, 1.0])}, r"lower must not exceed upper, got example 0, lower 0\.6\d*, upper"),
        ({"lower": torch.tensor([0.5, -0.5, 0.0, 1.0])}, r"lower must be at least 0, got example 1, lower -0\.5"),
        ({"lower": torch.tensor([0.5, 0.25, torch.nan, 1.0])}, r"lower must not be NaN, got example 2"),
        ({"upper": torch.tensor([0.5, 0.25, torch.nan, INF])}, r"upper must not be NaN, got example 2"),
        ({"exact": torch.ones(4).bool()}, r"where exact, upper must be at most lower \(1 \+ tol\), got example 1"),
        ({"exact": torch.ones(4)}, r"exact must have dtype bool, got torch.float32"),
        ({"exact": torch.ones(3).bool()}, r"exact must have shape \(batch,\) = \(4,\), got \(3,\)"),
        ({"upper": torch.ones(4, 1)}, r"upper must have shape \(batch,\) = \(4,\), got \(4, 1\)"),
        ({"lower": torch.ones(4).long()}, r"lower must have a floating-point dtype, got torch.int64"),
        ({"upper": RADIUS["upper"].double()}, r"must both be float32 or both float64, got torch.float32 and torch.float64"),
        ({"lower": RADIUS["lower"].half(), "upper": RADIUS["upper"].half()}, r"must both be float32 or both float64"),
        ({"witness": None}, r"witness must be given where upper is finite, got example 0"),
        ({"witness": torch.full((4, 2), INF)}, r"witness must be finite where upper is finite, got example 0"),
        ({"witness": torch.zeros(3, 2)}, r"witness must have shape \(batch, \*input\) with batch 4, got \(3, 2\)"),
        ({"witness": torch.zeros(4)}, r"witness must have shape"),
        ({"seconds": torch.zeros(3)}, r"seconds must have shape"),
        ({"method": ["region"]}, r"method must be a list with one entry for each of 4 examples, got \['region'\]"),
        ({"method": "four"}, r"method must be a list"),
    ],
)  # fmt: skip
def test_an_inconsistent_interval_is_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        RadiusInterval(**changed(RADIUS, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margin": torch.tensor([-0.1, -1.0, 0.0, 0.0])}, r"not be negative where the verdict is robust, got example 0"),
        ({"margin": torch.tensor([0.1, 1.0, 0.0, 0.0])}, r"not be positive where the verdict is vulnerable, got example 1"),
        ({"margin": torch.tensor([0.1, -1.0, torch.nan, 0.0])}, r"margin must not be NaN, got example 2"),
        ({"verdict": [Verdict.ROBUST]}, r"verdict must be a list with one entry for each of 4 examples"),
        ({"verdict": ["robust", "sure", "unknown", "unknown"]}, r"verdict must be one of robust.*, got 'sure'"),
        ({"witness": None}, r"witness must be given where the verdict is vulnerable, got example 1"),
        ({"method": []}, r"method must be a list"),
        ({"seconds": torch.zeros(4, 1)}, r"seconds must have shape"),
    ],
)  # fmt: skip
def test_an_inconsistent_certificate_is_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        Certificate(**changed(CERTIFICATE, **changes))


def test_verdicts_may_be_given_as_strings():
    assert (
        Certificate(**changed(CERTIFICATE, verdict=[str(v) for v in CERTIFICATE["verdict"]])).verdict[0]
        is Verdict.ROBUST
    )


def test_which_is_the_mask_of_a_verdict():
    certificate = Certificate(**CERTIFICATE)
    masks = torch.stack([certificate.which(verdict) for verdict in Verdict])
    assert torch.equal(masks, torch.eye(4).bool())
    assert certificate[:0].which(Verdict.ROBUST).dtype == torch.bool


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distance": torch.tensor([0.5, 1.0, 0.0, INF])}, r"inf on failure, got example 1, distance 1.0"),
        ({"distance": torch.tensor([0.5, INF, INF, INF])}, r"finite on success and inf on failure, got example 2"),
        ({"distance": torch.tensor([-0.5, INF, 0.0, INF])}, r"distance must be at least 0"),
        ({"distance": torch.tensor([torch.nan, INF, 0.0, INF])}, r"distance must not be NaN"),
        ({"success": torch.tensor([1, 0, 1, 0])}, r"success must have dtype bool"),
        ({"x": torch.full((4, 2), torch.nan)}, r"x must be finite on success, got example 0"),
        ({"x": torch.zeros(3, 2)}, r"success must have shape"),
    ],
)  # fmt: skip
def test_an_inconsistent_attack_result_is_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        Adversarial(**changed(ADVERSARIAL, **changes))


def test_distances_of_another_shape_are_refused_and_gradients_pass():
    with pytest.raises(InvalidInput, match=r"decision must have shape \(batch,\) = \(4,\), got \(3,\)"):
        Distances(DISTANCES["region"], torch.zeros(3))
    x = torch.ones(2, requires_grad=True)
    Distances(2 * x, 3 * x)[1].decision.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 3.0]


# The rule of `exact`.


@settings(deadline=None)
@given(lower=st.floats(0, 1e30), factor=st.floats(0, 1e-2))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_meets_implements_the_rule_of_exact(dtype, tolerance, lower, factor):
    low = torch.tensor([lower], dtype=dtype)
    high = (low.double() * (1 + factor)).to(dtype)
    expected = high.item() <= low.item() * (1 + tolerance)
    assert meets(low, high).item() == expected


@pytest.mark.parametrize(
    ("dtype", "gap", "met"),
    [
        (torch.float64, 0.9e-6, True),
        (torch.float64, 1.1e-6, False),
        (torch.float32, 0.9e-4, True),
        (torch.float32, 1.1e-4, False),
    ],
)
def test_the_tolerance_depends_on_the_dtype(dtype, gap, met):
    assert meets(torch.tensor([2.0], dtype=dtype), torch.tensor([2 * (1 + gap)], dtype=dtype)).item() == met


def test_zero_and_infinity_meet_themselves():
    ends = torch.tensor([0.0, INF])
    assert meets(ends, ends).tolist() == [True, True]
    assert meets(torch.zeros(1), torch.tensor([1e-30])).tolist() == [False]
