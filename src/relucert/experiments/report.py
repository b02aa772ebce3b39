"""The report of records: one HTML file with tables, curves and every test point, from runs or files of records.

Figures come from records alone. Inputs are read from the data set that records name, if it is on this machine and its
contents are those of the records; logits and slices need the network, which is looked for beside the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from relucert.core.errors import DamagedData, InvalidInput
from relucert.evaluation.exhibits import local_data, logits, networks, slice_view
from relucert.networks.network import Network
from relucert.records.atomic import write_atomically
from relucert.records.record import Verdict, content_digest
from relucert.reports.config import ReportConfig
from relucert.reports.intervals import Point, Subject, subjects
from relucert.reports.page import ShownData, ShownSlice, ShownSubject, page
from relucert.reports.sources import named_stores

_SLACK = 1e-5  # stored distances are rounded up, and may be those of float32


def report(config: ReportConfig, callback: Callable[[int, int], None] | None = None) -> list[Subject]:
    """Write the page and return what it is about; `callback(done, total)` is called as networks are done."""
    found = subjects(named_stores(config.sources), config.eps)
    if not found:
        raise InvalidInput(f"sources must hold records, got none in {', '.join(map(str, config.sources))}")
    nets = networks([*config.sources, *config.networks])
    shapes = {subject.data: nets[subject.model].input_shape for subject in found if subject.model in nets}
    data = {
        name: _data(name, [subject for subject in found if subject.data == name], config, shapes.get(name))
        for name in dict.fromkeys(subject.data for subject in found)
    }
    shown, kept = [], []
    for number, subject in enumerate(found, 1):
        inputs = data[subject.data].inputs
        witnesses = _witnesses(subject)
        subject = _nearer(subject, inputs, witnesses)
        kept.append(subject)
        shown.append(_shown(subject, inputs, witnesses, nets.get(subject.model), config.slices))
        if callback is not None:
            callback(number, len(found))
    write_atomically(config.out, page(config.title, kept, data, shown))
    return kept


def _data(name: str, about: Sequence[Subject], config: ReportConfig, shape: tuple[int, ...] | None) -> ShownData:
    """The inputs of the points of some subjects, those whose digest is that of the records."""
    points = [point for subject in about for point in subject.points]
    classes = 1 + max((max(point.label or 0, point.prediction or 0) for point in points), default=0)
    bare = ShownData(title=name, class_names=[str(number) for number in range(classes)])
    found = local_data(config.data or name, shape)
    if isinstance(found, str):
        return replace(bare, why=found[0].upper() + found[1:] + ".")
    contents: dict[int, set[str | None]] = {}
    for point in points:
        contents.setdefault(point.index, set()).add(point.content)
    chosen = sorted(contents)[: config.pictures]
    x, labels = found.x_test.numpy(), found.y_test.tolist()
    inputs = {
        index: x[index]
        for index in chosen
        if index < len(x) and contents[index] <= {content_digest(x[index], labels[index]), None}
    }
    why = "" if len(inputs) == len(chosen) else (
        f"{len(chosen) - len(inputs)} inputs are left out: the data behind the name {config.data or name!r} are not those of "
        "the records."
    )  # fmt: skip
    return ShownData(
        title=found.spec.title,
        class_names=found.class_names,
        shape=found.input_shape,
        inputs=inputs,
        why=why,
        columns=found.spec.columns,
    )


def _witnesses(subject: Subject) -> dict[int, np.ndarray]:
    """The nearest stored counterexample of every point that has one."""
    return {
        point.index: point.witness[0].array(point.witness[1], "witness")
        for point in subject.points
        if point.witness is not None
    }


def _nearer(subject: Subject, inputs: Mapping[int, np.ndarray], witnesses: Mapping[int, np.ndarray]) -> Subject:
    """The subject with the distances of counterexamples measured, where inputs are known; verdicts have the radius alone."""
    points = []
    for point in subject.points:
        if point.index in witnesses and point.index in inputs:
            change = (witnesses[point.index].astype(np.float64) - inputs[point.index]).ravel()
            distance = float(np.linalg.norm(change, subject.p)) * (1 + 1e-12)
            if distance > point.upper * (1 + _SLACK):
                raise DamagedData(
                    f"the counterexample of {subject.name}, point {point.index}, lies at distance {distance} and not within "
                    f"{point.upper}, as its record says: run the evaluation again"
                )
            point = replace(point, upper=max(point.lower, min(point.upper, distance)))
        points.append(point)
    return replace(subject, points=tuple(points))


def _shown(
    subject: Subject, inputs: Mapping[int, np.ndarray], witnesses: Mapping[int, np.ndarray], net: Network | None,
    count: int,
) -> ShownSubject:  # fmt: skip
    """Logits and slices of a subject's points, where the network is at hand, and what is missing in sentences."""
    if net is None:
        return ShownSubject(
            witnesses=witnesses, notes=["The network was not found, so logits and slices are missing; --networks names it."]
        )  # fmt: skip
    indices = [point.index for point in subject.points if point.index in inputs]
    with_witness = [index for index in indices if index in witnesses]
    at_inputs = _logits(net, inputs, indices)
    at_witnesses = _logits(net, witnesses, with_witness)
    labels = {point.index: point.label for point in subject.points}
    same = sum(int(row.argmax()) == labels[index] for index, row in at_witnesses.items())
    notes = [f"{same} stored adversarial examples do not change the class here."] if same else []
    chosen = _chosen(subject, inputs, count)
    slices = {}
    for point in chosen:
        view = slice_view(
            net, inputs[point.index], witnesses.get(point.index), _others(point, at_inputs, inputs), subject.p
        )
        if view is not None:
            slices[point.index] = ShownSlice(
                classes=view.classes, regions=view.regions, proved=view.norms <= point.lower, witness=view.witness
            )
    return ShownSubject(
        witnesses=witnesses, logits=at_inputs, witness_logits=at_witnesses, slices=slices, notes=notes
    )  # fmt: skip


def _logits(net: Network, inputs: Mapping[int, np.ndarray], indices: Sequence[int]) -> dict[int, np.ndarray]:
    if not indices:
        return {}
    return dict(zip(indices, logits(net, np.stack([inputs[index] for index in indices])), strict=True))


def _chosen(subject: Subject, inputs: Mapping[int, np.ndarray], count: int) -> list[Point]:
    """The points whose slices are drawn: the first ones of every verdict in turn."""
    queues = {verdict: [] for verdict in (Verdict.VULNERABLE, Verdict.ROBUST, Verdict.UNKNOWN)}
    for point in subject.points:
        if point.correct and point.index in inputs:
            queues[point.verdict(subject.eps)].append(point)
    turns = max(map(len, queues.values()))
    return [queue[turn] for turn in range(turns) for queue in queues.values() if turn < len(queue)][:count]


def _others(point: Point, rows: Mapping[int, np.ndarray], inputs: Mapping[int, np.ndarray]) -> np.ndarray:
    """Two nearest inputs that the network gives other classes than this point, of two classes where there are."""
    x = inputs[point.index]
    classes = {index: int(row.argmax()) for index, row in rows.items()}
    far = [index for index, number in classes.items() if number != point.prediction]
    far.sort(key=lambda index: float(((inputs[index] - x) ** 2).sum()))
    first = far[:1]
    second = [index for index in far if classes[index] != classes[first[0]]][:1] if first else []
    found = [inputs[index] for index in (first + (second or far[1:2]))]
    return np.stack(found) if found else np.zeros((0, *x.shape), x.dtype)
