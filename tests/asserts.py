"""Theorems as named assertions, used over tables of all methods, norms and networks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.norms import norm
from relucert.core.results import Adversarial, RadiusInterval, Verdict
from relucert.geometry.region import LinearRegion
from relucert.networks.network import Network
from relucert.verification.verifier import Budget, Outcome, Query, Verifier


def rounded_up(x: Tensor) -> float:
    """How much larger a distance may be for being rounded up: to the dtype, and by a bound on the rounding of its sum."""
    return 1 + 4 * torch.finfo(x.dtype).eps + 4 * (math.prod(x.shape[1:]) + 16) * torch.finfo(torch.float64).eps


def assert_adversarial(net: Network, x: Tensor, y: Tensor, ball: Ball, found: Adversarial) -> None:
    """Every success lies in ball and box, changes the decision alone and in the batch, at the distance it says."""
    inside = ball.contains(x, found.x)
    assert bool(inside[found.success].all()), "a success lies outside ball or box"
    assert bool((net.predict(found.x) != y)[found.success].all()), "a success does not change the decision"
    for i in found.success.nonzero()[:, 0].tolist():
        assert int(net.predict(found.x[i : i + 1])) != int(y[i]), "a success does not change the decision by itself"
    distance = norm(found.x.double() - x.double(), ball.p)
    assert bool((found.distance.double() >= distance)[found.success].all()), "a distance is too small"
    assert bool((found.distance.double() <= distance * rounded_up(x))[found.success].all()), "a distance is too large"
    assert bool(found.distance[~found.success].isinf().all()), "a failure has a finite distance"
    assert bool(found.success[net.predict(x) != y].all()), "a misclassified input is no success"


def assert_affine_on_region(net: Network, x: Tensor, z: Tensor) -> None:
    """At points z of the regions of x the network's own values, logits and all others, are those of the region's map."""
    region = LinearRegion.at(net, x)
    inner, logits = region.values(z)
    torch.testing.assert_close(logits, net(z), rtol=1e-11, atol=1e-11)
    for node, found, expected in zip(net.switches, inner, net.preactivations(z), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11, msg=f"{node.name} is not affine")
    rows, offsets = region.logits_map()
    explicit = (rows * z[:, None]).flatten(2).sum(2) + offsets
    torch.testing.assert_close(explicit, net(z), rtol=1e-10, atol=1e-10)


def assert_below_attack(found: RadiusInterval, attacked: Adversarial) -> None:
    """No attack's success is nearer than what was proved."""
    nearer = attacked.success & (attacked.distance < found.lower)
    assert not bool(nearer.any()), f"example {nearer.nonzero()[:, 0].tolist()} was attacked below its proved radius"


def assert_witness(net: Network, x: Tensor, y: Tensor, p: float, box: Any, found: RadiusInterval) -> None:
    """Every witness lies in the box, changes the decision in float32 and in float64, at the distance `upper`."""
    assert bool((found.lower <= found.upper).all())
    has = found.upper.isfinite()
    if not bool(has.any()):
        return
    assert found.witness is not None
    witness, x, y, upper = found.witness[has], x[has], y[has], found.upper[has]
    if box is not None:
        low, high = (torch.as_tensor(side, dtype=x.dtype).expand(x.shape[1:]) for side in box)
        assert bool(((witness >= low) & (witness <= high)).all()), "a witness lies outside the box"
    assert bool((net.predict(witness) != y).all()), "a witness does not change the decision"
    distance = norm(witness.double() - x.double(), p)
    assert bool((upper.double() >= distance).all()), "an upper end is too small"
    assert bool((upper.double() <= distance * rounded_up(x)).all()), "an upper end is too large"
    wrong = net.predict(x) != y
    assert bool((upper[wrong] == 0).all())
    assert bool((upper[~wrong] > 0).all())


def assert_around(found: RadiusInterval, truth: Tensor) -> None:
    """The interval holds the truth, and is the truth where it says so."""
    lower, upper = found.lower.double(), found.upper.double()
    assert bool((lower <= truth * (1 + 1e-9) + 1e-12).all()), f"lower {lower.tolist()} above {truth.tolist()}"
    assert bool((upper >= truth * (1 - 1e-9) - 1e-12).all()), f"upper {upper.tolist()} below {truth.tolist()}"
    torch.testing.assert_close(lower[found.exact], truth[found.exact], rtol=1e-6, atol=1e-9)


def assert_sound(net: Network, x: Tensor, ball: Ball, bounds: Any, prop: Any, margins: Tensor, points: Tensor) -> None:
    """No point of the ball, sampled or found by descent, leaves the bounds of a unit or falls below a margin.

    `points` (batch, count, *input) lie in the ball around x; the margins' worst ones are looked for from there.
    """
    batch, count = points.shape[:2]
    flat = points.flatten(0, 1)
    scale = 1e-9 if x.dtype == torch.float64 else 1e-4
    with torch.no_grad():
        for node, value in zip(net.switches, net.preactivations(flat), strict=True):
            value = value.reshape(batch, count, *value.shape[1:])
            within = bounds.inputs[node.index]
            assert bool((value.amin(1) >= within.lower - scale).all()), f"{node.name} falls below its bound"
            assert bool((value.amax(1) <= within.upper + scale).all()), f"{node.name} rises above its bound"
    wide = ball.restrict(torch.arange(batch).repeat_interleave(count))
    centre = x.repeat_interleave(count, 0)
    rows, offsets = (part.repeat_interleave(count, 0) for part in (prop.rows, prop.offsets))
    for _ in range(5):
        flat = flat.detach().requires_grad_()
        found = torch.einsum("bsk,bk->bs", rows, net(flat)) + offsets
        least = found.detach().reshape(batch, count, -1).amin(1)
        assert bool((least >= margins - scale).all()), "a point of the ball has a smaller margin than was proved"
        (slope,) = torch.autograd.grad(found.amin(1).sum(), flat)
        # The minimiser of the linear model over the ball, then half way to it.
        with torch.no_grad():
            ahead = wide.minimum(centre, slope, point=True).point
            assert ahead is not None
            flat = (flat + ahead) / 2


def outcome(verifier: Verifier, query: Query, budget: Budget | None = None) -> Outcome:
    """The decisions of a verifier about a whole batch, one for every input."""
    found, seen = Outcome.nothing(query.wide), []
    for decision in verifier.decide(query, budget or Budget()):
        place = decision.index
        seen.append(place)
        found.proved[place] = decision.verdict is Verdict.ROBUST
        found.falsified[place] = decision.verdict is Verdict.VULNERABLE
        found.margin[place], found.seconds[place], found.nodes[place] = (
            decision.margin,
            decision.seconds,
            decision.nodes,
        )
        found.timed[place] = decision.timed
        if decision.witness is not None:
            found.witness[place] = decision.witness.double()
        if decision.saved is not None:
            found.saved[place] = decision.saved
    assert sorted(seen) == list(range(len(query)))
    return found
