"""No wrong answer about networks whose unsafe set is known, through files."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import clauses
from planted import planted
from relucert.core.errors import InvalidInput
from relucert.evaluation.competition import load_instance, verify
from relucert.interop.onnx.execution import Runtime
from relucert.interop.onnx.writing import save_onnx
from relucert.interop.vnnlib.reading import load_vnnlib
from relucert.interop.vnnlib.specification import Case, Inequality, Round, Specification
from relucert.networks.network import Network, in_double
from relucert.verification.specifications import decide_specification

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def _check(folder: Path, seed: int, *, safe: bool) -> str:
    onnx, vnnlib = planted(folder, seed, safe=safe)
    answer = verify(onnx, vnnlib, 600.0)
    assert answer.word != ("sat" if safe else "unsat"), f"a wrong answer about seed {seed}"
    if answer.word == "sat":
        assert answer.counterexample is not None
        x, y = answer.counterexample.x, answer.counterexample.y
        spec = load_vnnlib(vnnlib)
        again = Runtime(onnx).run(np.array([float(value) for value in x]))
        assert [float(value) for value in again] == list(y)
        assert spec.violated(x, [Fraction(value) for value in y])
    return answer.word


@pytest.mark.parametrize("safe", [True, False], ids=["safe", "unsafe"])
def test_planted_networks(tmp_path: Path, safe: bool) -> None:
    words = [_check(tmp_path, seed, safe=safe) for seed in range(12)]
    assert words == ["unsat" if safe else "sat"] * 12


@pytest.mark.slow
@pytest.mark.parametrize("safe", [True, False], ids=["safe", "unsafe"])
def test_five_hundred_planted_networks(tmp_path: Path, safe: bool) -> None:
    words = [_check(tmp_path, seed, safe=safe) for seed in range(500)]
    assert words.count("unsat" if safe else "sat") == 500


@pytest.mark.share(4)
@pytest.mark.parametrize("block", range(8))
def test_few_hostile_specifications(block: int) -> None:
    """No answer about clauses of several rows, wide boxes and l2 balls that exact arithmetic refutes; see `clauses`."""
    assert not clauses.run(range(2 * block, 2 * block + 2))[1]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_many_hostile_specifications(block: int) -> None:
    assert not clauses.run(range(10_000 + 10 * block, 10_010 + 10 * block))[1]


def test_the_clock_is_kept(tmp_path: Path) -> None:
    net, spec = load_instance(*planted(tmp_path, 3, safe=True))
    answer = decide_specification(net, spec, Runtime(tmp_path / "3.onnx"), time.monotonic() - 1)
    assert answer.word == "timeout"


def test_sizes_must_fit(tmp_path: Path) -> None:
    onnx, vnnlib = planted(tmp_path, 3, safe=True)
    text = vnnlib.read_text().replace("(declare-const Y_1 Real)", "(declare-const Y_1 Real) (declare-const Y_2 Real)")
    vnnlib.write_text(text)
    with pytest.raises(InvalidInput, match="as many outputs as the network, 2, got 3"):
        verify(onnx, vnnlib, 5.0)


def test_an_empty_set_is_not_reached(tmp_path: Path) -> None:
    onnx, vnnlib = planted(tmp_path, 3, safe=False)
    vnnlib.write_text(vnnlib.read_text() + "(assert (<= X_0 -3))\n")
    assert verify(onnx, vnnlib, 5.0).word == "unsat"


def test_points_that_no_float_has_are_decimals_of_the_file(tmp_path: Path) -> None:
    onnx, vnnlib = planted(tmp_path, 3, safe=False)
    lines = [line for line in vnnlib.read_text().splitlines() if "declare" in line or "X_" in line]
    lines = [line.replace("X_0 -1", "X_0 0.1").replace("X_0 1", "X_0 0.1") for line in lines]
    vnnlib.write_text("\n".join([*lines, "(assert (>= Y_0 -1000))"]) + "\n")
    answer = verify(onnx, vnnlib, 5.0)
    assert answer.word == "sat"
    assert answer.counterexample is not None
    assert answer.counterexample.x[0] == Fraction("0.1")
    assert torch.tensor(0.1).double().item() != 0.1


def _linear(folder: Path) -> Path:
    """y_0 = x_0 + x_1, y_1 = x_0 - x_1 as a file, through ReLUs that are always on."""
    net = Network(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2)), (2,)).eval()
    net.box = None
    with torch.no_grad():
        values = ([[1.0, 0.0], [0.0, 1.0]], [8.0, 8.0], [[1.0, 1.0], [1.0, -1.0]], [-16.0, 0.0])
        for parameter, value in zip(net.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(value))
    save_onnx(net, folder / "linear.onnx")
    return folder / "linear.onnx"


def _ball(least: str, more: str = "") -> str:
    """x within 1/2 of (0.25, 0) in l2, and y_0 >= least."""
    return f"""(vnnlib-version <2.0>)
