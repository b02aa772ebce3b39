"""`relucert doctor`: all checks in a table or as JSON; a fault is exit code 1."""

from __future__ import annotations

import json

import pytest

from relucert.cli.doctor import checks
from relucert.cli.main import run
from relucert.networks import execution
from relucert.networks.execution import SummationError


@pytest.fixture
def quick(monkeypatch):
    """One measured layer, which is fine."""
    monkeypatch.setattr(execution, "summation_errors", lambda: iter([SummationError("linear 16 to 32", 17, 0.25)]))


def test_everything_is_fine_here(quick, capsys):
    assert run(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "FAULT" not in shown
    for text in ("torch", "threads", "rounding of float32", "precision of float32 on cpu", "linear 16 to 32"):
        assert text in shown


def test_a_fault_is_named_and_changes_the_exit_code(quick, monkeypatch, capsys):
    monkeypatch.setattr(execution, "reduced_precision", lambda device: ["torch.autocast('cpu') is on"])
    assert run(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "FAULT" in shown
    assert "do not hold here" in shown
    assert run(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fine"] is False
    assert [check["what"] for check in found["checks"] if check["fine"] is False] == ["precision of float32 on cpu"]


def test_a_layer_beyond_its_bound_is_a_fault(monkeypatch):
    monkeypatch.setattr(execution, "summation_errors", lambda: iter([SummationError("conv2d", 10, 1.5)]))
    assert [check.fine for check in checks()][-1] is False
