"""Complete verification of networks with published exact results, and of those of `results/`.

    python -m relucert.experiments.complete FOLDER [NAME ...]     # FOLDER has the networks of others; all, or some of the list

Points are decided by `auto` in two processes; what is decided stays decided (`runs/records/`), so the list may be worked off in
pieces. The networks of others are taken as float64, as the exact solvers of their publications did, and in cases whose names
end in `-float32` as they are stored; the page compares the verdicts. The page is `results/complete.md`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.data import dataset
from relucert.evaluation.certify import CertifyTask, Verdicts
from relucert.evaluation.config import CertifyConfig
from relucert.experiments.others import published
from relucert.interop.loading import load
from relucert.networks.checkpoints import save
from relucert.records.atomic import write_atomically
from relucert.records.record import Record
from relucert.reports import complete as report
from relucert.reports.complete import Union, VerifiedCase, union_error
from relucert.verification.bounds import bounds
from relucert.verification.registry import Auto

RESULTS, PAGE = Path("results") / "complete", Path("results") / "complete.md"
RUNS = Path("runs")
LONG = "auto(nodes=1000000)"
PLOT = "seconds.svg"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One network, one ball, some points; `stated` is what was published about it.

    `dtype` is that in which a network of others is decided; those of `results/` keep their own.
    """

    model: str
    data: str = "mnist"
    p: float = math.inf
    eps: float = 0.1
    points: int = 1000
    timeout: float = 30.0
    method: str = "auto"
    stated: str = ""
    dtype: str = "float64"

    @property
    def own(self) -> bool:
        """Whether the network is one of `results/`."""
        return self.model.startswith("results/")


CASES: dict[str, Case] = {
    "lpd-mlp": Case(model="lpd_mlp_mnist.safetensors", points=10000, timeout=60.0, stated="14.45 % by MIP"),
    "kw-fmnist": Case(
        model="kw_fmnist.safetensors", data="fmnist", timeout=1200.0, method=LONG, stated="32.4 % by MIP"
    ),
    "wk17a-1000": Case(model="wk17a_mnist.safetensors", timeout=1200.0, method=LONG),
    "wk17a": Case(model="wk17a_mnist.safetensors", points=10000, timeout=1200.0, method=LONG, stated="4.38 % by MIP"),
    "universal-inf": Case(model="mmr_universal/mnist.mat"),
    "universal-2": Case(model="mmr_universal/mnist.mat", p=2.0, eps=0.3),
    "universal-1": Case(model="mmr_universal/mnist.mat", p=1.0, eps=1.0),
    "fc1-at-30": Case(model="results/mnist-fc1-at-inf", points=30),
    "fc1-plain-inf": Case(model="results/mnist-fc1-plain-inf", points=200),
    "fc1-plain-2": Case(model="results/mnist-fc1-plain-inf", p=2.0, eps=0.3, points=200),
    "fc1-at-inf": Case(model="results/mnist-fc1-at-inf", points=200),
    "cnn-mtl-ibp": Case(model="results/mnist-cnn-mtl-ibp-inf"),
    "fmnist-cnn-mtl-ibp": Case(model="results/fmnist-cnn-mtl-ibp-inf", data="fmnist"),
    "fc1-at-2": Case(model="results/mnist-fc1-at-2", p=2.0, eps=0.3, points=200),
}
#: Behind the name of a case in float64 stands the same case in float32.
SINGLE = "-float32"
CASES |= {f"{name}{SINGLE}": replace(case, dtype="float32") for name, case in CASES.items() if not case.own}
UNION = ("universal-inf", "universal-2", "universal-1")
STATED_UNION = "12.4 to 20.8 %"


def checkpoint(case: Case, folder: Path) -> Path:
    """The network of a case as a checkpoint of ours; that of others in the dtype of the case."""
    if case.own:
        return Path(case.model)
    source = folder / case.model
    if not source.exists():
        raise InvalidInput(f"FOLDER must hold {case.model}, got no such file in {folder}")
    suffix = SINGLE if case.dtype == "float32" else ""
    target = RUNS / "published" / f"{'-'.join(Path(case.model).with_suffix('').parts)}{suffix}.safetensors"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        save(published(source).to(getattr(torch, case.dtype)), target)
    return target