(declare-network f
  (declare-input X float32 [1,2])
  (declare-output Y float32 [1,2])
)
(assert (<= (+ (* (- X[0,0] 0.25) (- X[0,0] 0.25)) (* X[0,1] X[0,1])) 0.25))
{more}(assert (>= Y[0,0] {least}))
"""


def test_l2_balls_reach_the_verifiers_as_balls(tmp_path: Path) -> None:
    pytest.importorskip("vnnlib", reason="the package vnnlib is not installed")
    onnx, vnnlib = _linear(tmp_path), tmp_path / "a.vnnlib"
    # y_0 is at most 0.25 + sqrt(1/2) = 0.957 over the ball, 1.25 over the box around it.
    for least, more, word in [
        ("0.96", "", "unsat"),
        ("0.95", "", "sat"),
        ("0.95", "(assert (<= X[0,1] 0.2))\n", "unsat"),  # at most 0.2 + 0.25 + sqrt(0.21) = 0.908
        ("0.9", "(assert (<= X[0,1] 0.2))\n", "sat"),
        ("0.9", "(assert (>= X[0,0] 2.0))\n", "unsat"),  # the box and the ball have no point in common
        ("0.9", "(assert (<= Y[0,1] 0.25))\n", "sat"),  # two inequalities; y_1 = x_0 - x_1
        ("0.9", "(assert (>= Y[0,1] 2.0))\n", "unsat"),
    ]:
        vnnlib.write_text(_ball(least, more))
        answer = verify(onnx, vnnlib, 20.0)
        assert answer.word == word, (least, more)
        if answer.counterexample is not None:
            x, y = answer.counterexample.x, answer.counterexample.y
            assert (x[0] - Fraction(1, 4)) ** 2 + x[1] ** 2 <= Fraction(1, 4)
            assert y[0] >= float(least)
            assert load_vnnlib(vnnlib).violated(x, [Fraction(value) for value in y])


def test_a_ball_is_rounded_outwards() -> None:
    for text in ("2", "0.1", "1e-9", "123456789.123"):
        ball = Round((Fraction("0.1"), Fraction("-0.3")), Fraction(text))
        centre, radius = ball.around()
        moved = sum((abs(Fraction(a) - b) for a, b in zip(centre.tolist(), ball.centre, strict=True)), Fraction(0))
        assert Fraction(radius) - moved >= 0
        assert (Fraction(radius) - moved) ** 2 >= ball.square
        assert Fraction(radius) ** 2 <= ball.square * (1 + Fraction(1, 10**9)) + Fraction(1, 10**12)
    assert not Round((Fraction(0),), Fraction("0.01")).contains([Fraction("0.1") + Fraction(1, 10**30)])


def _shift(folder: Path) -> tuple[Network, Runtime]:
    """y = relu(x + 2)."""
    net = Network(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2)), (2,)).eval()
    net.box = None
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), (torch.eye(2), 2.0, torch.eye(2), 0.0), strict=True):
            parameter.copy_(torch.as_tensor(value))
    save_onnx(net, folder / "shift.onnx")
    return in_double(net), Runtime(folder / "shift.onnx")


@pytest.mark.parametrize("radius", [None, Fraction(1)], ids=["box", "l2"])
def test_every_clause_has_a_row_of_its_own_where_bounds_overflow(tmp_path: Path, radius: Fraction | None) -> None:
    """The first conjunction never holds; the second always does, and its bound is minus infinity."""
    net, runtime = _shift(tmp_path)
    large = Fraction(2) ** 1023
    never = (Inequality({0: Fraction(1)}, Fraction(0)), Inequality({1: Fraction(1)}, Fraction(0)))
    always = (Inequality({0: -large, 1: -large}, Fraction(0)),)
    ball = None if radius is None else Round((Fraction(0), Fraction(0)), radius)
    case = Case((Fraction(-1),) * 2, (Fraction(1),) * 2, (never, always), ball)
    answer = decide_specification(net, Specification(2, 2, (case,)), runtime, time.monotonic() + 1)
    assert answer.word != "unsat"


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_sides_beyond_the_numbers_of_float32_are_sides(tmp_path: Path) -> None:
    """y_0 is at most 0 nowhere for x_0 >= -1, and above 4 for large x_0."""
    net, runtime = _shift(tmp_path)
    for inequality, word in (
        (Inequality({0: Fraction(1)}, Fraction(0)), "unsat"),
        (Inequality({0: Fraction(-1)}, Fraction(-4)), "sat"),
    ):
        case = Case((Fraction(-1),) * 2, (Fraction(10) ** 39,) * 2, ((inequality,),))
        answer = decide_specification(net, Specification(2, 2, (case,)), runtime, time.monotonic() + 20)
        assert answer.word == word
        assert answer.counterexample is None or case.contains(answer.counterexample.x)
