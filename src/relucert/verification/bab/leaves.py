"""The last leaves of branch and bound: every ReLU is split, so the network is linear there and the margin a convex program.

    min  c' d + m  subject to  s_j (w_j' d + b_j) >= 0 for the split units j,  d within ball and box

For l_1 and l_inf it is a linear program, in other norms its dual is climbed, whose values need only the minimum of a linear
function over ball and box. Where no d meets the splits, multipliers that prove it (Farkas) take the place of the dual's. The
multipliers are handed back as betas of the walk, whose bound is then the program's optimum; nothing that a solver says is
believed without that walk, nor its minimiser without running the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linprog, minimize
from torch import Tensor

from relucert.bounding.propagation import pull_back
from relucert.bounding.relaxation import relax
from relucert.bounding.split_bounds import Numbers, Problems
from relucert.core.ball import Ball
from relucert.networks.linear_map import one_hot
from relucert.networks.network import Network

ITERATIONS = 400
ENOUGH = 1e3  # times the size of the margin: what an empty leaf's multipliers should raise its bound by


def leaf_program(
    net: Network, problem: Problems, seconds: float
) -> tuple[Numbers, Float[Tensor, " one *input"]] | None:
    """Multipliers for the splits of one sub-problem and its minimiser; None where nothing is split or the solver fails."""
    ball, x = problem.ball, problem.x
    relus = net.relus
    if len(relus) < len(net.switches):
        return None
    lines = {node.index: relax(node.op, problem.clipped(node.index), "adaptive") for node in relus}
    objective = pull_back(net.graph, len(net.graph) - 1, problem.prop.rows, lines)
    rows, offsets, places = [], [], []
    for node in relus:
        split = problem.signs[node.index][0].flatten().nonzero()[:, 0]
        if len(split) == 0:
            continue
        found = pull_back(net.graph, node.inputs[0], one_hot(split[None], node.shape, x.dtype), lines)
        sign = problem.signs[node.index][0].flatten()[split].to(x)
        value = (found.rows.flatten(2) @ x.flatten(1).unsqueeze(2)).squeeze(2) + found.low
        rows.append(found.rows[0].flatten(1) * sign[:, None])
        offsets.append(value[0] * sign)
        places.append((node.index, split))
    if not rows:
        return None
    program = _Program(objective.rows[0, 0].flatten(), torch.cat(rows), torch.cat(offsets), ball, x)
    solved = program.linear(max(0.1, seconds)) if ball.p in (1.0, math.inf) else program.dual()
    if solved is None:
        return None
    step, multipliers = solved
    betas = {node.index: torch.zeros(1, *node.shape, dtype=x.dtype) for node in relus}
    start = 0
    for index, split in places:
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
        """The step and the multipliers, by a linear program; of an empty program by the one for its least violation."""
        found = self._solve(seconds, violation=False)
        if found is None:
            found = self._solve(seconds, violation=True)
            if found is None:
                return None
            step, multipliers = found
            worst = -float((self.rows @ step + self.offsets).min())
            if worst <= 0:
                return None
            size = float(-self.ball.range(self.x, self.c.reshape(1, *self.x.shape))[0]) + 1.0
            return step, multipliers * (ENOUGH * size / worst)
        return found

    def _solve(self, seconds: float, *, violation: bool) -> tuple[Tensor, Tensor] | None:
        """With `violation` the least t such that rows d + offsets >= -t, instead of the margin."""
        eps = float(self.ball.radii(self.x)[0])
        free = self.ball.box is None
        below, above = (math.inf,) * 2 if free else (room[0].flatten().numpy() for room in self.ball.slacks(self.x))
        size, count = self.rows.shape[1], len(self.rows)
        matrix, right = -self.rows.numpy(), self.offsets.numpy()
        cost = np.zeros(size) if violation else self.c.numpy()
        if math.isinf(self.ball.p):
            bounds = np.stack([-np.minimum(below, eps) * np.ones(size), np.minimum(above, eps) * np.ones(size)], 1)
        else:  # d = up - down, with the sum of both at most eps
            matrix = np.concatenate([matrix, -matrix], 1)
            if math.isfinite(eps):
                matrix, right = np.concatenate([matrix, np.ones((1, 2 * size))]), np.append(right, eps)
            ends = np.concatenate([np.minimum(above, eps) * np.ones(size), np.minimum(below, eps) * np.ones(size)])
            bounds = np.stack([np.zeros(2 * size), ends], 1)
            cost = np.concatenate([cost, -cost])
        if violation:
            column = np.concatenate([-np.ones(count), np.zeros(len(matrix) - count)])[:, None]
            matrix, cost = np.concatenate([matrix, column], 1), np.append(cost, 1.0)
            bounds = np.concatenate([bounds, [[0.0, np.inf]]])
        found = linprog(cost, matrix, right, bounds=bounds, method="highs", options={"time_limit": seconds})
        if found.x is None or found.ineqlin is None:
            return None
        step = found.x[:size] if math.isinf(self.ball.p) else found.x[:size] - found.x[size : 2 * size]
        multipliers = np.maximum(0.0, -found.ineqlin.marginals[:count])
        return torch.from_numpy(np.array(step)).to(self.x), torch.from_numpy(multipliers).to(self.x)

    def dual(self) -> tuple[Tensor, Tensor] | None:
        """The step and the multipliers, by climbing the dual function of the multipliers.

        Rows are scaled to norm one. Where the program is empty the climb has no end, and what it has reached proves as much.
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

        most = [(0.0, 1e6)] * len(rows)
        found = minimize(
            value, np.zeros(len(rows)), jac=True, method="L-BFGS-B", bounds=most, options={"maxiter": ITERATIONS}
        )
        multipliers = torch.from_numpy(np.maximum(found.x, 0.0)).to(self.x) * size
        functional = (self.c - multipliers @ rows).reshape(self.x.shape)
        point = self.ball.minimum(self.x, functional, point=True).point
        assert point is not None
        return (point - self.x).flatten(), multipliers * scale
