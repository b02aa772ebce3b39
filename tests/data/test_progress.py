"""Progress bars are for terminals."""

from __future__ import annotations

import io
import sys

import pytest

from relucert.data._progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def count_to_three(unit: str) -> None:
    with progress("counting", 3, unit=unit) as at:
        for done in (1, 2, 3):
            at(done)


@pytest.mark.parametrize("unit", ["", "bytes"])
def test_only_on_a_terminal(unit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    count_to_three(unit)
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    count_to_three(unit)
    assert "counting" in terminal.getvalue()
    assert "3/3" in terminal.getvalue().replace("3.0", "3")
    assert capsys.readouterr().out == ""
