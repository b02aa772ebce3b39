"""Programs: they say exactly what the network does, with room to spare, and bounds by multipliers hold for any of these."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array

import relucert as rc
from relucert.bounding.interval import Interval
from relucert.bounding.methods.crown import CROWN
from relucert.networks.sparse_maps import sparse_maps
from relucert.verification.mip._encoding import Encoding
from relucert.verification.mip._problem import Problem
from relucert.verification.mip._program import SLACK
from relucert.verification.mip._solver import HiGHS, allowance
from relucert.verification.mip._tightening import LinearPrograms, proved_minimum
from zoo import NETWORKS, inputs, network

names = pytest.mark.parametrize("name", NETWORKS)


def program_of(net, x, ball, tighten=None):
    encoding, known = Encoding(net), CROWN().start(net, x, ball, net.dtype)
    program = encoding.program(x, ball, 1.0)
    if not math.isinf(ball.p):
        program.bound_norm(float(ball.p), float(ball.radii(x)[0]))
    with torch.no_grad():
        program.build(net.graph, encoding.wires, encoding.ranges(known, executed=True), tighten)
    return program, known.inputs


@names
@torch.no_grad()
def test_wires_carry_what_switching_nodes_read(name):
    net = network(name)
    x = inputs(net, 3)
    sources = {node.index: node.op.apply(z) for node, z in zip(net.switches, net.preactivations(x), strict=True)}
    sources[0] = x
    read = dict(zip([node.index for node in net.switches], net.preactivations(x), strict=True))
    read[len(net.graph)] = net(x)
    found = sparse_maps(net.graph)
    assert found.keys() == read.keys()
    for index, wire in found.items():
        total = wire.offset + sum(
            (matrix @ sources[source].flatten(1).T.numpy()).T for source, matrix in wire.matrices.items()
        )
        np.testing.assert_allclose(total, read[index].flatten(1).numpy(), rtol=1e-11, atol=1e-11)


@names
@pytest.mark.parametrize("p", [1.0, math.inf])
@torch.no_grad()
def test_a_fixed_input_has_the_margins_of_the_network(name, p):
    """With the input held, the smallest and the largest margin of the program are the network's: both ends are right."""
    net = network(name)
    x = inputs(net, 1)
    ball = rc.Ball(p, 0.3 if p == 1 else 0.1)
    program, _ = program_of(net, x, ball)
    z = ball.sample(x, torch.Generator().manual_seed(1))
    step = (z - x).flatten().numpy()
    row = np.zeros(net.classes)
    row[0], row[1] = 1.0, -1.0
    truth = float(net(z)[0] @ torch.from_numpy(row))
    cost, constant = program.margin(row, 0.25)
    program.lower[program.inputs] = program.upper[program.inputs] = step
    for sign in (1.0, -1.0):
        found = HiGHS().minimise(program.problem(sign * cost), seconds=20.0)
        assert found.status == "optimal"
        assert sign * (found.bound * sign + constant) <= sign * (truth + 0.25) + 1e-9, (
            "the program leaves the truth out"
        )
        assert found.bound * sign + constant == pytest.approx(truth + 0.25, abs=1e-5)


@names
@torch.no_grad()
def test_only_what_may_switch_is_a_choice(name):
    net = network(name)
    x = inputs(net, 1)
    program, known = program_of(net, x, rc.Ball(math.inf, 0.05))
    unstable = sum(int((torch.minimum(within.upper, -within.lower) > 1e-6).sum()) for within in known.values())
    if all(node.kind == "relu" for node in net.switches):
        assert int(program.integer.sum()) == unstable
    still, _ = program_of(net, x, rc.Ball(math.inf, 1e-7))
    assert int(still.integer.sum()) <= int(program.integer.sum())
    if name in ("fc deep", "cnn"):
        assert int(still.integer.sum()) == 0
        assert int(program.integer.sum()) > 0


