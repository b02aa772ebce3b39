"""Mutated files of every kind that relucert reads, and what must hold of them: no crash, no hang, no loss, a clear error.

    python tests/mutants.py --count 5000 --seed 0 --memory 2000     # in one process, with a limit of megabytes and a clock

A case is a number: its kind, the file and the mutation follow from it. Half of the mutations are of bytes; the others change
what a file says of itself (a field, a header, a shape) and seal the file again with checksums that fit, as a forger would.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from data.official import (
    cifar_members,
    cifar_pickle,
    gts_members,
    random_arrays,
    write_idx,
    write_npz,
    write_tar,
    write_zips,
)
from relucert.core.errors import DamagedData, FileAccessError, InvalidInput, MissingData, RecordConflict
from relucert.data import SPECS, _idx, cifar10, dataset, gts, npz
from relucert.evaluation.competition import read_instances, read_results
from relucert.interop.loading import load
from relucert.interop.vnnlib.reading import load_vnnlib
from relucert.networks.checkpoints import _digest, digest, read_tensors, save
from relucert.records import _sidecar, record
from relucert.records.record import Record, ball_fields
from relucert.records.store import RecordStore
from relucert.reports.figures.arrays import read_arrays
from relucert.reports.paper.measured import MeasuredNetwork
from relucert.sweeps.journal import read_trials
from zoo import network

SECONDS = 20  # of one case
GREY = replace(SPECS["mnist"], train=6, test=5)
SIGNS = replace(SPECS["gts"], train=4, test=3)
OBJECTS = replace(SPECS["cifar10"], train=10, test=2)
#: What a forger may write in place of any value.
VALUES: list[Any] = [
    None, True, -1, 0, 1, 3, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e308, -5.5, "", "|O", "<f8", "inf", "-inf", "nan",
    "\ud800",
    "x" * 5000, [], [[]], {}, [-1], [0, 2**62, 2**62], [2**40], [1] * 40, ["a"], {"a": 1}, "robust", "vulnerable",
    "../../outside", "/tmp/outside", "\0",
]  # fmt: skip


# Mutations.


def of_bytes(rng: random.Random, raw: bytes) -> bytes:
    """Some bytes changed, cut, moved, repeated or inserted."""
    content = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 30])):
        place = rng.randrange(len(content) + 1) if rng.random() < 0.5 else rng.randrange(min(len(content), 300) + 1)
        length = rng.choice([1, 2, 4, 8, 50, len(content)])
        part = bytes(content[place : place + length])
        kind = rng.randrange(6)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[place : place + length]
        elif kind == 2:
            content[place:place] = part
        elif kind == 3:
            content[place : place + 4] = rng.choice(
                [b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f", b"\0\0\0\x80", rng.randbytes(4)]
            )
        elif kind == 4:
            content[place:place] = rng.randbytes(rng.choice([1, 8, 100]))
        else:
            other = rng.randrange(len(content) + 1)
            content[other : other + len(part)] = part
    return bytes(content)


def of_json(rng: random.Random, value: Any) -> Any:
    """A value somewhere in JSON replaced, removed or added."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        if rng.random() < 0.15:
            return {key: part for key, part in value.items() if key != name}
        if rng.random() < 0.1:
            return value | {"more": rng.choice(VALUES)}
        return value | {name: of_json(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], of_json(rng, value[place]), *value[place + 1 :]]
    if rng.random() < 0.05:
        for _ in range(rng.choice([20, 500])):
            value = [value]
        return value
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice([-1, 1, 7, 10**6, 10**12])
    return rng.choice(VALUES)


def text_of(rng: random.Random, value: Any) -> str:
    """JSON, sometimes with a name that occurs twice, too deep, or not strict."""
    text = json.dumps(value)
    kind = rng.randrange(12)
    if kind == 0 and text.startswith("{"):
        return '{"name":1,"name":2,' + text[1:]
    if kind == 1:
        return "[" * rng.choice([30, 5000]) + text
    return text.replace("1", rng.choice(["NaN", "1e999", "9" * 5000]), 1) if kind == 2 else text


