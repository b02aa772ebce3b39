"""Proofs by rules: backward passes whose slopes the checker finds by itself, so that a certificate names rules alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relucert.checker.ball import Ball
from relucert.checker.bounds import Bounds
from relucert.checker.network import Network

#: Rules for the intervals of units and for the margins, from the cheapest to the tightest.
LEVELS: tuple[tuple[Sequence[str], Sequence[str]], ...] = (
    ((), ("interval", "flat")),
    (("parallel",), ("parallel", "adaptive", "flat", "interval")),
    (("parallel", "adaptive"), ("adaptive", "flat", "parallel", "interval")),
)
_EXACT = ("mean", "std", "shift", "scale", "reshape")


@dataclass(frozen=True, eq=False)
class RuleProof:
    """Bounds of all units by the rules `inner`, and the rules `final` that prove the rows where `proved`."""

    bounds: Bounds
    inner: dict[str, list[str]]
    final: list[str]
    proved: np.ndarray


def rule_proof(net: Network, ball: Ball, executed: str | None, rows: np.ndarray) -> RuleProof:
    """The proof of rows of the logits by the cheapest rules that prove them all, else by the tightest rules."""
    bounds, rules, useful, proved = Bounds(net, ball, ball.num, executed), {}, [], np.zeros(len(rows), dtype=bool)
    for inner, final in LEVELS:
        bounds = Bounds(net, ball, ball.num, executed)
        rules = inner_rules(net, ball.p, inner)
        bounds.derive(rules)
        proved, useful = np.zeros(len(rows), dtype=bool), []
        for rule in final:
            open_ = np.flatnonzero(~proved)
            if len(open_):
                proved[open_] = bounds.margins(rows[open_], rule) > 0
                useful += [rule] * bool(proved[open_].any())
        if proved.all():
            break
    return RuleProof(bounds, rules, useful, proved)


def inner_rules(net: Network, p: float, inner: Sequence[str]) -> dict[str, list[str]]:
    """The rules by position of the node before each ReLU; where no ReLU lies before it, one pass is exact.

    In l_inf interval arithmetic is exact up to the first node that mixes entries.
    """
    rules = {}
    for relu in net.relus:
        place = net.nodes[relu].inputs[0]
        while net.nodes[place].moves:
            place = net.nodes[place].inputs[0]
        if place == 0 or place in net.relus:
            continue
        mixing, linear = _before(net, place)
        if not linear:
            rules[str(place)] = list(inner)
        elif mixing > 1 or not math.isinf(p):
            rules[str(place)] = ["parallel"]
    return {place: names for place, names in rules.items() if names}


def _before(net: Network, place: int) -> tuple[int, bool]:
    """How many nodes up to a node mix entries, and whether no ReLU is among them."""
    waiting, seen = [place], set()
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            waiting += net.nodes[at].inputs
    kinds = [net.nodes[at].kind for at in seen]
    return sum(kind not in (*_EXACT, "input") for kind in kinds), "relu" not in kinds
