"""Bounds on networks trained by others: the published figures of Wong and Kolter's relaxation, to a tenth of a point."""

from __future__ import annotations

import pytest

import relucert as rc
from relucert.experiments.bounds import CASES, UNIVERSAL, Case, relaxation_error
from zoo import published as network_of


def error_of(case: Case, shared, real_data, ball: rc.Ball) -> float:
    net, images = network_of(shared / "models" / case.model), real_data(case.data)
    return relaxation_error(net, images.x_test[: case.points], images.y_test[: case.points], ball)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model.split('.')[0]}-{case.p:g}-{case.box}")
def test_kw_is_as_published(shared, real_data, case):
    assert error_of(case, shared, real_data, case.ball) == pytest.approx(case.stated, abs=0.1001)


def test_the_box_helps_in_l2(shared, real_data):
    case = next(case for case in CASES if case.p == 2)
    assert case.model == UNIVERSAL
    within, without = (error_of(case, shared, real_data, rc.Ball(2, case.eps, box)) for box in ((0.0, 1.0), None))
    assert within < without
