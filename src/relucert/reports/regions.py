"""The page of explored regions: lower bounds of radii over the number of neighbours, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relucert.reports._markdown import table


@dataclass(frozen=True, kw_only=True)
class Explored:
    """A network, a method, and the summary of its radii; see `evaluation.radius.Radii`."""

    network: str
    method: str
    summary: dict[str, Any]

    def cells(self, points: int) -> list[str]:
        """The row of the table."""
        one = self.summary
        return [
            self.network, f"`{self.method}`", f"{one['mean_lower']:.4f}", f"{one['mean_upper']:.4f}",
            f"{100 * one['share_exact']:.0f}", f"{one['seconds'] / points:.3f}",
        ]  # fmt: skip


def page(found: Sequence[Explored], *, points: int) -> str:
    """The table as Markdown."""
    lines = [
        "# Exploring linear regions",
        "",
        "Written by `python -m relucert.experiments.regions`. One row is what one command says: `relucert radius "
        f'results/NETWORK --p 2 --points {points} --batch {points} --method "METHOD"`.',
        "",
        f"Radii in l2 of the first {points} test points, with pixels in [0, 1]. `region(regions=N)` opens N neighbours of the "
        "region of a point, nearest first; with 0 it is the theorem about one region alone. Without `start` it goes on until "
        "N regions are open or the radius is known. `region(start='crown')` begins at the radius that `crown` proves. Lower "
        "and upper are means over the correctly classified points, of the proved radius and of the distance of the nearest "
        "counterexample found, where there is one. Exact: proved to be the distance of the counterexample, in percent. "
        "Seconds are those of a point, one process with one thread.",
        "",
        *table(
            ["network", "method", "mean lower", "mean upper", "exact", "seconds a point"],
            [one.cells(points) for one in found],
        ),
    ]
    return "\n".join(lines) + "\n"
