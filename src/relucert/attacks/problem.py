"""`attack` (adversarial points in a ball) and `minimal_attack` (nearest adversarial points), by any method."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.attacks.apgd import APGD
from relucert.attacks.base import FixedAttack, MinimalAttack, settle
from relucert.attacks.best import MEMBERS, Best
from relucert.attacks.pgd import PGD
from relucert.core.ball import PIXELS, Ball, as_ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, parse
from relucert.core.norms import check_p
from relucert.core.results import Adversarial
from relucert.geometry.witness import Witnesses
from relucert.networks.network import Network, as_network, outside_inference
from relucert.networks.prediction import adversarial
from relucert.networks.scaled import scaled

FIXED: dict[str, type[FixedAttack]] = {"pgd": PGD, "apgd": APGD}
MINIMAL: dict[str, type[MinimalAttack]] = {**MEMBERS, "best": Best}


@outside_inference
def attack(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"] | None,
    ball: Ball,
    method: str | Method = "pgd",
    generator: torch.Generator | None = None,
) -> Adversarial:
    """Search the ball around every input for a point of another class than y (by default the predicted class).

    Every point that is returned as a success lies in ball and box and changes the decision when the network is run again; its
    distance is recomputed. A misclassified input has distance 0, a failure has distance inf. The ball may have a scale; then
    distances are in units of the scale.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = attack(net, data.x_test[:20], data.y_test[:20], rc.Ball(2, 1.0), rc.PGD(steps=10))
    >>> bool((net.predict(found.x)[found.success] != data.y_test[:20][found.success]).all())
    True
    """
    chosen = parse(method, FIXED)
    net = as_network(net, x)
    ball = as_ball(ball, net.box)
    net.check(x, y)
    net.require_eval("an attack")
    with torch.no_grad():
        labels = net.predict(x) if y is None else y.long()
    if ball.scale is not None:
        question = scaled(net, x, ball)
        found = attack(question.net, question.x, labels, question.ball, method, generator)
        return question.adversarial(found.x, labels)
    ball.check(x)
    generator = generator or torch.Generator().manual_seed(chosen.seed)
    return chosen.attack(net, x, labels, ball, generator)


@outside_inference
def minimal_attack(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"] | None = None,
    p: float | int | Ball = 2,
    box: Any = PIXELS,
    method: str | Method = "best",
    generator: torch.Generator | None = None,
) -> Adversarial:
    """Search for the point nearest to every input in l_p whose class is not y (by default the predicted class).

    Every point that is returned as a success lies in the box and changes the decision when the network is run again; its
    distance is recomputed and rounded up. A misclassified input has distance 0; a failure has distance inf and the input
    itself as its point. `p` is the norm, or a `Ball` of infinite radius that has norm, box and scale; with a scale distances
    are ||(z - x) / scale||_p, and entries of scale 0 are fixed.

    >>> import relucert as rc
    >>> net, x = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits").x_test[:20]
    >>> found = minimal_attack(net, x, method=rc.DDN(steps=30))
    >>> bool((found.distance >= rc.radius(net, x, method="region").lower).all())
    True
    """
    chosen = parse(method, MINIMAL)
    net = as_network(net, x)
    ball = _whole(p, box, net)
    p = check_p(ball.p)
    chosen.check_norm(p)
    net.check(x, y)
    net.require_eval("an attack")
    with torch.no_grad():
        predicted = net.predict(x)
    labels = predicted if y is None else y.long()
    if ball.scale is not None:
        question = scaled(net, x, ball)
        found = minimal_attack(question.net, question.x, labels, p, question.ball.box, chosen, generator)
        return question.adversarial(found.x, labels)
    ball.check(x)
    generator = generator or torch.Generator().manual_seed(getattr(chosen, "seed", 0))
    points = x.clone()
    right = (predicted == labels).nonzero()[:, 0]
    if len(right):
        lower, upper = ball.bounds(x)
        witnesses = Witnesses(net, x[right], labels[right], p, (lower[right], upper[right]))
        with torch.no_grad():
            chosen.search(witnesses, generator)
            settle(witnesses)
        points[right] = witnesses.point
    return adversarial(net, x, labels, points, ball)


def _whole(p: float | int | Ball, box: Any, net: Network) -> Ball:
    """Norm, box and scale of a search for the nearest points, as a ball of infinite radius."""
    if not isinstance(p, Ball):
        return Ball(check_p(p), math.inf, net.box if box is PIXELS else box)
    if box is not PIXELS or not bool(torch.as_tensor(p.eps).isinf().all()):
        given = "a box besides" if box is not PIXELS else f"eps={p.eps}"
        raise InvalidInput(f"p must be a norm, or a ball of infinite radius with its own box, got a ball and {given}")
    return as_ball(p, net.box)
