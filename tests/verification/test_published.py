"""Bounds on networks trained by others: the published figures of Wong and Kolter's relaxation, to a tenth of a point."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import relucert as rc
from relucert.experiments.bounds import CASES, UNIVERSAL, Case, relaxation_error
from zoo import published as network_of

#: Three convolutional networks have the same layers, and one network has three figures: some are enough in `make test`.
SLOW = [case for case in CASES if case.model in ("kw_fmnist.safetensors", "wk17a_mnist.safetensors")]
SLOW += [case for case in CASES if case.model == UNIVERSAL and case.p == math.inf and not case.box]
TABLE = [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES]


@pytest.fixture(scope="module")
def error_of(shared, real_data):
    """The robust error of a case in a ball, in percent; every figure is computed once."""
    known: dict[tuple[Case, object], float] = {}

    def error(case: Case, ball: rc.Ball) -> float:
        if (case, ball.box) not in known:
            net, images = network_of(shared / "models" / case.model), real_data(case.data)
            x, y = images.x_test[: case.points], images.y_test[: case.points]
            known[case, ball.box] = relaxation_error(net, x, y, ball)
        return known[case, ball.box]

    return error


@pytest.mark.share(2)
@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case.model.split('.')[0]}-{case.p:g}-{case.box}")
def test_kw_is_as_published(error_of, case):
    assert error_of(case, case.ball) == pytest.approx(case.stated, abs=0.1001)


def test_the_box_helps_in_l2(error_of):
    case = next(case for case in CASES if case.p == 2)
    assert case.model == UNIVERSAL
    case = replace(case, points=200)
    within, without = (error_of(case, rc.Ball(2, case.eps, box)) for box in ((0.0, 1.0), None))
    assert within < without
