from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.norms import norm
from relucert.core.rounding import relative_rounding

P = [1.0, 1.5, 2.0, 3.0, math.inf]
DTYPES = [torch.float32, torch.float64]


def images(batch: int = 4, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A batch (batch, 2, 3, 3) with black and white pixels."""
    generator = torch.Generator().manual_seed(seed)
    return (1.6 * torch.rand(batch, 2, 3, 3, generator=generator, dtype=dtype) - 0.3).clamp(0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.5, 0.1), "p must be a number of at least 1 or inf, got 0.5"),
        ((2, -0.1), "eps must be at least 0, got -0.1"),
        ((2, math.nan), "eps must be at least 0, got nan"),
        ((2, torch.tensor([0.1, -2.0])), "eps must be at least 0, got -2.0"),
        ((2, torch.ones(2, 2)), r"eps must be a number or one number for each example, got the shape \(2, 2\)"),
        ((2, "far"), "eps must be a number or one number for each example, got 'far'"),
        ((2, 0.1, (1, 0)), "box must have lower <= upper, got lower 1.0 and upper 0.0"),
        ((2, 0.1, (0, math.nan)), "box must have lower <= upper"),
        ((2, 0.1, (torch.tensor([0.0, 3.0]), 2.0)), "box must have lower <= upper, got lower 3.0 and upper 2.0"),
        ((2, 0.1, (torch.zeros(2), torch.ones(3))), "box must be None, two numbers or two tensors that broadcast"),
        ((2, 0.1, 1.0), "box must be None, two numbers or two tensors, got 1.0"),
        ((2, 0.1, (0, 0.5, 1)), "box must be None, two numbers or two tensors"),
    ],
)
def test_a_wrong_ball_is_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Ball(*arguments)


@pytest.mark.parametrize(
    ("ball", "x", "message"),
    [
        (Ball(2, 0.1), torch.tensor([[0.5], [1.5]]), "x must lie in the box of .*, got 1.5 in example 1"),
        (Ball(2, 0.1), torch.tensor([[-1e-9]]), "x must lie in the box of .*, got -"),
        (Ball(2, 0.1, None), torch.tensor([[math.inf]]), "x must be finite, got inf in example 0"),
        (Ball(2, 0.1), torch.tensor([[math.nan]]), "x must be finite, got nan in example 0"),
        (
            Ball(2, torch.ones(3)),
            torch.zeros(2, 1),
            "eps must be one number or one for each of the 2 examples, got 3",
        ),
        (Ball(2, 0.1, (torch.zeros(5), 1.0)), torch.zeros(2, 4), r"box must broadcast to x \(2, 4\), got \(5,\)"),
        (Ball(2, 0.1), torch.zeros(2, 1, dtype=torch.int64), "x must be a float32 or float64 tensor"),
        (Ball(2, 0.1), torch.zeros(3), r"x must be a float32 or float64 tensor \(batch, \*input\), got"),
    ],
)
def test_a_wrong_input_is_refused(ball, x, message):
    with pytest.raises(InvalidInput, match=message):
        ball.check(x)


def test_a_ball_converts_its_arguments_to_numbers():
    ball = Ball("inf", torch.tensor(0.5), [0, 1])  # pyright: ignore[reportArgumentType]
    assert (ball.p, ball.eps, ball.box) == (math.inf, 0.5, (0.0, 1.0))
    with pytest.raises(AttributeError):
        ball.p = 2.0  # pyright: ignore[reportAttributeAccessIssue]
    assert repr(Ball(2, torch.ones(4), None)) == "Ball(2, <4 numbers>, box=None)"
    assert Ball(2, np.array([0.1, 0.2])).radii(torch.zeros(2, 1)).tolist() == torch.tensor([0.1, 0.2]).tolist()  # pyright: ignore[reportArgumentType]
    assert ball.with_eps(0.25).eps == 0.25
    # The box is rounded to the dtype of x: 0.3 in float32 is above 0.3 in float64.
    Ball(2, 0.1, (0, 0.3)).check(torch.tensor([[0.3]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_contains_is_exact(dtype):
    x = torch.full((1, 2), 0.5, dtype=dtype)
    up = torch.full_like(x, math.inf)
    edge = torch.tensor([[0.75, 0.25]], dtype=dtype)
    assert Ball(math.inf, 0.25).contains(x, edge)
    assert not Ball(math.inf, 0.25).contains(x, torch.nextafter(edge, up))
    side = torch.tensor([[0.75, 0.5]], dtype=dtype)
    for p in P:
        assert Ball(p, 0.25).contains(x, side)
        assert not Ball(p, 0.25).contains(x, torch.nextafter(side, up))
        assert Ball(p, 0.25).contains(x, torch.nextafter(side, up), slack=1e-6)
    # 0.1 + 0.2 in float32 is farther than 0.2 from 0.1 in float64, so it lies outside.
    tenth = torch.tensor([[0.1]])
    assert not Ball(2, 0.2).contains(tenth, tenth + 0.2)
    assert not Ball(2, 5.0).contains(x, torch.nextafter(torch.ones_like(x), up))
    assert Ball(2, math.inf, None).contains(x, 1e30 * edge)
    for bad in (math.nan, math.inf):
        assert not Ball(2, math.inf, None).contains(x, torch.full_like(x, bad))


@pytest.mark.parametrize("p", P)
def test_contains_takes_many_points_of_each_example(p):
    x = images()
    z = x[:, None] + 0.2 * torch.randn(4, 50, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    ball = Ball(p, torch.tensor([0.1, 0.5, 1.0, 3.0]), (-1, 2))
    many = ball.contains(x, z)
    assert many.shape == (4, 50)
    for k in range(50):
        assert torch.equal(ball.contains(x, z[:, k]), many[:, k])
    distance = norm((z.double() - x.double()[:, None]), p, 2)
    assert torch.equal(
        many,
        (distance <= torch.tensor([0.1, 0.5, 1.0, 3.0])[:, None].double()) & ((z >= -1) & (z <= 2)).flatten(2).all(-1),
    )


@pytest.mark.parametrize("p", P)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(DTYPES), eps=st.floats(0, 3), boxed=st.booleans())
def test_samples_lie_in_the_set_and_the_set_in_its_hull(p, seed, dtype, eps, boxed):
    x, ball = images(dtype=dtype, seed=seed), Ball(p, eps, (0, 1) if boxed else None)
    points = ball.sample(x, torch.Generator().manual_seed(seed), count=8)
    assert points.dtype == dtype
    assert points.shape == (4, 8, 2, 3, 3)
    assert ball.contains(x, points).all()
    lower, upper = ball.hull(x)
    assert bool(((points >= lower[:, None]) & (points <= upper[:, None])).all())
    again = ball.sample(x, torch.Generator().manual_seed(seed), count=8)
    assert torch.equal(points, again)
    assert ball.contains(x, ball.sample(x, torch.Generator().manual_seed(seed))).all()


@pytest.mark.parametrize("p", P)
def test_samples_come_near_the_surface_and_near_every_kind_of_corner(p):
    x = torch.full((1, 10), 0.5, dtype=torch.float64)
    ball = Ball(p, 0.25)
    offsets = ball.sample(x, torch.Generator().manual_seed(0), count=2000) - x
    length = norm(offsets, p, 2)
    assert 0.4 < (length > 0.25 * (1 - 1e-9)).double().mean() < 0.6
    assert length.min() < 0.01
    share = offsets.abs().amax(-1) / offsets.abs().sum(-1)
    assert share.max() > 0.9  # one coordinate has nearly the whole length
    assert share.min() < 0.102  # all coordinates are equal
    assert (offsets.sign().mean(1).abs() < 0.1).all()


def test_samples_avoid_sides_without_slack_and_fill_the_box_at_infinite_radius():
    x = torch.tensor([[0.0, 1.0, 0.5]])
    points = Ball(math.inf, 0.1).sample(x, torch.Generator().manual_seed(0), count=100)
    moved = (points != x[:, None]).double().mean(1)
    assert bool((moved > 0.75).all())  # with random signs half of the points would keep a pixel of the first two
    spread = Ball(2, math.inf).sample(x, torch.Generator().manual_seed(0), count=500)
    assert bool(((spread.amax(1) > 0.9) & (spread.amin(1) < 0.1)).all())
    with pytest.raises(InvalidInput, match="eps must be finite where the box is not"):
        Ball(2, math.inf, None).sample(x, torch.Generator())


@pytest.mark.parametrize("dtype", DTYPES)
def test_slacks_and_hull_are_rounded_outwards(dtype):
    x = images(dtype=dtype).flatten(1)
    below, above = Ball(2, 0.1).slacks(x)
    assert torch.equal(below, x)
    assert bool((above.double() >= 1 - x.double()).all())
    assert bool((above.double() <= (1 - x.double()) * (1 + 2 * torch.finfo(dtype).eps)).all())
    lower, upper = Ball(3, 0.1, None).hull(x)
    wide = x.numpy().astype(np.longdouble)
    eps = np.longdouble(0.1)
    assert bool((lower.numpy().astype(np.longdouble) <= wide - eps).all())
    assert bool((upper.numpy().astype(np.longdouble) >= wide + eps).all())
    torch.testing.assert_close(lower, x - 0.1, rtol=0, atol=2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(upper, x + 0.1, rtol=0, atol=2 * torch.finfo(dtype).eps)
    cut = Ball(3, 0.1).hull(x)
    assert torch.equal(cut[0], lower.clamp(min=0))
    assert torch.equal(cut[1], upper.clamp(max=1))
    everything = Ball(1, math.inf, None).hull(x)
    assert bool((everything[0] == -math.inf).all() & (everything[1] == math.inf).all())
    point = Ball(1, 0.0).hull(x)
    assert torch.equal(point[0], x)
    assert torch.equal(point[1], x)


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("box", [(0.0, 1.0), None])
def test_the_minimum_is_attained_at_a_point_of_the_set(p, dtype, box):
    x = images(dtype=dtype)
    rows = torch.randn(4, 6, 2, 3, 3, generator=torch.Generator().manual_seed(2), dtype=dtype)
    ball = Ball(p, torch.tensor([0.0, 0.05, 0.4, 2.0], dtype=torch.float64), box)
    found = ball.minimum(x, rows, point=True)
    assert found.point is not None
    assert ball.contains(x, found.point).all()
    reached = (rows.double() * (found.point.double() - x.double()[:, None])).flatten(2).sum(-1)
    # The value has a rounding error; a point in the dtype of x is rounded inwards and may miss the minimum by its spacing.
    spacing = 2 * torch.finfo(dtype).eps * (rows.double() * (1 + x.double()[:, None])).flatten(2).abs().sum(-1)
    tolerance = 5 * relative_rounding(18, dtype) * found.value.abs().double() + spacing
    assert bool((reached >= found.value.double() - tolerance).all())
    assert bool((reached <= found.value.double() + tolerance).all())
    one = ball.minimum(x, rows[:, 3], point=True)
    assert torch.equal(one.value, ball.minimum(x, rows[:, 3:4]).value[:, 0])
    assert one.value.shape == (4,)
    assert one.point is not None
    assert one.point.shape == x.shape


def test_the_minimum_refuses_rows_that_do_not_fit():
    x = images()
    for rows in (
        torch.zeros(4, 3, 2, 3, 2),
        torch.zeros(3, 3, 2, 3, 3),
        torch.zeros(4, 3, 2, 3, 3, dtype=torch.float64),
    ):
        with pytest.raises(
            InvalidInput, match=r"rows must be torch.float32 \(batch, rows, \*input\) for x \(4, 2, 3, 3\)"
        ):
            Ball(2, 0.1).minimum(x, rows)


@pytest.mark.parametrize(
    "box",
    [
        (0.0, 1.0),
        (torch.zeros(3, 3), torch.linspace(1, 2, 9).reshape(3, 3)),  # one for all examples
        (torch.zeros(1, 2, 3, 3), torch.ones(2, 1, 1)),
        (-torch.linspace(0, 1, 4).reshape(4, 1, 1, 1), torch.linspace(1, 2, 72).reshape(4, 2, 3, 3)),  # one for each
        (-torch.linspace(0, 1, 4).reshape(4, 1, 1, 1), 1.0),
    ],
)
@pytest.mark.parametrize(
    "index", [2, -1, slice(1, 3), [3, 0], torch.tensor([2, 2, 1]), torch.tensor([True, False, True, True])]
)
def test_a_restricted_ball_is_the_ball_of_the_chosen_examples(box, index):
    x = images()
    ball = Ball(2, torch.tensor([0.1, 0.2, 0.3, 0.4]), box)
    z = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    part = [index % 4] if isinstance(index, int) else index
    restricted = ball.restrict(index)
    assert torch.equal(restricted.project(x[part], z[part]), ball.project(x, z)[part])
    for some, every in zip(restricted.bounds(x[part]), ball.bounds(x), strict=True):
        assert torch.equal(some, every[part])
    assert restricted.with_eps(0.5).restrict([0]).bounds(x[part][:1])[0].equal(ball.bounds(x)[0][part][:1])


def test_a_wrong_index_is_refused():
    with pytest.raises(InvalidInput, match="index must be an integer, a slice, a mask or positions"):
        Ball(2, 0.1).restrict(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="index must be an integer, a slice, a mask or positions"):
        Ball(2, 0.1).restrict(torch.zeros(2))


def test_the_key_is_json_and_different_balls_have_different_keys():
    assert Ball(2, 0.3).key() == {"p": 2.0, "eps": 0.3, "box": [0.0, 1.0]}
    assert Ball("inf", [0.5, math.inf], None).key(1) == {"p": "inf", "eps": "inf", "box": None}  # pyright: ignore[reportArgumentType]
    assert Ball(1, 0.5, (-math.inf, 0.0)).key() == {"p": 1.0, "eps": 0.5, "box": ["-inf", 0.0]}
    x = images()
    upper = torch.linspace(1, 2, 72).reshape(4, 2, 3, 3)
    ball = Ball(2, 0.3, (0.0, upper))
    keys = [json.dumps(ball.key(i, x)) for i in range(4)]
    assert len(set(keys)) == 4
    assert json.dumps(ball.restrict([2]).key(0, x[2:3])) == keys[2]
    # Equal sets have equal keys.
    assert Ball(2, 0.3, (torch.zeros(3, 3), torch.ones(1, 1))).key(1, x) == Ball(2, 0.3).key()
    with pytest.raises(InvalidInput, match="x must be given to describe a box of tensors"):
        ball.key()


def test_an_empty_batch_stays_empty():
    x, ball = torch.zeros(0, 2, 3), Ball(2, 0.1)
    assert ball.project(x, x).shape == x.shape
    assert ball.contains(x, x).shape == (0,)
    assert ball.sample(x, torch.Generator(), 5).shape == (0, 5, 2, 3)
    found = ball.minimum(x, torch.zeros(0, 4, 2, 3), point=True)
    assert found.value.shape == (0, 4)
    assert found.point is not None
    assert found.point.shape == (0, 4, 2, 3)
