"""The last leaves of branch and bound: every ReLU is split, so the network is linear there and the margin a linear program.

    min  c' d + m  subject to  s_j (w_j' d + b_j) >= 0 for the split units j,  d within ball and box

The program's multipliers are handed back as betas of the walk, whose bound is then the program's optimum; nothing that a
solver says is believed without that walk, nor its minimiser without running the network.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linprog
from torch import Tensor

from relucert.bounding.backward import pull
from relucert.bounding.relaxation import relax
from relucert.bounding.splits import Numbers, Problems
from relucert.core.ball import Ball
from relucert.networks.linear_map import one_hot
from relucert.networks.network import Network
from relucert.networks.switching import ReLU


def leaf_program(
    net: Network, problem: Problems, seconds: float
) -> tuple[Numbers, Float[Tensor, " one *input"]] | None:
    """Multipliers for the splits of one sub-problem and the minimiser; None for other norms than l_1 and l_inf or a failure."""
    ball, x = problem.ball, problem.x
    if ball.p not in (1.0, math.inf):
        return None
    relus = [node for node in net.switches if isinstance(node.op, ReLU)]
    if len(relus) < len(net.switches):
        return None
    lines = {node.index: relax(node.op, problem.clipped(node.index), "adaptive") for node in relus}  # type: ignore[arg-type]
    objective = pull(net.graph, len(net.graph) - 1, problem.asked.rows, lines)
    rows, offsets, places = [], [], []
    for node in relus:
        split = problem.signs[node.index][0].flatten().nonzero()[:, 0]
        if len(split) == 0:
            continue
        found = pull(net.graph, node.inputs[0], one_hot(split[None], node.shape, x.dtype), lines)
        sign = problem.signs[node.index][0].flatten()[split].to(x)
        value = (found.rows.flatten(2) @ x.flatten(1).unsqueeze(2)).squeeze(2) + found.low
        rows.append(found.rows[0].flatten(1) * sign[:, None])
        offsets.append(value[0] * sign)
        places.append((node.index, split))
    if not rows:
        return None
    solved = _solve(objective.rows[0, 0].flatten(), torch.cat(rows), torch.cat(offsets), ball, x, seconds)
    if solved is None:
        return None
    step, multipliers = solved
    betas = {node.index: torch.zeros(1, *node.shape, dtype=x.dtype) for node in relus}
    start = 0
    for index, split in places:
        betas[index].flatten()[split] = multipliers[start : start + len(split)]
        start += len(split)
    return betas, ball.project(x, x + step.reshape(x.shape))


def _solve(
    c: Tensor, rows: Tensor, offsets: Tensor, ball: Ball, x: Tensor, seconds: float
) -> tuple[Tensor, Tensor] | None:
    """The step and the multipliers of min c'd with rows d + offsets >= 0 within the ball."""
    eps = float(ball.radii(x)[0])
    below, above = (room[0].flatten().numpy() for room in ball.rooms(x)) if ball.box is not None else (math.inf,) * 2
    size, count = len(c), len(rows)
    matrix, right = -rows.numpy(), offsets.numpy()
    if math.isinf(ball.p):
        bounds = np.stack([-np.minimum(below, eps) * np.ones(size), np.minimum(above, eps) * np.ones(size)], 1)
        cost = c.numpy()
    else:  # d = up - down, with the sum of both at most eps
        matrix = np.concatenate([np.concatenate([matrix, -matrix], 1), np.ones((1, 2 * size))])
        right = np.append(right, eps)
        ends = np.concatenate([np.minimum(above, eps) * np.ones(size), np.minimum(below, eps) * np.ones(size)])
        bounds = np.stack([np.zeros(2 * size), ends], 1)
        cost = np.concatenate([c.numpy(), -c.numpy()])
    found = linprog(cost, matrix, right, bounds=bounds, method="highs", options={"time_limit": max(0.1, seconds)})
    if found.x is None or found.ineqlin is None:
        return None
    step = found.x if math.isinf(ball.p) else found.x[:size] - found.x[size:]
    multipliers = np.maximum(0.0, -found.ineqlin.marginals[:count])
    return torch.from_numpy(np.array(step)).to(x), torch.from_numpy(multipliers).to(x)
