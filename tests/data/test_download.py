"""Downloads from faulty servers: the official file arrives, or no file is left."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.servers import Server, breaking, hanging, in_turn, serving, status, unannounced, whole
from relucert.core.errors import DamagedData, FileAccessError, MissingData
from relucert.data import Archive
from relucert.data._download import CHUNK, Patience, download, verify
from relucert.data.folder import ABANDONED_SECONDS

CONTENT = np.random.default_rng(0).bytes(5 * CHUNK + 123)
QUICK = Patience(attempts=3, pause_seconds=0.0, timeout_seconds=10.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as running:
        yield running


def official(server: Server, *paths: str) -> Archive:
    return Archive(
        file="file.gz",
        size=len(CONTENT),
        digest=f"sha256:{hashlib.sha256(CONTENT).hexdigest()}",
        urls=tuple(server.address + path for path in paths or ("a",)),
    )


def fetched(archive: Archive, folder: Path) -> None:
    """The download gives the official bytes, and leaves nothing else."""
    assert download(archive, folder, patience=QUICK) == folder / "file.gz"
    assert (folder / "file.gz").read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == ["file.gz"]


def refused(archive: Archive, folder: Path, error: type[Exception], message: str, patience: Patience = QUICK) -> None:
    """The download fails, saying so, and leaves nothing."""
    with pytest.raises(error, match=message):
        download(archive, folder, patience=patience)
    assert list(folder.iterdir()) == []


def test_good(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = whole(CONTENT)
    fetched(official(server), tmp_path / "new" / "folder")
    assert server.prop == [("/a", None)]


def test_good_without_a_length(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = unannounced(CONTENT)
    fetched(official(server), tmp_path)


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_digests(algorithm: str, server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = whole(CONTENT)
    digest = f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}"
    fetched(replace(official(server), digest=digest), tmp_path)
    verify(replace(official(server), digest=digest), tmp_path / "file.gz")


def test_not_found_then_second_address(server: Server, tmp_path: Path) -> None:
    server.answers["/b"] = whole(CONTENT)
    fetched(official(server, "a", "b"), tmp_path)
    assert [path for path, _ in server.prop] == ["/a", "/b"]


def test_not_found_anywhere(server: Server, tmp_path: Path) -> None:
    server.answers["/b"] = status(403)
    refused(official(server, "a", "b"), tmp_path, MissingData, "/a: HTTP status 404 .*/b: HTTP status 403")
    assert len(server.prop) == 2


def test_wrong_digest(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = whole(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    refused(official(server), tmp_path, DamagedData, "not the official one: .*/a: sha256 digest [0-9a-f]{64}, expected")
    assert len(server.prop) == 1


def test_wrong_digest_then_second_address(server: Server, tmp_path: Path) -> None:
    server.answers |= {"/a": whole(CONTENT[::-1]), "/b": whole(CONTENT)}
    fetched(official(server, "a", "b"), tmp_path)


def test_parts_of_two_addresses_are_not_mixed(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = breaking(CONTENT[::-1], after=3 * CHUNK, ranges=False)
    server.answers["/b"] = breaking(CONTENT, after=4 * CHUNK)
    fetched(official(server, "a", "b"), tmp_path)
    assert server.prop[-2:] == [("/b", None), ("/b", f"bytes={4 * CHUNK}-")]


@pytest.mark.parametrize("content", [b"<html>please log in</html>", CONTENT[:-1], CONTENT + b"x"])
@pytest.mark.parametrize("answer", [whole, unannounced])
def test_another_size(content: bytes, answer, server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = answer(content)
    # Without a length, less than everything looks like a connection that broke.
    if answer is unannounced and len(content) < len(CONTENT):
        refused(official(server), tmp_path, MissingData, f"broke after {len(content)} of {len(CONTENT)} bytes")
    else:
        refused(official(server), tmp_path, DamagedData, f"expected {len(CONTENT)}")


def test_truncated_for_ever(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = breaking(CONTENT, after=1000, ranges=False)
    refused(official(server), tmp_path, MissingData, f"broke after 1000 of {len(CONTENT)} bytes")
    assert len(server.prop) == QUICK.attempts


def test_truncated_answers_are_put_together(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = breaking(CONTENT, after=CHUNK)
    fetched(official(server), tmp_path)
    # More answers than attempts: each brought something new.
    assert [part for _, part in server.prop] == [None, *(f"bytes={n * CHUNK}-" for n in range(1, 6))]
    assert len(server.prop) > QUICK.attempts


def test_resuming_where_the_server_knows_no_parts(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = in_turn(breaking(CONTENT, after=CHUNK), whole(CONTENT))
    fetched(official(server), tmp_path)
    assert [part for _, part in server.prop] == [None, f"bytes={CHUNK}-"]


def test_resuming_where_the_server_refuses_parts(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = in_turn(breaking(CONTENT, after=CHUNK), status(416), whole(CONTENT))
    fetched(official(server), tmp_path)
    assert [part for _, part in server.prop] == [None, f"bytes={CHUNK}-", None]


def test_a_server_that_sends_more_and_less_is_given_up(server: Server, tmp_path: Path) -> None:
    up_and_down = [breaking(CONTENT, after=n, ranges=False) for n in (500, 200, 500, 200, 500, 200)]
    server.answers["/a"] = in_turn(*up_and_down, whole(CONTENT))
    refused(official(server), tmp_path, MissingData, "broke after")
    assert len(server.prop) == QUICK.attempts


@pytest.mark.parametrize("code", [429, 500, 503])
def test_passing_errors_are_tried_again(code: int, server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = in_turn(status(code), status(code), whole(CONTENT))
    fetched(official(server), tmp_path)
    server.answers["/a"] = status(code)
    refused(official(server), tmp_path / "other", MissingData, f"HTTP status {code}")


def test_silence_times_out(server: Server, tmp_path: Path) -> None:
    release = threading.Event()
    server.answers["/a"] = hanging(CONTENT, after=10, until=release)
    impatient = Patience(attempts=1, timeout_seconds=0.2)
    refused(official(server), tmp_path, MissingData, "timed out", impatient)
    release.set()


def test_connection_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        archive = Archive(file="file.gz", size=1, digest="md5:00", urls=(f"http://127.0.0.1:{port}/a",))
        refused(archive, tmp_path, MissingData, "file.gz could not be downloaded: .*refused")


def test_no_such_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("no_proxy", "*")
    archive = Archive(file="file.gz", size=1, digest="md5:00", urls=("http://data.invalid/a", "http://data.invalid/b"))
    refused(archive, tmp_path, MissingData, "invalid/a: .*not known; .*invalid/b: .*not known")


def test_old_file_survives_a_failure(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.gz").write_bytes(b"old")
    with pytest.raises(MissingData):
        download(official(server), tmp_path, patience=QUICK)
    assert (tmp_path / "file.gz").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.gz"]


def test_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileAccessError, match=f"{tmp_path / 'taken' / 'mnist'} cannot be written"):
        download(official(server), tmp_path / "taken" / "mnist", patience=QUICK)
    assert server.prop == []


def test_full_disk_is_not_the_networks_fault(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers |= {"/a": whole(CONTENT), "/b": whole(CONTENT)}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(official(server, "a", "b"), tmp_path, FileAccessError, "cannot be written: No space left on device")
    assert len(server.prop) == 1


def start(archive: Archive, folder: Path) -> subprocess.Popen:
    # A test run in the background may have been started with the interrupt ignored, which children inherit.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from pathlib import Path; from relucert.data._download import download; from relucert.data.specs import Archive;"
        f"download({archive!r}, Path({str(folder)!r}))"
    )
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


def wait_for_part(folder: Path) -> Path:
    """The file that the other process is writing, once something is in it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for path in folder.glob("*") if folder.exists() else ():
            return path
        time.sleep(0.01)
    raise AssertionError("nothing was written")


