"""Data of one's own: a folder of images, arrays in .npz or .npy files, or a table of features in a CSV file.

| source | examples | labels |
|---|---|---|
| folder | PNG, JPEG, BMP or PPM images | the subfolder of the image, or the table `labels.csv` (file, label) |
| `FILE.npz` | array `x`, or `x_test` and `x_train` | array `y`, or `y_test` and `y_train` |
| `X.npy,Y.npy` | the first file | the second file |
| `FILE.csv` | all columns but one, as numbers | the column `label`, `class`, `target` or `y`, else the last one |

Everything is test data, unless a folder has the subfolders `train` and `test`, or a .npz file the arrays of both. Classes are
numbered in the order of their names; names that are whole numbers are the numbers of the classes. Pixels become numbers in
[0, 1] and have that box; other numbers are taken as they are, in float32, and have a box only if they are images in [0, 1].
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from relucert.core.errors import DamagedData, InvalidInput, MissingData
from relucert.data._images import Dataset
from relucert.data._npy import read_array
from relucert.data._progress import progress
from relucert.data._zipped import member_info, open_zip
from relucert.data.specs import Spec
from relucert.records.atomic import file_access
from relucert.records.untrusted import reading

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "PPM")
LABELS = "labels.csv"
LABEL_COLUMNS = ("label", "class", "target", "y")
FILE_COLUMNS = ("file", "filename", "image", "path")
LARGEST_TABLE = 2**30  # bytes
LARGEST_ARRAY = 2**32  # bytes
LARGEST_IMAGE = 2**26  # bytes, and pixels
_REMEDY = "correct the file, or make it again"
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Split:
    """Examples (N, ...) as uint8 images (N, H, W[, C]) or float32 numbers (N, *input), and the name of the class of each.

    `columns`: the names of features, where a table has them.
    """

    x: np.ndarray
    labels: Sequence[str]
    columns: tuple[str, ...] = ()


def is_own(source: str) -> bool:
    """Whether a text names files of one's own rather than a published data set.

    >>> [is_own(text) for text in ("mnist", "photos/cats", "x.npz", "a.npy,b.npy")]
    [False, True, True, True]
    """
    return bool(source) and (
        "/" in source or "\\" in source or Path(source).suffix in (".npz", ".npy", ".csv") or Path(source).is_dir()
    )


def own_data(source: str | Path, input_shape: Shape | None = None) -> Dataset:
    """The data in a folder or file of one's own; see the head of this module for what it may be.

    With `input_shape` (channels, height, width) images are converted to so many channels and resized (bilinear); numbers are
    reshaped. Without it all images must have one size and be grey or RGB.
    """
    files = [Path(part).expanduser() for part in str(source).split(",")]
    with reading(files[0], _REMEDY):
        return _read(source, files, input_shape)


def _read(source: str | Path, files: list[Path], input_shape: Shape | None) -> Dataset:
    """The data in a folder or in one or two files."""
    for file in files:
        if not file.exists():
            raise MissingData(f"data must be a folder or file that exists, got {file}")
    if len(files) > 2 or (len(files) == 2) != (files[0].suffix == ".npy"):
        raise InvalidInput(f"data must be a folder, FILE.npz, FILE.csv or X.npy,Y.npy, got {source}")
    if files[0].is_dir():
        splits = _folder(files[0], input_shape)
    elif files[0].suffix == ".npz":
        splits = _npz(files[0], input_shape)
    elif files[0].suffix == ".npy":
        splits = {"test": _arrays(files[0], _npy(files[0]), _npy(files[1]), input_shape)}
    elif files[0].suffix == ".csv":
        splits = {"test": _table(files[0], input_shape)}
    else:
        raise InvalidInput(f"data must be a folder, FILE.npz, FILE.csv or X.npy,Y.npy, got {source}")
    return _dataset(files[0], splits)


def _dataset(path: Path, splits: dict[str, _Split]) -> Dataset:
    """The data set of examples that were read, with its classes numbered."""
    shapes = {_input_shape(split.x) for split in splits.values()}
    if len(shapes) > 1:
        raise DamagedData(f"{path}: train and test must have inputs of one shape, got {sorted(shapes)}")
    names = _class_names({label for split in splits.values() for label in split.labels})
    number = {name: index for index, name in enumerate(names)}
    arrays = {f"x_{name}": split.x for name, split in splits.items()}
    for name, split in splits.items():
        arrays[f"y_{name}"] = np.array([number[_plain(label)] for label in split.labels], np.int64)
    shape = shapes.pop()
    spec = Spec(
        name=path.resolve().name, title=f"own data in {path.name}", home="", input_shape=shape, class_names=names,
        train=len(arrays.get("y_train", ())), test=len(arrays["y_test"]), own=True,
        box=(0.0, 1.0) if _in_pixels(arrays, shape) else None, columns=next(iter(splits.values())).columns,
    )  # fmt: skip

    def read(key: str) -> np.ndarray:
        if key not in arrays:
            raise MissingData(
                f"{path} must hold training data for this: subfolders train and test, or x_train, y_train"
            )
        return arrays[key]

    return Dataset(spec, read)


def _input_shape(x: np.ndarray) -> Shape:
    if x.dtype != np.uint8:
        return x.shape[1:]
    return (1, *x.shape[1:]) if x.ndim == 3 else (x.shape[3], *x.shape[1:3])


def _in_pixels(arrays: dict[str, np.ndarray], shape: Shape) -> bool:
    """Whether examples are images with values in [0, 1]."""
    x = [array for name, array in arrays.items() if name.startswith("x")]
    if x[0].dtype == np.uint8:
        return True
    return len(shape) == 3 and all(float(part.min()) >= 0 and float(part.max()) <= 1 for part in x)


def _plain(label: str) -> str:
    """A label without leading zeros where it is a whole number."""
    return str(int(label)) if label.isdecimal() else label


def _class_names(labels: set[str]) -> tuple[str, ...]:
    """The names of classes in the order of their numbers; whole numbers are the numbers themselves.

    >>> _class_names({"cat", "ant"}), _class_names({"00", "2"})
    (('ant', 'cat'), ('0', '1', '2'))
    """
    if all(label.isdecimal() for label in labels):
        most = max(int(label) for label in labels)
        if most >= 100_000:
            raise DamagedData(f"labels must be numbers of classes below 100000, got {most}", entry="labels")
        return tuple(str(label) for label in range(most + 1))
    return tuple(sorted(labels))


def _folder(path: Path, input_shape: Shape | None) -> dict[str, _Split]:
    """The images of a folder, or of its subfolders `train` and `test`."""
    if (path / "test").is_dir():
        parts = {name: path / name for name in ("train", "test") if (path / name).is_dir()}
    else:
        parts = {"test": path}
    return {name: _images(*_listed(part), part, input_shape) for name, part in parts.items()}


def _listed(path: Path) -> tuple[list[Path], list[str]]:
    """The image files of a folder and their labels, in order."""
    if (path / LABELS).is_file():
        rows = _rows(path / LABELS)
        head = [name.strip().lower() for name in rows[0]]
        file, label = (
            next((head.index(name) for name in names if name in head), None) for names in (FILE_COLUMNS, LABEL_COLUMNS)
        )
        if file is None or label is None:
            raise DamagedData(
                f"{path / LABELS} must have the columns file and label in its first line, got {', '.join(rows[0])}"
            )
        files = [path / row[file].strip() for row in rows[1:]]
        for one in files:
            if not one.resolve().is_relative_to(path.resolve()):
                raise DamagedData(f"{path / LABELS} must name files of its own folder, got {one}")
        return files, [row[label].strip() for row in rows[1:]]
    folders = sorted(part for part in path.iterdir() if part.is_dir())
    pairs = [
        (file, part.name) for part in folders for file in sorted(part.iterdir()) if file.suffix.lower() in SUFFIXES
    ]
    if not pairs:
        raise MissingData(
            f"{path} must hold images in one subfolder for each class, or beside a table {LABELS} (file,label), got neither"
        )
    return [file for file, _ in pairs], [label for _, label in pairs]


def _images(files: list[Path], labels: list[str], folder: Path, input_shape: Shape | None) -> _Split:
    """The images of files as one array."""
    if input_shape is not None and (len(input_shape) != 3 or input_shape[0] not in (1, 3)):
        raise InvalidInput(
            f"input_shape of images must be (channels, height, width) with 1 or 3 channels, got {input_shape}"
        )
    images = []
    with progress(f"reading {folder.name}", len(files)) as at:
        for file in files:
            images.append(_image(file, input_shape))
            if images[-1].shape != images[0].shape:
                raise DamagedData(
                    f"{file} must have the size and the channels of {files[0].name}, {images[0].shape}, got "
                    f"{images[-1].shape}; an input shape (--input-shape 3 32 32) converts all images"
                )
            at(len(images))
    if not images:
        raise MissingData(f"{folder} must hold at least one image, got none")
    return _Split(np.stack(images), labels)


def _image(file: Path, input_shape: Shape | None) -> np.ndarray:
    """One image as uint8 (H, W), or (H, W, 3) in RGB."""
    with file_access(file, "read"):
        if file.stat().st_size > LARGEST_IMAGE:
            raise DamagedData(f"{file} must have at most {LARGEST_IMAGE} bytes, got {file.stat().st_size}")
        content = file.read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            mode = image.mode
            if math.prod(image.size) > LARGEST_IMAGE:
                raise ValueError(f"it must have at most {LARGEST_IMAGE} pixels, got {image.size}")
            if input_shape is None:
                plain = image.convert("L") if mode == "1" else image
            elif mode.startswith(("I", "F")):
                plain = image  # refused below: conversion would cut off values above 255
            else:
                plain = image.convert("L" if input_shape[0] == 1 else "RGB")
                plain = plain.resize((input_shape[2], input_shape[1]), Image.Resampling.BILINEAR)
            pixels = np.array(plain)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DamagedData(f"{file} must be a PNG, JPEG, BMP or PPM image: {error}") from error
    if plain.mode not in ("L", "RGB") or pixels.dtype != np.uint8:
        raise DamagedData(
            f"{file} must be a grey or RGB image with 8 bits a channel, got mode {mode!r}"
            + ("" if mode.startswith(("I", "F")) else "; an input shape (--input-shape 3 32 32) converts all images")
        )
    return pixels


def _npz(path: Path, input_shape: Shape | None) -> dict[str, _Split]:
    """The arrays of a .npz file."""
    with open_zip(path, _REMEDY) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}

        def read(key: str) -> np.ndarray:
            with archive.open(member_info(archive, path, f"{key}.npy")) as file:
                return read_array(file, key, LARGEST_ARRAY)

        if {"x", "y"} <= names:
            keys = {"test": ("x", "y")}
        elif {"x_test", "y_test"} <= names:
            keys = {split: (f"x_{split}", f"y_{split}") for split in ("train", "test") if f"x_{split}" in names}
        else:
            raise DamagedData(
                f"{path} must hold the arrays x and y, or x_test and y_test, got {', '.join(sorted(names))}"
            )
        return {split: _arrays(path, read(x), read(y), input_shape) for split, (x, y) in keys.items()}


def _npy(path: Path) -> np.ndarray:
    """The array of a .npy file."""
    with file_access(path, "read"), path.open("rb") as file:
        try:
            return read_array(file, path.name, min(LARGEST_ARRAY, path.stat().st_size))
        except DamagedData as error:
            raise DamagedData(f"{path} must be an array in numpy's format: {error}", entry=path.name) from error


def _arrays(path: Path, x: np.ndarray, y: np.ndarray, input_shape: Shape | None) -> _Split:
    """Arrays of examples and labels, checked."""
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y) or len(x) == 0:
        raise DamagedData(f"{path}: y must hold one label for each example of x, got x {x.shape} and y {y.shape}")
    whole = np.issubdtype(y.dtype, np.integer)
    if not (np.issubdtype(y.dtype, np.str_) or (whole and int(y.min()) >= 0)):
        raise DamagedData(f"{path}: y must hold whole numbers from 0, or names, got {y.dtype}")
    labels = [str(label) for label in y.tolist()]
    if x.dtype == np.uint8:
        return _Split(_bytes(path, x, input_shape), labels)
    return _Split(_numbers(path, x, input_shape), labels)


def _bytes(path: Path, x: np.ndarray, input_shape: Shape | None) -> np.ndarray:
    """Arrays of bytes as images (N, H, W) or (N, H, W, 3), whether channels come first or last."""
    given = input_shape is not None and tuple(x.shape[1:]) == tuple(input_shape)
    if x.ndim == 4 and (given or (x.shape[1] in (1, 3) and x.shape[3] not in (1, 3))):
        x = x.transpose(0, 2, 3, 1)
    elif x.ndim == 2 and input_shape is not None and len(input_shape) == 3 and x.shape[1] == np.prod(input_shape):
        x = x.reshape(-1, *input_shape).transpose(0, 2, 3, 1)
    if x.ndim == 4 and x.shape[3] == 1:
        x = x[..., 0]
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3):
        raise DamagedData(
            f"{path}: bytes must be images (N, H, W), (N, H, W, 3) or (N, 3, H, W), got {x.shape}; an input shape "
            "(--input-shape 1 28 28) says how flat images are to be read"
        )
    return np.ascontiguousarray(x)


def _numbers(path: Path, x: np.ndarray, input_shape: Shape | None) -> np.ndarray:
    """Numbers of any other kind as float32 (N, *input)."""
    if not np.issubdtype(x.dtype, np.integer) and not np.issubdtype(x.dtype, np.floating):
        raise DamagedData(f"{path}: x must hold numbers, got {x.dtype}")
    with np.errstate(over="ignore"):
        plain = np.ascontiguousarray(x, np.float32)
    if not np.isfinite(plain).all():
        raise DamagedData(f"{path}: x must hold finite numbers within the range of float32")
    if input_shape is None:
        return plain
    if plain[0].size != np.prod(input_shape):
        raise InvalidInput(
            f"input_shape must have {plain[0].size} entries as the examples of {path}, got {input_shape}"
        )
    return plain.reshape(-1, *input_shape)


def _rows(path: Path) -> list[list[str]]:
    """The lines of a CSV file, all of one length."""
    with file_access(path, "read"):
        if path.stat().st_size > LARGEST_TABLE:
            raise DamagedData(f"{path} must have at most {LARGEST_TABLE} bytes, got {path.stat().st_size}")
        content = path.read_bytes()
    try:
        rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"))) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedData(f"{path} must be a table of comma-separated values: {error}") from error
    if len(rows) < 2 or len(rows[0]) < 2:
        raise DamagedData(f"{path} must have at least two lines and two columns")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise DamagedData(f"{path} line {number} must have {len(rows[0])} columns, got {len(row)}")
    return rows


def _table(path: Path, input_shape: Shape | None) -> _Split:
    """The features and labels of a CSV file, with or without names of columns in its first line."""
    rows = _rows(path)
    head = [name.strip().lower() for name in rows[0]]
    label = next((head.index(name) for name in LABEL_COLUMNS if name in head), len(head) - 1)
    named = (
        any(not _is_number(cell) for column, cell in enumerate(head) if column != label) or head[label] in LABEL_COLUMNS
    )
    features = []
    for number, row in enumerate(rows[named:], 1 + named):
        cells = [cell for column, cell in enumerate(row) if column != label]
        for cell in cells:
            if not _is_number(cell):
                raise DamagedData(f"{path} line {number} must hold numbers besides its label, got {cell!r}")
        features.append([float(cell) for cell in cells])
    labels = [row[label].strip() for row in rows[named:]]
    columns = tuple(name.strip() for column, name in enumerate(rows[0]) if column != label) if named else ()
    return _Split(_numbers(path, np.array(features), input_shape), labels, columns)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
