"""How points are decided: one method after the other looks at what is still open, and every verdict is told at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relucert.attacks.base import FixedAttack
from relucert.attacks.problem import attack
from relucert.bounding.base import Bounding
from relucert.bounding.methods.moments import Moments
from relucert.bounding.methods.sdp import SDP
from relucert.bounding.rounding import bound_error, evaluation_error
from relucert.core.ball import Ball
from relucert.core.methods import Method, spec
from relucert.core.norms import dual
from relucert.core.properties import Property
from relucert.core.results import Certificate, Verdict
from relucert.geometry.region import LinearRegion
from relucert.geometry.row_norms.row_norms import hyperplane_norms
from relucert.geometry.theorem import Region
from relucert.networks.network import Network
from relucert.verification.bab.bab import BaB, branch_and_bound
from relucert.verification.margins import narrowest, proved_margins
from relucert.verification.mip.mip import MIP, mixed_integer
from relucert.verification.outcome import Outcome

CLOCK = "stopped by the clock: "
SLOW: dict[type[Method], int] = {SDP: 8, Moments: 2}


@dataclass(frozen=True, eq=False)
class Decision:
    """What was found out about the input `index`; `method` begins with `CLOCK` where a wall clock ended the search.

    `reason` says why it is undecided, `claim` names the solver on whose word alone it is robust; both may be empty.
    """

    index: int
    verdict: Verdict
    margin: float
    witness: Tensor | None
    method: str
    seconds: float
    reason: str = ""
    claim: str = ""


Callback = Callable[[Decision], None]


@dataclass(frozen=True, eq=False)
class Piece:
    """The question about some inputs that are worked on together: does the property hold all over the ball?

    `double` is the network in float64, `holds` says where the property holds at the input itself, `index` are the numbers by
    which decisions are told. `limit` are the seconds that one input may cost, its share of the piece's; at `deadline` (of
    `time.monotonic`) everything ends, and what is open then is not told.
    """

    net: Network
    double: Network
    x: Tensor
    y: Tensor
    ball: Ball
    prop: Property
    holds: Tensor
    index: Tensor
    limit: float = math.inf
    deadline: float = math.inf

    @torch.no_grad()
    def decided(self, stages: Sequence[Method], callback: Callback | None = None) -> Certificate:
        """The verdicts; every stage sees only what those before have left open."""
        state = _State(self, callback)
        for stage in stages:
            open_ = (state.open & (state.seconds < self.limit)).nonzero()[:, 0]
            if len(open_) == 0 or time.monotonic() >= self.deadline:
                break
            # Stages of seconds a point are looked at by the clock every few points.
            for some in open_.split(SLOW.get(type(stage), len(open_))):
                if time.monotonic() < self.deadline:
                    _Stage(self, some, state).run(stage)
        return state.certificate(spec(stages[-1]))


class _Stage:
    """One method and the inputs of a piece that are still open."""

    def __init__(self, piece: Piece, open_: Tensor, state: _State):
        self.piece, self.open, self.state = piece, open_, state
        self.x, self.y, self.ball = piece.x[open_], piece.y[open_], piece.ball.restrict(open_)
        self.prop = piece.prop.restrict(open_)

    def run(self, stage: Method) -> None:
        """Let the method look."""
        started = time.monotonic()
        if isinstance(stage, BaB | MIP):
            self._complete(stage)
            return
        net, state = self.piece.net, self.state
        if isinstance(stage, FixedAttack):
            found = attack(net, self.x, self.y, self.ball, stage)
            self._spend(started)
            state.falsified(self.open, found.success, found.x, spec(stage))
            return
        if isinstance(stage, Region):
            margin, needed = _region_margins(
                net, self.piece.double, self.x, self.y, self.ball, stage, self.prop
            )  # fmt: skip
        else:
            assert isinstance(stage, Bounding)
            margin, needed, rows = proved_margins(
                self.piece.double, self.x.double(), self.ball, self._hurried(stage), self.prop, net.dtype
            )  # fmt: skip
            state.rows[self.open], state.bounded = torch.maximum(state.rows[self.open], rows), True
        self._spend(started)
        state.proved(self.open, margin > needed, margin, spec(stage))

    def _hurried(self, stage: Bounding) -> Bounding:
        """A slow method with the seconds that its inputs have left."""
        if isinstance(stage, SDP | Moments):
            left = float((self.piece.limit - self.state.seconds[self.open]).sum())
            left = min(stage.seconds, left, self.piece.deadline - time.monotonic())
            return replace(stage, seconds=max(0.0, left))
        return stage

    def _spend(self, started: float) -> None:
        self.state.seconds[self.open] += (time.monotonic() - started) / len(self.open)

    def _complete(self, stage: BaB | MIP) -> None:
        """Branch and bound or a mixed-integer program, which know the seconds of every point and tell of each."""
        piece, state, name = self.piece, self.state, spec(stage)
        before = state.seconds[self.open].clone()
        reported: set[int] = set()

        def on_decided(found: Outcome, places: Sequence[int]) -> None:
            here = torch.tensor([place for place in places if place not in reported], dtype=torch.long)
            reported.update(here.tolist())
            at = self.open[here]
            state.seconds[at] = before[here] + found.seconds[here].to(before)
            state.proved(at, found.proved[here], found.margin[here], name)
            state.falsified(at, found.falsified[here], found.witness[here].to(self.x), name)

        question = (piece.net, piece.double, self.x.double(), self.ball, self.prop)
        left = piece.limit - before
        if isinstance(stage, MIP):
            found = mixed_integer(*question, stage, piece.deadline, left, on_decided)
        else:
            known = state.rows[self.open] if state.bounded else None
            found = branch_and_bound(*question, stage, piece.deadline, left, on_decided, known)
        on_decided(found, range(len(self.x)))
        state.stopped(self.open[found.timed])
        for texts, told_of in ((state.reasons, found.reasons), (state.claims, found.claims)):
            texts |= {int(self.open[place]): text for place, text in told_of.items()}


class _State:
    """What is known of the inputs of a piece so far."""

    def __init__(self, piece: Piece, callback: Callback | None):
        x = piece.x
        self.piece, self.callback = piece, callback
        self.verdicts = [Verdict.UNKNOWN if right else Verdict.MISCLASSIFIED for right in piece.holds.tolist()]
        self.open = piece.holds.clone()
        self.margin = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
        self.witness = torch.full_like(x, math.nan)
        # Margins of single rows of the property that are proved, whatever becomes of the others; has any stage looked?
        self.bounded = False
        self.rows = torch.full(piece.prop.offsets.shape, -math.inf, dtype=torch.float64, device=x.device)
        self.seconds = torch.zeros(len(x), dtype=torch.float64)
        self.methods: list[str | None] = [None] * len(x)
        self.timed = torch.zeros(len(x), dtype=torch.bool)
        self.reasons: dict[int, str] = {}
        self.claims: dict[int, str] = {}
        for place in (~piece.holds).nonzero()[:, 0].tolist():
            self.methods[place] = "prediction"
            self._report(place)

    def proved(self, index: Tensor, which: Tensor, margin: Tensor, method: str) -> None:
        """Take over the margins of some inputs, and verdicts where they prove."""
        self.margin[index] = torch.fmax(self.margin[index], margin.to(self.margin))  # what is no number says nothing
        self._decide(index[which], Verdict.ROBUST, method)

    def falsified(self, index: Tensor, which: Tensor, points: Tensor, method: str) -> None:
        """Take over witnesses; a margin that is proved, but not by as much as rounding asks for, is none of the network's."""
        self.witness[index[which]] = points[which]
        self.margin[index[which]] = self.margin[index[which]].clamp(max=0.0)
        self._decide(index[which], Verdict.VULNERABLE, method)

    def stopped(self, index: Tensor) -> None:
        """Note that a clock ended the search for some inputs, where they are still open."""
        self.timed[index] = True

    def _decide(self, index: Tensor, verdict: Verdict, method: str) -> None:
        self.open[index] = False
        for place in index.tolist():
            self.verdicts[place], self.methods[place] = verdict, method
            self._report(place)

    def _report(self, place: int) -> None:
        if self.callback is not None:
            verdict = self.verdicts[place]
            self.callback(
                Decision(
                    index=int(self.piece.index[place]),
                    verdict=verdict,
                    margin=float(self.margin[place]),
                    witness=self.witness[place] if verdict is Verdict.VULNERABLE else None,
                    method=str(self.methods[place]),
                    seconds=float(self.seconds[place]),
                    reason=self._text(self.reasons, place),
                    claim=self._text(self.claims, place),
                )
            )

    def _text(self, texts: dict[int, str], place: int) -> str:
        """What is said of an input that is undecided; nothing of others."""
        return texts.get(place, "") if self.verdicts[place] is Verdict.UNKNOWN else ""

    def certificate(self, last: str) -> Certificate:
        """The answer; what nobody decided was seen by the last method, and is told unless the whole run was stopped."""
        over = time.monotonic() >= self.piece.deadline
        for place in self.open.nonzero()[:, 0].tolist():
            late = bool(self.timed[place]) or bool(self.seconds[place] >= self.piece.limit) or over
            self.methods[place] = f"{CLOCK}{last}" if late else last
            if not over:
                self._report(place)
        vulnerable = torch.tensor([verdict is Verdict.VULNERABLE for verdict in self.verdicts])
        return Certificate(
            self.verdicts, self.margin, self.witness if bool(vulnerable.any()) else None,
            [str(method) for method in self.methods], self.seconds.to(self.piece.x.dtype),
            *([self._text(texts, place) for place in range(len(self.verdicts))] for texts in (self.reasons, self.claims)),
        )  # fmt: skip


