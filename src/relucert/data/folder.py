"""The data folder, and the files of a data set in it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relucert.data.specs import Archive, Spec, spec_of
from relucert.records.atomic import file_access

VARIABLE = "RELUCERT_DATA"
UNFINISHED = ".relucert-*.tmp"  # names of the temporary files of `atomic_write`
# A writer changes its file every few minutes (network timeouts are shorter), so an older file is abandoned.
ABANDONED_SECONDS = 3600.0


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    r"""The folder of the data sets: `folder` if given, else $RELUCERT_DATA, else the user's cache folder.

    The cache folder is $XDG_CACHE_HOME/relucert, or by platform ~/.cache/relucert, ~/Library/Caches/relucert (macOS)
    or %LOCALAPPDATA%\relucert (Windows). The folder may not exist yet.

    >>> data_folder("signs").name
    'signs'
    """
    chosen = folder if folder is not None else os.environ.get(VARIABLE)
    if chosen is not None and os.fspath(chosen):
        return Path(chosen).expanduser()
    # The XDG specification tells programs to ignore a relative path.
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        if sys.platform == "darwin":
            cache = Path.home() / "Library" / "Caches"
        elif sys.platform == "win32":
            cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        else:
            cache = Path.home() / ".cache"
    return cache / "relucert"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The location of a data set; `files` are the .npz, or the archives that exist (incomplete if kind is "missing")."""

    kind: Literal["embedded", "npz", "archives", "missing"]
    files: tuple[Path, ...] = ()


def npz_path(spec: Spec, folder: Path) -> Path:
    """The path of the converted data set."""
    return folder / f"{spec.name}.npz"


def archive_path(spec: Spec, archive: Archive, folder: Path) -> Path | None:
    """The path of an archive in the subfolder of the data set or in the folder itself, or None."""
    own = folder / spec.name / archive.file
    if own.is_file():
        return own
    outside = folder / archive.file
    return outside if not spec.shared_names and outside.is_file() else None


def locate(name: str, folder: str | os.PathLike[str] | None = None) -> Place:
    """Where a data set would be read from, without reading it.

    >>> locate("digits").kind
    'embedded'
    """
    spec, where = spec_of(name), data_folder(folder)
    if spec.embedded:
        return Place(kind="embedded")
    with file_access(where, "read"):
        if npz_path(spec, where).is_file():
            return Place(kind="npz", files=(npz_path(spec, where),))
        found = [archive_path(spec, archive, where) for archive in spec.archives]
    return Place(kind="missing" if None in found else "archives", files=tuple(path for path in found if path))


def prepare(folder: Path) -> None:
    """Create a folder for writing, and delete temporary files of killed processes in it."""
    with file_access(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob(UNFINISHED):
            with suppress(FileNotFoundError):  # another process may delete it too
                if time.time() - part.stat().st_mtime > ABANDONED_SECONDS:
                    part.unlink()


def instructions(spec: Spec, folder: Path) -> str:
    """Instructions for providing the data set by hand."""
    lines = [f"Put these files into {folder / spec.name}:"]
    lines += [f"  {archive.file}  from {archive.urls[0]}" for archive in spec.archives]
    lines += [
        f"or a {spec.name}.npz (x_train, y_train, x_test, y_test) into {folder},",
        f"or set {VARIABLE} to a folder that has them. About the data set: {spec.home}",
    ]
    return "\n".join(lines)