def decided(name: str, folder: Path) -> Verdicts:
    """Decide the points of a case and keep the summary."""
    case = CASES[name]
    records = RUNS / "records" / f"complete-{name.replace('-1000', '')}.jsonl"
    records.parent.mkdir(parents=True, exist_ok=True)
    config = CertifyConfig(
        model=checkpoint(case, folder), data=case.data, p=case.p, eps=case.eps, points=case.points, method=case.method,
        timeout=case.timeout, workers=2, batch=50, out=records,
    )  # fmt: skip

    task, reached = CertifyTask(config), []
    for record in task.records():
        reached.append(record)
        if sys.stderr.isatty() or len(reached) % 100 == 0:
            print(f"\r{name}: {len(reached)} of {len(task)}", end="", file=sys.stderr, flush=True)
    found = Verdicts.of(reached, len(task))
    open_ = [record.index for record in found.records if record.verdict == "unknown"]
    summary = {**found.figures(), "undecided": open_, "stages": stages(found.records)}
    if not case.own:
        summary["verdicts"] = verdicts(found.records)
    if case.own and open_:
        summary["open"] = unproved(found.records, config)
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_atomically(RESULTS / f"{name}.json", json.dumps(summary, indent=2) + "\n")
    if name in UNION:
        proved = [record.index for record in found.records if record.verdict == "robust"]
        falsified = [record.index for record in found.records if record.verdict in ("vulnerable", "misclassified")]
        write_atomically(RESULTS / f"{name}-points.json", json.dumps({"proved": proved, "broken": falsified}) + "\n")
    print(
        f"\r{name}: robust error {found.robust_error[0]:.2%} to {found.robust_error[1]:.2%} of {found.points} points, "
        f"{len(open_)} undecided, {found.seconds:.0f} s"
    )
    return found


def verdicts(records: Sequence[Record]) -> str:
    """The first letter of the verdict of every point, in the order of the points."""
    return "".join(str(record.verdict)[0] for record in sorted(records, key=lambda record: record.index))


def stages(records: Sequence[Record]) -> dict[str, dict[str, int]]:
    """How many points each method proved and broke, in the order of the cascade; prediction breaks what is misclassified."""
    order = ("prediction", *(stage.name for stage in Auto().stages(2.0, single=True)))
    counts: dict[str, dict[str, int]] = {}
    for record in records:
        if record.by is not None and record.verdict != "unknown":
            one = counts.setdefault(record.by.split("(")[0], {"robust": 0, "broken": 0})
            one["robust" if record.verdict == "robust" else "broken"] += 1
    return {name: counts[name] for name in sorted(counts, key=order.index)}


def unproved(records: Sequence[Record], config: CertifyConfig) -> list[dict[str, float]]:
    """The undecided points: index, number of unstable units by CROWN, proved margin when the search stopped, and seconds."""
    net, data = load(config.model), dataset(config.data)
    found = []
    for record in records:
        if record.verdict == "unknown":
            x = data.x_test[record.index : record.index + 1].to(net.dtype)
            units = bounds(net, x, Ball(config.norm, config.radius), "crown").unstable()
            count = sum(int(one.sum()) for one in units.values())
            found.append({"index": record.index, "unstable": count, "bound": record.margin, "seconds": record.seconds})
    return found


def union() -> tuple[float, float] | None:
    """Lower and upper bound of the robust error over the balls of all three norms together."""
    return union_error([RESULTS / f"{name}-points.json" for name in UNION], CASES[UNION[0]].points)


def page() -> str:
    """The summaries of all cases that were decided as Markdown."""
    cases = []
    for name, case in CASES.items():
        file = RESULTS / f"{name}.json"
        if file.exists():
            cases.append(
                VerifiedCase(
                    name=name, network=case.model, data=case.data, p=case.p, eps=case.eps, timeout=case.timeout,
                    published=case.stated, own=case.own, twin=name.removesuffix(SINGLE), summary=json.loads(file.read_text()),
                )
            )  # fmt: skip
    ends = union()
    return report.page(
        cases,
        None if ends is None else Union(lower=ends[0], upper=ends[1], published=STATED_UNION),
        Path(PAGE.stem) / PLOT if (RESULTS / PLOT).exists() else None,
    )


def main(arguments: list[str]) -> None:
    """Decide the named cases, or all of them, and write the page."""
    if not arguments or not Path(arguments[0]).is_dir() or not set(arguments[1:]) <= set(CASES):
        raise InvalidInput(
            f"usage: FOLDER [NAME ...], where NAME is one of {', '.join(CASES)}, got {' '.join(arguments)!r}"
        )
    for name in arguments[1:] or CASES:
        decided(name, Path(arguments[0]))
        write_atomically(PAGE, page())


if __name__ == "__main__":
    main(sys.argv[1:])
