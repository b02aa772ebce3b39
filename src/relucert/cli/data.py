"""`relucert data list | fetch | info`: list, download and describe data sets."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from relucert.core.errors import RelucertError
from relucert.data.folder import VARIABLE, data_folder, locate, npz_path
from relucert.data.specs import SPECS, Name, spec_of

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class List:
    """List the data sets and where each is found."""

    folder: Path | None = None
    """Data folder; by default $RELUCERT_DATA, else the user's cache folder."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Make NAME.npz from the official archives in the data folder, or download them."""

    names: tyro.conf.Positional[tuple[Name, ...]] = ()
    """Data sets to fetch; by default all."""
    folder: Path | None = None
    """Data folder; by default $RELUCERT_DATA, else the user's cache folder."""
    json: bool = False
    """Print JSON instead of text."""


@dataclass(frozen=True, kw_only=True)
class Info:
    """Show a data set's counts, classes, mean and standard deviation; it is fetched if it is missing."""

    name: tyro.conf.Positional[Name]
    """Data set to describe."""
    folder: Path | None = None
    """Data folder; by default $RELUCERT_DATA, else the user's cache folder."""
    json: bool = False
    """Print JSON instead of tables."""


Data = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Fetch, tyro.conf.subcommand("fetch")]
    | Annotated[Info, tyro.conf.subcommand("info")]
)


def run(config: List | Fetch | Info) -> int:
    """Run one of the three commands; return the exit code."""
    if isinstance(config, List):
        return _list(config)
    if isinstance(config, Fetch):
        return _fetch(config)
    return _info(config)


def _print(*lines: str | Table, error: bool = False) -> None:
    """Print text without wrapping and markup, and tables with rich."""
    from rich.console import Console

    console = Console(stderr=error)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str), markup=False, highlight=False)


def _print_json(content: Any) -> None:
    print(json_format.dumps(content, indent=2))


def _list(config: List) -> int:
    rows = []
    for spec in SPECS.values():
        place = locate(spec.name, config.folder)
        rows.append(
            {
                "name": spec.name,
                "title": spec.title,
                "input_shape": spec.input_shape,
                "classes": spec.classes,
                "train": spec.train,
                "test": spec.test,
                "found": place.kind,
                "files": [str(path) for path in place.files],
            }
        )
    if config.json:
        _print_json({"folder": str(data_folder(config.folder)), "datasets": rows})
        return 0
    from rich.table import Table

    from relucert.cli._next import next_line
    from relucert.cli._text import say

    table = Table("name", "shape", "classes", "train", "test", "found")
    for row in rows:
        found = row["found"]
        if found == "missing" and row["files"]:
            found = f"{len(row['files'])} of {len(SPECS[row['name']].archives)} archives"
        shape = " x ".join(map(str, row["input_shape"]))
        table.add_row(row["name"], shape, *(str(row[key]) for key in ("classes", "train", "test")), found)
    _print(table)
    say(f"data folder: {data_folder(config.folder)} (set {VARIABLE} or --folder to use another)")
    missing = [row["name"] for row in rows if row["found"] == "missing"]
    if missing:
        folder = [] if config.folder is None else ["--folder", config.folder]
        print(next_line("data", "fetch", missing[0], *folder))
    return 0


def _fetch(config: Fetch) -> int:
    from relucert.cli._next import next_fetch
    from relucert.data import fetch

    rows = []
    for name in config.names or [spec.name for spec in SPECS.values() if not spec.embedded]:
        before = locate(name, config.folder).kind
        try:
            path, fault = fetch(name, config.folder), None
        except RelucertError as error:  # continue with the other data sets
            path, fault = None, str(error)
        rows.append({"name": name, "from": before, "file": path and str(path), "error": fault})
        if config.json:
            continue
        if fault is not None:
            _print(fault, error=True)
        else:
            said = {"embedded": "comes with scikit-learn", "npz": "already there", "archives": "made from the archives"}
            _print(f"{name}: {said.get(before, 'downloaded')}{f', {path}' if path else ''}")
    if config.json:
        _print_json(rows)
    else:
        print(next_fetch([row["name"] for row in rows if row["error"] is None], config.folder))
    return 2 if any(row["error"] is not None for row in rows) else 0


def _info(config: Info) -> int:
    from relucert.data import dataset
    from relucert.data.npz import sha256

    data, spec = dataset(config.name, config.folder), spec_of(config.name)
    path = None if spec.embedded else npz_path(spec, data_folder(config.folder))
    train, test = _histogram(data.raw("y_train"), spec.classes), _histogram(data.raw("y_test"), spec.classes)
    mean, std = _moments(data.raw("x_train"), spec.levels)
    content = {
        "name": spec.name,
        "title": spec.title,
        "home": spec.home,
        "input_shape": spec.input_shape,
        "train": sum(train),
        "test": sum(test),
        "classes": [
            {"class": label, "name": name, "train": train[label], "test": test[label]}
            for label, name in enumerate(spec.class_names)
        ],
        "mean": mean,
        "std": std,
        "file": path and str(path),
        "sha256": path and sha256(path),
    }
    if config.json:
        _print_json(content)
        return 0
    from rich.table import Table

    table = Table("class", "name", "train", "test")
    for row in content["classes"]:
        table.add_row(*map(str, row.values()))
    table.add_section()
    table.add_row("", "all", str(content["train"]), str(content["test"]))
    _print(
        f"{spec.name}: {spec.title}, {' x '.join(map(str, spec.input_shape))} ({spec.home})",
        table,
        f"training pixels in [0, 1], by channel: mean {_numbers(mean)}, standard deviation {_numbers(std)}",
        f"file: {content['file'] or 'embedded in scikit-learn'}",
        *([f"sha256: {content['sha256']}"] if path else []),
    )
    return 0


def _histogram(labels: np.ndarray, classes: int) -> list[int]:
    import numpy as np

    return np.bincount(labels, minlength=classes).tolist()


def _moments(images: np.ndarray, levels: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of every channel from a histogram of bytes, exact up to the last division."""
    import numpy as np

    planes = images[..., None] if images.ndim == 3 else images
    counts = np.stack([np.bincount(planes[..., c].ravel(), minlength=256) for c in range(planes.shape[-1])])
    values = np.arange(256) / levels
    mean = counts @ values / counts.sum(1)
    std = np.sqrt((counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1))
    return mean.tolist(), std.tolist()


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


CONFIG = Data
EXAMPLES = ("relucert data list", "relucert data info mnist")
