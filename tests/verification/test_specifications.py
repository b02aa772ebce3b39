"""No wrong answer about networks whose unsafe set is known, through files."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from planted import planted
from relucert.core.errors import InvalidInput
from relucert.evaluation.competition import load_instance, verify
from relucert.interop.onnx.execution import Runtime
from relucert.interop.vnnlib.reading import load_vnnlib
from relucert.verification.specifications import decide_specification

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def _check(folder: Path, seed: int, *, safe: bool) -> str:
    onnx, vnnlib = planted(folder, seed, safe=safe)
    answer = verify(onnx, vnnlib, 30.0)
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
