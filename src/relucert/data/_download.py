"""Download of an official archive from several addresses, with retries; only a file with the official digest is kept."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from relucert.core.errors import DamagedData, MissingData, RelucertError
from relucert.data._progress import progress
from relucert.data.folder import prepare
from relucert.data.specs import Archive
from relucert.records.atomic import atomic_write, file_access

CHUNK = 2**16


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When to give up: after `attempts` requests in a row without new bytes, with growing pauses in between."""

    attempts: int = 4
    pause_seconds: float = 1.0
    timeout_seconds: float = 30.0


class _Wrong(Exception):
    """The downloaded bytes are not the official file."""


def _hasher(archive: Archive) -> hashlib._Hash:
    # MD5 only detects accidental damage; systems that forbid it for security allow that use.
    return hashlib.new(archive.digest.partition(":")[0], usedforsecurity=False)


def verify(archive: Archive, path: Path) -> None:
    """Raise DamagedData unless the file at `path` is the official archive, byte for byte."""
    with file_access(path, "read"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digits = hashlib.file_digest(file, lambda: _hasher(archive)).hexdigest()
    if size != archive.size:
        raise DamagedData(f"{path} must have {archive.size} bytes, got {size}; delete it to have it downloaded")
    if digits != archive.digest.partition(":")[2]:
        raise DamagedData(
            f"{path} must have the digest {archive.digest}, got {digits}; delete it to have it downloaded"
        )


def download(archive: Archive, folder: Path, *, patience: Patience = Patience()) -> Path:
    """Download an archive into `folder`, trying its addresses in turn, and return its path.

    Interrupted downloads are resumed. The file gets its name once its digest is verified. MissingData: no address delivered the
    file; DamagedData: an address delivered another file.
    """
    target = folder / archive.file
    faults: list[str] = []
    wrong = False
    prepare(folder)
    with atomic_write(target) as file, progress(archive.file, archive.size, unit="bytes") as at:
        received = _Received(file, target, archive, at)
        for url in archive.urls:
            try:
                _fetch(url, received, patience)
                return target
            except _Wrong as error:
                wrong = True
                faults.append(f"{url}: {error}")
            except RelucertError:
                raise  # an error of the disk: another address would not help
            except (OSError, http.client.HTTPException) as error:
                faults.append(f"{url}: {_reason(error)}")
        # Raised inside the block, so that the incomplete file is removed.
        reasons = "; ".join(faults)
        if wrong:
            raise DamagedData(
                f"{archive.file} could not be downloaded: the file offered is not the official one: {reasons}"
            )
        raise MissingData(f"{archive.file} could not be downloaded: {reasons}")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _hopeless(error: Exception) -> bool:
    """Whether the same address is likely to fail again."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code not in (408, 416, 425, 429)
    if isinstance(error, urllib.error.URLError):
        # No connection: unknown host, no network, refused, a wrong certificate. Only timeouts and resets may be temporary.
        return not isinstance(error.reason, TimeoutError | ConnectionResetError)
    return False


class _Received:
    """The received part of an archive: its file, its size and its running digest."""

    def __init__(self, file: IO[bytes], target: Path, archive: Archive, at: Callable[[int], object]) -> None:
        self.file, self.target, self.archive, self.at = file, target, archive, at
        self.restart()

    def restart(self) -> None:
        """Discard the received bytes."""
        with file_access(self.target):
            self.file.seek(0)
            self.file.truncate()
        self.size, self.hasher = 0, _hasher(self.archive)

    def add(self, chunk: bytes) -> None:
        """Append received bytes."""
        if self.size + len(chunk) > self.archive.size:
            raise _Wrong(f"more than the expected {self.archive.size} bytes")
        with file_access(self.target):
            self.file.write(chunk)
        self.hasher.update(chunk)
        self.size += len(chunk)
        self.at(self.size)


def _fetch(url: str, received: _Received, patience: Patience) -> None:
    """Download the archive from one address, resuming while requests bring new bytes."""
    received.restart()
    failures = farthest = 0
    while True:
        try:
            _receive(url, received, patience)
            break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, RelucertError) or _hopeless(error):
                raise
            if isinstance(error, urllib.error.HTTPError) and error.code == 416:
                received.restart()  # the server does not support the range
            failures = 1 if received.size > farthest else failures + 1
            farthest = max(farthest, received.size)
            if failures >= patience.attempts:
                raise
            time.sleep(patience.pause_seconds * 2 ** (failures - 1))
    algorithm, _, expected = received.archive.digest.partition(":")
    if received.hasher.hexdigest() != expected:
        raise _Wrong(f"{algorithm} digest {received.hasher.hexdigest()}, expected {expected}")


def _receive(url: str, received: _Received, patience: Patience) -> None:
    """Request the missing bytes of the archive once."""
    headers = {"User-Agent": "relucert"}
    if received.size:
        headers["Range"] = f"bytes={received.size}-"
    request, total = urllib.request.Request(url, headers=headers), received.archive.size
    with urllib.request.urlopen(request, timeout=patience.timeout_seconds) as answer:
        if answer.status != 206:
            received.restart()  # the server sends the whole file
        length = answer.headers.get("Content-Length", "")
        if length.isdecimal() and received.size + int(length) != total:
            raise _Wrong(f"{received.size + int(length)} bytes, expected {total}")
        while chunk := answer.read(CHUNK):
            received.add(chunk)
    if received.size < total:
        raise ConnectionError(f"the connection broke after {received.size} of {total} bytes")
