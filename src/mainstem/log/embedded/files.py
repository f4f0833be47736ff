"""The system calls of the log, every one of them, so that any can be made to fail.

`Files` is the protocol; `RealFiles` calls the operating system. Tests have one in memory that loses what was not
synced, and that can fail or stop at the Nth call. Nothing else under `mainstem.log` touches a file by itself, except
DuckDB, which is given paths of sealed files that were checked before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import pyarrow as pa

from mainstem.log.embedded.file_errors import NO_HANDLE, no_handle_left
from mainstem.log.embedded.kept_files import KeptFiles, handles_max

T = TypeVar("T")

# struct flock on 64-bit Linux: type, whence, start, length, pid (with the padding that the compiler puts in).
FLOCK = struct.Struct("hhqqi4x")

# Data of the log is for its owner alone.
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

# The kernel takes at most IOV_MAX (1024) buffers in one vectored write.
BUFFERS_MAX = 1024

# How much of a file is copied at once.
COPY_BYTES = 8 << 20


class Files(Protocol):
    """What the log asks of a file system; handles are small integers, paths are strings."""

    # Which files this process keeps open between uses.
    kept: KeptFiles

    def open(self, path: str) -> int:
        """A handle to read and write a file that is there."""
        ...

    def create(self, path: str) -> int:
        """A handle to a new, empty file; an older one of that name is emptied."""
        ...

    def close(self, handle: int) -> None: ...
    def pread(self, handle: int, length: int, position: int) -> bytes: ...

    def read_buffer(self, handle: int, length: int, position: int) -> pa.Buffer:
        """As `pread`, into Arrow's memory, which is used again and again: a third faster for a megabyte."""
        ...

    def pwrite(self, handle: int, data: bytes, position: int) -> None: ...

    def pwritev(self, handle: int, buffers: Sequence[bytes | pa.Buffer], position: int) -> None:
        """Write all buffers one after another, whole, or raise."""
        ...

    def size(self, handle: int) -> int: ...
    def truncate(self, handle: int, size: int) -> None: ...
    def sync(self, handle: int) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def rename(self, path: str, to: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def make_directory(self, path: str) -> None: ...
    def list(self, path: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...

    def identity(self, path: str) -> tuple[int, int, int]:
        """A value that changes when the file at `path` is replaced or written: inode, time of change, size."""
        ...

    def arrow_input(self, path: str) -> pa.NativeFile: ...
    def arrow_output(self, path: str) -> pa.NativeFile: ...

    def try_lock(self, handle: int, byte: int) -> bool:
        """Take the POSIX record lock on one byte of a file, or say at once that another process holds it."""
        ...

    def unlock(self, handle: int, byte: int) -> None: ...

    def lock_holder(self, handle: int, byte: int) -> int | None:
        """The process that holds the lock on a byte, if another one does."""
        ...


class RealFiles:
    """The operating system's files. There is one such system: any two of these are equal."""

    kept = KeptFiles(handles_max)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RealFiles)

    def __hash__(self) -> int:
        return hash(RealFiles)

    def open(self, path: str) -> int:
        return self.with_room(lambda: os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> int:
        return self.with_room(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE))

    def with_room(self, do: Callable[[], T]) -> T:
        """Do what needs a handle. Where the process has none left, what is kept for later is let go, and it is tried again."""
        try:
            return do()
        except OSError as error:
            if error.errno not in NO_HANDLE:
                raise
        self.kept.let_go_of_all()
        try:
            return do()
        except OSError as error:
            if error.errno not in NO_HANDLE:
                raise
            raise no_handle_left(error) from error

    def close(self, handle: int) -> None:
        os.close(handle)

    def read_buffer(self, handle: int, length: int, position: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(length)
        view = memoryview(buffer).cast("B")
        read = 0
        while read < length and (more := os.preadv(handle, [view[read:]], position + read)):
            read += more
        return buffer if read == length else buffer.slice(0, read)

    def pread(self, handle: int, length: int, position: int) -> bytes:
        data = os.pread(handle, length, position)
        if len(data) == length or not data:
            return data
        # A read may be cut short (2 GiB at most in one call): go on until nothing more comes.
        pieces = [data]
        read = len(data)
        while read < length and (more := os.pread(handle, length - read, position + read)):
            pieces.append(more)
            read += len(more)
        return b"".join(pieces)

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        written = os.pwrite(handle, data, position)
        while written < len(data):
            written += _progress(os.pwrite(handle, data[written:], position + written))

    def pwritev(self, handle: int, buffers: Sequence[bytes | pa.Buffer], position: int) -> None:
        for first in range(0, len(buffers), BUFFERS_MAX):
            some = buffers[first : first + BUFFERS_MAX]
            length = sum(map(len, some))
            written = os.pwritev(handle, some, position)
            if written < length:
                self.pwrite(handle, b"".join(map(bytes, some))[written:], position + written)
            position += length

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def sync_directory(self, path: str) -> None:
        handle = self.with_room(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, path: str, to: str) -> None:
        os.replace(path, to)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        self.with_room(lambda: _remove_tree(path))

    def make_directory(self, path: str) -> None:
        # makedirs gives its mode to the last one only, and all of them are for their owner alone.
        parent = os.path.dirname(path)
        if parent and not os.path.isdir(parent):
            self.make_directory(parent)
        with suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)

    def list(self, path: str) -> list[str]:
        return sorted(self.with_room(lambda: os.listdir(path)))

    def exists(self, path: str) -> bool:
        # Not os.path.exists: it says no where the disk gave no answer, and what is there would be made anew.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def identity(self, path: str) -> tuple[int, int, int]:
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns, status.st_size

    def arrow_input(self, path: str) -> pa.NativeFile:
        return self.with_room(lambda: pa.OSFile(path, "rb"))

    def arrow_output(self, path: str) -> pa.NativeFile:
        os.close(self.create(path))  # with our own mode
        return self.with_room(lambda: pa.OSFile(path, "wb"))

    def try_lock(self, handle: int, byte: int) -> bool:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def unlock(self, handle: int, byte: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_UN, 1, byte)

    def lock_holder(self, handle: int, byte: int) -> int | None:
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else pid


def _remove_tree(path: str) -> None:
    def failed(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(path, topdown=False, onerror=failed):
        for name in names:
            os.unlink(os.path.join(folder, name))
        for name in folders:
            os.rmdir(os.path.join(folder, name))
    os.rmdir(path)


def _progress(written: int) -> int:
    """A write that wrote nothing would loop for ever; the disk is as good as full."""
    if written == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return written


def create_file(files: Files, path: str, data: bytes) -> None:
    """Make a file, its content on disk when this returns. Its name is for the caller to sync."""
    handle = files.create(path)
    try:
        files.pwrite(handle, data, 0)
        files.sync(handle)
    finally:
        files.close(handle)


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Put `data` at `path` so that a crash leaves the old file or the new one, whole: write, sync, rename, sync."""
    beside = path + ".new"
    create_file(files, beside, data)
    files.rename(beside, path)
    files.sync_directory(os.path.dirname(path))


def sync_file(files: Files, path: str) -> None:
    """Bring the content of a file to disk."""
    handle = files.open(path)
    try:
        files.sync(handle)
    finally:
        files.close(handle)


def read_file(files: Files, path: str) -> bytes:
    """All bytes of a file."""
    handle = files.open(path)
    try:
        return files.pread(handle, files.size(handle), 0)
    finally:
        files.close(handle)


def copy_file(files: Files, path: str, to: str, size: int | None = None) -> int:
    """Copy a file, or its first `size` bytes, on disk when this returns; how many bytes. Its name is for the caller to sync."""
    handle = files.open(path)
    try:
        copied, end = 0, files.size(handle) if size is None else size
        target = files.create(to)
        try:
            while copied < end and (piece := files.pread(handle, min(COPY_BYTES, end - copied), copied)):
                files.pwrite(target, piece, copied)
                copied += len(piece)
            files.sync(target)
        finally:
            files.close(target)
    finally:
        files.close(handle)
    return copied


def remove_if_there(files: Files, path: str) -> None:
    """Remove a file; one that is gone already is as good."""
    with suppress(FileNotFoundError):
        files.remove(path)
