from __future__ import annotations

import doctest
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relucert.core import properties
from relucert.core.errors import InvalidInput
from relucert.core.properties import Property, against, class_stays

DTYPES = [torch.float32, torch.float64]


@st.composite
def labelled(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (batch, classes) with occasional ties, and labels (batch,)."""
    batch, classes = draw(st.integers(0, 4)), draw(st.integers(2, 6))
    values = st.sampled_from([0.0, 1.0, -2.5]) | st.floats(-1e6, 1e6)
    logits = draw(st.lists(st.lists(values, min_size=classes, max_size=classes), min_size=batch, max_size=batch))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=batch, max_size=batch))
    return torch.tensor(logits, dtype=torch.float64).reshape(batch, classes), torch.tensor(y, dtype=torch.long)


def test_examples_of_the_documentation_run():
    result = doctest.testmod(properties)
    assert result.attempted > 0
    assert result.failed == 0


@settings(deadline=None)
@given(case=labelled())
def test_class_stays_holds_exactly_if_no_other_class_reaches_y(case):
    logits, y = case
    stays = class_stays(y, logits.shape[1], dtype=torch.float64)
    assert stays.rows.shape == (len(y), logits.shape[1] - 1, logits.shape[1])
    for example, (f, label) in enumerate(zip(logits.tolist(), y.tolist(), strict=True)):
        others = [f[label] - value for s, value in enumerate(f) if s != label]
        assert stays.margins(logits)[example].tolist() == others
        assert stays.margin(logits)[example].item() == min(others)
        assert stays.holds(logits)[example].item() == all(f[label] > v for s, v in enumerate(f) if s != label)


@settings(deadline=None)
@given(case=labelled(), data=st.data())
def test_against_is_class_stays_for_the_chosen_classes(case, data):
    logits, y = case
    classes = logits.shape[1]
    specs = data.draw(st.integers(1, 3))
    shift = torch.tensor(
        data.draw(st.lists(st.integers(1, classes - 1), min_size=len(y) * specs, max_size=len(y) * specs)),
        dtype=torch.long,
    ).reshape(len(y), specs)
    targets = (y[:, None] + shift) % classes
    found = against(y, targets, classes, dtype=torch.float64).margins(logits)
    torch.testing.assert_close(found, logits.gather(1, y[:, None]) - logits.gather(1, targets), rtol=0, atol=0)


def test_margins_are_the_affine_map():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    offsets = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    logits = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    expected = np.stack([rows[i].numpy() @ logits[i].numpy() + offsets[i].numpy() for i in range(3)])
    np.testing.assert_allclose(Property(rows, offsets).margins(logits).numpy(), expected, rtol=1e-13, atol=1e-13)


def test_leading_dimensions_are_kept():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 2, 3, 4, generator=generator)
    stays = class_stays(torch.tensor([0, 3, 1]), 4)
    each = torch.stack([torch.stack([stays.margins(logits[i, j]) for j in range(2)]) for i in range(7)])
    torch.testing.assert_close(stays.margins(logits), each, rtol=0, atol=0)
    assert stays.margin(logits).shape == stays.holds(logits).shape == (7, 2, 3)


def test_a_tie_and_nan_do_not_hold():
    stays = class_stays(torch.tensor([0, 0, 0]), 2)
    logits = torch.tensor([[1.0, 1.0], [torch.nan, 0.0], [1.0, 0.5]])
    assert stays.holds(logits).tolist() == [False, False, True]


@pytest.mark.parametrize("rows_dtype", DTYPES)
@pytest.mark.parametrize("logits_dtype", DTYPES)
def test_the_wider_dtype_is_used(rows_dtype, logits_dtype):
    stays = class_stays(torch.tensor([1]), 3, dtype=rows_dtype)
    assert stays.rows.dtype == stays.offsets.dtype == rows_dtype
    wide = torch.float64 if torch.float64 in (rows_dtype, logits_dtype) else torch.float32
    assert stays.margin(torch.zeros(1, 3, dtype=logits_dtype)).dtype == wide


def test_dtype_and_device_follow_the_arguments():
    y = torch.tensor([1], dtype=torch.int32)
    assert class_stays(y, 3).rows.dtype == torch.get_default_dtype()
    assert class_stays(y, 3).rows.device == y.device
    moved = class_stays(y, 3).to(torch.float64, "cpu")
    assert moved.rows.dtype == moved.offsets.dtype == torch.float64
    assert torch.equal(moved.rows.float(), class_stays(y, 3).rows)


@pytest.mark.parametrize("index", [slice(1, 3), torch.tensor([2, 0]), torch.tensor([True, False, True, False])])
def test_restrict_takes_examples(index):
    generator = torch.Generator().manual_seed(0)
    whole = Property(torch.randn(4, 2, 3, generator=generator), torch.randn(4, 2, generator=generator))
    logits = torch.randn(4, 3, generator=generator)
    part = whole.restrict(index)
    assert len(part) == 2
    torch.testing.assert_close(part.margins(logits[index]), whole.margins(logits)[index])


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        ([0, 3], 3, r"y must lie in 0 to 2, got 3 at index 1"),
        ([-1], 3, r"y must lie in 0 to 2, got -1 at index 0"),
        ([[0]], 3, r"y must have shape \(batch,\), got \(1, 1\)"),
        ([0.0], 3, r"y must hold integers, got torch.float32"),
        ([True], 3, r"y must hold integers, got torch.bool"),
        ([0], 1, r"classes must be at least 2, got 1"),
    ],
)
def test_invalid_labels_are_refused(y, classes, message):
    with pytest.raises(InvalidInput, match=message):
        class_stays(torch.tensor(y), classes)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([[1, 2], [0, 1]], r"targets must differ from y, got targets\[1, 1\] = y\[1\] = 1"),
        ([[1, 2], [0, 5]], r"targets must lie in 0 to 2, got 5 at index 1, 1"),
        ([[1, 2]], r"targets must have shape \(batch, specs\) with batch 2, got \(1, 2\)"),
        ([1, 2], r"targets must have shape \(batch, specs\), got \(2,\)"),
        ([[], []], r"targets must hold integers"),
    ],
)
def test_invalid_targets_are_refused(targets, message):
    with pytest.raises(InvalidInput, match=message):
        against(torch.tensor([0, 1]), torch.tensor(targets), 3)


@pytest.mark.parametrize(
    ("rows", "offsets", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2), r"rows must have shape \(batch, specs >= 1, classes\), got \(2, 3\)"),
        (torch.zeros(2, 0, 3), torch.zeros(2, 0), r"rows must have shape"),
        (
            torch.zeros(2, 3, 4),
            torch.zeros(2, 4),
            r"offsets must have shape \(batch, specs\) = \(2, 3\), got \(2, 4\)",
        ),
        (torch.zeros(2, 3, 4).long(), torch.zeros(2, 3), r"rows must have a floating-point dtype, got torch.int64"),
        (torch.full((1, 1, 1), torch.inf), torch.zeros(1, 1), r"rows must be finite, got inf"),
        (torch.zeros(1, 1, 1), torch.full((1, 1), torch.nan), r"offsets must be finite, got nan"),
        (
            torch.zeros(1, 1, 1),
            torch.zeros(1, 1).double(),
            r"must share dtype and device, got torch.float32 on cpu and",
        ),
    ],
)
def test_shapes_are_checked(rows, offsets, message):
    with pytest.raises(InvalidInput, match=message):
        Property(rows, offsets)


@pytest.mark.parametrize("shape", [(2, 3), (1, 4), (3,)])
def test_logits_of_another_shape_are_refused(shape):
    with pytest.raises(
        InvalidInput, match=r"logits must have shape \(\.\.\., batch, classes\) = \(\.\.\., 1, 3\), got"
    ):
        class_stays(torch.tensor([0]), 3).margins(torch.zeros(shape))


def test_a_property_is_frozen():
    with pytest.raises(FrozenInstanceError):
        class_stays(torch.tensor([0]), 3).rows = torch.zeros(1)  # type: ignore[misc]


def test_some_rows_of_each_example():
    whole = class_stays(torch.tensor([0, 2]), 4, dtype=torch.float64)
    logits = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([[2, 0], [1, 1]])
    assert torch.equal(whole.select(rows).margins(logits), whole.margins(logits).gather(1, rows))


def test_clauses_hold_where_one_row_of_each_does() -> None:
    rows, offsets = torch.eye(3)[None], torch.zeros(1, 3)
    either = Property(rows, offsets, torch.tensor([0, 0, 1]))
    for logits, holds in (([1.0, -1.0, 1.0], True), ([-1.0, -1.0, 1.0], False), ([1.0, 1.0, 0.0], False)):
        assert bool(either.holds(torch.tensor([logits]))) is holds
    assert either.by_clause(torch.tensor([[3.0, float("nan"), 2.0]])).tolist() == [[3.0, 2.0]]
    assert either.restrict(slice(0, 1)).clauses is either.clauses
    assert either.to(torch.float64).clauses is either.clauses
    for wrong in (torch.tensor([0, 1]), torch.tensor([0, 2, 2]), torch.tensor([0.0, 0.0, 1.0])):
        with pytest.raises(InvalidInput, match="clauses must"):
            Property(rows, offsets, wrong)
