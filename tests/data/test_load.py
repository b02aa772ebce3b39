"""The order of look-up: NAME.npz, the archives, the makers' servers; and what is said when all fail."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from data.official import (
    Arrays,
    gts_members,
    random_arrays,
    small_spec,
    write_cifar,
    write_idx,
    write_npz,
    write_zips,
)
from data.servers import Server, serving, whole
from relucert.core.errors import DamagedData, FileAccessError, MissingData
from relucert.data import SPECS, dataset, fetch


def make(name: str, folder: Path) -> tuple[dict[str, Path], Arrays]:
    """Small official archives of a data set, and what they hold."""
    if name == "gts":
        arrays = random_arrays(name, train=46, test=9)
        arrays["y_train"].sort()
        images = {split: list(arrays[f"x_{split}"]) for split in ("train", "test")}
        labels = {split: arrays[f"y_{split}"].tolist() for split in ("train", "test")}
        return write_zips(folder, gts_members(images, labels)), arrays
    arrays = random_arrays(name, train=20, test=10, seed=len(name))
    return (write_cifar if name == "cifar10" else write_idx)(folder, arrays), arrays


@pytest.fixture(params=["mnist", "fmnist", "gts", "cifar10"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def official(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Path], Arrays]:
    """Small archives somewhere, and a spec that takes them for the official ones."""
    files, arrays = make(name, tmp_path / "elsewhere")
    monkeypatch.setitem(SPECS, name, small_spec(name, files, arrays))
    return files, arrays


def put(files: dict[str, Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in files.values():
        shutil.copy(path, folder)


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_is(name: str, folder: Path, arrays: Arrays) -> None:
    data = dataset(name, folder)
    for key, array in arrays.items():
        np.testing.assert_array_equal(data.raw(key), array)
    assert torch.equal(data.y_test, torch.from_numpy(arrays["y_test"]))
    assert data.x_test.shape == (len(arrays["y_test"]), *data.input_shape)


def test_archives_are_converted_once(name: str, official, tmp_path: Path) -> None:
    files, arrays = official
    folder = tmp_path / "data"
    put(files, folder / name)
    assert_is(name, folder, arrays)
    assert listing(folder) == sorted([f"{name}.npz", *(f"{name}/{file}" for file in files)])
    shutil.rmtree(folder / name)
    assert_is(name, folder, arrays)


def test_npz_comes_first(name: str, official, tmp_path: Path) -> None:
    files, arrays = official
    put(files, tmp_path / "data" / name)
    other = random_arrays(name, train=len(arrays["y_train"]), test=len(arrays["y_test"]), seed=99)
    write_npz(tmp_path / "data" / f"{name}.npz", other)
    assert_is(name, tmp_path / "data", other)


def test_variable_names_the_folder(name: str, official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, arrays = official
    put(files, tmp_path / "data" / name)
    monkeypatch.setenv("RELUCERT_DATA", str(tmp_path / "data"))
    assert fetch(name) == tmp_path / "data" / f"{name}.npz"
    np.testing.assert_array_equal(dataset(name).raw("x_train"), arrays["x_train"])


def test_archives_in_the_folder_itself(name: str, official, tmp_path: Path) -> None:
    files, arrays = official
    put(files, tmp_path / "data")
    if name == "fmnist":  # its files have MNIST's names: there they are taken for MNIST's
        with pytest.raises(MissingData, match="fmnist is not in"):
            dataset(name, tmp_path / "data")
    else:
        assert_is(name, tmp_path / "data", arrays)


def test_mnist_and_fmnist_are_not_confused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {name: make(name, tmp_path / name) for name in ("mnist", "fmnist")}
    for name, (files, arrays) in both.items():
        monkeypatch.setitem(SPECS, name, small_spec(name, files, arrays))
    for name, (_, arrays) in both.items():
        assert_is(name, tmp_path, arrays)
    put(both["fmnist"][0], tmp_path / "wrong" / "mnist")
    with pytest.raises(DamagedData, match=r"mnist/train-images-idx3-ubyte\.gz must have"):
        dataset("mnist", tmp_path / "wrong")
    assert not (tmp_path / "wrong" / "mnist.npz").exists()


def test_truncated_archive_is_named_and_nothing_is_written(name: str, official, tmp_path: Path) -> None:
    files, _ = official
    folder = tmp_path / "data"
    put(files, folder / name)
    before = listing(folder)
    last = folder / name / list(files)[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(DamagedData, match=f"{last} must have"):
        dataset(name, folder)
    assert listing(folder) == before


def test_archive_with_other_contents_is_named(name: str, official, tmp_path: Path, monkeypatch) -> None:
    """The digest is right and the counts are not: nothing is written either."""
    files, arrays = official
    more = {key: np.concatenate([array, array[-1:]]) for key, array in arrays.items()}
    monkeypatch.setitem(SPECS, name, small_spec(name, files, more))
    put(files, tmp_path / "data" / name)
    with pytest.raises(DamagedData, match=str(tmp_path / "data" / name)):
        dataset(name, tmp_path / "data")
    assert not (tmp_path / "data" / f"{name}.npz").exists()


def test_label_out_of_range_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = random_arrays("mnist", train=20, test=10)
    arrays["y_train"][3] = 10
    files = write_idx(tmp_path / "mnist", arrays)
    monkeypatch.setitem(SPECS, "mnist", small_spec("mnist", files, arrays))
    with pytest.raises(DamagedData, match=r"y_train of mnist must lie in 0..9, got 0..10"):
        dataset("mnist", tmp_path)
    assert not (tmp_path / "mnist.npz").exists()


def test_unwritable_folder_is_named(name: str, official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _ = official
    put(files, tmp_path / "data" / name)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(FileAccessError, match=f"{tmp_path / 'data'}/{name}.npz cannot be written: Permission denied"):
        dataset(name, tmp_path / "data")
    assert listing(tmp_path / "data") == sorted(f"{name}/{file}" for file in files)


def test_folder_that_cannot_exist_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileAccessError, match=f"{tmp_path / 'taken'}"):
        dataset("mnist", tmp_path / "taken" / "data")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as running:
        yield running


@pytest.fixture
def hosted(name: str, official, server: Server, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Path], Arrays]:
    """The archives can be downloaded."""
    files, arrays = official
    monkeypatch.setitem(SPECS, name, small_spec(name, files, arrays, server.address))
    server.answers |= {f"/{file}": whole(path.read_bytes()) for file, path in files.items()}
    return files, arrays


def test_missing_archives_are_downloaded_once(name: str, hosted, server: Server, tmp_path: Path) -> None:
    files, arrays = hosted
    folder = tmp_path / "data"
    assert_is(name, folder, arrays)
    assert_is(name, folder, arrays)
    assert [path for path, _ in server.prop] == [f"/{file}" for file in files]
    assert listing(folder) == sorted([f"{name}.npz", *(f"{name}/{file}" for file in files)])


def test_only_what_is_missing_is_downloaded(hosted, name: str, server: Server, tmp_path: Path) -> None:
    files, arrays = hosted
    *there, missing = files
    put({file: files[file] for file in there}, tmp_path / "data" / name)
    assert_is(name, tmp_path / "data", arrays)
    assert [path for path, _ in server.prop] == [f"/{missing}"]


def test_download_of_another_file(hosted, name: str, server: Server, tmp_path: Path) -> None:
    files, _ = hosted
    last = list(files)[-1]
    server.answers[f"/{last}"] = whole(b"<html>please log in</html>")
    with pytest.raises(DamagedData, match=f"{last} could not be downloaded: the file offered is not") as caught:
        dataset(name, tmp_path / "data")
    assert f"Put these files into {tmp_path / 'data' / name}" in str(caught.value)
    # Complete downloads are kept, so that the next attempt is shorter.
    assert listing(tmp_path / "data") == sorted(f"{name}/{file}" for file in files if file != last)


def test_without_network_the_message_says_what_to_do(name: str, official, tmp_path: Path) -> None:
    """The official small spec points to a port without a server."""
    folder = tmp_path / "data"
    with pytest.raises(MissingData) as caught:
        dataset(name, folder)
    message = str(caught.value)
    assert f"{name} is not in {folder}" in message
    assert f"Put these files into {folder / name}:" in message
    for archive in SPECS[name].archives:
        assert f"{archive.file}  from {archive.urls[0]}" in message
    assert f"{name}.npz" in message
    assert "RELUCERT_DATA" in message
    assert listing(folder) == []
    assert isinstance(caught.value, FileNotFoundError)


def test_pixels_damaged_after_the_check_are_noticed_when_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, arrays = make("mnist", tmp_path / "mnist")
    monkeypatch.setitem(SPECS, "mnist", small_spec("mnist", files, arrays))
    path = fetch("mnist", tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(arrays["x_train"].tobytes()) + 500] ^= 1
    path.write_bytes(content)
    data = dataset("mnist", tmp_path)
    assert data.x_test.shape == (10, 1, 28, 28)
    with pytest.raises(DamagedData, match=f"{path} is damaged: Bad CRC-32"):
        _ = data.x_train