# Files of every kind: each function writes one into a folder and returns what reads it.

Reader = Callable[[], Any]


def outcome(rng: random.Random, number: int, folder: Path) -> str:
    """Make case `number` in a folder and read it: "read", or the name of the error, which must be clear."""
    try:
        KINDS[list(KINDS)[number % len(KINDS)]](rng, folder)()
    except (DamagedData, RecordConflict, InvalidInput, MissingData, FileAccessError) as error:
        fault = unclear(error, folder)
        if fault:
            raise AssertionError(f"{fault}: {error}") from error
        return type(error).__name__
    return "read"


def unclear(error: Exception, folder: Path) -> str:
    """What a message lacks: the path, the entry or a remedy; "" if nothing."""
    text = str(error)
    if len(text) > 2000:
        return f"a message of {len(text)} characters"
    if str(folder) not in text:
        return "no path"
    if isinstance(error, DamagedData):
        if error.path is None or error.path not in text:
            return "no path"
        return "" if error.remedy and error.remedy in text else "no remedy"
    if isinstance(error, MissingData | FileAccessError):
        return ""
    # A conflict names both lines; a line of another version says which.
    return "" if isinstance(error, RecordConflict) or "schema must be at most" in text else "not a file's fault"


@cache
def store_files() -> dict[str, bytes]:
    """The two files of a small store."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.jsonl"
        facts: list[dict[str, Any]] = [
            {"verdict": "robust", "margin": 0.5, "executed": 0.4, "arithmetic": "executed", "label": 1, "prediction": 1},
            {"verdict": "vulnerable", "upper": 0.25, "margin": -1}, {"verdict": "unknown", "reason": "time"},
            {"lower": 0.1, "upper": 0.3}, {"verdict": "misclassified", "label": 1, "prediction": 2},
        ]  # fmt: skip
        with RecordStore(path, writable=True) as store:
            for index, fact in enumerate(facts):
                arrays = (
                    {"witness": np.full((2, 3), index, np.float32), "mask": np.array([True])} if "upper" in fact else {}
                )
                store.append(example(index, **fact), arrays)
        return {part.name: part.read_bytes() for part in Path(name).iterdir()}


def example(index: int, **facts: Any) -> Record:
    content = hashlib.sha256(bytes([index])).hexdigest()
    ball = ball_fields(2, 0.25, (0, 1))
    return Record(
        model="5f", data="digits", split="test", index=index, ball=ball, method="ibp", content=content, **facts
    )


def resealed_line(rng: random.Random, line: str) -> str:
    fields = json.loads(line)
    del fields["check"]
    changed = of_json(rng, fields)
    if isinstance(changed, dict) and rng.random() < 0.7:  # with the key that belongs to the new fields, if there is one
        plain = {name: value for name, value in changed.items() if name not in ("schema", "key")}
        with suppress(Exception):
            changed["key"] = Record(**plain).key
    body = text_of(rng, changed).removesuffix("}")
    return f'{body},"check":"{record._check(body)}"}}'


def resealed_chunk(rng: random.Random, raw: bytes) -> bytes:
    """The file of arrays with one header changed."""
    starts = [found.start() for found in re.finditer(_sidecar.MAGIC, raw)]
    start = rng.choice(starts)
    (length,) = struct.unpack_from("<I", raw, start + 8)
    header = text_of(rng, of_json(rng, json.loads(raw[start + 20 : start + 20 + length]))).encode("utf-8", "replace")
    said = len(header) if rng.random() < 0.9 else rng.choice([0, 2**31, 2**32 - 1, length + 100])
    lead = _sidecar.MAGIC + struct.pack("<II", said, zlib.crc32(header))
    return raw[:start] + lead + struct.pack("<I", zlib.crc32(lead)) + header + raw[start + 20 + length :]


def store(rng: random.Random, folder: Path) -> Reader:
    contents = dict(store_files())
    which = rng.choice(["a.jsonl", "a.arrays"])
    if rng.random() < 0.5:
        contents[which] = of_bytes(rng, contents[which])
    elif which == "a.arrays":
        contents[which] = resealed_chunk(rng, contents[which])
    else:
        lines = contents[which].decode().splitlines()
        place = rng.randrange(len(lines))
        lines[place] = resealed_line(rng, lines[place])
        contents[which] = ("\n".join(lines) + "\n").encode("utf-8", "replace")
    for name, raw in contents.items():
        (folder / name).write_bytes(raw)

    def read() -> None:
        seen: list[Record] = []
        arrays: dict[tuple[str, str], bytes] = {}
        try:
            found = RecordStore(folder / "a.jsonl")
            seen = list(found.records())
            for one in seen:
                for name in one.arrays if one.key in found else ():
                    arrays[one.key, name] = found.array(one.key, name).tobytes()
        finally:
            try:
                with RecordStore(folder / "a.jsonl", writable=True) as again:
                    again.append(example(99), {"image": np.zeros(3)})
            except (DamagedData, InvalidInput, RecordConflict):
                assert {part.name: part.read_bytes() for part in folder.iterdir()} == contents, (
                    "a refused file was changed"
                )
            else:
                after = RecordStore(folder / "a.jsonl")
                assert set(after.records()) >= set(seen), "records were lost"
                assert all(after.array(*name).tobytes() == raw for name, raw in arrays.items()), "arrays were lost"

    return read


@cache
def checkpoint_bytes(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save(network(name), Path(folder) / "net.safetensors", {"epochs": [1, {"a": 2}]})
        return (Path(folder) / "net.safetensors").read_bytes()


def checkpoint(rng: random.Random, folder: Path) -> Reader:
    raw = checkpoint_bytes(rng.choice(["fc", "cnn", "max pool", "residual", "leaky", "grouped"]))
    path = folder / "net.safetensors"
    path.write_bytes(raw)
    if rng.random() < 0.4:
        whole = digest(load(path))
        path.write_bytes(of_bytes(rng, raw))

        def read() -> None:
            assert digest(load(path)) == whole, "another network was read from changed bytes"

        return read
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    said = header["__metadata__"]
    if rng.random() < 0.8:
        description = of_json(rng, json.loads(said["network"]))
        said["network"] = text_of(rng, description)
        with suppress(Exception):
            said["digest"] = _digest(description, read_tensors(path)[1])
    else:
        header = of_json(rng, header)
    text = text_of(rng, header).encode("utf-8", "replace") if rng.random() < 0.2 else json.dumps(header).encode()
    length = len(text) if rng.random() < 0.95 else rng.choice([0, 2**40, 2**63])
    path.write_bytes(struct.pack("<Q", length) + text + raw[8 + size :])
    return lambda: load(path)


def zipped(rng: random.Random, members: dict[str, bytes], path: Path) -> None:
    """An archive with names that lead elsewhere, members twice, bombs, or a directory that lies."""
    compression = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
    name = rng.choice(list(members))
    kind = rng.randrange(6)
    with zipfile.ZipFile(path, "w", compression) as file:
        for member, content in members.items():
            if member == name and kind == 0:
                file.writestr(
                    rng.choice(["../../outside", "/tmp/outside", "a/../../../outside", member.upper()]), content
                )
            elif member == name and kind == 1:
                file.writestr(member, content[:128] + bytes(rng.choice([2**20, 2**25])))
            else:
                file.writestr(member, of_bytes(rng, content) if member == name and kind == 2 else content)
    if kind >= 3:
        raw = bytearray(path.read_bytes())
        records = [found.start() for found in re.finditer(b"PK\1\2", raw)] or [0]
        place = rng.choice(records) + rng.choice([8, 10, 16, 20, 24, 28, 30, 32, 42])
        raw[place : place + 4] = rng.choice(
            [b"\xff\xff\xff\xff", b"\0\0\0\0", struct.pack("<I", 2**30), rng.randbytes(4)]
        )
        path.write_bytes(raw)


def npy(rng: random.Random, array: np.ndarray) -> bytes:
    """An array whose header says something else."""
    shape = rng.choice([array.shape, (10**6,) * 3, (-1,), (2**40,), (0, 2**62), (1,) * 40, array.shape[::-1], ((1,),)])
    descr = rng.choice([array.dtype.str, "|O", "<U9", "<f8", "V10", [("a", "<f8")], "|u1", "nonsense"])
    text = rng.choice([
        f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}",
        "{" * 2000, "-" * 9000 + "1", "('a'," * 500, "{'descr': '|u1', 'shape': (1,)}", "9" * 9000,
    ] if rng.random() < 0.5 else [f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"])  # fmt: skip
    header = text.encode() + b"\n"
    if rng.random() < 0.2:
        return b"\x93NUMPY\x02\x00" + struct.pack("<I", rng.choice([len(header), 2**32 - 1])) + header + array.tobytes()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array.tobytes()


def npz_file(rng: random.Random, folder: Path) -> Reader:
    arrays = random_arrays("mnist", train=GREY.train, test=GREY.test)
    path = write_npz(folder / "mnist.npz", arrays)
    same = rng.random() < 0.4
    if same:
        path.write_bytes(of_bytes(rng, path.read_bytes()))
    else:
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in file.namelist()}
        if rng.random() < 0.6:
            key = rng.choice(list(arrays))
            members[f"{key}.npy"] = npy(rng, arrays[key])
        zipped(rng, members, path)

    def read() -> None:
        npz.check(path, GREY)
        for key, array in arrays.items():
            found = npz.read(path, key, GREY)
            assert found.shape == array.shape, "another shape was read"
            assert not same or np.array_equal(found, array), "other numbers were read"

    return read


def mat_file(rng: random.Random, folder: Path) -> Reader:
    numbers = np.random.default_rng(0)
    arrays = {
        "U": numbers.random((16, 5)),
        "bU": numbers.random((1, 5)),
        "W": numbers.random((5, 3)),
        "bW": numbers.random(3),
    }
    if rng.random() < 0.3:
        arrays |= {"U": numbers.random((rng.choice([0, 7, 16]), rng.choice([0, 5, 3])))}
    path = folder / "net.mat"
    packed = rng.random() < 0.5
    savemat(path, arrays, do_compression=packed)
    raw = path.read_bytes()
    if packed and rng.random() < 0.6:
        (length,) = struct.unpack_from("<I", raw, 132)
        inner = zlib.decompress(raw[136 : 136 + length])
        again = zlib.compress(rng.choice([of_bytes(rng, inner), inner + bytes(2**24)]))
        raw = raw[:132] + struct.pack("<I", len(again)) + again + raw[136 + length :]
        path.write_bytes(raw)
    else:
        path.write_bytes(raw[:128] + of_bytes(rng, raw[128:]) if rng.random() < 0.8 else of_bytes(rng, raw))
    return lambda: load(path)


def cifar_archive(rng: random.Random, folder: Path) -> Reader:
    arrays = random_arrays("cifar10", train=OBJECTS.train, test=OBJECTS.test)
    members = cifar_members(arrays)
    path = folder / cifar10.ARCHIVE
    kind = rng.randrange(5)
    name = rng.choice([name for name in members if "batch_" in name or "test" in name])
    if kind == 0:
        raw = cifar_pickle(arrays["x_test"], arrays["y_test"])
        members[name] = rng.choice(
            [of_bytes(rng, raw), b"\x80\x04r\xff\xff\xff\x7f" + raw, b"(" * 10**5, b"cposix\nsystem\n(S'x'\ntR."]
        )
    elif kind == 1:
        members = {
            rng.choice(["../../outside", "/tmp/outside", f"../{key}"]) if key == name else key: part
            for key, part in members.items()
        }
    write_tar(path, members)
    if kind == 2:
        with tarfile.open(path, "w:gz") as tar:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = rng.choice([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE]), "/etc/passwd"
            tar.addfile(info)
            bomb = tarfile.TarInfo(rng.choice([name, "x" * 90]))
            bomb.type, bomb.size = rng.choice([tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME]), 2**25
            tar.addfile(bomb, io.BytesIO(bytes(2**25)))
    elif kind == 3:
        path.write_bytes(gzip.compress(of_bytes(rng, gzip.decompress(path.read_bytes())), 1))
    elif kind == 4:
        path.write_bytes(of_bytes(rng, path.read_bytes()))
    return lambda: cifar10.read(OBJECTS, {cifar10.ARCHIVE: path})


@cache
def signs() -> dict[str, dict[str, bytes]]:
    numbers = np.random.default_rng(0)
    images = {
        split: [numbers.integers(0, 255, (9, 8, 3), np.uint8) for _ in range(count)]
        for split, count in (("train", 4), ("test", 3))
    }
    return gts_members(images, {"train": [0, 1, 2, 42], "test": [0, 1, 2]})


def gts_archive(rng: random.Random, folder: Path) -> Reader:
    archives = {name: dict(members) for name, members in signs().items()}
    files = write_zips(folder, archives)
    name = rng.choice(list(files))
    if rng.random() < 0.5:
        picture = next((key for key in archives[name] if key.endswith("ppm")), None)
        if picture is not None and rng.random() < 0.4:
            archives[name][picture] = rng.choice(
                [b"P6\n99999 99999\n255\n", b"P4\n60000 60000\n", b"P3 1 1 255 x", b"\x89PNG\r\n"]
            )
        zipped(rng, archives[name], files[name])
    else:
        files[name].write_bytes(of_bytes(rng, files[name].read_bytes()))
    return lambda: gts.read(SIGNS, files)


def idx_archive(rng: random.Random, folder: Path) -> Reader:
    files = write_idx(folder, random_arrays("mnist", train=GREY.train, test=GREY.test))
    path = files[rng.choice(list(files))]
    raw = path.read_bytes()
    inner = gzip.decompress(raw)
    path.write_bytes(
        rng.choice([of_bytes(rng, raw), gzip.compress(of_bytes(rng, inner)), gzip.compress(inner + bytes(2**24), 1)])
    )
    return lambda: _idx.read(GREY, files)


def own_file(rng: random.Random, folder: Path) -> Reader:
    numbers = np.random.default_rng(0)
    x, y = numbers.random((4, 3), np.float32), rng.choice([np.arange(4), np.array(["a", "b", "c", "d"])])
    kind = rng.choice(["npz", "npy", "csv", "images", "labels"])
    if kind == "npz":
        path = write_npz(folder / "own.npz", {"x": x, "y": y})
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in file.namelist()}
        key = rng.choice(["x", "y"])
        members[f"{key}.npy"] = (
            npy(rng, {"x": x, "y": y}[key]) if rng.random() < 0.5 else of_bytes(rng, members[f"{key}.npy"])
        )
        zipped(rng, members, path)
        return lambda: dataset(str(path))
    if kind == "npy":
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        path = folder / rng.choice(["x.npy", "y.npy"])
        path.write_bytes(rng.choice([npy(rng, x), of_bytes(rng, path.read_bytes())]))
        return lambda: dataset(f"{folder / 'x.npy'},{folder / 'y.npy'}")
    if kind == "csv":
        text = b"a,b,label\n1,2,x\n3,4,y\n"
        (folder / "own.csv").write_bytes(
            of_bytes(rng, text) if rng.random() < 0.7 else b"1," * 10**5 + b"1\n" + b"9" * 5000
        )
        return lambda: dataset(str(folder / "own.csv"))
    (folder / "images" / "a").mkdir(parents=True)
    names = ["a/0.png", "a/1.ppm"]
    for name in names:
        Image.fromarray(numbers.integers(0, 255, (5, 4, 3), np.uint8)).save(folder / "images" / name)
    if kind == "labels":
        names.append("labels.csv")
        outside = rng.choice(["a/1.ppm", "../../outside", "/etc/passwd"])
        (folder / "images" / "labels.csv").write_text(f"file,label\na/0.png,x\n{outside},y\n")
    path = folder / "images" / rng.choice(names)
    path.write_bytes(rng.choice([of_bytes(rng, path.read_bytes()), b"P6\n99999 99999\n255\n", b"P4\n60000 60000\n"]))
    return lambda: dataset(str(folder / "images"))


def journal_file(rng: random.Random, folder: Path) -> Reader:
    lines: list[dict[str, Any]] = [
        {"kind": "trial", "number": 0, "values": {"lam": "0.5", "rate": 0.001}},
        {"kind": "figures", "number": 0, "epoch": 1, "error": 0.25, "certified_error": 0.5, "seconds": 1.5},
        {"kind": "trial", "number": 1, "values": {"lam": "1", "rate": 0.002}},
        {"kind": "end", "number": 0, "state": "done", "reason": ""},
    ]
    place = rng.randrange(len(lines))
    texts = [json.dumps(line) for line in lines]
    texts[place] = text_of(rng, of_json(rng, lines[place]))
    raw = ("\n".join(texts) + "\n").encode()
    path = folder / "trials.jsonl"
    path.write_bytes(raw if rng.random() < 0.5 else of_bytes(rng, raw))
    return lambda: read_trials(path)


def figure_file(rng: random.Random, folder: Path) -> Reader:
    """Arrays that a figure is drawn from."""
    arrays = {"plain/ends": np.arange(12.0).reshape(2, 3, 2), "mmr/number": np.array(7)}
    raw = io.BytesIO()
    np.savez_compressed(raw, **arrays)
    path = folder / "toy.npz"
    if rng.random() < 0.5:
        path.write_bytes(of_bytes(rng, raw.getvalue()))
    else:
        with zipfile.ZipFile(raw) as file:
            members = {name: file.read(name) for name in file.namelist()}
        key = rng.choice(list(arrays))
        members[f"{key}.npy"] = npy(rng, arrays[key])
        zipped(rng, members, path)
    return lambda: read_arrays(path)


def description_file(rng: random.Random, folder: Path) -> Reader:
    """The description of a network of the paper's tables."""
    known = {
        "model": "a" * 64,
        "source": "runs/x",
        "command": "relucert train",
        "epochs": 3,
        "test_error": 0.1,
        "eps": 0.1,
    }
    value = {"key": ["mnist", "fc1", "mmr", "inf"], **known}
    path = folder / "x.json"
    if rng.random() < 0.3:
        path.write_bytes(of_bytes(rng, json.dumps(value).encode()))
    else:
        path.write_text(text_of(rng, of_json(rng, value)), errors="surrogatepass")
    return lambda: MeasuredNetwork.read(path)


