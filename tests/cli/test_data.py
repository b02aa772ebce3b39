"""`relucert data`: what it parses, prints and returns."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import tyro

from data.official import Arrays, random_arrays, small_spec, write_cifar, write_idx
from relucert.cli.data import Data, Fetch, Info, List, run
from relucert.core.errors import DamagedData, InvalidInput
from relucert.data import SPECS


def command(*args: object) -> int:
    return run(tyro.cli(Data, args=[str(arg) for arg in args]))


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arrays:
    """A small MNIST as archives in the temporary folder; nobody listens where it could be downloaded."""
    arrays = random_arrays("mnist", train=30, test=20)
    files = write_idx(tmp_path / "mnist", arrays)
    monkeypatch.setitem(SPECS, "mnist", small_spec("mnist", files, arrays))
    return arrays


@pytest.mark.parametrize(
    ("args", "config"),
    [
        (["list"], List()),
        (["list", "--json", "--folder", "here"], List(json=True, folder=Path("here"))),
        (["fetch"], Fetch()),
        (["fetch", "mnist", "gts", "--folder", "here"], Fetch(names=("mnist", "gts"), folder=Path("here"))),
        (["info", "digits", "--json"], Info(name="digits", json=True)),
    ],
)
def test_parsing(args: list[str], config: object) -> None:
    assert tyro.cli(Data, args=args) == config


@pytest.mark.parametrize("args", [["fetch", "nothing"], ["info"], ["info", "nothing"], []])
def test_parsing_refuses(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tyro.cli(Data, args=args)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("verb", ["list", "fetch", "info"])
def test_help_explains_every_flag(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tyro.cli(Data, args=[verb, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--folder" in text
    assert "RELUCERT_DATA" in text
    assert "--json" in text


def test_list(mnist: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cifar10.npz").touch()
    (tmp_path / "gts").mkdir()
    (tmp_path / "gts" / SPECS["gts"].archives[0].file).touch()
    assert command("list", "--folder", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    row = {name: next(line for line in lines if f" {name} " in line) for name in SPECS}
    assert "embedded" in row["digits"]
    assert "archives" in row["mnist"]
    assert "missing" in row["fmnist"]
    assert "1 of 3 archives" in row["gts"]
    assert "npz" in row["cifar10"]
    assert "3 x 32 x 32" in row["cifar10"]
    assert "50000" in row["cifar10"]
    assert any(str(tmp_path) in line for line in lines)


def test_list_json(mnist: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("list", "--json", "--folder", tmp_path) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(tmp_path)
    assert [row["name"] for row in found["datasets"]] == list(SPECS)
    rows = {row["name"]: row for row in found["datasets"]}
    assert rows["mnist"]["found"] == "archives"
    assert rows["mnist"]["files"] == [str(tmp_path / "mnist" / archive.file) for archive in SPECS["mnist"].archives]
    assert (rows["gts"]["classes"], rows["gts"]["train"], rows["gts"]["test"]) == (43, 39209, 12630)
    assert rows["gts"]["input_shape"] == [3, 32, 32]
    assert rows["gts"]["found"] == "missing"


def test_fetch(mnist: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mnist.npz"
    assert command("fetch", "mnist", "digits", "--folder", tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"mnist: made from the archives, {path}",
        "digits: comes with scikit-learn",
        f"next: relucert data info mnist --folder {tmp_path}",
    ]
    with np.load(path) as found:
        np.testing.assert_array_equal(found["x_test"], mnist["x_test"])
    assert command("fetch", "mnist", "--folder", tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"mnist: already there, {path}"


def test_fetch_goes_on_after_a_failure(
    mnist: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = random_arrays("cifar10", train=5, test=2)
    files = write_cifar(tmp_path / "elsewhere", arrays)
    monkeypatch.setitem(SPECS, "cifar10", small_spec("cifar10", files, arrays))
    assert command("fetch", "cifar10", "mnist", "--folder", tmp_path) == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == f"mnist: made from the archives, {tmp_path / 'mnist.npz'}"
    assert f"cifar10 is not in {tmp_path}" in said.err
    assert "cifar-10-python.tar.gz  from http://127.0.0.1:9/cifar-10-python.tar.gz" in said.err


def test_fetch_json(mnist: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("fetch", "mnist", "--json", "--folder", tmp_path) == 0
    path = tmp_path / "mnist.npz"
    assert json.loads(capsys.readouterr().out) == [
        {"name": "mnist", "from": "archives", "file": str(path), "error": None}
    ]
    path.write_bytes(b"damaged")
    assert command("fetch", "mnist", "--json", "--folder", tmp_path) == 2
    said = capsys.readouterr()
    (row,) = json.loads(said.out)
    assert (row["name"], row["from"], row["file"]) == ("mnist", "npz", None)
    assert f"{path} is damaged" in row["error"]
    assert said.err == ""


def test_fetch_means_all_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prop = []
    monkeypatch.setattr("relucert.data._load.fetch", lambda name, folder: prop.append(name))
    assert command("fetch", "--folder", tmp_path) == 0
    assert prop == ["mnist", "fmnist", "gts", "cifar10"]


def test_info_json(mnist: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("info", "mnist", "--json", "--folder", tmp_path) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["train"], found["test"]) == ("mnist", 30, 20)
    assert [row["train"] for row in found["classes"]] == np.bincount(mnist["y_train"], minlength=10).tolist()
    assert [row["test"] for row in found["classes"]] == np.bincount(mnist["y_test"], minlength=10).tolist()
    pixels = mnist["x_train"] / 255
    np.testing.assert_allclose(found["mean"], [pixels.mean()], rtol=1e-12)
    np.testing.assert_allclose(found["std"], [pixels.std()], rtol=1e-12)
    assert found["file"] == str(tmp_path / "mnist.npz")
    assert found["sha256"] == hashlib.sha256((tmp_path / "mnist.npz").read_bytes()).hexdigest()


def test_info_by_channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = random_arrays("cifar10", train=10, test=5)
    arrays["x_train"][..., 1] //= 2
    arrays["x_train"][..., 2] = 51
    files = write_cifar(tmp_path, arrays)
    monkeypatch.setitem(SPECS, "cifar10", small_spec("cifar10", files, arrays))
    assert command("info", "cifar10", "--json", "--folder", tmp_path) == 0
    found = json.loads(capsys.readouterr().out)
    pixels = arrays["x_train"] / 255
    np.testing.assert_allclose(found["mean"], pixels.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found["std"], pixels.std((0, 1, 2)), rtol=1e-12, atol=1e-12)
    assert [row["test"] for row in found["classes"]] == [1] * 5 + [0] * 5


def test_info_of_the_embedded_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("info", "digits") == 0
    text = capsys.readouterr().out
    assert "1442" in text
    assert "355" in text
    assert "embedded" in text
    assert "sha256" not in text
    assert command("info", "digits", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["sha256"], len(found["classes"])) == (None, None, 10)


def test_info_as_text_names_file_and_digest(mnist: Arrays, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("info", "mnist", "--folder", tmp_path) == 0
    text = capsys.readouterr().out
    assert f"file: {tmp_path / 'mnist.npz'}\n" in text
    assert "sha256: " in text


def test_errors_of_the_library_reach_the_dispatcher(mnist: Arrays, tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"damaged")
    with pytest.raises(DamagedData, match="is damaged"):
        command("info", "mnist", "--folder", tmp_path)
    with pytest.raises(InvalidInput, match="got 'nothing'"):
        run(Info(name="nothing"))  # type: ignore[arg-type]
