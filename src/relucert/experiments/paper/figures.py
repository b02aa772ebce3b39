"""The paper's figures of networks: regions of toy networks and on a plane of images, the theorem, gradients and filters."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relucert.data import dataset
from relucert.experiments.paper.experiment import Effort, Experiment, Files, no_steps
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.planes import image_plane_arrays
from relucert.experiments.paper.toy import SCHEMES, theorem_arrays, toy_arrays, toy_network
from relucert.experiments.paper.visible import chosen_images, filters, input_gradients
from relucert.interop.loading import load
from relucert.records.atomic import write_atomically
from relucert.reports.figures.arrays import Arrays, read_arrays
from relucert.reports.figures.drawing import picture_files
from relucert.reports.figures.filters import filters_figure
from relucert.reports.figures.gradients import gradients_figure
from relucert.reports.figures.regions import RegionsOnPlane, regions_figure
from relucert.reports.figures.theorem import Case, theorem_figure
from relucert.reports.paper.measured import MeasuredNetwork
from relucert.reports.paper.tables import label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = ("plain", "at", "kw", "mmr", "mmr+at")
COLOUR_DATA = ("gts", "cifar10")
PLANES = tuple(PaperNetwork(data="mnist", model="fc1", scheme=scheme, p=math.inf) for scheme in ("plain", "mmr"))
CONVOLUTIONAL = tuple(
    PaperNetwork(data=data, model="cnn", scheme=scheme, p=math.inf)
    for data in ("mnist", *COLOUR_DATA)
    for scheme in ROWS
)


def arrays(folders: Mapping[str, Path], out: Path, effort: Effort) -> None:
    """Write an .npz file for every figure of which the networks are there: `out` has them by the names of the figures."""
    toys = {scheme: toy_network(scheme, out, effort.quick) for scheme in SCHEMES}
    _write(out, "toy", {scheme: toy_arrays(net) for scheme, net in toys.items()})
    _write(out, "theorem", {"mmr": theorem_arrays(toys["mmr"])})
    planes, convolutional = _trained(PLANES, folders), _trained(CONVOLUTIONAL, folders)
    for name in dict.fromkeys(network.data for network in (*planes, *convolutional)):
        data = dataset(name)
        found = {one.scheme: image_plane_arrays(load(folders[one.name]), data) for one in planes if one.data == name}
        if found:
            _write(out, f"plane-{name}", found)
        nets = {one.scheme: load(folders[one.name]) for one in convolutional if one.data == name}
        if nets:
            gradients = {scheme: {"gradient": input_gradients(net, data)} for scheme, net in nets.items()}
            _write(
                out, f"gradients-{name}", {"image": {"image": data.x_test[chosen_images(data)].numpy()}, **gradients}
            )
            weights = {scheme: dict(zip("12", filters(net), strict=True)) for scheme, net in nets.items()}
            _write(out, f"filters-{name}", weights)


def _trained(networks: Sequence[PaperNetwork], folders: Mapping[str, Path]) -> list[PaperNetwork]:
    """Those of some networks, on their data and on the digits, whose runs are there."""
    both = {one.name: one for network in networks for one in (network, network.on_digits())}
    return [one for name, one in both.items() if name in folders]


def _write(out: Path, name: str, groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """One file with the arrays of every network, under the name of its scheme."""
    raw = io.BytesIO()
    flat: dict[str, Any] = {f"{group}/{key}": value for group, own in groups.items() for key, value in own.items()}
    np.savez_compressed(raw, **flat)
    write_atomically(out / f"{name}.npz", raw.getvalue())


def report(networks: Sequence[MeasuredNetwork], out: Path) -> Files:
    """The figures of all arrays that are there."""
    files: Files = {}
    for file in sorted((out / "arrays").glob("*.npz")):
        kind = file.stem.partition("-")[0]
        files |= picture_files(f"figure-{file.stem}", DRAWINGS[kind](read_arrays(file)))
    return files


def _regions(found: Mapping[str, Arrays]) -> Figure:
    return regions_figure([RegionsOnPlane.of(label(scheme), own) for scheme, own in found.items()])


def _theorem(found: Mapping[str, Arrays]) -> Figure:
    own = found["mmr"]
    names = ("point", "region", "on_region", "on_decision", "hyperplane", "decisions")
    return theorem_figure([
        Case(
            **{name: own[f"{name}{number}"] for name in names}, d_b=float(own[f"d_b{number}"]),
            d_d=float(own[f"d_d{number}"]),
        )
        for number in (0, 1)
    ])  # fmt: skip


def _gradients(found: Mapping[str, Arrays]) -> Figure:
    rows = {label(scheme): own["gradient"] for scheme, own in found.items() if scheme != "image"}
    return gradients_figure(found["image"]["image"], rows)


def _filters(found: Mapping[str, Arrays]) -> Figure:
    first, second = ({label(scheme): own[key] for scheme, own in found.items()} for key in "12")
    return filters_figure(first, second)


DRAWINGS = {"toy": _regions, "plane": _regions, "theorem": _theorem, "gradients": _gradients, "filters": _filters}

EXPERIMENT = Experiment(
    name="figures",
    title="Figures: toy regions, plane through three images, cases of the theorem, gradients and filters",
    networks=(*PLANES, *CONVOLUTIONAL),
    hours="days on one core for all 17 networks, most of them those of table1; minutes where they are trained",
    steps=no_steps,
    report=report,
    arrays=arrays,
)
