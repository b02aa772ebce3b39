"""`certify`: is the decision the same all over a ball? ROBUST is a proof, and anything less is not called so.

ROBUST means: the network of real arithmetic with the stored weights keeps its decision at every input of the ball inside the
box, and so does the network as it runs in its own dtype, in whatever order sums are evaluated. Bounds are computed in float64;
the margin that is reported is what is left of them after a bound on their own rounding error, and it must exceed a bound on the
error of evaluating the network in its dtype (`bounding.rounding`). VULNERABLE comes with a witness that was run through the
network in its own dtype and lies in ball and box. Everything else is UNKNOWN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.core.ball import Ball, as_ball
from relucert.core.errors import InvalidInput
from relucert.core.methods import Method
from relucert.core.results import Certificate, Verdict
from relucert.core.verdict import Reason
from relucert.networks.network import as_network, outside_inference
from relucert.networks.scaled import scaled
from relucert.verification._scaled import certificate, refuse_executed
from relucert.verification.registry import find
from relucert.verification.verifier import Budget, Decision, Query, Verifier


@outside_inference
def certify(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    ball: Ball,
    method: str | Method = "auto",
    timeout: float | None = None,
    targets: Int[Tensor, " batch specs"] | None = None,
    batch: int = 100,
    arithmetic: Literal["real", "executed"] = "real",
) -> Certificate:
    """For every input a verdict on whether the class stays y over the ball, or stays ahead of chosen `targets`.

    `margin` is a proved lower bound on the smallest lead over the ball. `batch` inputs are worked on together. `timeout`:
    seconds that one input may cost, its share of its batch's; what is not decided by then is UNKNOWN. ROBUST is proved for
    the stored weights in real arithmetic, rounding of the proof included; `Certificate.arithmetic` says where the proof covers
    the network as executed in its dtype as well, and `arithmetic="executed"` asks for that. The ball may have a scale.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = certify(net, data.x_test[:5], net.predict(data.x_test[:5]), rc.Ball(2, 1e-4), "crown")
    >>> [str(verdict) for verdict in found.verdict]
    ['robust', 'robust', 'robust', 'robust', 'robust']
    """
    chosen, entry = find(method)
    net = as_network(net, x)
    ball = as_ball(ball, net.box)
    net.check(x, y)
    net.require_eval("a certificate")
    if ball.scale is not None:
        refuse_executed(arithmetic)
        question, plain = scaled(net, x, ball), replace(ball, scale=None)
        found = certify(question.net, question.x, y, question.ball, method, timeout, targets, batch)
        query = Query.of(net, x, y, plain, targets, batch)
        return certificate(question, found, query.prop, query.holds)
    ball.check(x)
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    if timeout is not None and not timeout > 0:
        raise InvalidInput(f"timeout must be a positive number of seconds, got {timeout}")
    if ball.box is None and bool(ball.radii(x).isinf().any()):
        raise InvalidInput("ball must be bounded: eps or the box must be finite, got eps=inf without a box")
    if targets is not None and not entry.targets:
        raise InvalidInput(f"targets must be left out for method {chosen.name}, whose theorem is about the class")
    if len(x) == 0:
        return Certificate([], x.new_zeros(0), None, [], x.new_zeros(0))
    if arithmetic not in ("real", "executed"):
        raise InvalidInput(f"arithmetic must be 'real' or 'executed', got {arithmetic!r}")
    query = replace(Query.of(net, x, y, ball, targets, batch), strict=arithmetic == "executed")
    budget = Budget(math.inf if timeout is None else timeout)
    return _certificate(x, decide(query, entry.verifier(chosen), budget, batch))


def decide(query: Query, verifier: Verifier, budget: Budget, batch: int = 100) -> Iterator[Decision]:
    """The decisions of a verifier about all inputs, `batch` of them at a time, each as soon as it is made.

    Inputs that violate the property themselves are MISCLASSIFIED at once, and the verifier does not see them. Inputs that are
    open when the deadline of the budget passes have no decision.
    """
    start = 0
    for part in query.split(batch):
        for place in (~part.holds).nonzero()[:, 0].tolist():
            yield Decision(start + place, Verdict.MISCLASSIFIED, -math.inf, "prediction", 0.0)
        right = part.holds.nonzero()[:, 0]
        if len(right) and not budget.over:
            own = budget.restrict(right + start)
            each = own.each(len(right))
            for found in verifier.decide(part.restrict(right), own):
                open_ = found.verdict is Verdict.UNKNOWN
                if open_ and budget.over:
                    continue
                timed = open_ and (found.timed or found.seconds >= float(each[found.index]))
                # A clock is the reason whatever else is; the text of a solver says more.
                reason = Reason.TIME if timed and found.reason in ("", *Reason) else found.reason
                yield replace(found, index=start + int(right[found.index]), timed=timed, reason=reason)
        start += len(part)


def _certificate(x: Float[Tensor, " batch *input"], decisions: Iterator[Decision]) -> Certificate:
    """The certificate of decisions about all inputs."""
    found = sorted(decisions, key=lambda decision: decision.index)
    witness = torch.full_like(x, math.nan)
    for decision in found:
        if decision.witness is not None:
            witness[decision.index] = decision.witness
    return Certificate(
        verdict=[decision.verdict for decision in found],
        margin=torch.tensor([decision.margin for decision in found], dtype=torch.float64, device=x.device),
        witness=witness if any(decision.witness is not None for decision in found) else None,
        method=[decision.by for decision in found],
        seconds=torch.tensor([decision.seconds for decision in found], dtype=x.dtype),
        reason=[str(decision.reason) for decision in found],
        claim=[decision.claim for decision in found],
        executed=torch.tensor([decision.executed for decision in found], dtype=torch.float64, device=x.device),
        computed=torch.tensor([decision.computed for decision in found], dtype=torch.float64, device=x.device),
    )
