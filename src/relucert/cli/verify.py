"""`relucert verify NET.onnx PROP.vnnlib`: can the network reach the unsafe set of a VNN-LIB file?"""

from __future__ import annotations

import json as json_format
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import tyro

from relucert.core.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Print unsat (proved), sat (with a counterexample), unknown or timeout; or run a list of instances."""

    files: tyro.conf.Positional[tuple[Path, ...]] = ()
    """The network (.onnx, .onnx.gz) and the property (.vnnlib, .vnnlib.gz)."""
    timeout: float | None = None
    """Seconds; by default 300, for a list the limit of every instance."""
    counterexample: Path | None = None
    """Where a counterexample is written; by default NET_PROP.counterexample here. For a list: a folder."""
    instances: Path | None = None
    """A list of instances, lines of onnx, vnnlib and seconds, instead of two files."""
    out: Path | None = None
    """The results of a list, a CSV file; a list that was interrupted goes on where it was."""
    workers: int = 1
    """How many instances of a list are run at a time."""
    json: bool = False
    """Print JSON: a line for every instance, and for a list one for the summary."""


CONFIG = Verify
COMMON = ("timeout", "counterexample")
EXAMPLES = (
    "relucert verify net.onnx prop.vnnlib --timeout 116",
    "relucert verify --instances list.csv --out results.csv",
)
SECONDS = 300.0


def run(config: Verify) -> int:
    """Decide an instance or a list."""
    started = time.monotonic()
    if config.instances is not None:
        return _list(config, config.instances)
    if len(config.files) != 2:
        raise InvalidInput(f"verify must have two files, NET.onnx PROP.vnnlib, or --instances, got {len(config.files)}")
    if config.out is not None:
        raise InvalidInput(f"--out must come with --instances, got {config.out}")
    from relucert.evaluation.competition import counterexample_name, counterexample_text, verify
    from relucert.records.atomic import write_atomically

    onnx, vnnlib = config.files
    answer = verify(onnx, vnnlib, SECONDS if config.timeout is None else config.timeout, started)
    where = None
    if answer.word == "sat":
        where = config.counterexample or Path(counterexample_name(onnx, vnnlib))
        write_atomically(where, counterexample_text(answer))
        print(f"relucert: the counterexample is in {where}", file=sys.stderr)
    if config.json:
        line = _line(str(onnx), str(vnnlib), answer.word, time.monotonic() - started, answer.by)
        print(json_format.dumps(line | {"nodes": answer.nodes, "counterexample": where and str(where)}))
    else:
        print(answer.word)
    return 0


def _line(onnx: str, vnnlib: str, word: str, seconds: float, by: str) -> dict[str, object]:
    """One instance as JSON."""
    return {"onnx": onnx, "vnnlib": vnnlib, "result": word, "seconds": round(seconds, 3), "by": by}


def _list(config: Verify, instances: Path) -> int:
    if config.files or config.out is None:
        raise InvalidInput("--instances must come with --out and without files, got other arguments")
    from relucert.evaluation.competition import run_instances

    if config.counterexample is not None and not config.counterexample.is_dir():
        raise InvalidInput(f"--counterexample must be a folder for a list, got {config.counterexample}")
    counts: Counter[str] = Counter()
    wrong = 0
    for result in run_instances(
        instances, config.out, workers=config.workers, most=config.timeout, counterexamples=config.counterexample
    ):
        counts[result.word] += 1
        differs = {result.word, result.instance.agreed} == {"sat", "unsat"}
        wrong += differs
        one, remark = result.instance, f", agreed is {result.instance.agreed}" if differs else ""
        if config.json:
            line = _line(one.onnx, one.vnnlib, result.word, result.seconds, result.by)
            print(json_format.dumps(line | {"agreed": one.agreed or None}), flush=True)
        else:
            print(f"{result.word} {result.seconds:.1f} s {one.onnx} {one.vnnlib}{remark}", flush=True)
    total = sum(counts.values())
    if config.json:
        summary = {"instances": total, "answers": dict(counts), "different": wrong, "results": str(config.out)}
        print(json_format.dumps({"summary": summary}))
        return 0
    words = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    print(f"{total} instances: {words}; {wrong} differ from the agreed verdict; results: {config.out}")
    return 0
