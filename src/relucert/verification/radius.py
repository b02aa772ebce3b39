"""`radius`: an interval around the distance to the nearest change of decision, by any method."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.attacks.problem import MINIMAL
from relucert.core.ball import PIXELS, Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, parse
from relucert.core.norms import check_p
from relucert.core.results import RadiusInterval
from relucert.networks.network import as_network, outside_inference
from relucert.networks.scaled import scaled
from relucert.verification._scaled import interval
from relucert.verification._upper import attacked
from relucert.verification.registry import find
from relucert.verification.verifier import Budget, Query


@outside_inference
def radius(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"] | None = None,
    p: float = 2,
    box: Any = PIXELS,
    method: str | Method = "region",
    attack: str | Method | None = None,
    tol: float = 0.01,
    timeout: float | None = None,
    scale: Any = None,
) -> RadiusInterval:
    """For every input an interval around the l_p distance to the nearest input of another class inside the box.

    `lower` is proved and rounded down; `upper` is the recomputed distance of a `witness` that was run through the network,
    inf without one; `exact` where the two meet. Without y the question is about the predicted class (equation 1 of the
    paper); with y a misclassified input has lower = upper = 0. With a bounding method (`ibp`, `kw`, `crown`, `alpha`)
    `lower` is the largest radius at which its bound was evaluated and proved a margin, to 1 % of what it can prove, or the
    region theorem's if that is larger. `mip` minimises the radius itself, which is exact up to the tolerances of its solver,
    given time.

    `bab` and `auto` (the same here) narrow the interval by branch and bound until its relative width is `tol`, or for
    `timeout` seconds an input, its share of its batch's.

    With a `scale`, one number of at least 0 for every entry of an input, distances are ||(z - x) / scale||_p, and entries of
    scale 0 are fixed; `lower` then speaks of real arithmetic.

    With an `attack` on the nearest points (see `minimal_attack`) the better of its witness and the method's is the upper end.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = radius(net, data.x_test[:10], p=2, method="region(regions=5)")
    >>> bool((found.lower > 0).all()), bool((found.lower <= found.upper).all())
    (True, True)
    """
    chosen, entry = find(method)
    p, net = check_p(p), as_network(net, x)
    box = net.box if box is PIXELS else box
    net.check(x, y)
    net.require_eval("a radius")
    if scale is not None:
        question = scaled(net, x, Ball(p, math.inf, box, scale=scale))
        labels = net.predict(x) if y is None else y
        return interval(
            question,
            radius(question.net, question.x, labels, p, question.ball.box, method, attack, tol, timeout),
            labels,
        )
    Ball(p, math.inf, box).check(x)
    if not 0 < tol < 1:
        raise InvalidInput(f"tol must be above 0 and below 1, got {tol}")
    if timeout is not None and not timeout > 0:
        raise InvalidInput(f"timeout must be a positive number of seconds, got {timeout}")
    if attack is not None:
        parse(attack, MINIMAL).check_norm(p)
    if len(x) == 0:
        none = x.new_zeros(0)
        return RadiusInterval(none, none, torch.zeros(0, dtype=torch.bool), None, none, [])
    with torch.no_grad():
        labels = net.predict(x) if y is None else y
    query = Query.of(net, x, labels, Ball(p, math.inf, box))
    found = entry.radius(chosen).radius(query, Budget(math.inf if timeout is None else timeout), tol)
    return found if attack is None else attacked(query, found, attack)
