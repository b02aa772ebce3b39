"""`certify`: is the decision the same all over a ball? ROBUST is a proof, and anything less is not called so.

ROBUST means: the network of real arithmetic with the stored weights keeps its decision at every input of the ball inside the
box, and so does the network as it runs in its own dtype, in whatever order sums are evaluated. Bounds are computed in float64;
the margin that is reported is what is left of them after a bound on their own rounding, and it must exceed a bound on the
error of evaluating the network in its dtype (`bounding.rounding`). VULNERABLE comes with a witness that was run through the
network in its own dtype and lies in ball and box. Everything else is UNKNOWN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.attacks.base import FixedAttack
from relucert.bounding.base import Bounding
from relucert.bounding.methods.alpha import Alpha
from relucert.bounding.methods.crown import CROWN
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.kw import KW
from relucert.bounding.methods.lipschitz import Lipschitz
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, parse
from relucert.core.modes import outside_inference
from relucert.core.properties import against, class_stays
from relucert.core.results import Certificate, concatenate
from relucert.geometry.theorem import Region
from relucert.networks.network import Network, in_double
from relucert.verification.auto import Auto
from relucert.verification.bab.bab import BaB
from relucert.verification.cascade import Callback, Piece
from relucert.verification.mip.mip import MIP

BOUNDING: dict[str, type[Bounding]] = {
    "ibp": IBP, "kw": KW, "crown": CROWN, "alpha": Alpha, "lipschitz": Lipschitz, "sdp": SDP,
    "moments": Moments,
}  # fmt: skip
CERTIFY: dict[str, type[Method]] = {"region": Region, **BOUNDING, "bab": BaB, "mip": MIP, "auto": Auto}


@outside_inference
def certify(
    net: Network,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    ball: Ball,
    method: str | Method = "auto",
    timeout: float | None = None,
    targets: Int[Tensor, " batch specs"] | None = None,
    batch: int = 100,
) -> Certificate:
    """For every input a verdict on whether the class stays y over the ball, or stays ahead of chosen `targets`.

    `margin` is a proved lower bound on the smallest lead over the ball. `batch` inputs are worked on together. `timeout`:
    seconds that one input may cost, its share of its batch's; what is not decided by then is UNKNOWN.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = certify(net, data.x_test[:5], net.predict(data.x_test[:5]), rc.Ball(2, 1e-4), "crown")
    >>> [str(verdict) for verdict in found.verdict]
    ['robust', 'robust', 'robust', 'robust', 'robust']
    """
    chosen = parse(method, CERTIFY)
    net.check(x, y)
    net.require_eval("a certificate")
    ball.check(x)
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    if timeout is not None and not timeout > 0:
        raise InvalidInput(f"timeout must be a positive number of seconds, got {timeout}")
    if ball.box is None and bool(ball.radii(x).isinf().any()):
        raise InvalidInput("ball must be bounded: eps or the box must be finite, got eps=inf without a box")
    if targets is not None and isinstance(chosen, Region):
        raise InvalidInput("targets must be left out for method region, whose theorem is about the class")
    return decide(net, x, y, ball, chosen, math.inf if timeout is None else timeout, targets, batch)


def decide(
    net: Network, x: Tensor, y: Tensor, ball: Ball, method: Method, limit: float = math.inf,
    targets: Tensor | None = None, batch: int = 100, *, deadline: float = math.inf, callback: Callback | None = None,
) -> Certificate:  # fmt: skip
    """The verdicts on inputs that have been checked; `callback` hears of every one at once, with its number in x.

    At `deadline` (of `time.monotonic`) everything ends: what is open then is UNKNOWN, and not told.
    """
    if len(x) == 0:
        return Certificate([], x.new_zeros(0), None, [], x.new_zeros(0))
    double = in_double(net)
    ball = ball.beside(x)
    stages: Sequence[Method] = (method,)
    if isinstance(method, Auto):
        stages = method.stages(float(ball.p), single=Moments.whole(net))
        if targets is not None:  # these two know nothing of targets
            stages = [stage for stage in stages if not isinstance(stage, Region | FixedAttack)]
    found = []
    for part in torch.arange(len(x), device=x.device).split(batch):
        with torch.no_grad():
            if targets is None:
                prop = class_stays(y[part], net.classes, dtype=torch.float64)
                holds = net.predict(x[part]) == y[part]
            else:
                prop = against(y[part], targets[part], net.classes, dtype=torch.float64)
                holds = prop.holds(net(x[part]).double())
        piece = Piece(
            net, double, x[part], y[part], ball.restrict(part), prop, holds, part, limit=limit, deadline=deadline
        )
        found.append(piece.decided(stages, callback))
    return concatenate(found)
