"""`certify`: is the decision the same all over a ball? ROBUST is a proof, and anything less is not called so.

`decisions` is the same question, answered input by input as the decisions are made.

ROBUST means: the network of real arithmetic with the stored weights keeps its decision at every input of the ball inside the
box, and so does the network as it runs in its own dtype, in whatever order sums are evaluated. Bounds are computed in float64;
the margin that is reported is what is left of them after a bound on their own rounding error, and it must exceed a bound on the
error of evaluating the network in its dtype (`bounding.rounding`). VULNERABLE comes with a witness that was run through the
network in its own dtype and lies in ball and box. Everything else is UNKNOWN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.core.ball import Ball, as_ball
from relucert.core.errors import Interrupted, InvalidInput
from relucert.core.methods import Method, spec
from relucert.core.progress import followed, wanted
from relucert.core.results import Certificate, Verdict
from relucert.core.rounding import require_full_precision
from relucert.core.verdict import Reason
from relucert.networks.network import as_network, one_thread, outside_inference, single_threaded
from relucert.networks.scaled import scaled
from relucert.verification._scaled import refuse_executed, scaled_decision
from relucert.verification._union import decide_union
from relucert.verification.proofs.prover import write_proofs
from relucert.verification.recorded import certify_text, question_of, recorded
from relucert.verification.registry import VERDICT_SECONDS, budget_of, find
from relucert.verification.verifier import GRACE, Budget, Decision, Query, Verifier, batches, in_time
from relucert.verification.workers import FEW, answers


@outside_inference
def certify(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    ball: Ball | Sequence[Ball],
    method: str | Method = "auto",
    timeout: float | None = None,
    targets: Int[Tensor, " batch specs"] | None = None,
    batch: int = 100,
    arithmetic: Literal["real", "executed"] = "real",
    workers: int | None = None,
    records: str | Path | None = None,
    progress: bool | None = None,
    proofs: str | Path | None = None,
) -> Certificate:
    """For every input a verdict on whether the class stays y over the ball, or stays ahead of chosen `targets`.

    `margin` is a proved lower bound on the smallest lead over the ball. `batch` inputs are worked on together. `timeout`:
    seconds that one input may cost, its share of its batch's; what is not decided by then is UNKNOWN. ROBUST is proved for
    the stored weights in real arithmetic, rounding of the proof included; `Certificate.arithmetic` says where the proof covers
    the network as executed in its dtype as well, and `arithmetic="executed"` asks for that. `workers` is the number of
    single-threaded processes that share the inputs, by default as many as are faster (`verification.workers`); verdicts do not
    depend on it. The ball may have a scale.

    `timeout` None is 60 seconds for `auto` (`rc.Auto(seconds=...)`), and no limit for other methods. The inputs of a batch
    share their seconds: what cheap methods have decided when these are over is kept, however short they are, and a bound that
    takes few multiplications is finished whatever the clock says.

    With `records`, a .jsonl file, every decision is stored as soon as it is made, as `relucert certify` stores it, and what
    is there already is not done again: a call that was interrupted goes on. `progress`: whether a bar is shown on standard
    error; by default after two seconds, if that is a terminal.

    Several balls are one question about their union: ROBUST if the decision stays over all of them, VULNERABLE if one of them
    has a counterexample, else UNKNOWN; `Certificate.ball` says which ball an answer is about.

    With `proofs`, a folder, a certificate file is written for every input that is ROBUST or VULNERABLE, which `relucert check`
    derives again without this package (docs/proofs.md); where there is none, the file says why.

    `decisions` takes the same arguments and gives one decision after the other. If the call is interrupted (Ctrl-C), it raises
    `Interrupted`, a `KeyboardInterrupt` whose `result` is the certificate with what is decided so far; all other inputs are
    UNKNOWN with the reason "interrupted".

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = certify(net, data.x_test[:5], net.predict(data.x_test[:5]), rc.Ball(2, 1e-4), "crown")
    >>> [str(verdict) for verdict in found.verdict]
    ['robust', 'robust', 'robust', 'robust', 'robust']
    """
    net = as_network(net, x)
    found: dict[int, Decision] = {}
    try:
        if records is None:
            made = decisions(net, x, y, ball, method, timeout, targets, batch, arithmetic, workers)
        else:
            if targets is not None:
                raise InvalidInput("targets must be left out with records, which are about the class")
            net.check(x, y)
            given = as_ball(ball, net.box) if isinstance(ball, Ball) else ball
            question = question_of(net, x, y, given, certify_text(find(method)[0], arithmetic, timeout))

            def decide_missing(missing: Tensor) -> Iterator[Decision]:
                some = missing.to(x.device)
                return decisions(net, x[some], y[some], ball, method, timeout, None, batch, arithmetic, workers)

            made = recorded(records, question, net, x, y, decide_missing)
        for decision in followed(made, len(x), "certifying") if progress is not False and wanted(progress) else made:
            found[decision.index] = decision
    except KeyboardInterrupt as stopped:
        raise _interrupted(x, found, method) from stopped
    every = _certificate(x, found.values())
    if proofs is not None:
        balls = [as_ball(each, net.box) for each in (ball if isinstance(ball, list | tuple) else [ball])]
        write_proofs(Query.of(net, x, y, balls[0], targets), balls, every, Path(proofs))
    return every


@outside_inference
def decisions(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"],
    ball: Ball | Sequence[Ball],
    method: str | Method = "auto",
    timeout: float | None = None,
    targets: Int[Tensor, " batch specs"] | None = None,
    batch: int = 100,
    arithmetic: Literal["real", "executed"] = "real",
    workers: int | None = None,
) -> Iterator[Decision]:
    """The question of `certify`, as an iterator: a `Decision` for every input, each as soon as it is made.

    `Decision.index` is the position of the input; decisions come in no particular order, cheap ones of a batch first. What was
    yielded is final, so a loop may be left at any time: the inputs that are missing are not decided. Arguments are checked, and
    the network is evaluated at the inputs, before the first step.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> x = data.x_test[:5]
    >>> for found in decisions(net, x, net.predict(x), rc.Ball(2, 1e-4), "crown", batch=2):
    ...     print(found.index, found.verdict, found.arithmetic)
    ...     if found.index == 2:
    ...         break
    0 robust executed
    1 robust executed
    2 robust executed
    """
    chosen, entry = find(method)
    net = as_network(net, x)
    net.check(x, y)
    net.require_eval("a certificate")
    require_full_precision(x, "a certificate")
    if isinstance(ball, Ball) and ball.scale is not None:
        refuse_executed(arithmetic)
        given = as_ball(ball, net.box)
        question = scaled(net, x, given)
        query = Query.of(net, x, y, replace(given, scale=None), targets, batch)
        inner = decisions(question.net, question.x, y, question.ball, method, timeout, targets, batch, workers=workers)
        return (scaled_decision(question, found, query.prop, bool(query.holds[found.index])) for found in inner)
    balls = [as_ball(each, net.box) for each in (ball if isinstance(ball, list | tuple) else [ball])]
    if not balls:
        raise InvalidInput(f"ball must be a ball or several, got {ball!r}")
    for each in balls:
        each.check(x)
        if each.box is None and bool(each.radii(x).isinf().any()):
            raise InvalidInput("ball must be bounded: eps or the box must be finite, got eps=inf without a box")
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    budget = budget_of(chosen, timeout, VERDICT_SECONDS)
    if targets is not None and not entry.targets:
        raise InvalidInput(f"targets must be left out for method {chosen.name}, whose theorem is about the class")
    if arithmetic not in ("real", "executed"):
        raise InvalidInput(f"arithmetic must be 'real' or 'executed', got {arithmetic!r}")
    with one_thread():
        query = replace(Query.of(net, x, y, balls[0], targets, batch), strict=arithmetic == "executed")
    verifier = entry.verifier(chosen)
    if len(balls) == 1:
        return decide_by(workers, query, verifier, budget, batch)
    queries = [replace(query, ball=each.beside(x)) for each in balls]
    return decide_union(queries, lambda part, left: decide_by(workers, part, verifier, left, batch), budget, batch)


def workers_beside(device: torch.device, workers: int | None) -> int | None:
    """The number of processes for inputs on a device: this one alone, unless it is the CPU."""
    if device.type == "cpu":
        return workers
    if workers is not None and workers > 1:
        raise InvalidInput(f"workers must be 1 for inputs on {device.type}, got {workers}")
    return 1


def decide_by(
    workers: int | None, query: Query, verifier: Verifier, budget: Budget, batch: int = 100
) -> Iterator[Decision]:
    """As `decide`, by so many processes; None for as many as are faster."""
    workers = workers_beside(query.x.device, workers)
    few = workers == 1 or (workers is None and torch.get_num_threads() <= FEW)
    if few and len(query) <= batch:
        return single_threaded(decide(query, verifier, budget, batch))
    share = _Decide(query, verifier, budget)
    return answers(share, torch.arange(len(query)), batch, workers, batches(verifier))


@dataclass(frozen=True, eq=False)
class _Decide:
    """The decisions about some of the inputs of a query, by their positions."""

    query: Query
    verifier: Verifier
    budget: Budget

    def __call__(self, points: Int[Tensor, " points"]) -> Iterator[Decision]:
        query, budget = self.query.restrict(points), self.budget.restrict(points)
        for found in decide(query, self.verifier, budget, query.batch):
            yield replace(found, index=int(points[found.index]))


@torch.inference_mode(mode=False)
@torch.no_grad()
def decide(query: Query, verifier: Verifier, budget: Budget, batch: int = 100) -> Iterator[Decision]:
    """The decisions of a verifier about all inputs, `batch` of them at a time, each as soon as it is made.

    A verifier may take several batches at a time, and works on them as the query's `batch` says. Inputs that violate the
    property themselves are MISCLASSIFIED at once, and the verifier does not see them. Inputs that are open when the deadline
    of the budget passes have no decision. The seconds that the inputs of a batch may cost are a deadline for all of
    them together: what is open by then is UNKNOWN. Every step leaves inference mode.
    """
    start = 0
    for part in query.split(batch * batches(verifier)):
        for place in (~part.holds).nonzero()[:, 0].tolist():
            yield Decision(start + place, Verdict.MISCLASSIFIED, -math.inf, "prediction", 0.0)
        right = part.holds.nonzero()[:, 0]
        if len(right) and not budget.over:
            own = budget.restrict(right + start)
            each = own.each(len(right))
            shared = Budget(own.seconds, own.until(len(right), getattr(verifier, "grace", GRACE)))
            for found in in_time(verifier, part.restrict(right), shared):
                open_ = found.verdict is Verdict.UNKNOWN
                if open_ and budget.over:
                    continue
                timed = open_ and (found.timed or found.seconds >= float(each[found.index]))
                # A clock is the reason whatever else is; the text of a solver says more.
                reason = Reason.TIME if timed and found.reason in ("", *Reason) else found.reason
                yield replace(found, index=start + int(right[found.index]), timed=timed, reason=reason)
        start += len(part)


def _interrupted(
    x: Float[Tensor, " batch *input"], found: dict[int, Decision], method: str | Method
) -> Interrupted[Certificate]:
    """What an interrupted call raises: the decisions so far, and UNKNOWN for all other inputs."""
    name, why = spec(find(method)[0]), Reason.INTERRUPTED
    missing = (Decision(i, Verdict.UNKNOWN, -math.inf, name, 0.0, reason=why) for i in range(len(x)) if i not in found)
    every = _certificate(x, [*found.values(), *missing])
    return Interrupted(f"interrupted: {len(found)} of {len(x)} inputs are decided", every)


def _certificate(x: Float[Tensor, " batch *input"], decisions: Iterable[Decision]) -> Certificate:
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
        ball=[decision.ball for decision in found],
    )
