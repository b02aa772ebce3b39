"""The page of certificate files: what is checked, by network, ball and method, and what checking costs beside finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relucert.reports._markdown import ball, table


@dataclass(frozen=True, kw_only=True)
class CheckedCase:
    """The figures of one network, norm and method."""

    network: str
    p: float
    method: str
    figures: dict[str, Any]

    @property
    def decided(self) -> int:
        """How many verdicts should have a certificate."""
        return self.figures["robust"] + self.figures["vulnerable"]

    def cells(self) -> list[str]:
        """The row of the case."""
        one = self.figures
        found, checked = one["found"], one["checked"]
        return [
            self.network, ball(self.p, round(one["eps"], 4)), self.method, str(one["points"]),
            f"{one['robust checked']} of {one['robust']}", f"{one['vulnerable checked']} of {one['vulnerable']}",
            str(one["none"]), str(one["refused"]), f"{found:.2f}", f"{one['written']:.2f}", f"{checked:.2f}",
            f"{checked / found:.1f}", f"{one['largest'] / 1000:.1f}",
        ]  # fmt: skip


def page(cases: Sequence[CheckedCase], tree: float) -> str:
    """The sums by method, and the cases with verdicts to be checked, as Markdown."""
    by_method: dict[str, list[CheckedCase]] = defaultdict(list)
    for case in cases:
        by_method[case.method].append(case)
    some = [case for case in cases if case.decided]
    return "\n".join(
        [
            "# Certificate files",
            "",
            "Written by `python -m relucert.experiments.proofs FOLDER`, where FOLDER has the networks of others. The first "
            "test points of the data of each network are decided by a method, certificate files are written, and `relucert "
            "check` reads them. Seconds are those of the CPU, in one thread, for all points: found, the verdicts; written, "
            f"the search for certificates, {tree:g} s a point at most for trees, and checking them once; checked, all files. "
            "The ratio is that of checking to finding.",
            "",
            *table(
                ["method", "networks and balls", "points", "ROBUST, checked", "VULNERABLE, checked", "no certificate",
                 "refused", "found", "checked", "ratio", "largest ratio", "largest file, kB"],
                [_sums(method, several) for method, several in by_method.items()],
            ),
            "",
            "The largest ratio is that of the cases with at least ten certificates; files and seconds of checking are those of "
            "all that was decided.",
            "",
            "## Case by case",
            "",
            f"The {len(some)} cases in which something was decided; in {len(cases) - len(some)} others the method proves "
            "nothing of these points.",
            "",
            *table(
                ["network", "ball", "method", "points", "ROBUST, checked", "VULNERABLE, checked", "no certificate", "refused",
                 "found, s", "written, s", "checked, s", "ratio", "largest file, kB"],
                [case.cells() for case in some],
            ),
        ]
    ) + "\n"  # fmt: skip


def _sums(method: str, cases: Sequence[CheckedCase]) -> list[str]:
    """The row of a method: sums, and the largest ratio and file."""
    total = {
        name: sum(case.figures[name] for case in cases)
        for name in ("points", "robust", "robust checked", "vulnerable", "vulnerable checked", "none", "refused")
    }
    found, checked = (sum(case.figures[name] for case in cases if case.decided) for name in ("found", "checked"))
    ratios = [case.figures["checked"] / case.figures["found"] for case in cases if case.decided >= 10]
    return [
        method, str(len(cases)), str(total["points"]), f"{total['robust checked']} of {total['robust']}",
        f"{total['vulnerable checked']} of {total['vulnerable']}", str(total["none"]), str(total["refused"]), f"{found:.1f} s",
        f"{checked:.1f} s", f"{checked / found:.1f}" if found else "", f"{max(ratios):.1f}" if ratios else "",
        f"{max(case.figures['largest'] for case in cases) / 1000:.1f}",
    ]  # fmt: skip
