"""Certificate files of many networks: how many verdicts are CHECKED, what checking costs beside finding, how large files are.

    python -m relucert.experiments.proofs FOLDER [--points N] [NAME ...]    # FOLDER has the networks of others

NAME is a network, a method, or `network/norm/method`; without one all cases that have no figures yet are worked off, so that
the list may be stopped and continued. Figures are kept in `results/proofs.json`; the page is `results/proofs.md`. Seconds are
those of the CPU in one thread and one process.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from relucert.checker.__main__ import run as check
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.verdict import Verdict
from relucert.data import dataset
from relucert.experiments.others import published
from relucert.interop.loading import load
from relucert.records.atomic import write_atomically
from relucert.reports import proofs as report
from relucert.verification.certify import certify
from relucert.verification.proofs.prover import NETWORK, write_proofs
from relucert.verification.verifier import Query

RESULTS = Path("results")
FIGURES, PAGE = RESULTS / "proofs.json", RESULTS / "proofs.md"
#: Points for each method, and the seconds that a point may take where a method has no end of its own.
METHODS: dict[str, tuple[int, float | None]] = {
    "crown": (200, None), "kw": (200, None), "region": (200, 5.0), "alpha": (200, None), "bab": (50, 5.0), "sdp": (20, None),
}  # fmt: skip
#: Radii by norm.
RADII: dict[str, dict[float, float]] = {
    "mnist": {math.inf: 0.1, 2.0: 0.3, 1.0: 1.0},
    "fmnist": {math.inf: 0.1, 2.0: 0.3, 1.0: 1.0},
    "gts": {math.inf: 4 / 255, 2.0: 0.2, 1.0: 3.0},
    "cifar10": {math.inf: 2 / 255, 2.0: 0.1, 1.0: 2.0},
}
OTHERS = ("kw_fmnist", "kw_mnist", "lpd_mlp_mnist", "wk17a_mnist", "mmr_universal/mnist", "mmr_universal/fmnist")
#: The search for a tree may take so many seconds a point.
TREE = 15.0


@dataclass(frozen=True)
class Case:
    """Verdicts of one method about one network and norm."""

    network: str
    p: float
    method: str

    def __str__(self) -> str:
        return f"{self.network}/{self.p:g}/{self.method}"

    @property
    def data(self) -> str:
        """The data set, which the name of the network begins or ends with."""
        own = self.network.replace("-", "_").replace("/", "_").split("_")
        return next(part for part in (own[0], own[-1]) if part in RADII)

    @property
    def eps(self) -> float:
        """The radius of the ball."""
        return RADII[self.data][self.p]

    def file(self, folder: Path) -> Path:
        """The network: of `results/`, or of others in a folder."""
        if self.network not in OTHERS:
            return RESULTS / self.network
        path = folder / self.network
        return path.with_suffix(".mat" if path.parent != folder else ".safetensors")


def cases() -> list[Case]:
    """All networks, norms and methods, method after method; `sdp` is about l_2."""
    own = sorted(path.parent.name for path in RESULTS.glob("*/model.safetensors"))
    return [
        Case(network, p, method)
        for method in METHODS
        for network in (*own, *OTHERS)
        for p in ((2.0,) if method == "sdp" else (math.inf, 2.0, 1.0))
    ]


def measured(case: Case, folder: Path, points: int | None = None) -> dict[str, Any]:
    """Find, write and check, and count; `points` instead of those of the method."""
    count, timeout = METHODS[case.method]
    path, data = case.file(folder), dataset(case.data)
    net = load(path) if case.network not in OTHERS else published(path)
    x, y = data.x_test[: points or count].to(net.dtype), data.y_test[: points or count]
    ball, seconds = Ball(case.p, case.eps), [time.process_time()]
    found = certify(net, x, y, ball, case.method, timeout=timeout, workers=1, progress=False)
    seconds.append(time.process_time())
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as place:
        proofs = Path(place)
        write_proofs(Query.of(net, x, y, ball), [ball], found, proofs, TREE)
        seconds.append(time.process_time())
        with contextlib.redirect_stdout(printed):
            check(proofs, proofs / NETWORK, json=True)
        seconds.append(time.process_time())
        sizes = [file.stat().st_size for file in proofs.glob("*.npz")]
    lines = [json.loads(line) for line in printed.getvalue().splitlines()]
    said = Counter(
        (str(found.verdict[int(line["file"][:6])]), line["result"]) for line in lines if "file" in line
    )  # fmt: skip
    verdicts = Counter(str(verdict) for verdict in found.verdict)
    return {
        "points": len(x), "eps": case.eps, "timeout": timeout,
        **{verdict: verdicts[verdict] for verdict in map(str, (Verdict.ROBUST, Verdict.VULNERABLE))},
        **{f"{verdict} checked": said[verdict, "CHECKED"] for verdict in map(str, (Verdict.ROBUST, Verdict.VULNERABLE))},
        "none": sum(number for (_, result), number in said.items() if result == "NO CERTIFICATE"),
        "refused": sum(number for (_, result), number in said.items() if result == "NOT CHECKED"),
        "found": seconds[1] - seconds[0], "written": seconds[2] - seconds[1], "checked": seconds[3] - seconds[2],
        "largest": max(sizes, default=0),
    }  # fmt: skip


def page(known: dict[str, Any]) -> str:
    """The figures of all cases as Markdown."""
    rows = [
        report.CheckedCase(network=case.network, p=case.p, method=case.method, figures=known[str(case)])
        for case in cases()
        if str(case) in known
    ]
    return report.page(rows, TREE)


def main(arguments: list[str]) -> None:
    """Work off the named cases, or those that have no figures yet, and write the page after each."""
    points, given = None, list(arguments)
    if "--points" in given:
        at = given.index("--points")
        points, given = int(given[at + 1]), given[:at] + given[at + 2 :]
    every, names = cases(), set(given[1:])
    known_names = {name for case in every for name in (str(case), case.network, case.method)}
    if not given or not Path(given[0]).is_dir() or not names <= known_names:
        raise InvalidInput(
            "usage: FOLDER [--points N] [NAME ...], where NAME is a network, a method or network/norm/method, got "
            f"{' '.join(arguments)!r}"
        )
    torch.set_num_threads(1)
    for case in every:
        known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        wanted = not names or names & {str(case), case.network, case.method}
        if wanted and str(case) not in known:
            known = {**known, str(case): measured(case, Path(given[0]), points)}
            print(f"{case}: {known[str(case)]}", flush=True)
            write_atomically(FIGURES, json.dumps(known, indent=1) + "\n")
            write_atomically(PAGE, page(known))


if __name__ == "__main__":
    main(sys.argv[1:])
