"""Leaves of branch and bound: with every ReLU split the network is linear, and the least margin is a convex program.

    min  c' d + m  subject to  s_j (w_j' d + b_j) >= 0 for the split units j,  d within ball and box

For l_1 and l_inf it is a linear program; in other norms its dual function is maximised, whose values need only the minimum of a
linear function over ball and box. Where no d satisfies the splits, multipliers that prove it (Farkas) replace those of the
dual. The multipliers are returned as betas for backward propagation, whose bound then is the optimum of the program. The bound
is proved by backward propagation alone, and a minimiser is a counterexample only after the network was run on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import relax
from relucert.bounding.split_bounds import Numbers, Problems
from relucert.core.ball import Ball
from relucert.networks.affine_map import one_hot
from relucert.networks.network import Network
from relucert.polytopes.highs import Highs, LinearProgram, Options, SparseRows

ITERATIONS = 400
ENOUGH = 1e3  # times the size of the margin: how much the multipliers of an empty leaf should raise its bound
OPTIONS = Options(tolerance=1e-7, smallest=1e-9)


def leaf_program(
    net: Network, problem: Problems, seconds: float
) -> tuple[Numbers, Float[Tensor, " one *input"]] | None:
    """Multipliers for the splits of a subproblem and its minimiser; None where nothing is split or the solver fails."""
    ball, x = problem.ball, problem.x
    relus = net.relus
    if len(relus) < len(net.switches):
        return None
    relaxations = {node.index: relax(node.op, problem.clipped(node.index), "adaptive") for node in relus}
    objective = pull_back(net.graph, len(net.graph) - 1, problem.prop.rows, relaxations)
    rows, offsets, splits = [], [], []
    for node in relus:
        split = problem.splits[node.index][0].flatten().nonzero()[:, 0]
        if len(split) == 0:
            continue
        unit = pull_back(net.graph, node.inputs[0], one_hot(split[None], node.shape, x.dtype), relaxations)
        sign = problem.splits[node.index][0].flatten()[split].to(x)
        value = (unit.rows.flatten(2) @ x.flatten(1).unsqueeze(2)).squeeze(2) + unit.low
        rows.append(unit.rows[0].flatten(1) * sign[:, None])
        offsets.append(value[0] * sign)
        splits.append((node.index, split))
    if not rows:
        return None
    program = _Program(objective.rows[0, 0].flatten(), torch.cat(rows), torch.cat(offsets), ball, x)
    solved = program.linear(max(0.1, seconds)) if ball.p in (1.0, math.inf) else program.dual()
    if solved is None:
        return None
    step, multipliers = solved
    betas = {node.index: torch.zeros(1, *node.shape, dtype=x.dtype) for node in relus}
    start = 0
    for index, split in splits:
        betas[index].flatten()[split] = multipliers[start : start + len(split)]
        start += len(split)
    return betas, ball.project(x, x + step.reshape(x.shape))


@dataclass(frozen=True, eq=False)
class _Program:
    """min c'd subject to rows d + offsets >= 0 and d within the ball around x, cut with its box."""

    c: Tensor
    rows: Tensor
    offsets: Tensor
    ball: Ball
    x: Tensor

    def linear(self, seconds: float) -> tuple[Tensor, Tensor] | None:
        """Step and multipliers by a linear program; where it has no point, those of the least violation of the rows."""
        solved = self._solve(seconds, violation=False)
        if solved is not None:
            return solved
        solved = self._solve(seconds, violation=True)
        if solved is None:
            return None
        step, multipliers = solved
        worst = -float((self.rows @ step + self.offsets).min())
        if worst <= 0:
            return None
        size = float(-self.ball.range(self.x, self.c.reshape(1, *self.x.shape))[0]) + 1.0
        return step, multipliers * (ENOUGH * size / worst)

    def _solve(self, seconds: float, *, violation: bool) -> tuple[Tensor, Tensor] | None:
        """Minimise the margin, or with `violation` the t >= 0 such that rows d + offsets >= -t."""
        eps = float(self.ball.radii(self.x)[0])
        unbounded = self.ball.box is None
        below, above = (
            (math.inf,) * 2 if unbounded else (side[0].flatten().numpy() for side in self.ball.slacks(self.x))
        )
        size, count = self.rows.shape[1], len(self.rows)
        matrix, right = -self.rows.numpy(), self.offsets.numpy()
        cost = np.zeros(size) if violation else self.c.numpy()
        down, up = np.minimum(below, eps) * np.ones(size), np.minimum(above, eps) * np.ones(size)
        if math.isinf(self.ball.p):
            lower, upper = -down, up
        else:  # d = d_up - d_down, with the sum of both at most eps
            matrix = np.concatenate([matrix, -matrix], 1)
            if math.isfinite(eps):
                matrix, right = np.concatenate([matrix, np.ones((1, 2 * size))]), np.append(right, eps)
            lower, upper = np.zeros(2 * size), np.concatenate([up, down])
            cost = np.concatenate([cost, -cost])
        if violation:
            column = np.concatenate([-np.ones(count), np.zeros(len(matrix) - count)])[:, None]
            matrix, cost = np.concatenate([matrix, column], 1), np.append(cost, 1.0)
            lower, upper = np.append(lower, 0.0), np.append(upper, np.inf)
        no_limit = np.full(len(right), -np.inf)
        best = Highs(LinearProgram(cost, lower, upper, SparseRows.of(matrix), no_limit, right), OPTIONS).optimum(
            seconds
        )
        if best is None:
            return None
        step = best.x[:size] if math.isinf(self.ball.p) else best.x[:size] - best.x[size : 2 * size]
        multipliers = np.maximum(0.0, best.multipliers[:count])
        return torch.from_numpy(np.array(step)).to(self.x), torch.from_numpy(multipliers).to(self.x)

    def dual(self) -> tuple[Tensor, Tensor] | None:
        """Step and multipliers by maximising the dual function of the multipliers with L-BFGS.

        Rows are scaled to norm 1. Where the program has no point the dual function is unbounded, and what the steps reach
        proves as much.
        """
        lengths = self.rows.norm(dim=1)
        scale = torch.where(lengths > 0, 1 / lengths, torch.zeros_like(lengths))
        rows, offsets = self.rows * scale[:, None], self.offsets * scale
        size = max(float(self.c.norm()), 1e-300)

        def value(given: np.ndarray) -> tuple[float, np.ndarray]:
            multipliers = torch.from_numpy(given).to(self.x) * size
            functional = (self.c - multipliers @ rows).reshape(self.x.shape)
            least = self.ball.minimum(self.x, functional, point=True)
            assert least.point is not None
            step = (least.point - self.x).flatten()
            slope = rows @ step + offsets
            return -float(least.value[0] - multipliers @ offsets) / size, slope.numpy()

        from scipy.optimize import minimize  # takes long to import, and few subproblems come here

        most = [(0.0, 1e6)] * len(rows)
        best = minimize(
            value, np.zeros(len(rows)), jac=True, method="L-BFGS-B", bounds=most, options={"maxiter": ITERATIONS}
        )
        multipliers = torch.from_numpy(np.maximum(best.x, 0.0)).to(self.x) * size
        functional = (self.c - multipliers @ rows).reshape(self.x.shape)
        point = self.ball.minimum(self.x, functional, point=True).point
        assert point is not None
        return (point - self.x).flatten(), multipliers * scale
