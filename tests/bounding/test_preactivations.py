"""What all bounding methods promise: they go on soundly from bounds of the units whoever found them, and never lose."""

from __future__ import annotations

import math

import pytest
import torch

from asserts import assert_sound
from relucert.bounding import backward_bounds
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.preactivations import Bounding, UnitBounds
from relucert.core.ball import Ball
from relucert.core.properties import class_stays
from relucert.verification.registry import BOUNDING
from zoo import NETWORKS, inputs, network

SHORT = {"alpha": {"steps": 3}, "sdp": {"steps": 2}, "moments": {"steps": 5, "rank": 3}}
METHODS = {name: kind(**SHORT.get(name, {})) for name, kind in BOUNDING.items()}


def question(name: str, p: float):
    net = network(name, torch.float64)
    x = inputs(net, 3)
    ball = Ball(p, torch.tensor([0.05, 0.2, 0.4], dtype=torch.float64))
    return net, x, ball, class_stays(net.predict(x), net.classes, dtype=torch.float64)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("p", [2.0, math.inf])
def test_every_method_goes_on_from_the_bounds_of_every_other(name: str, p: float) -> None:
    net, x, ball, prop = question(name, p)
    points = ball.sample(x, torch.Generator().manual_seed(0), 40)
    with torch.no_grad():
        starts = [METHODS[name].units(net, x, ball) for name in ("ibp", "kw", "crown", "sdp")]
    for method in METHODS.values():
        for known in starts:
            with torch.no_grad():
                units, margins = method.proceed(net, known, x, ball, prop)
            assert_sound(net, x, ball, units, prop, margins, points)
            for index, within in units.inputs.items():
                assert bool((within.lower >= known.inputs[index].lower).all()), method.name
                assert bool((within.upper <= known.inputs[index].upper).all()), method.name


@pytest.mark.parametrize("method", METHODS)
def test_to_solve_is_to_start_and_to_go_on(method: str) -> None:
    net, x, ball, prop = question("fc", 2.0)
    chosen = METHODS[method]
    with torch.no_grad():
        units, margins = chosen.solve(net, x, ball, prop)
        again, same = chosen.proceed(net, chosen.start(net, x, ball), x, ball, prop)
        own = chosen.units(net, x, ball)
    assert torch.equal(margins, same)
    for index, within in units.inputs.items():
        for other in (again.inputs[index], own.inputs[index]):
            assert torch.equal(within.lower, other.lower)
            assert torch.equal(within.upper, other.upper)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_contains_starts_with_a_method_that_contains_nothing(method: str) -> None:
    contained = METHODS[method].contains
    assert all(isinstance(one, Bounding) for one in contained)
    assert not contained or contained[0].contains == ()


def test_bounds_of_some_examples_are_theirs() -> None:
    net, x, ball, _ = question("cnn", math.inf)
    with torch.no_grad():
        whole = METHODS["crown"].units(net, x, ball)
    some = torch.tensor([2, 0])
    part = whole.restrict(some)
    assert isinstance(part, UnitBounds)
    assert torch.equal(part.logits.upper, whole.logits.upper[some])
    for rule in ("parallel", "adaptive", "flat"):
        for index, lines in part.relaxed(net, rule).items():
            assert torch.equal(lines.offset, whole.relaxed(net, rule)[index].offset[some])


@pytest.mark.parametrize("name", ["cnn", "cnn colour"])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_rows_of_all_units_and_of_unstable_ones_alone_give_the_same_bounds(
    name: str, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(name, torch.float64)
    x, ball = inputs(net, 3), Ball(p, {1.0: 1.0, 2.0: 0.3, math.inf: 0.05}[p])
    for executed in (None, torch.float64):
        found = []
        for share in (-1.0, 2.0):
            monkeypatch.setattr(backward_bounds, "ALL", share)
            monkeypatch.setattr(backward_bounds, "ALL_PARALLEL", share)
            with torch.no_grad():
                found.append(CROWN().start(net, x, ball, executed))
        for index, within in found[0].inputs.items():
            torch.testing.assert_close(within.lower, found[1].inputs[index].lower, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(within.upper, found[1].inputs[index].upper, rtol=1e-9, atol=1e-9)
        assert any(bool(within.unstable.any()) for within in found[0].inputs.values())
