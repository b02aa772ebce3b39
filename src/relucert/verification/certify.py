"""`certify`: is the decision the same all over a ball? ROBUST is a proof, and anything less is not called so.

ROBUST means: the network of real arithmetic with the stored weights keeps its decision at every input of the ball inside the
box, and so does the network as it runs in its own dtype, in whatever order sums are evaluated. Bounds are computed in float64;
the margin that is reported is what is left of them after a bound on their own rounding, and it must exceed a bound on the
error of evaluating the network in its dtype (`bounding.rounding`).
"""

from __future__ import annotations

import copy
import math
import time

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.bounding.alpha import Alpha
from relucert.bounding.crown import CROWN
from relucert.bounding.ibp import IBP
from relucert.bounding.kw import KW
from relucert.bounding.lipschitz import Lipschitz
from relucert.bounding.rounding import bound_error, evaluation_error
from relucert.bounding.sdp import SDP
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method, parse, spec
from relucert.core.norms import dual
from relucert.core.properties import Property, against, class_stays
from relucert.core.results import Certificate, Verdict, concatenate
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms import hyperplane_norms
from relucert.geometry.theorem import Region
from relucert.networks.network import Network
from relucert.verification.margins import narrowest, proved_margins

BOUNDING: dict[str, type[Method]] = {
    "ibp": IBP, "kw": KW, "crown": CROWN, "alpha": Alpha, "lipschitz": Lipschitz, "sdp": SDP,
}  # fmt: skip
CERTIFY: dict[str, type[Method]] = {"region": Region, **BOUNDING}


def certify(
    net: Network,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    ball: Ball,
    method: str | Method = "crown",
    targets: Int[Tensor, " batch specs"] | None = None,
    batch: int = 100,
) -> Certificate:
    """For every input a verdict on whether the class stays y over the ball, or stays ahead of chosen `targets`.

    `margin` is a proved lower bound on the smallest lead over the ball. `batch` inputs are worked on together.

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
        raise InvalidInput(f"batch must be at least 1; found {batch}")
    if ball.box is None and bool(ball.radii(x).isinf().any()):
        raise InvalidInput("ball must be bounded: eps or the box must be finite; found eps=inf without a box")
    if len(x) == 0:
        return Certificate([], x.new_zeros(0), None, [], x.new_zeros(0))
    double = net if net.dtype == torch.float64 else copy.deepcopy(net).double()
    found = []
    for part in torch.arange(len(x), device=x.device).split(batch):
        goals = None if targets is None else targets[part]
        found.append(_piece(net, double, x[part], y[part], ball.restrict(part), chosen, goals))
    return concatenate(found)


@torch.no_grad()
def _piece(
    net: Network, double: Network, x: Tensor, y: Tensor, ball: Ball, method: Method, targets: Tensor | None
) -> Certificate:
    started = time.perf_counter()
    if targets is None:
        asked, holds = class_stays(y, net.classes, dtype=torch.float64), net.predict(x) == y
    else:
        asked = against(y, targets, net.classes, dtype=torch.float64)
        holds = asked.holds(net(x).double())
    if isinstance(method, Region):
        if targets is not None:
            raise InvalidInput("targets must be left out for method region, whose theorem is about the class")
        margin, needed = _region_margins(net, double, x, y, ball, method, asked)
    else:
        margin, needed = proved_margins(double, x.double(), ball, method, asked, net.dtype)  # type: ignore[arg-type]
    robust = holds & (margin > needed)
    verdicts = [
        Verdict.MISCLASSIFIED if not right else Verdict.ROBUST if proved else Verdict.UNKNOWN
        for right, proved in zip(holds.tolist(), robust.tolist(), strict=True)
    ]
    seconds = x.new_full((len(x),), (time.perf_counter() - started) / max(1, len(x)))
    return Certificate(verdicts, margin, None, [spec(method)] * len(x), seconds)


def _region_margins(
    net: Network, double: Network, x: Tensor, y: Tensor, ball: Ball, method: Region, asked: Property
) -> tuple[Tensor, Tensor]:
    """The margins by the region theorem: where the proved radius covers the ball, and inside the point's own region.

    There every margin is linear, and its minimum over the ball without the box a lower bound. Where only neighbouring
    regions cover the ball, the decision is proved to stay, but no margin is, so the dtype's rounding is not covered.
    """
    eps, wide = ball.radii(x), x.double()
    sides = None if ball.box is None else ball.bounds(x)
    found = method.radius(net, x, y, ball.p, sides)
    region, values, logits = LinearRegion.evaluated(double, wide)
    faces, classes = hyperplane_norms(region, y, dual(ball.p))
    away = torch.where(faces == 0, math.inf, region.margins_of(values, wide) / torch.where(faces == 0, 1.0, faces))
    near = away.amin(1) if away.shape[1] else wide.new_full((len(x),), math.inf)
    inside = (found.lower > eps) & (near * (1 - 1e-9) > eps)
    own = torch.nn.functional.one_hot(y, double.classes).bool()
    lead = (logits.gather(1, y[:, None]) - logits - eps[:, None] * classes * (1 + 1e-9))[~own].reshape(len(x), -1)
    needed = evaluation_error(double, wide, ball, {}, asked, net.dtype)
    lead = lead - bound_error(double, wide, ball, {}, asked)
    margin, need = narrowest(lead, needed)
    return torch.where(inside, margin, torch.full_like(margin, -math.inf)), need
