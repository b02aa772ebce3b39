"""Small archives in the official layouts, and specs that accept them as the official ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from relucert.data import SPECS, Archive, Spec

Arrays = dict[str, np.ndarray]


def random_arrays(name: str, *, train: int, test: int, seed: int = 0) -> Arrays:
    """Arrays as NAME.npz holds them, with every class in both splits if there are enough examples."""
    rng = np.random.default_rng(seed)
    channels, height, width = SPECS[name].input_shape
    tail = (height, width) if channels == 1 else (height, width, channels)
    arrays = {}
    for split, count in (("train", train), ("test", test)):
        arrays[f"x_{split}"] = rng.integers(0, 256, (count, *tail), np.uint8)
        arrays[f"y_{split}"] = np.arange(count, dtype=np.int64) % SPECS[name].classes
    return arrays


def archive(path: Path, *urls: str) -> Archive:
    """A file as if it were the official one."""
    content = path.read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Archive(file=path.name, size=len(content), digest=digest, urls=urls)


def small_spec(name: str, files: Mapping[str, Path], arrays: Arrays, address: str = "http://127.0.0.1:9/") -> Spec:
    """The data set's spec with the counts of `arrays` and `files` as its archives, to be had below `address`."""
    return replace(
        SPECS[name],
        train=len(arrays["y_train"]),
        test=len(arrays["y_test"]),
        archives=tuple(archive(path, address + path.name) for path in files.values()),
    )


def write_idx(folder: Path, arrays: Arrays) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        for kind, stem in (("x", "images-idx3"), ("y", "labels-idx1")):
            array = arrays[f"{kind}_{split}"].astype(np.uint8)
            path = folder / f"{prefix}-{stem}-ubyte.gz"
            header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
            path.write_bytes(gzip.compress(header + array.tobytes(), 1))
            files[path.name] = path
    return files


class _Python2(pickle._Pickler):
    """Pickle text and bytes as Python 2 strings, as in the official batches."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value: str | bytes) -> None:
        content = value.encode("ascii") if isinstance(value, str) else value
        if len(content) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(content)]) + content)
        else:
            self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(content: object) -> bytes:
    """A pickle as Python 2 with an old numpy wrote them."""
    out = io.BytesIO()
    _Python2(out, protocol=2).dump(content)
    return out.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar_pickle(images: np.ndarray, labels: np.ndarray) -> bytes:
    """One batch."""
    rows = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), 3072)
    names = [f"image_{row}.png" for row in range(len(images))]
    return python2_pickle({"data": rows, "labels": labels.tolist(), "batch_label": "a batch", "filenames": names})


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def cifar_members(arrays: Arrays) -> dict[str, bytes]:
    """The archive's members: five batches of equal size, the test batch, and two unused members."""
    members = {"cifar-10-batches-py/readme.html": b"<html>", "cifar-10-batches-py/batches.meta": b"not read"}
    fifths = zip(np.split(arrays["x_train"], 5), np.split(arrays["y_train"], 5), strict=True)
    for number, (x, y) in reversed(list(enumerate(fifths, start=1))):
        members[f"cifar-10-batches-py/data_batch_{number}"] = cifar_pickle(x, y)
    members["cifar-10-batches-py/test_batch"] = cifar_pickle(arrays["x_test"], arrays["y_test"])
    return members


def write_cifar(folder: Path, arrays: Arrays) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cifar-10-python.tar.gz"
    write_tar(path, cifar_members(arrays))
    return {path.name: path}


def ppm(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, format="PPM")
    return out.getvalue()


def table(rows: list[tuple[str, int]]) -> bytes:
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    lines += [f"{name};30;31;5;6;24;25;{label}" for name, label in rows]
    return ("\r\n".join(lines) + "\r\n").encode()


def gts_members(images: Mapping[str, list[np.ndarray]], labels: Mapping[str, list[int]]) -> dict[str, dict[str, bytes]]:
    """The members of the three archives; training images must be ordered by class."""
    training: dict[str, bytes] = {}
    for label in range(43):
        folder = f"GTSRB/Final_Training/Images/{label:05d}/"
        own = [image for image, of in zip(images["train"], labels["train"], strict=True) if of == label]
        names = [f"00000_{number:05d}.ppm" for number in range(len(own))]
        training |= {folder + name: ppm(image) for name, image in zip(names, own, strict=True)}
        training[f"{folder}GT-{label:05d}.csv"] = table([(name, label) for name in names])
    names = [f"{number:05d}.ppm" for number in range(len(images["test"]))]
    test = {f"GTSRB/Final_Test/Images/{n}": ppm(image) for n, image in zip(names, images["test"], strict=True)}
    return {
        # The official archives list their members in no useful order, and hold a readme.
        "GTSRB_Final_Training_Images.zip": {"GTSRB/Readme-Images.txt": b"hello"} | dict(reversed(training.items())),
        "GTSRB_Final_Test_Images.zip": dict(reversed(test.items())),
        "GTSRB_Final_Test_GT.zip": {"GT-final_test.csv": table(list(zip(names, labels["test"], strict=True)))},
    }


def write_zips(folder: Path, archives: Mapping[str, Mapping[str, bytes]]) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in archives.items():
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as file:
            for member, content in members.items():
                file.writestr(member, content)
    return {name: folder / name for name in archives}


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path
