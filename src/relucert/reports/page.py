"""The HTML report: one file with style, script, figures and pictures inside, which needs no network.

The page is made of `assets/` (markup, style and scripts, written by hand) and one JSON document. Every figure of the page is
computed by its scripts from the intervals of the points (`intervals`), because the reader may move the radius; the table
that stands in their place without scripts is made here.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np

from relucert.core.versions import VERSION
from relucert.reports import _sprites as sprites
from relucert.reports.intervals import Point, Subject, summary

PICTURES = 11_000_000
"""Bytes that all pictures of a page may take together."""

SHOWN = 40
"""Features that are listed for inputs that are not images."""

SCRIPTS = ("figures.js", "overview.js", "point.js", "explorer.js", "page.js")


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownData:
    """A data set on a page: names of classes, and inputs by index; `why` says why there are none.

    `columns` are the names of features, where a table has them.
    """

    title: str
    class_names: Sequence[str]
    shape: tuple[int, ...] = ()
    inputs: Mapping[int, np.ndarray] = field(default_factory=dict)
    why: str = ""
    columns: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownSlice:
    """A slice around a point: class, number of the linear region, and whether it lies in the proved ball, of every cell.

    `witness` is the place of the counterexample in [0, 1]^2.
    """

    classes: np.ndarray
    regions: np.ndarray
    proved: np.ndarray
    witness: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownSubject:
    """What a page shows of a subject's points beside their intervals, by index; `notes` are sentences about what is missing."""

    witnesses: Mapping[int, np.ndarray] = field(default_factory=dict)
    logits: Mapping[int, np.ndarray] = field(default_factory=dict)
    witness_logits: Mapping[int, np.ndarray] = field(default_factory=dict)
    slices: Mapping[int, ShownSlice] = field(default_factory=dict)
    notes: Sequence[str] = ()