def _region_margins(
    net: Network, double: Network, x: Tensor, y: Tensor, ball: Ball, method: Region, prop: Property
) -> tuple[Tensor, Tensor]:
    """The margins by the region theorem: where the proved radius covers the ball, and inside the point's own region.

    There every margin is linear, and its minimum over the ball without the box a lower bound. Where only neighbouring
    regions cover the ball, the decision is proved to stay, but no margin is, so the dtype's rounding is not covered.
    """
    eps, wide = ball.radii(x.double()), x.double()
    sides = None if ball.box is None else ball.bounds(x)
    found = method.radius(net, x, y, ball.p, sides)
    region, values, logits = LinearRegion.evaluated(double, wide)
    faces, classes = hyperplane_norms(region, y, dual(ball.p))
    away = torch.where(faces == 0, math.inf, region.margins_of(values, wide) / torch.where(faces == 0, 1.0, faces))
    near = away.amin(1) if away.shape[1] else wide.new_full((len(x),), math.inf)
    inside = (found.lower > eps) & (near * (1 - 1e-9) > eps)
    own = torch.nn.functional.one_hot(y, double.classes).bool()
    lead = (logits.gather(1, y[:, None]) - logits - eps[:, None] * classes * (1 + 1e-9))[~own].reshape(len(x), -1)
    needed = evaluation_error(double, wide, ball, {}, prop, net.dtype)
    lead = lead - bound_error(double, wide, ball, {}, prop)
    margin, need = narrowest(lead, needed)
    return torch.where(inside, margin, torch.full_like(margin, -math.inf)), need
