"""`decide_specification`: is the unsafe set of a specification reached? The verdicts of the verification competition.

unsat: proved, for the network of real arithmetic with the file's weights over the boxes of the file. sat: a counterexample that
lies in its box in rational arithmetic and whose outputs satisfy the inequalities in rational arithmetic, once as executed by
onnxruntime and once in float64. timeout: the clock ended the search. unknown: the search ended without an answer.

Cases of equal structure go through the verifiers together. Boxes are split first for a while (`bab.input_splitting`). Where
every clause is one row, ReLUs may be split instead: of one layer by `bab.envelopes`, else by `bab.bab`. Then the kind of split
whose bounds gain more in a trial (`bab.split_trial`) has most of the time, and the other kind the rest. Splits of ReLUs
replace a clause of several rows by its most promising row, and boxes have most of the time. Over l2 balls only ReLUs are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from relucert.bounding.methods.crown import CROWN
from relucert.core.ball import Ball
from relucert.core.errors import Contradiction, InvalidInput
from relucert.core.properties import Property
from relucert.core.verdict import Verdict
from relucert.interop.onnx.execution import Runtime
from relucert.interop.vnnlib.specification import Case, Specification
from relucert.networks.network import Network
from relucert.verification.bab.input_splitting import BoxSearch, InputSplitting
from relucert.verification.bab.split_trial import SplitTrial
from relucert.verification.verifier import Budget, Decision, Query

#: Decisions about the open cases of a group.
Stage = Callable[[Tensor], Iterator[Decision]]

#: Of the time: the first search over boxes, and the first one where the ReLUs have one layer.
FIRST, SHORT = 0.05, 0.005
_MOST = 0.7  # of the time that is left after it: for the better kind
_SHARE = 0.25  # of the time: a trial of both kinds of splits ends after it
_DRAWN = (1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4)  # parts of a distance
_CLOSE = 1e-3  # relative difference of outputs between onnxruntime and float64 that no rounding explains


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An input (exact, as rational numbers) and the outputs that onnxruntime computes there."""

    x: tuple[Fraction, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Answer:
    """`word` is unsat, sat, unknown or timeout; `by` is the method that decided."""

    word: str
    by: str
    counterexample: Counterexample | None = None
    nodes: int = 0


def decide_specification(net: Network, spec: Specification, runtime: Runtime, deadline: float) -> Answer:
    """Decide a specification about a network in float64 until `deadline`, a moment of `time.monotonic`.

    `runtime` executes the file that the network was read from.
    """
    check_sizes(net, spec)
    if net.dtype != torch.float64:
        raise InvalidInput(f"net must be in float64 to decide a specification, got {net.dtype}")
    open_, nodes = False, 0
    # Cases are grouped by the structure of their properties.
    groups: dict[tuple[int, ...], list[Case]] = {}
    for case in spec.cases:
        groups.setdefault((int(case.ball is None), *map(len, case.conjunctions)), []).append(case)
    by = "no input is unsafe"
    for cases in groups.values():
        found = _Group(net, cases, spec.outputs, runtime).decide(deadline)
        nodes, by = nodes + found.nodes, found.by
        if found.word == "sat":
            assert found.counterexample is not None
            if not spec.violated(found.counterexample.x, [Fraction(value) for value in found.counterexample.y]):
                raise Contradiction(
                    "a counterexample must violate the specification that it was found for, got one that does not"
                )
            return found
        open_ |= found.word != "unsat"
    word = "unsat" if not open_ else "timeout" if time.monotonic() >= deadline else "unknown"
    return Answer(word, by, None, nodes)


def check_sizes(net: Network, spec: Specification) -> None:
    """Raise InvalidInput unless a specification has as many inputs and outputs as a network."""
    for name, own, given in (
        ("inputs", math.prod(net.input_shape), spec.inputs),
        ("outputs", net.classes, spec.outputs),
    ):
        if own != given:
            raise InvalidInput(f"the property must have as many {name} as the network, {own}, got {given}")


class _Group:
    """Cases with properties of equal structure, as one query."""

    def __init__(self, net: Network, cases: list[Case], outputs: int, runtime: Runtime):
        self.net, self.cases, self.runtime = net, cases, runtime
        self.points = [_InnerPoints(case, runtime.dtype) for case in cases]
        sides = [case.box() for case in cases]
        shape = (len(cases), *net.input_shape)
        low, high = (torch.stack([pair[side] for pair in sides]).reshape(shape) for side in (0, 1))
        x = low / 2 + high / 2
        eps = torch.full((len(cases),), math.inf, dtype=torch.float64)
        balls = [case.ball.around() for case in cases if case.ball is not None]
        if balls:
            x = torch.stack([centre for centre, _ in balls]).reshape(shape)
            eps = torch.tensor([radius for _, radius in balls], dtype=torch.float64)
        # Where a centre is not in its box, what ball and box have in common is no farther from its nearest point in the box.
        x = torch.minimum(torch.maximum(x, low), high)
        props = [case.prop(outputs) for case in cases]
        prop = Property(
            torch.cat([one.rows for one in props]), torch.cat([one.offsets for one in props]), props[0].clauses
        )
        none = torch.zeros(len(cases), dtype=torch.long)
        ball = Ball(2 if balls else math.inf, eps, box=(low, high))
        self.query = Query(net, net, x, none, ball, prop, torch.ones(len(cases), dtype=torch.bool), False)
        self.found: Counterexample | None = None
        self._check_runtime()

    def decide(self, deadline: float) -> Answer:
        """Verifier after verifier, each about the cases that are open."""
        open_, nodes, by = torch.arange(len(self.cases)), 0, ""
        for name, found in self._stages(deadline):
            closed = set[int]()
            for decision in found(open_):
                nodes += decision.nodes
                if self.found is not None:
                    return Answer("sat", name, self.found, nodes)
                if decision.verdict is Verdict.ROBUST:
                    closed.add(decision.index)
            by, open_ = name, torch.tensor([one for one in open_.tolist() if one not in closed], dtype=torch.long)
            if len(open_) == 0:
                return Answer("unsat", by, None, nodes)
            if time.monotonic() >= deadline:
                break
        return Answer("unknown", by, None, nodes)

    def _stages(self, deadline: float) -> Iterator[tuple[str, Stage]]:
        """The verifiers in turn, as functions of the open cases."""
        if self.query.p == 2:
            yield "bab", partial(self._relus, budget=Budget(deadline=deadline))
            return
        boxes = BoxSearch(self.query, InputSplitting(), self.confirm)

        def boxes_until(until: float) -> Stage:
            def run(open_: Tensor) -> Iterator[Decision]:
                boxes.drop(~torch.isin(torch.arange(len(self.cases)), open_))
                return boxes.run(Budget(deadline=until))

            return run

        def share(part: float) -> float:
            return time.monotonic() + part * max(0.0, deadline - time.monotonic())

        name, relus = ("envelopes", self._envelopes) if self._one_layer() else ("bab", self._relus)
        better = False  # to split ReLUs
        if self.query.prop.clauses is None:
            yield "inputs", boxes_until(share(SHORT if name == "envelopes" else FIRST))
            trial = SplitTrial(self._boxes, relus, Budget(deadline=share(_SHARE)))
            yield "trial", trial.run
            better = trial.relus
        # The other kind has the rest of the time: a trial is short.
        if better:
            yield name, partial(relus, budget=Budget(deadline=share(_MOST)))
        else:
            yield "inputs", boxes_until(share(_MOST))
            yield name, partial(relus, budget=Budget(deadline=deadline))
        yield "inputs", boxes_until(deadline)

    def _boxes(self, open_: Tensor, budget: Budget, nodes: int) -> Iterator[Decision]:
        """Search over at most `nodes` boxes of every case, in breadth."""
        method = InputSplitting(nodes=nodes, width=nodes * len(open_))
        return _about(open_, method.search(self.query.restrict(open_), budget, self._confirm_of(open_)))

    def _relus(self, open_: Tensor, budget: Budget, nodes: int = 10**9) -> Iterator[Decision]:
        """Branch and bound over ReLUs, of any number of layers."""
        from relucert.verification.bab.bab import BaB  # small networks are decided before it is imported

        # One problem has the whole batch, and many cheap subproblems decide more than few good ones.
        method = BaB(nodes=nodes, batch=min(nodes, 512), width=min(nodes, 512), steps=4)
        for decision in _about(open_, method.decide(self._of_rows(open_), budget)):
            if decision.witness is not None:
                self.confirm(decision.witness[None].double(), decision.index)
            yield decision

    def _envelopes(self, open_: Tensor, budget: Budget, nodes: int = 10**6) -> Iterator[Decision]:
        """Branch and bound over the ReLUs of one layer."""
        from relucert.verification.bab.envelopes import Envelopes

        found = Envelopes(nodes=nodes).search(self._of_rows(open_), budget, self._confirm_of(open_))
        return _about(open_, found)

    def _confirm_of(self, open_: Tensor) -> Callable[[Tensor, int], Tensor]:
        """`confirm` with positions among the open cases."""
        return lambda points, own: self.confirm(points, int(open_[own]))

    @torch.no_grad()
    def _of_rows(self, open_: Tensor) -> Query:
        """The query about some cases, with single rows as clauses: of every clause the row that CROWN bounds best.

        Where these rows hold, the clauses do. A counterexample to a row need not be one to its clause.
        """
        query = self.query.restrict(open_)
        if query.prop.clauses is None:
            return query
        method = CROWN()
        known = method.start(self.net, query.wide, query.ball, torch.float64)
        margins = method.prove(self.net, known, query.wide, query.ball, query.prop)[1].real
        # Whatever the bounds are, a row of the clause itself is chosen.
        worst = torch.finfo(margins.dtype).min
        margins = margins.nan_to_num(worst, None, worst)
        best = [
            margins.masked_fill(query.prop.clauses != clause, -math.inf).argmax(1)
            for clause in range(int(query.prop.clauses.max()) + 1)
        ]
        return replace(query, prop=query.prop.select(torch.stack(best, 1)))

    def _one_layer(self) -> bool:
        """Whether `bab.envelopes` takes the query."""
        if len(self.net.switches) != 1:
            return False
        from relucert.verification.bab.envelopes import Envelopes

        return Envelopes.takes(replace(self.query, prop=replace(self.query.prop, clauses=None)))

    @torch.no_grad()
    def confirm(self, points: Float[Tensor, " n *input"], own: int) -> Bool[Tensor, " n"]:
        """Which points are counterexamples of a case; the first is kept."""
        found = torch.zeros(len(points), dtype=torch.bool)
        for place, point in enumerate(points):
            x = self.points[own].within(point.flatten().numpy())
            values = np.array([float(value) for value in x])
            y = [float(value) for value in self.runtime.run(values)]
            real = self.net(torch.from_numpy(values).reshape(1, *self.net.input_shape))[0].tolist()
            case = self.cases[own]
            unsafe = all(math.isfinite(value) for value in y) and all(
                case.unsafe([Fraction(value) for value in outputs]) for outputs in (y, real)
            )
            found[place] = unsafe and case.contains(x)
            if found[place] and self.found is None:
                self.found = Counterexample(x, tuple(y))
        return found

    @torch.no_grad()
    def _check_runtime(self) -> None:
        """Compare the network with the file as executed, at the centre of the first box."""
        point = np.array([float(value) for value in self.points[0].nearest(self.query.x[0].flatten().numpy())])
        x = torch.from_numpy(point).reshape(1, *self.net.input_shape)
        own, executed = self.net(x)[0].numpy(), self.runtime.run(point)
        if own.shape != executed.shape:
            raise Contradiction(f"network and onnxruntime must agree, got {own.shape} and {executed.shape} outputs")
        size = np.abs(own).max()
        if not np.all(np.abs(own - executed) <= _CLOSE * (1.0 + size)):
            raise Contradiction(
                f"network and onnxruntime must agree at the centre of the box, got {own.tolist()} and {executed.tolist()}"
            )


def _about(open_: Tensor, decisions: Iterator[Decision]) -> Iterator[Decision]:
    """Decisions about the cases `open_`, by their positions among all."""
    return (replace(decision, index=int(open_[decision.index])) for decision in decisions)


class _InnerPoints:
    """Points of a box that are numbers of a dtype where the box has such, else of float64, else decimals of the file."""

    def __init__(self, case: Case, dtype: type):
        self.case = case
        self.sides = {kind: _inner(case, kind) for kind in (dtype, np.float64)}
        self.kinds = list(self.sides)

    def within(self, x: np.ndarray) -> tuple[Fraction, ...]:
        """The point near x of the box, drawn towards the centre of the ball as far as rounding asks for."""
        near, ball = self.nearest(x), self.case.ball
        if ball is None:
            return near
        centre = np.array([float(value) for value in ball.centre])
        for share in _DRAWN:
            if ball.contains(near):
                break
            near = self.nearest(centre + (1 - share) * (x - centre))
        return near

    def nearest(self, x: np.ndarray) -> tuple[Fraction, ...]:
        """The point of the box near x."""
        found: list[Fraction | None] = [None] * len(x)
        for kind in self.kinds:
            low, high = self.sides[kind]
            inside = low <= high
            with np.errstate(over="ignore"):
                near = np.clip(x.astype(kind), low, np.maximum(low, high))
            for place in np.flatnonzero(inside):
                if found[place] is None:
                    found[place] = Fraction(float(near[place]))
        return tuple(self.case.lower[place] if value is None else value for place, value in enumerate(found))


def _inner(case: Case, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """The largest box inside a case's whose sides are numbers of a dtype; empty where lower > upper."""

    def rounded(value: Fraction, towards: float) -> float:
        with np.errstate(over="ignore"):
            near = dtype(float(value))
        if np.isinf(near):  # above or below all numbers of the dtype
            above = near > 0
        elif (exact := Fraction(float(near))) == value:
            return near
        else:
            above = exact > value
        return near if above == (towards > 0) else np.nextafter(near, dtype(towards))

    low = np.array([rounded(value, math.inf) for value in case.lower], dtype=dtype)
    return low, np.array([rounded(value, -math.inf) for value in case.upper], dtype=dtype)