def test_interrupted(server: Server, tmp_path: Path) -> None:
    release = threading.Event()
    server.answers["/a"] = hanging(CONTENT, after=3 * CHUNK, until=release)
    process = start(official(server), tmp_path)
    server.wait_for(1)
    wait_for_part(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) != 0
    release.set()
    assert list(tmp_path.iterdir()) == []


def test_killed_half_way(server: Server, tmp_path: Path) -> None:
    release = threading.Event()
    server.answers["/a"] = in_turn(hanging(CONTENT, after=3 * CHUNK, until=release), whole(CONTENT))
    process = start(official(server), tmp_path)
    server.wait_for(1)
    part = wait_for_part(tmp_path)
    process.kill()
    process.wait(30)
    release.set()
    # After SIGKILL a temporary file stays; it is not used as the archive and is deleted once it is old.
    assert part.name != "file.gz"
    past = time.time() - ABANDONED_SECONDS - 60
    os.utime(part, (past, past))
    fetched(official(server), tmp_path)


def test_verify(server: Server, tmp_path: Path) -> None:
    archive, path = official(server), tmp_path / "file.gz"
    path.write_bytes(CONTENT)
    verify(archive, path)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DamagedData, match=f"{path} must have {len(CONTENT)} bytes, got {len(CONTENT) - 1}"):
        verify(archive, path)
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(DamagedData, match=f"{path} must have the digest {archive.digest}, got"):
        verify(archive, path)
    with pytest.raises(FileAccessError, match=f"{tmp_path} cannot be read"):
        verify(archive, tmp_path)
