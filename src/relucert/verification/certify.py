"""`certify`: is the decision the same all over a ball? ROBUST is a proof, and anything less is not called so.

ROBUST means: the network of real arithmetic with the stored weights keeps its decision at every input of the ball inside the
box, and so does the network as it runs in its own dtype, in whatever order sums are evaluated. Bounds are computed in float64;
the margin that is reported is what is left of them after a bound on their own rounding, and it must exceed a bound on the
error of evaluating the network in its dtype (`bounding.rounding`). VULNERABLE comes with a witness that was run through the
network in its own dtype and lies in ball and box. Everything else is UNKNOWN.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.attacks.interface import attack
from relucert.attacks.pgd import PGD
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
from relucert.verification.auto import Auto
from relucert.verification.bab import BaB, branch_and_bound
from relucert.verification.margins import narrowest, proved_margins
from relucert.verification.mip import MIP, mixed_integer

BOUNDING: dict[str, type[Method]] = {
    "ibp": IBP, "kw": KW, "crown": CROWN, "alpha": Alpha, "lipschitz": Lipschitz, "sdp": SDP,
}  # fmt: skip
CERTIFY: dict[str, type[Method]] = {"region": Region, **BOUNDING, "bab": BaB, "mip": MIP, "auto": Auto}


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
        raise InvalidInput(f"batch must be at least 1; found {batch}")
    if timeout is not None and not timeout > 0:
        raise InvalidInput(f"timeout must be a positive number of seconds; found {timeout}")
    if ball.box is None and bool(ball.radii(x).isinf().any()):
        raise InvalidInput("ball must be bounded: eps or the box must be finite; found eps=inf without a box")
    if targets is not None and isinstance(chosen, Region):
        raise InvalidInput("targets must be left out for method region, whose theorem is about the class")
    if len(x) == 0:
        return Certificate([], x.new_zeros(0), None, [], x.new_zeros(0))
    double = net if net.dtype == torch.float64 else copy.deepcopy(net).double()
    limit = math.inf if timeout is None else timeout
    found = []
    for part in torch.arange(len(x), device=x.device).split(batch):
        goals = None if targets is None else targets[part]
        found.append(_Piece(net, double, x[part], y[part], ball.restrict(part), goals).decided(chosen, limit))
    return concatenate(found)


@dataclass(frozen=True)
class _Piece:
    """The question about some inputs that are worked on together."""

    net: Network
    double: Network
    x: Tensor
    y: Tensor
    ball: Ball
    targets: Tensor | None

    @torch.no_grad()
    def decided(self, method: Method, limit: float) -> Certificate:
        """The verdicts of a method; a cascade's stages each see what those before have left open."""
        started = time.perf_counter()
        if self.targets is None:
            asked = class_stays(self.y, self.net.classes, dtype=torch.float64)
            holds = self.net.predict(self.x) == self.y
        else:
            asked = against(self.y, self.targets, self.net.classes, dtype=torch.float64)
            holds = asked.holds(self.net(self.x).double())
        state = _State(self.x, holds)
        if isinstance(method, Auto):
            stages = [
                s for s in method.stages(float(self.ball.p)) if self.targets is None or not isinstance(s, Region | PGD)
            ]
        else:
            stages = [method]
        state.seconds += (time.perf_counter() - started) / len(self.x)
        for stage in stages:
            open_ = (state.open & (state.seconds < limit)).nonzero()[:, 0]
            if len(open_) == 0:
                break
            here = _Piece(
                self.net, self.double, self.x[open_], self.y[open_], self.ball.restrict(open_),
                None if self.targets is None else self.targets[open_],
            )  # fmt: skip
            started = time.perf_counter()
            seconds = here._stage(stage, asked.restrict(open_), state, open_, limit)
            whole = time.perf_counter() - started
            state.seconds[open_] += whole / len(open_) if seconds is None else seconds
        return state.certificate(spec(stages[-1]))

    def _stage(self, stage: Method, asked: Property, state: _State, open_: Tensor, limit: float) -> Tensor | None:
        """Let one method look at the open inputs; their seconds, where the method knows them one by one."""
        if isinstance(stage, PGD):
            found = attack(self.net, self.x, self.y, self.ball, stage)
            state.broken(open_, found.success, found.x, spec(stage))
            return None
        if isinstance(stage, BaB | MIP):
            left = limit - float(state.seconds[open_].max())
            given = self.net, self.double, self.x.double(), self.ball, asked
            if isinstance(stage, MIP):
                result = mixed_integer(*given, stage, limit=left)
            else:
                result = branch_and_bound(*given, stage, limit=left)
            state.proved(open_, result.proved, result.margin, spec(stage))
            state.broken(open_, result.broken, result.witness.to(self.x), spec(stage))
            return result.seconds.to(state.seconds)
        if isinstance(stage, Region):
            margin, needed = _region_margins(self.net, self.double, self.x, self.y, self.ball, stage, asked)
        else:
            margin, needed = proved_margins(self.double, self.x.double(), self.ball, stage, asked, self.net.dtype)  # type: ignore[arg-type]
        state.proved(open_, margin > needed, margin, spec(stage))
        return None


class _State:
    """What is known of the inputs of a piece so far."""

    def __init__(self, x: Tensor, holds: Tensor):
        self.x = x
        self.verdicts = [Verdict.UNKNOWN if right else Verdict.MISCLASSIFIED for right in holds.tolist()]
        self.open = holds.clone()
        self.margin = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
        self.witness = torch.full_like(x, math.nan)
        self.seconds = torch.zeros(len(x), dtype=torch.float64)
        self.methods: list[str | None] = [None] * len(x)

    def proved(self, index: Tensor, which: Tensor, margin: Tensor, method: str) -> None:
        """Take over the margins of some inputs, and verdicts where they prove."""
        self.margin[index] = torch.maximum(self.margin[index], margin)
        self._decide(index[which], Verdict.ROBUST, method)

    def broken(self, index: Tensor, which: Tensor, points: Tensor, method: str) -> None:
        """Take over witnesses."""
        self.witness[index[which]] = points[which]
        self._decide(index[which], Verdict.VULNERABLE, method)

    def _decide(self, index: Tensor, verdict: Verdict, method: str) -> None:
        for place in index.tolist():
            self.verdicts[place], self.methods[place] = verdict, method
        self.open[index] = False

    def certificate(self, last: str) -> Certificate:
        """The answer; what nobody decided was seen by the last method."""
        vulnerable = torch.tensor([verdict is Verdict.VULNERABLE for verdict in self.verdicts])
        return Certificate(
            self.verdicts, self.margin, self.witness if bool(vulnerable.any()) else None,
            [method or last for method in self.methods], self.seconds.to(self.x.dtype),
        )  # fmt: skip


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
