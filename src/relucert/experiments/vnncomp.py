"""The page of the competition's benchmarks from results: `python -m relucert.experiments.vnncomp LIST.csv=RESULTS.csv ...`.

A benchmark is named after the folder of its list. Results must be complete: one for every instance of the list, at its limit.
`machine=TEXT` says what the seconds are from, if not simply from this machine.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from relucert.core.errors import InvalidInput
from relucert.evaluation.competition import read_instances, read_results
from relucert.records.atomic import write_atomically
from relucert.reports.vnncomp import Answered, page

OUT = Path("results/vnncomp.md")


def answers(instances: Path, results: Path) -> list[Answered]:
    """The answers to all instances of a list, from complete results."""
    found = {(one.instance.onnx, one.instance.vnnlib, one.instance.limit): one for one in read_results(results)}
    wanted = read_instances(instances)
    missing = [one for one in wanted if (one.onnx, one.vnnlib, one.limit) not in found]
    if missing:
        raise InvalidInput(
            f"{results} must have a result for every instance at its limit, got none for {len(missing)}: {missing[0].onnx} "
            f"{missing[0].vnnlib}"
        )
    every = [(one, found[one.onnx, one.vnnlib, one.limit]) for one in wanted]
    return [
        Answered(
            result.word, result.seconds, one.agreed, float(one.other_seconds) if one.other_seconds else None,
            " ".join(Path(name).name.removesuffix(".onnx").removesuffix(".vnnlib") for name in (one.onnx, one.vnnlib)),
            result.by,
        )
        for one, result in every
    ]  # fmt: skip


def main(arguments: list[str]) -> None:
    """Write the page."""
    pairs = [argument.partition("=") for argument in arguments]
    if not pairs or not all(left and right for left, _, right in pairs):
        raise InvalidInput(f"arguments must be LIST.csv=RESULTS.csv, got {arguments}")
    machine = next((right for left, _, right in pairs if left == "machine"), platform.machine())
    benchmarks = {
        Path(left).resolve().parent.name: answers(Path(left), Path(right))
        for left, _, right in pairs
        if left != "machine"
    }
    write_atomically(OUT, page(benchmarks, machine))


if __name__ == "__main__":
    main(sys.argv[1:])
