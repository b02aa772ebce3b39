"""What proofs assume of torch is seen where it does not hold: by settings, and by measuring."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.core import rounding
from relucert.core.errors import ReducedPrecision
from relucert.core.rounding import SETTINGS, reduced_precision, set_full_precision
from relucert.networks import execution
from relucert.networks.execution import flushes_denormals, rounds_to_nearest
from zoo import inputs, network


def test_full_precision_is_the_default_and_holds():
    assert reduced_precision("cpu") == []
    assert rounds_to_nearest(torch.float32)
    assert rounds_to_nearest(torch.float64)
    errors = list(execution.summation_errors())
    assert len(errors) == 8
    assert all(0 < error.share <= 1 for error in errors), errors


def test_shorter_numbers_are_measured():
    with torch.autocast("cpu"):
        assert all(error.share > 10 for error in execution.summation_errors())


def test_convolutions_by_transforms_are_measured_and_named():
    """Without oneDNN, NNPACK computes convolutions of large batches by transforms, whose error the bound does not cover."""
    with torch.backends.mkldnn.flags(enabled=False):
        named = any("transforms" in text for text in reduced_precision())
        measured = any(error.share > 1 for error in execution.summation_errors())
    assert named or not measured


@pytest.mark.parametrize("path", SETTINGS["cpu"])
def test_settings_of_torch_are_read(monkeypatch, path):
    monkeypatch.setattr(rounding, "_setting", lambda name: "bf16" if name == path else "none")
    assert reduced_precision() == [f"torch.backends.{path} is 'bf16'"]


def test_older_settings_are_read(monkeypatch):
    monkeypatch.setattr(rounding, "_setting", lambda name: None)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert reduced_precision() == ["torch.get_float32_matmul_precision() is 'high'"]
    with torch.backends.cudnn.flags(allow_tf32=True):
        assert reduced_precision("cuda")[1:] == ["torch.backends.cudnn.allow_tf32 is True"]
        set_full_precision("cuda")
        assert len(reduced_precision("cuda")) == 1


@pytest.mark.skipif(rounding._setting("cudnn.conv.fp32_precision") is None, reason="this torch has no such setting")
def test_full_precision_of_a_device_can_be_set():
    """On GPUs torch's own default is TF32 for convolutions."""
    convolutions = torch.backends.cudnn.conv
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "tf32"
    try:
        assert reduced_precision("cuda") == ["torch.backends.cudnn.conv.fp32_precision is 'tf32'"]
        set_full_precision("cuda")
        assert reduced_precision("cuda") == []
    finally:
        convolutions.fp32_precision = before
        torch.backends.cuda.matmul.fp32_precision = "none"


def test_nothing_is_proved_with_shorter_numbers():
    """Bounds in float32 would be wrong themselves; float64 has no shorter numbers inside."""
    for dtype in (torch.float32, torch.float64):
        net = network("fc", dtype)
        x = inputs(net, 2)
        y, ball = net.predict(x), rc.Ball(math.inf, 0.01)
        with torch.autocast("cpu"):
            if dtype == torch.float64:
                assert rc.certify(net, x, y, ball, "crown").arithmetic == ["executed"] * 2
                continue
            for prove in (lambda: rc.certify(net, x, y, ball, "crown"), lambda: rc.radius(net, x, method="crown")):  # noqa: B023
                with pytest.raises(
                    ReducedPrecision, match=r"must be computed in float32 throughout, got: torch.autocast"
                ):
                    prove()


def test_denormal_numbers_that_are_flushed_are_seen():
    assert not flushes_denormals()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps denormal numbers")
    try:
        assert flushes_denormals()
    finally:
        torch.set_flush_denormal(False)
