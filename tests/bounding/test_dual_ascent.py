"""Dual ascent: the best bound is kept, variables stay in their intervals, a goal and a deadline end the loop."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import nn

from relucert.bounding._dual_ascent import Schedule, Variables, dual_ascent
from relucert.networks.network import frozen_weights


class Parabola:
    """The bound 1 - (v - top)^2 of every entry; `proved` is less by a constant."""

    def __init__(self, top: float, size: int = 3, error: float = 0.0):
        self.v = torch.zeros(size, dtype=torch.float64)
        self.top, self.error, self.calls = top, error, 0

    def __call__(self):
        self.calls += 1
        value = 1 - (self.v - self.top).square()
        return value, value.detach() - self.error


def ascend(bound, *, upper=1.0, best=-math.inf, goal=None, **schedule):
    variables = [Variables([bound.v], [0.0], upper, 0.1)]
    start = torch.full_like(bound.v, best)
    return dual_ascent(nn.Linear(1, 1), bound, variables, start, Schedule(**schedule), goal)


@pytest.mark.parametrize(("top", "end"), [(0.5, 0.5), (3.0, 1.0), (-1.0, 0.0)])
def test_variables_ascend_within_their_interval(top, end):
    bound = Parabola(top)
    found = ascend(bound, steps=200, decay=0.99)
    assert bound.v.detach().numpy() == pytest.approx(end, abs=1e-3)
    assert found.numpy() == pytest.approx(1 - (end - top) ** 2, abs=1e-3)


def test_no_upper_end_is_no_limit():
    bound = Parabola(3.0)
    ascend(bound, upper=None, steps=300, decay=0.995)
    assert bound.v.detach().numpy() == pytest.approx(3.0, abs=1e-2)


def test_the_best_is_kept_and_what_is_proved_counts():
    found = ascend(Parabola(0.5, error=0.25), steps=200, decay=0.99)
    assert found.numpy() == pytest.approx(0.75, abs=1e-3)
    assert bool((ascend(Parabola(0.5), best=2.0, steps=3) == 2.0).all())


@pytest.mark.parametrize(("final", "calls"), [(True, 6), (False, 5)])
def test_the_bound_is_evaluated_before_every_step_and_at_the_end(final, calls):
    bound = Parabola(0.5)
    ascend(bound, steps=5, final=final)
    assert bound.calls == calls


def test_goals_and_deadlines_end_the_loop():
    bound = Parabola(0.5)
    ascend(bound, steps=100, goal=torch.full((3,), 0.8, dtype=torch.float64))
    assert 1 < bound.calls < 20
    bound = Parabola(0.5)
    assert ascend(bound, steps=100, deadline=time.monotonic()).tolist() == [0.75] * 3
    assert bound.calls == 1


def test_entries_that_are_not_finite_do_not_stop_the_others():
    bound = Parabola(0.5)

    def partly():
        value, proved = bound()
        hole = torch.tensor([0.0, math.nan, -math.inf])
        return value + hole, proved + hole

    start = torch.full((3,), -math.inf, dtype=torch.float64)
    variables = [Variables([bound.v], [0.0], 1.0, 0.1)]
    found = dual_ascent(nn.Linear(1, 1), partly, variables, start, Schedule(steps=100))
    assert found[0] > 0.99
    assert found[1:].tolist() == [-math.inf] * 2


def test_weights_are_constants_and_become_what_they_were():
    net = nn.Linear(2, 2)
    net.bias.requires_grad_(False)
    with frozen_weights(net):
        assert not any(weight.requires_grad for weight in net.parameters())
    assert net.weight.requires_grad
    assert not net.bias.requires_grad
