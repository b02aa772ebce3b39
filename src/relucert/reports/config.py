"""What a report is: one dataclass for the library and for the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from relucert.core.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """One HTML page from records: tables, curves, and every test point with its nearest adversarial example."""

    sources: tuple[Path, ...]
    """Run folders or .jsonl files of records: one network, or several to compare."""
    out: Path = Path("report.html")
    """The file to write."""
    title: str = "Robustness report"
    """The heading of the page."""
    eps: float | None = None
    """The radius at which the page opens; by default that of the records. The reader can move it."""
    data: str | None = None
    """Where the inputs are, if the name in the records does not say it: your own folder or file."""
    networks: tuple[Path, ...] = ()
    """Networks to compute logits and slices with, where they do not stand beside the records."""
    pictures: int = 1000
    """How many test points are shown with their inputs, from the first."""
    slices: int = 24
    """For how many points of each network the slice of linear regions is drawn; 0: none."""

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("sources", len(self.sources) > 0, "name at least one run or file of records"),
            ("eps", self.eps is None or 0 <= self.eps < math.inf, "be a number >= 0"),
            ("pictures", self.pictures >= 0, "be at least 0"),
            ("slices", self.slices >= 0, "be at least 0"),
            ("out", self.out.suffix in (".html", ".htm"), "end in .html"),
        ):
            if not holds:
                raise InvalidInput(f"{name} must {rule}, got {getattr(self, name)!r}")