def page(
    title: str, subjects: Sequence[Subject], data: Mapping[str, ShownData], shown: Sequence[ShownSubject]
) -> str:  # fmt: skip
    """The text of the report of some subjects; `shown` has what is shown of each, `data` the data sets by name."""
    share = PICTURES / (len(data) + len(subjects))
    document = {
        "title": title,
        "version": VERSION,
        "data": {name: _data(one, share) for name, one in data.items()},
        "subjects": [
            _subject(subject, data[subject.data], extra, share) for subject, extra in zip(subjects, shown, strict=True)
        ],
    }
    parts = {
        "title": html.escape(title),
        "version": html.escape(VERSION),
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
        "data": _json(document),
        "table": _table(subjects),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return resources.files("relucert.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _json(document: Any) -> str:
    """JSON that may stand inside a script element: no character can end the element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(data: ShownData, share: float) -> dict[str, Any]:
    """The names of classes and the inputs of a data set."""
    found: dict[str, Any] = {"title": data.title, "classes": list(data.class_names), "kind": "none", "why": data.why}
    indices = sorted(data.inputs)
    if not indices:
        return found
    if sprites.is_image(data.shape):
        sheet, kept = _fitting(lambda part: sprites.photographs(_stack(data.inputs, part)), indices, share)
        where = {index: place for place, index in enumerate(kept)}
        return found | {"kind": "image", "channels": data.shape[0], "sheet": sheet.to_json(), "tiles": where}
    rows = {index: [_short(value) for value in data.inputs[index].ravel()[:SHOWN]] for index in indices}
    return found | {"kind": "table", "features": math.prod(data.shape), "columns": list(data.columns), "values": rows}


def _subject(subject: Subject, data: ShownData, shown: ShownSubject, share: float) -> dict[str, Any]:
    """One subject: its figures, a list for each field of its points, and what is shown of them."""
    points = subject.points
    return {
        "name": subject.name, "model": subject.model, "data": subject.data, "split": subject.split,
        "p": "inf" if math.isinf(subject.p) else subject.p, "box": subject.box, "eps": subject.eps,
        "radii": list(subject.radii), "seconds": {name: _short(value) for name, value in subject.seconds.items()},
        "searched": subject.searched, "notes": _notes(subject, shown), "points": _columns(points),
        "logits": {index: _numbers(row) for index, row in shown.logits.items()},
        "witnessLogits": {index: _numbers(row) for index, row in shown.witness_logits.items()},
        **_changes(data, shown, share), **_slices(shown),
    }  # fmt: skip


def _columns(points: Sequence[Point]) -> dict[str, list[Any]]:
    """The fields of all points, column by column; an infinite end of an interval is null."""
    finite = {name: [_short(getattr(point, name), 7) for point in points] for name in ("lower", "upper", "margin")}
    plain = ("index", "label", "prediction", "correct", "lower_by", "upper_by", "arithmetic", "reason")
    return {
        **{name: [getattr(point, name) for point in points] for name in plain},
        **finite,
        "seconds": [_short(point.seconds) for point in points],
    }


def _notes(subject: Subject, shown: ShownSubject) -> list[str]:
    notes = list(shown.notes)
    if subject.outdated:
        notes.append(f"{subject.outdated} records are about other contents of their points and are left out.")
    if not subject.searched:
        notes.append(
            f"These records answer for {'one radius' if len(subject.radii) == 1 else 'single radii'} only, so the curves are "
            "steps; `relucert radius` finds the radius of every point."
        )
    return notes


def _changes(data: ShownData, shown: ShownSubject, share: float) -> dict[str, Any]:
    """The changes from inputs to counterexamples: a sheet for images, the largest changes of features for other inputs."""
    indices = sorted(index for index in shown.witnesses if index in data.inputs)
    if not indices:
        return {}
    changes = {index: shown.witnesses[index].astype(float) - data.inputs[index] for index in indices}
    if sprites.is_image(data.shape):
        (sheet, largest), kept = _fitting(lambda part: sprites.differences(_stack(changes, part)), indices, share)
        tiles = {index: [place, _short(largest[place])] for place, index in enumerate(kept)}
        return {"differences": sheet.to_json(), "differenceTiles": tiles}
    rows = {}
    for index in indices:
        order = np.argsort(-np.abs(changes[index].ravel()), kind="stable")[:SHOWN]
        x, z = data.inputs[index].ravel(), shown.witnesses[index].ravel()
        rows[index] = [
            [int(j), _short(float(x[j]), 7), _short(float(z[j]), 7), _short(float(z[j]) - float(x[j]))] for j in order
        ]
    return {"changes": rows}


def _slices(shown: ShownSubject) -> dict[str, Any]:
    if not shown.slices:
        return {}
    views = list(shown.slices.values())
    sheet = sprites.slices(*(np.stack([getattr(v, name) for v in views]) for name in ("classes", "regions", "proved")))
    counts = [len(np.unique(view.regions)) for view in views]
    places = {
        index: {"tile": tile, "regions": counts[tile], "witness": view.witness}
        for tile, (index, view) in enumerate(shown.slices.items())
    }
    return {"sliceSheet": sheet.to_json(), "slices": places}


def _fitting(make: Any, indices: list[int], share: float) -> tuple[Any, list[int]]:
    """A sheet of as many of the first points as fit into a share of the page, by halving, and these points."""
    while True:
        made = make(indices)
        sheet = made[0] if isinstance(made, tuple) else made
        if len(sheet.address) <= share or len(indices) == 1:
            return made, indices
        indices = indices[: max(1, min(len(indices) // 2, int(len(indices) * share / len(sheet.address))))]


def _stack(arrays: Mapping[int, np.ndarray], indices: Sequence[int]) -> np.ndarray:
    return np.stack([arrays[index] for index in indices])


def _numbers(row: np.ndarray) -> list[float | None]:
    return [_short(value) for value in row.tolist()]


def _short(value: float | None, digits: int = 4) -> float | None:
    """A number with few digits, None where it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _table(subjects: Sequence[Subject]) -> str:
    """The figures of all subjects at the radii where they are judged, as rows of a table."""
    rows = []
    for subject in subjects:
        found = summary(subject)
        cells = (
            subject.name, subject.data, f"l_{subject.p:g}, {subject.eps:g}", str(found.points), f"{found.test_error:.1%}",
            f"{found.least_error:.1%} to {found.most_error:.1%}", f"{found.mean_lower:.4g}", f"{found.exact:.1%}",
            f"{found.seconds:.1f} s",
        )  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return "\n".join(rows)
