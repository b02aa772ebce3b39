"""Points that stay undecided say why: by a clock, by subproblems, by memory, by the bound, or by rounding."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.core.verdict import Verdict, rounding_of
from relucert.networks.architectures import mlp
from relucert.networks.network import Network
from relucert.verification.verifier import Decision
from zoo import randomised


@pytest.fixture(scope="module")
def case():
    net = Network(randomised(mlp((6,), 3, [16, 16, 16]), 1), (6,)).eval()
    x = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    return net, x, net.predict(x)


def reasons(case, method, eps=0.3, **options):
    net, x, y = case
    found = rc.certify(net, x, y, rc.Ball(math.inf, eps), method, **options)
    unknown = found.which(Verdict.UNKNOWN).tolist()
    assert all(bool(reason) == is_open for reason, is_open in zip(found.reason, unknown, strict=True))
    return {reason for reason in found.reason if reason}


@pytest.mark.parametrize(
    ("method", "reason"),
    [("crown", "bound"), ("region", "bound"), ("bab(nodes=1)", "nodes"), ("bab(nodes=100, memory=1)", "memory")],
)
def test_undecided_points_say_why(case, method, reason):
    assert reasons(case, method) == {reason}


@pytest.mark.parametrize("method", ["crown", "bab", "auto"])
def test_a_clock_is_the_reason_whatever_else_is(case, method):
    assert reasons(case, method, timeout=1e-9) == {"time"}


def relu_leads(by: float) -> Network:
    """Logits relu(z) + 1 + by and 1."""
    hidden, out = torch.nn.Linear(1, 1), torch.nn.Linear(1, 2)
    with torch.no_grad():
        hidden.weight.fill_(1.0), hidden.bias.zero_()
        out.weight.copy_(torch.tensor([[1.0], [0.0]])), out.bias.copy_(torch.tensor([1 + by, 1.0]))
    return Network(torch.nn.Sequential(hidden, torch.nn.ReLU(), out), (1,)).eval()


def test_a_subproblem_that_nothing_decides():
    """The classes tie where the ReLU is inactive: neither a proof nor a counterexample exists."""
    x, y = torch.tensor([[0.5]]), torch.tensor([0])
    found = rc.certify(relu_leads(0.0), x, y, rc.Ball(math.inf, 1.0, None), "bab")
    assert (found.verdict, found.reason) == ([Verdict.UNKNOWN], ["subproblem"])


@pytest.mark.parametrize("method", ["crown", "bab", "auto"])
def test_rounding_keeps_a_proof_from_the_executed_network(method):
    """A lead of one bit is proved in real arithmetic; as executed it may be rounded away."""
    # Where the ReLU is inactive all over the ball the bound is exact; elsewhere the ReLU must be split.
    x, eps = (-0.5, 0.25) if method == "crown" else (0.5, 1.0)
    net, x, y, ball = relu_leads(2.0**-23), torch.tensor([[x]]), torch.tensor([0]), rc.Ball(math.inf, eps, None)
    real = rc.certify(net, x, y, ball, method)
    assert (real.verdict, real.arithmetic, real.reason) == ([Verdict.ROBUST], ["real"], [""])
    strict = rc.certify(net, x, y, ball, method, arithmetic="executed")
    assert (strict.verdict, strict.arithmetic, strict.reason) == ([Verdict.UNKNOWN], [""], ["rounding"])


def test_the_charge_of_rounding_is_known_only_of_a_single_bound(case):
    net, x, y = case
    found = rc.certify(net, x, y, rc.Ball(math.inf, 0.02), "auto")
    charged = found.rounding[~found.rounding.isnan()]
    assert len(charged) > 0
    assert ((charged >= 0) & (charged < 1e-3)).all()  # bounds are computed in float32 first
    assert math.isnan(
        rounding_of(-0.5, 0.5)
    )  # a margin that branch and bound proved, beyond the bound of the whole ball
    broken = Decision(0, Verdict.VULNERABLE, 0.0, "bab", 0.0, computed=0.5)
    assert (math.isnan(broken.rounding), broken.arithmetic) == (True, "")