@pytest.mark.parametrize("name", ["fc deep", "residual", "cnn", "leaky"])
@torch.no_grad()
def test_linear_programs_tighten_and_hold(name):
    net = network(name)
    x = inputs(net, 1)
    ball = rc.Ball(math.inf, 0.15)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    class Recorded(LinearPrograms):
        def __call__(self, program, z, low, high, which):
            seen.append(super().__call__(program, z, low, high, which))
            return seen[-1]

    program, known = program_of(net, x, ball, Recorded(5.0, math.inf))
    loose, _ = program_of(net, x, ball)
    assert int(program.integer.sum()) <= int(loose.integer.sum())
    relus = [node for node in net.switches if node.kind == "relu"]
    generator = torch.Generator().manual_seed(0)
    z = ball.sample(x, generator, 200)[0]
    values = dict(zip([node.index for node in net.switches], net.preactivations(z), strict=True))
    better = 0
    for node, (low, high) in zip(relus, seen, strict=True):
        value, within = values[node.index].flatten(1).numpy(), known[node.index]
        assert (value >= low - 1e-12).all()
        assert (value <= high + 1e-12).all()
        assert (low >= within.lower.flatten().numpy() - 2 * SLACK).all()
        better += int((low > within.lower.flatten().numpy() + 1e-6).sum())
    assert better > 0


def test_linear_programs_end_in_time():
    net = network("fc deep")
    x = inputs(net, 1)
    ball = rc.Ball(math.inf, 0.15)
    late, _ = program_of(net, x, ball, LinearPrograms(5.0, 0.0))
    never, _ = program_of(net, x, ball)
    np.testing.assert_allclose(late.upper, never.upper, rtol=0, atol=2 * SLACK)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_any_multipliers_prove_a_bound(seed):
    generator = np.random.default_rng(seed)
    rows, columns = generator.integers(1, 6, size=2)
    matrix = generator.normal(size=(rows, columns)) * (generator.random((rows, columns)) < 0.8)
    middle = generator.normal(size=columns)
    room = generator.random(rows)
    row_lower = np.where(generator.random(rows) < 0.5, -math.inf, matrix @ middle - room)
    row_upper = np.where(generator.random(rows) < 0.3, math.inf, matrix @ middle + room)
    lower, upper = middle - generator.random(columns), middle + generator.random(columns)
    cost = generator.normal(size=columns)
    problem = Problem(cost, lower, upper, np.zeros(columns, dtype=bool), csr_array(matrix), row_lower, row_upper)
    up, down = np.isfinite(row_upper), np.isfinite(row_lower)
    limits = np.concatenate([row_upper[up], -row_lower[down]])
    found = linprog(cost, np.concatenate([matrix[up], -matrix[down]]), limits, bounds=np.stack([lower, upper], 1))
    assert found.status == 0
    assert proved_minimum(problem, cost, generator.normal(size=rows) * 10) <= found.fun + 1e-9
    assert proved_minimum(problem, cost, np.zeros(rows)) <= found.fun + 1e-9
    best = np.zeros(rows)
    best[up] += found.ineqlin.marginals[: up.sum()]
    best[down] -= found.ineqlin.marginals[up.sum() :]
    assert proved_minimum(problem, cost, best) == pytest.approx(found.fun, abs=1e-7)


@torch.no_grad()
def test_tiny_entries_are_taken_out_and_paid_for():
    net = network("fc")
    with torch.no_grad():
        net.module[-1].weight[0, 0] = 1e-13
        net.module[1].weight[0] = torch.tensor([1e-13, 1.0, -1e-13])
    x = inputs(net, 1)
    ball = rc.Ball(math.inf, 0.5)
    encoding, bounds = Encoding(net), CROWN().start(net, x, ball, net.dtype)
    wider = {index: Interval(within.lower - 1, within.upper + 1) for index, within in bounds.inputs.items()}
    program = encoding.program(x, ball, 1.0)
    program.build(net.graph, encoding.wires, encoding.ranges(bounds.improved(wider), executed=True))
    problem = program.problem(program.margin(np.array([1.0, -1.0, 0.0, 0.0]), 0.0)[0])
    assert (abs(problem.rows.data) >= 1e-11).all()
    found = HiGHS().minimise(problem, seconds=20.0)
    generator = torch.Generator().manual_seed(0)
    z = ball.sample(x, generator, 300)[0]
    constant = program.margin(np.array([1.0, -1.0, 0.0, 0.0]), 0.0)[1]
    least = float((net(z)[:, 0] - net(z)[:, 1]).min())
    assert found.bound + constant - allowance(problem, HiGHS.gap) <= least