PROPERTY = """; a comment
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(assert (<= X_0 0.5))
(assert (>= X_0 -0.5))
(assert (or (and (<= X_1 1) (>= X_1 0.25)) (and (<= X_1 -1) (>= X_1 -2e0))))
(assert (or (and (<= Y_0 1.0) (>= (+ (* 2.5 Y_0) 0.25) 1.0)) (>= (- Y_0) 3)))
"""
PROPERTY_2 = """(vnnlib-version <2.0>)
(declare-network f
  (declare-input X float32 [1,2])
  (declare-output Y float32 [2])
)
(assert (and (<= X[0,0] 0.5) (>= X[0,0] (- 0.1)) (<= -0.01 X[0,1]) (<= X[0,1] 1.0)))
(assert (<= (+ (* X[0,0] X[0,0]) (* X[0,1] (+ X[0,1] 0.5))) 0.04))
(assert (or (<= Y[0] Y[1]) (>= (+ (* 2.0 Y[0]) (* -1.0 Y[1])) 3.25)))
"""
LIST = b"onnx,vnnlib,seconds,verdict,alpha_beta_crown_seconds\na.onnx,b.vnnlib,20,sat,6.5\nc.onnx,d.vnnlib,30,unsat,\n"
RESULTS = b"onnx,vnnlib,limit,result,seconds,by,agreed,other_seconds\na.onnx,b.vnnlib,20,sat,1.500,bab,sat,6.5\n"


