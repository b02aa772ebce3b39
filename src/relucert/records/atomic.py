"""Atomic writes, complete or without effect: files that are replaced, and entries appended to a file."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, overload

from relucert.core.errors import FileAccessError, FileInUse

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None


@overload
@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb"] = "wb") -> Iterator[IO[bytes]]: ...
@overload
@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["w"]) -> Iterator[IO[str]]: ...
@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb") -> Iterator[IO[Any]]:
    """Open a file that replaces `path` when the block ends, and is deleted if the block raises.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and then renamed, so a reader sees
    the old contents or the new, never a part. `mode` is "wb" for bytes, "w" for text (UTF-8, line ends as given). A link is
    followed, and the permissions of a replaced file are kept. Exceptions of the block pass through unchanged; a folder or
    file that cannot be written is a `FileAccessError`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with atomic_write(Path(folder.name) / "hello.txt", "w") as file:
    ...     _ = file.write("hello")
    >>> (Path(folder.name) / "hello.txt").read_text()
    'hello'
    >>> folder.cleanup()
    """
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".relucert-{secrets.token_hex(8)}.tmp"
    with file_access(path):
        # Not tempfile.mkstemp, whose files are private: the new file gets the usual permissions of new files.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        encoding, newline = ("utf-8", "\n") if mode == "w" else (None, None)
        with open(handle, mode, encoding=encoding, newline=newline) as file:
            yield file
            with file_access(path):
                file.flush()
                with suppress(FileNotFoundError):
                    os.chmod(temporary, target.stat().st_mode & 0o7777)
                os.fsync(file.fileno())
        with file_access(path):
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Replace the contents of `path` by `data`, completely or not at all; every failure is a `FileAccessError`."""
    raw = data.encode("utf-8") if isinstance(data, str) else data
    with atomic_write(path) as file, file_access(path):
        file.write(raw)


class AppendFile:
    """A file that only grows, by whole entries: `append` writes all of its bytes or, if it fails, none.

    Bytes are passed to the operating system at once, so they survive if the process dies; after `sync` they survive a crash of
    the machine. A missing file is created, a missing folder is a `FileAccessError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with file_access(self.path):
            is_new = not self.path.exists()
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115, it stays open until close()
        if is_new:
            sync_folder(self.path.parent)

    def lock(self) -> None:
        """Become the only writer until `close`, or raise `FileAccessError` if there is another one.

        The flock belongs to this open file and not to the process: if the process closes the same file elsewhere, the lock is
        kept. Without fcntl (not POSIX) nothing is locked.
        """
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileInUse(
                f"{self.path} is being written by someone else: wait until they close it, or write another file and "
                "merge the two (relucert merge)"
            ) from error
        except OSError as error:
            raise FileAccessError(f"{self.path} cannot be locked: {error.strerror or error}") from error

    @property
    def size(self) -> int:
        """The number of bytes in the file."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, data: bytes) -> int:
        """Write `data` at the end and return the offset where it starts; after an error the file is as it was."""
        if self._file.closed:
            raise FileAccessError(f"{self.path} cannot be written: it is closed")
        start = self.size
        rest = memoryview(data)
        try:
            while rest:
                with file_access(self.path):
                    rest = rest[self._file.write(rest) :]
        except BaseException:
            # An incomplete entry (full disk, or Ctrl-C between two writes) would make the next one unreadable: remove it, or
            # close the file if that fails.
            try:
                self._file.truncate(start)
            except OSError:
                self._file.close()
            raise
        return start

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        with file_access(self.path):
            self._file.truncate(size)

    def cut(self, size: int, *, keep: bool = False) -> None:
        """Cut the file to `size` bytes; with `keep` what is cut off goes into a new file beside it first.

        The new file is named after this one, ".cut" and the first number that is free.
        """
        if keep:
            number = 1
            while (beside := self.path.with_name(f"{self.path.name}.cut{number}")).exists():
                number += 1
            with file_access(self.path, "read"), open(self.path, "rb") as file, atomic_write(beside) as copy:
                file.seek(size)
                shutil.copyfileobj(file, copy)
        self.truncate(size)

    def sync(self) -> None:
        """Wait until everything appended is on the disk."""
        if not self._file.closed:
            with file_access(self.path):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file and release the lock."""
        self._file.close()


def sync_folder(folder: Path) -> None:
    """Make a new or renamed file in `folder` survive a crash of the machine, if the file system supports that."""
    with suppress(OSError):  # some file systems cannot, and the file itself is already written
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def file_access(path: str | os.PathLike[str], action: Literal["read", "written"] = "written") -> Iterator[None]:
    """Convert an OSError inside the block into a `FileAccessError` with the path and the reason."""
    try:
        yield
    except FileAccessError:
        raise
    except OSError as error:
        raise FileAccessError(f"{os.fspath(path)} cannot be {action}: {error.strerror or error}") from error
