"""What a report shows of points beside their records: inputs, logits and slices of linear regions, as numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from relucert.core.errors import RelucertError
from relucert.data import SPECS, Dataset, dataset, locate
from relucert.geometry.slices.slices import Plane, slice_grid
from relucert.interop.loading import MODEL_FILE, load
from relucert.networks.checkpoints import digest
from relucert.networks.network import Network

SIDE = 72
"""Cells of a slice in each direction."""

BUDGET = 1 << 24
"""Bytes of a slice that are computed together: little enough to be used again and again without asking for memory."""

SUFFIXES = (".safetensors", ".onnx", ".onnx.gz", ".mat")
"""What the name of a network's file ends in, where records stand beside it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SliceView:
    """A square of the plane through a point (in the middle), its counterexample and another input.

    `classes`, `regions` and `norms` (the l_p distances to the point) are of SIDE x SIDE cells, row 0 at the bottom. `witness`
    is the place of the counterexample in [0, 1]^2, None without one.
    """

    classes: np.ndarray
    regions: np.ndarray
    norms: np.ndarray
    witness: tuple[float, float] | None


def networks(paths: Iterable[Path]) -> dict[str, Network]:
    """The networks beside records or at given paths, by the digest that names them in records.

    A path is a run's folder, a file of records (`NAME.records.jsonl` belongs to `NAME.safetensors`, `records.jsonl` to the
    run in its folder) or the file of a network. Where no network is found, or it cannot be read, there is none.
    """
    found = {}
    for path in paths:
        for file in _candidates(path):
            try:
                net = load(file)
            except RelucertError:
                continue
            found[digest(net)] = net
    return found


def _candidates(path: Path) -> list[Path]:
    if path.is_dir():
        return [path] if (path / MODEL_FILE).is_file() else []
    if path.suffix != ".jsonl":
        return [path] if path.is_file() else []
    stem = path.name.removesuffix(".records.jsonl")
    beside = [path.with_name(stem + suffix) for suffix in SUFFIXES] if stem != path.name else []
    run = [path.parent] if (path.parent / MODEL_FILE).is_file() else []
    return [file for file in beside if file.is_file()] + run


def local_data(name: str, input_shape: tuple[int, ...] | None = None) -> Dataset | str:
    """A data set that is on this machine, or why it is not: nothing is downloaded."""
    if name in SPECS and locate(name).kind == "missing":
        return f"the data set {name} is not on this machine; relucert data fetch {name} gets it"
    try:
        return dataset(name, input_shape=None if name in SPECS else input_shape)
    except RelucertError as error:
        return f"the data {name!r} could not be read ({error}); --data says where they are"


@torch.no_grad()
def logits(net: Network, x: np.ndarray, batch: int = 250) -> np.ndarray:
    """The logits (n, classes) of inputs (n, *input), in the network's dtype."""
    return np.concatenate([net(torch.from_numpy(part).to(net.dtype)).numpy() for part in _parts(x, batch)])


def slice_view(
    net: Network, x: np.ndarray, witness: np.ndarray | None, others: np.ndarray, p: float
) -> SliceView | None:
    """The slice of linear regions around an input; `others` are inputs of other classes, which give the second direction.

    None if no plane goes through them.
    """
    point = torch.from_numpy(x).double()
    around = [torch.from_numpy(other).double() for other in others]
    if witness is not None:
        around.insert(0, torch.from_numpy(witness).double())
    if len(around) < 2:
        return None
    try:
        plane = Plane.through(point, around[0], around[1])
    except RelucertError:
        return None
    reach = float((around[0] - point).norm()) * (1.5 if witness is not None else 0.75)
    corner = torch.full((2,), reach, dtype=torch.float64)
    plane = replace(plane, lower=-corner, upper=corner)
    grid = slice_grid(net, plane, (SIDE, SIDE), BUDGET)
    st = torch.cartesian_prod(grid.t, grid.s).flip(1)
    offsets = (plane.exact(st) - plane.origin).flatten(1)
    norms = offsets.norm(p, 1) if math.isfinite(p) else offsets.abs().amax(1)
    place = None
    if witness is not None:
        s, t = ((plane.inputs[1] + reach) / (2 * reach)).tolist()
        place = (s, t)
    return SliceView(
        classes=grid.classes.numpy(), regions=grid.regions.numpy(), norms=norms.reshape(SIDE, SIDE).numpy(), witness=place
    )  # fmt: skip


def _parts(x: np.ndarray, batch: int) -> list[np.ndarray]:
    return [x[start : start + batch] for start in range(0, len(x), batch)] or [x]
