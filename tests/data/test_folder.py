"""The data folder and what is found in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from relucert.core.errors import FileAccessError
from relucert.data import SPECS, data_folder, locate
from relucert.data.folder import ABANDONED_SECONDS, instructions, prepare


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Neither variable is set, the home folder is a temporary one, the platform is Linux."""
    monkeypatch.delenv("RELUCERT_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    return monkeypatch


def test_order(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data_folder() == tmp_path / ".cache" / "relucert"
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_folder() == tmp_path / "xdg" / "relucert"
    bare.setenv("RELUCERT_DATA", str(tmp_path / "variable"))
    assert data_folder() == tmp_path / "variable"
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    assert data_folder(str(tmp_path / "given")) == tmp_path / "given"


def test_empty_and_relative_variables_do_not_count(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("RELUCERT_DATA", "")
    bare.setenv("XDG_CACHE_HOME", "relative")
    assert data_folder() == tmp_path / ".cache" / "relucert"


def test_home_is_expanded(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("RELUCERT_DATA", "~/here")
    assert data_folder() == tmp_path / "here"
    assert data_folder("~/there") == tmp_path / "there"


def test_platforms(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setattr("sys.platform", "darwin")
    assert data_folder() == tmp_path / "Library" / "Caches" / "relucert"
    bare.setattr("sys.platform", "win32")
    bare.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert data_folder() == tmp_path / "Local" / "relucert"


@pytest.mark.parametrize("name", ["mnist", "fmnist", "gts", "cifar10"])
def test_locate_prefers_npz_then_archives(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    assert (locate(name, tmp_path).kind, locate(name, tmp_path).files) == ("missing", ())
    (tmp_path / name).mkdir()
    files = [tmp_path / name / archive.file for archive in spec.archives]
    for number, path in enumerate(files):
        assert locate(name, tmp_path).kind == "missing"
        assert locate(name, tmp_path).files == tuple(files[:number])
        path.touch()
    assert (locate(name, tmp_path).kind, locate(name, tmp_path).files) == ("archives", tuple(files))
    (tmp_path / f"{name}.npz").touch()
    assert (locate(name, tmp_path).kind, locate(name, tmp_path).files) == ("npz", (tmp_path / f"{name}.npz",))


@pytest.mark.parametrize(("name", "kind"), [("mnist", "archives"), ("fmnist", "missing")])
def test_unsorted_idx_files_are_taken_for_mnist(name: str, kind: str, tmp_path: Path) -> None:
    for archive in SPECS["mnist"].archives:
        (tmp_path / archive.file).touch()
    assert locate(name, tmp_path).kind == kind


def test_own_subfolder_comes_first(tmp_path: Path) -> None:
    file = SPECS["cifar10"].archives[0].file
    (tmp_path / "cifar10").mkdir()
    for path in (tmp_path / file, tmp_path / "cifar10" / file):
        path.touch()
    assert locate("cifar10", tmp_path).files == (tmp_path / "cifar10" / file,)


def test_embedded_needs_no_folder() -> None:
    assert locate("digits", "/nowhere").kind == "embedded"


def test_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(FileAccessError, match=f"{tmp_path} cannot be read: Permission denied"):
        locate("mnist", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fmnist", "gts", "cifar10"])
def test_instructions_name_every_file_address_and_folder(name: str, tmp_path: Path) -> None:
    text = instructions(SPECS[name], tmp_path)
    assert str(tmp_path / name) in text
    assert "RELUCERT_DATA" in text
    for archive in SPECS[name].archives:
        assert f"{archive.file}  from {archive.urls[0]}" in text


def test_prepare_removes_what_killed_processes_left(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    prepare(folder)
    old, young, foreign = (folder / name for name in (".relucert-1.tmp", ".relucert-2.tmp", "other.tmp"))
    past = time.time() - ABANDONED_SECONDS - 60
    for path in (old, young, foreign):
        path.touch()
        if path is not young:
            os.utime(path, (past, past))
    prepare(folder)
    assert sorted(path.name for path in folder.iterdir()) == [".relucert-2.tmp", "other.tmp"]


def test_prepare_names_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileAccessError, match=f"{tmp_path / 'taken' / 'below'} cannot be written"):
        prepare(tmp_path / "taken" / "below")