def competition_file(rng: random.Random, folder: Path) -> Reader:
    """A property of either version, plain or packed, a list of instances, or results."""
    kind = rng.choice(["vnnlib", "vnnlib", "vnnlib.gz", "2.vnnlib", "list", "results"])
    path = folder / f"a.{kind}"
    if kind in ("list", "results"):
        path.write_bytes(of_bytes(rng, LIST if kind == "list" else RESULTS))
        return lambda: (read_instances if kind == "list" else read_results)(path)
    text = PROPERTY_2 if kind == "2.vnnlib" else PROPERTY
    if rng.random() < 0.5:
        tokens = list(re.finditer(r"[()\[\]]|[^\s()\[\]]+", text))
        token = rng.choice(tokens)
        new = rng.choice(
            ["", "(", ")", "]", "X_99", "1..2", "\0", "<", "Y_-1", "1e9999", "9" * 5000, "(or " * 300, "X_1", "0.5"]
        )
        text = text[: token.start()] + new + text[token.end() :]
        raw = text.encode()
    else:
        raw = of_bytes(rng, text.encode())
    if kind == "vnnlib.gz":
        raw = rng.choice([gzip.compress(raw), of_bytes(rng, gzip.compress(raw))])
    path.write_bytes(raw)
    return lambda: load_vnnlib(path)


