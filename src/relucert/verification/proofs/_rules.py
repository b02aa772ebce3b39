"""Proofs by steps: backward passes whose slopes the checker finds by itself, so that a certificate names rules alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from relucert.checker.bounds import Bounds, Step
from relucert.checker.minima import Ball
from relucert.checker.network import Network

#: Rules for the intervals of units, whether the box counts for them in l1 and l2, and rules for the margins: cheap ones first.
LEVELS: tuple[tuple[Sequence[str], bool, Sequence[str]], ...] = (
    ((), False, ("flat", "interval")),
    (("parallel",), False, ("parallel", "adaptive", "flat", "interval")),
    (("parallel",), True, ("parallel", "adaptive", "flat", "interval")),
    (("parallel", "adaptive"), True, ("adaptive", "flat", "parallel", "interval")),
)
_EXACT = ("shift", "scale", "reshape")


@dataclass(frozen=True, eq=False)
class StepProof:
    """Bounds of all units by `steps`, with or without radii, and the steps `final` that prove the rows where `proved`."""

    bounds: Bounds
    steps: dict[str, list[Step]]
    final: list[Step]
    proved: np.ndarray
    radii: bool = False

    def header(self) -> dict[str, object]:
        """The fields of a certificate."""
        steps = {place: [list(step[:3]) for step in some] for place, some in self.steps.items()}
        return {"steps": steps, "final": [list(step[:3]) for step in self.final], "radii": self.radii}


def step_proofs(net: Network, ball: Ball, executed: str | None, rows: np.ndarray) -> Iterator[StepProof]:
    """Proofs of rows of the logits without radii, each with tighter rules than the one before, until all rows are proved."""
    for inner, box, final in LEVELS:
        if inner == ("parallel",) and box and ball.p == math.inf:
            continue  # the same again: in l_inf the box always counts
        bounds, steps = Bounds(net, ball, ball.num, executed), inner_steps(net, ball.p, inner, box)
        bounds.derive(steps)
        boxes = (False, True) if ball.p < math.inf else (False,)
        useful, proved = final_steps(bounds, rows, [Step(rule, boxed) for boxed in boxes for rule in final])
        yield StepProof(bounds, steps, useful, proved)
        if proved.all():
            return


def radius_proofs(net: Network, ball: Ball, executed: str | None, rows: np.ndarray) -> Iterator[StepProof]:
    """Proofs with radii of all layers, as `sdp` and `lipschitz` have them, with slopes that follow from rules."""
    rules = ("interval", "adaptive", "parallel", "flat")
    for inner in ((), ("parallel",), ("parallel", "adaptive")):
        steps = {
            place: [step._replace(radii=True) for step in some]
            for place, some in inner_steps(net, ball.p, inner).items()
        }
        bounds = Bounds(net, ball, ball.num, executed)
        bounds.derive(steps, radii=True)
        useful, proved = final_steps(bounds, rows, [Step(rule, ball.p < math.inf, True) for rule in rules])
        yield StepProof(bounds, steps, useful, proved, radii=True)
        if proved.all():
            return


def final_steps(bounds: Bounds, rows: np.ndarray, steps: Sequence[Step]) -> tuple[list[Step], np.ndarray]:
    """The steps that prove rows, and which rows are proved: one step if one proves all, else those that prove further rows."""
    proved, useful = np.zeros(len(rows), dtype=bool), []
    for step in steps:
        done = bounds.margins(rows, step) > 0
        if done.all():
            return [step], done
        if (done & ~proved).any():
            proved, useful = proved | done, [*useful, step]
        if proved.all():
            break
    return useful, proved


def inner_steps(net: Network, p: float, inner: Sequence[str], box: bool = True) -> dict[str, list[Step]]:
    """The steps by position of the node before each ReLU; where no ReLU lies before it, one pass is exact.

    In l_inf interval arithmetic is exact up to the first node that mixes entries. In other norms the box is slow: it counts in
    a second pass, for what the first one leaves unstable.
    """
    steps, boxes = {}, (False, True) if box and p < math.inf else (False,)
    for relu in net.relus:
        place = net.nodes[relu].inputs[0]
        while place not in (0, *net.relus) and net.nodes[place].exact:  # a reshaping
            place = net.nodes[place].inputs[0]
        if place == 0 or place in net.relus:
            continue
        mixing, linear = _before(net, place)
        rules: Sequence[str] = inner if not linear else ("parallel",) if mixing > 1 or not math.isinf(p) else ()
        if rules:
            steps[str(place)] = [Step(rule, boxed) for rule in rules for boxed in boxes]
    return steps


def _before(net: Network, place: int) -> tuple[int, bool]:
    """How many nodes up to a node mix entries, and whether no ReLU is among them."""
    waiting, seen = [place], set()
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            waiting += net.nodes[at].inputs
    kinds = [net.nodes[at].kind for at in seen]
    return sum(kind not in (*_EXACT, "input", "batch_norm") for kind in kinds), "relu" not in kinds
