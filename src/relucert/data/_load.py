"""`dataset(name)`: read from NAME.npz, or converted from the official archives, which are downloaded if missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from relucert.core.errors import DamagedData, InvalidInput, MissingData
from relucert.data import _idx as idx
from relucert.data import cifar10, digits, gts, npz
from relucert.data._download import download, verify
from relucert.data._images import Dataset
from relucert.data._zipped import REMEDY
from relucert.data.folder import archive_path, data_folder, instructions, locate, npz_path
from relucert.data.own import is_own, own_data
from relucert.data.specs import SPECS, Spec, spec_of

READERS: Mapping[str, Callable[[Spec, Mapping[str, Path]], dict[str, np.ndarray]]] = {
    "mnist": idx.read,
    "fmnist": idx.read,
    "gts": gts.read,
    "cifar10": cifar10.read,
}


def dataset(
    name: str, folder: str | os.PathLike[str] | None = None, input_shape: tuple[int, ...] | None = None
) -> Dataset:
    """A data set by name: digits, mnist, fmnist, gts or cifar10; or data of your own by path, see `relucert.data.own`.

    `digits` is embedded. The others are read from NAME.npz in the data folder (`folder`, else $RELUCERT_DATA, else the
    user's cache folder); where it is missing it is made once, from the official archives in that folder or, if they
    are not there either, from their makers' servers. MissingData says what to do where neither works. `input_shape` is for
    data of your own: it converts images, and reshapes other numbers.

    >>> data = dataset("digits")
    >>> data.x_train.shape, data.y_train.dtype, float(data.x_train.max())
    (torch.Size([1442, 1, 8, 8]), torch.int64, 1.0)
    """
    if isinstance(name, str) and name not in SPECS and is_own(name):
        return own_data(name, input_shape)
    spec, path = spec_of(name), fetch(name, folder)
    if input_shape not in (None, spec.input_shape):
        raise InvalidInput(f"input_shape must be left out for {name}, or be {spec.input_shape}, got {input_shape}")
    return Dataset(spec, digits.arrays().__getitem__ if path is None else partial(npz.read, path, spec=spec))


def fetch(name: str, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Make sure that a valid data set is in the data folder; return the path of NAME.npz, or None if it is embedded.

    >>> fetch("digits") is None
    True
    """
    spec, where = spec_of(name), data_folder(folder)
    if spec.embedded:
        return None
    path = npz_path(spec, where)
    if locate(name, where).kind != "npz":
        _make(path, spec, where)
    try:
        npz.check(path, spec)
    except DamagedData as error:
        raise DamagedData(str(error), path=path, entry=error.entry, remedy=REMEDY) from error
    return path


def _make(path: Path, spec: Spec, folder: Path) -> None:
    """Write NAME.npz from the archives, which are kept; missing archives are downloaded."""
    files: dict[str, Path] = {}
    for archive in spec.archives:
        found = archive_path(spec, archive, folder)
        if found is not None:
            verify(archive, found)
        else:
            try:
                found = download(archive, folder / spec.name)
            except (MissingData, DamagedData) as error:
                raise type(error)(
                    f"{spec.name} is not in {folder}, and {error}\n{instructions(spec, folder)}"
                ) from error
        files[archive.file] = found
    npz.write(path, spec, READERS[spec.name](spec, files), source=files[spec.archives[0].file].parent)