KINDS: dict[str, Callable[[random.Random, Path], Reader]] = {
    "store": store, "checkpoint": checkpoint, "npz": npz_file, "arrays": store, "mat": mat_file, "cifar10": cifar_archive,
    "lines": store, "networks": checkpoint, "gts": gts_archive, "idx": idx_archive,
    "own": own_file, "sweep": journal_file, "figures": figure_file, "descriptions": description_file,
    "competition": competition_file,
}  # fmt: skip


def run(numbers: range, seed: int, base: Path) -> Counter[str]:
    """Make and read cases in a folder; what goes wrong is raised with the numbers of the cases."""
    counts: Counter[str] = Counter()
    faults: list[str] = []
    outside = base / "outside"
    for number in numbers:
        folder = base / "deep" / "folder"
        shutil.rmtree(base / "deep", ignore_errors=True)
        folder.mkdir(parents=True)
        rng, kind = random.Random(f"{seed} {number}"), list(KINDS)[number % len(KINDS)]
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            counts[f"{kind}: {outcome(rng, number, folder)}"] += 1
            assert not outside.exists(), "a file was written outside the folder"
        except BaseException as error:
            faults.append(f"case {number} of seed {seed} ({kind}): {type(error).__name__}: {str(error)[:500]}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    if faults:
        raise AssertionError("\n".join([f"{len(faults)} cases go wrong", *faults[:20]]))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=int, default=2000, help="megabytes beyond what the imported packages take")
    given = parser.parse_args()
    os.fsync = lambda handle: None  # type: ignore[assignment]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    store_files(), load  # what is made once
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + given.memory * 2**20,) * 2)
    with tempfile.TemporaryDirectory() as name:
        counts = run(range(given.start, given.start + given.count), given.seed, Path(name))
    print(json.dumps(dict(sorted(counts.items())), indent=1))
    print(f"largest {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
