"""The share of lines that the last `make test` ran, folder by folder, or file by file with the lines that it did not run.

python scripts/coverage.py          a line for each folder
python scripts/coverage.py --files  a line for each file with lines that no test ran

`make test` writes the counts to `.coverage.json`. Lines that only processes started by a test run are not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COUNTS = ROOT / ".coverage.json"
PACKAGE = Path("src") / "relucert"


def spans(lines: list[int]) -> str:
    """Numbers of lines as spans.

    >>> spans([3, 4, 5, 9])
    '3-5, 9'
    """
    runs = [
        [line for _, line in run] for _, run in groupby(enumerate(sorted(lines)), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser()
    options.add_argument("--files", action="store_true")
    given = options.parse_args()
    if not COUNTS.is_file():
        sys.exit(f"{COUNTS.name} must be written by `make test` first, got no such file")
    files = json.loads(COUNTS.read_text())["files"]
    folders: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, found in sorted(files.items()):
        ran, missing = len(found["executed_lines"]), found["missing_lines"]
        inside = Path(name).relative_to(PACKAGE)
        if given.files and missing:
            print(f"{100 * ran / (ran + len(missing)):5.1f} %  {inside}: {spans(missing)}")
        for group in (inside.parts[0] if len(inside.parts) > 1 else "relucert", "all"):
            folders[group][0] += ran
            folders[group][1] += ran + len(missing)
    if not given.files:
        print("lines of src/relucert that the tests ran:")
        total = folders.pop("all")
        for group, (ran, lines) in [*sorted(folders.items()), ("all", total)]:
            print(f"  {group:<13} {100 * ran / max(1, lines):5.1f} %  of {lines}")


if __name__ == "__main__":
    main()
