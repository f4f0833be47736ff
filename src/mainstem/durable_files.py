"""All system calls of the log, in one place, so that tests can make any of them fail.

`Files` is the protocol; `RealFiles` calls the operating system. Tests have one in memory that loses unsynced writes,
and that can fail or stop at the Nth call. Nothing else under `mainstem.log` accesses files directly, except DuckDB,
which reads sealed files that were verified before.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol, TypeVar

import google_crc32c
import pyarrow as pa

from mainstem.errors import DiskFull, Invalid, MainstemError, Unavailable

__all__ = [
    "Files",
    "Keeper",
    "KeptFile",
    "KeptFiles",
    "NO_HANDLE",
    "REAL_FILES",
    "RealFiles",
    "translate_error",
    "closed_error",
    "copy_file",
    "create_file",
    "decode_checked",
    "encode_checked",
    "handles_max",
    "read_file",
    "remove_if_there",
    "replace_file",
    "sync_file",
    "unavailable",
]


# Checked JSON: the small files of a home, with a checksum of their content.
#
#     {"format": 2, "id": "5f..", ..., "crc32c": 305419896}
#
# The checksum is a field of the JSON, so that an older version still finds the format and refuses it. It covers the
# values (names sorted, no whitespace), so a file edited by hand can be valid, and a change of the bytes is detected
# unless it does not change the content.


CHECKSUM = "crc32c"


def encode_checked(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A file's bytes: the content and its checksum.

    >>> encode_checked({"format": 2, "id": "5f"})
    b'{"format": 2, "id": "5f", "crc32c": 2922450713}\\n'
    """
    # As it will be read: JSON keys are strings, and sort as strings.
    plain = json.loads(json.dumps(content))
    return json.dumps({**plain, CHECKSUM: _checksum(plain)}, indent=indent).encode() + b"\n"


def decode_checked(data: bytes, *, since: int = 0, known: int = 0, version: str = "format") -> dict[str, Any]:
    """The content, without its checksum; `ValueError` says what is wrong with it.

    Files with a `version` from `since` up to `known` have a checksum; older ones have none, and the format of a newer
    one is unknown.
    """
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    found = content.pop(CHECKSUM, None)
    if found is None:
        number = content.get(version, 0)
        if not isinstance(number, int) or since <= number <= known:
            raise ValueError("it has no checksum")
    elif found != _checksum(content):
        raise ValueError("its checksum does not fit")
    return content


def _checksum(content: dict[str, Any]) -> int:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return int(google_crc32c.value(text.encode()))


# Translates errors of the operating system into ours.


# The process, or the machine, has no free file handle.
NO_HANDLE = (errno.EMFILE, errno.ENFILE)


def no_handle_left(error: OSError) -> Unavailable:
    """The error when no file handle is left; it keeps the `errno` of the `OSError`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    whose = f"This process has reached its limit of open files: {limit} (ulimit -n)."
    raised = "ulimit -n 65536, or LimitNOFILE= of a service"
    if error.errno == errno.ENFILE:
        whose = "This machine has reached its limit of open files (sysctl fs.file-max)."
        raised = "sysctl -w fs.file-max=1000000"
    ours = Unavailable(
        f'too many open files to open "{error.filename}"' if error.filename else "too many open files",
        detail=f"{whose} The operation was not acknowledged and can be retried.",
        hint=f"Raise the limit ({raised}), or close files that the program does not need.",
    )
    ours.errno = error.errno
    return ours


def translate_error(error: Exception, title: str, folder: str) -> Exception:
    """The error to raise: an `OSError` of the system becomes one of ours."""
    if isinstance(error, MainstemError) or not isinstance(error, OSError):
        return error
    ours: Unavailable
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        ours = DiskFull(
            f"no space left to append to {title}",
            detail=f'Nothing was acknowledged, and the partial write in "{folder}" was rolled back. Reads still work.',
            hint="Free disk space or shorten the topics' retention; appends then succeed again.",
            path=folder,
        )
    else:
        ours = Unavailable(
            f"could not use the files of {title}: {os.strerror(error.errno or 0)}",
            detail=f'Nothing was acknowledged. Folder: "{folder}".',
            hint="Check the disk, then retry.",
        )
    ours.__cause__ = error
    return ours


def closed_error(what: str) -> Invalid:
    """The error for use after `close()`: a handle is a number, and may refer to another file by then."""
    return Invalid(
        f"{what} is closed",
        detail="close(), or the end of the with block, has closed all files.",
        hint="Open the home again, and the topic, group or queue from it.",
    )


# Keeps files open between uses, with a bounded number of handles however many partitions a process has.
#
# An owner of cached handles (a partition of its active segment, its lock of the tail, a topic of `heads`, a reader of
# its segments) is a `Keeper` and reports their number. When all together exceed half of the process's limit (`ulimit
# -n`), the least recently used keepers close theirs, and open them again on the next use.
#
# A handle in use is never closed: a keeper tries the locks that guard its handle, and keeps it if it does not get them,
# or if it is pinned. If more handles are in use at once, more are open than the bound, up to the process's limit. A
# file that was opened is used once before it can be closed, so every use makes progress. So a lock on a file is never
# lost, and nothing is written to a handle that refers to another file. A file with unsynced writes keeps its handle:
# disk errors are reported to handles that were open at the time.
#
# A closed file may be deleted and another one created at its path: the inode and a check of the content detect that
# (see `heads`). Thread-safe.


T = TypeVar("T")


# More would not help: opening a file again is faster than any disk.
HANDLES_MAX = 10_000

# The fraction of the handles that is closed at once, so that not every open has to search.
SHARE_CLOSED = 8


def handles_max() -> int:
    """The maximum number of handles this process keeps open: half of its limit. The program needs the rest."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HANDLES_MAX if limit == resource.RLIM_INFINITY else min(limit // 2, HANDLES_MAX)


class Keeper(Protocol):
    """An owner of cached handles."""

    # Set on each use, cleared when it was spared once.
    recent: bool

    def close_idle(self) -> int:
        """Close the handles that are not in use, without waiting; returns their number."""
        ...


_registries: weakref.WeakSet[KeptFiles] = weakref.WeakSet()
_files: weakref.WeakSet[KeptFile] = weakref.WeakSet()


class KeptFiles:
    """The cached handles of a process. Thread-safe."""

    def __init__(self, handles_max: Callable[[], int]) -> None:
        self._handles_max = handles_max
        # In the order of opening.
        self._keepers: weakref.WeakKeyDictionary[Keeper, int] = weakref.WeakKeyDictionary()
        self.renew_in_child()
        _registries.add(self)

    def renew_in_child(self) -> None:
        self._guard = threading.Lock()

    @property
    def handles(self) -> int:
        """The number of cached handles."""
        with self._guard:
            return sum(self._keepers.values())

    def count_handles(self, keeper: Keeper, handles: int) -> None:
        """Set the number of handles of a keeper; if there are too many in all, other keepers close theirs."""
        with self._guard:
            self._keepers.pop(keeper, None)
            if not handles:
                return
            keeper.recent = True
            self._keepers[keeper] = handles
            most = self._handles_max()
            excess = sum(self._keepers.values()) - most
        if excess > 0:
            self._close_idle(excess + most // SHARE_CLOSED, keeper)

    def close_all_idle(self) -> bool:
        """Close all handles that are not in use, because the process has none left; whether there were any."""
        return self._close_idle(self.handles) > 0

    def _close_idle(self, wanted: int, asking: Keeper | None = None) -> int:
        freed = 0
        for spare_recent in (True, False):
            with self._guard:
                keepers = list(self._keepers)
            for keeper in keepers:
                if freed >= wanted:
                    return freed
                if keeper is asking:
                    continue
                if spare_recent and keeper.recent:
                    keeper.recent = False
                    continue
                # A failed close has closed the handle too, and needed data was synced before.
                with suppress(OSError):
                    freed += keeper.close_idle()
        return freed


class KeptFile:
    """A file that is opened again after it was closed to free its handle. A turn (one of its `turns`) or a pin keeps it
    open.

    Without either, `handle` may be used to read: the result counts only if the file was not closed meanwhile, since a
    handle is a number and may refer to another file. Then the next attempt must pin it: otherwise two files that
    replace each other could be closed in turn without end.
    """

    def __init__(self, files: Files, path: str, *, turns: int = 1) -> None:
        self.path = path
        self.closed = False
        self.times_closed = 0
        self.recent = True
        self.inode = files.identity(path)[0]
        self.handle = files.open(path)
        self._files = files
        self._count = turns
        self.renew_in_child()
        _files.add(self)
        files.kept.count_handles(self, 1)

    def renew_in_child(self) -> None:
        """Reset: a forked child has no thread with a turn or a pin."""
        self.turns = tuple(threading.Lock() for _ in range(self._count))
        # Guards opening and closing of the handle, and the number of pins.
        self._opening = threading.Lock()
        self._pins = 0

    @contextmanager
    def pin(self) -> Iterator[None]:
        """Keeps the file open once it is opened. It may still be closed for good."""
        with self._opening:
            self._pins += 1
        try:
            yield
        finally:
            with self._opening:
                self._pins -= 1

    def open_handle(self) -> int:
        """The handle, opened again if needed. Raises `FileNotFoundError` if the file does not exist any more."""
        self.recent = True
        handle = self.handle
        return handle if handle >= 0 else self._open_again()

    def _open_again(self) -> int:
        with self._opening:
            if self.closed:
                raise closed_error(f'"{self.path}"')
            if self.handle < 0:
                self.check_path()
                handle = self._files.open(self.path)
                # If the file was replaced just now, the handle stays open: closing it would release a lock that another
                # user of the new file may hold.
                self.check_path()
                self.handle = handle
                self._files.kept.count_handles(self, 1)
            return self.handle

    def read(self, use: Callable[[int], T]) -> T:
        """Call `use` with the handle, without a turn."""
        with self.pin():
            try:
                found = use(self.open_handle())
            except OSError:
                if not self.closed:
                    raise
            else:
                if not self.closed:
                    return found
        raise closed_error(f'"{self.path}"')

    def check_path(self) -> None:
        """Raises `FileNotFoundError` unless this file is at its path."""
        if self._files.identity(self.path)[0] != self.inode:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def close_idle(self) -> int:
        with ExitStack() as taken:
            for turn in (*self.turns, self._opening):
                if not turn.acquire(blocking=False):
                    return 0
                taken.callback(turn.release)
            return 0 if self._pins else self._close()

    def close(self) -> None:
        """Close it for good. The caller waits for those who have a turn."""
        with self._opening:
            self.closed = True
            self._close()

    def _close(self) -> int:
        # In this order: a reader without a turn must see the count change before the handle can refer to another file.
        self.times_closed += 1
        handle, self.handle = self.handle, -1
        if handle < 0:
            return 0
        self._files.kept.count_handles(self, 0)
        self._files.close(handle)
        return 1


def _renew_in_child() -> None:
    for registry in list(_registries):
        registry.renew_in_child()
    for file in list(_files):
        file.renew_in_child()


os.register_at_fork(after_in_child=_renew_in_child)


# struct flock on 64-bit Linux: type, whence, start, length, pid (with the compiler's padding).
FLOCK = struct.Struct("hhqqi4x")

# Only the owner may read the files of the log.
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

# The limit of one vectored write (IOV_MAX).
BUFFERS_MAX = 1024

# Chunk size when a file is copied.
COPY_BYTES = 8 << 20


class Files(Protocol):
    """The file system operations of the log; handles are small integers, paths are strings."""

    # The cached handles of this process.
    kept: KeptFiles

    def open(self, path: str) -> int:
        """A handle to read and write an existing file."""
        ...

    def create(self, path: str) -> int:
        """A handle to a new, empty file; an existing one is truncated."""
        ...

    def close(self, handle: int) -> None: ...
    def pread(self, handle: int, length: int, position: int) -> bytes: ...

    def read_buffer(self, handle: int, length: int, position: int) -> pa.Buffer:
        """Like `pread`, into Arrow's memory pool: a third faster for a megabyte."""
        ...

    def pwrite(self, handle: int, data: bytes, position: int) -> None: ...

    def pwritev(self, handle: int, buffers: Sequence[bytes | pa.Buffer], position: int) -> None:
        """Write all buffers completely, one after another, or raise."""
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
        """A value that changes when the file at `path` is replaced or written: inode, mtime, size."""
        ...

    def arrow_input(self, path: str) -> pa.NativeFile: ...
    def arrow_output(self, path: str) -> pa.NativeFile: ...

    def try_lock(self, handle: int, byte: int) -> bool:
        """Take the POSIX record lock on one byte of a file; False if another process holds it."""
        ...

    def unlock(self, handle: int, byte: int) -> None: ...

    def lock_holder(self, handle: int, byte: int) -> int | None:
        """The id of another process that holds the lock on a byte; None if none does."""
        ...


class RealFiles:
    """The operating system's files. All instances are equal."""

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
        """Call `do`, which needs a handle. If the process has none left, close cached ones and retry."""
        try:
            return do()
        except OSError as error:
            if error.errno not in NO_HANDLE:
                raise
        self.kept.close_all_idle()
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
        # A read may be short (at most 2 GiB in one call): read until the end.
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
        # makedirs applies its mode only to the last directory.
        parent = os.path.dirname(path)
        if parent and not os.path.isdir(parent):
            self.make_directory(parent)
        with suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)

    def list(self, path: str) -> list[str]:
        return sorted(self.with_room(lambda: os.listdir(path)))

    def exists(self, path: str) -> bool:
        # Not os.path.exists: it returns False on an I/O error, and an existing file would be created anew.
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
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(path, topdown=False, onerror=fail):
        for name in names:
            os.unlink(os.path.join(folder, name))
        for name in folders:
            os.rmdir(os.path.join(folder, name))
    os.rmdir(path)


def _progress(written: int) -> int:
    """A write of zero bytes would loop forever; treat it as a full disk."""
    if written == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return written


def create_file(files: Files, path: str, data: bytes) -> None:
    """Create a file, its content synced when this returns. The caller syncs the directory."""
    handle = files.create(path)
    try:
        files.pwrite(handle, data, 0)
        files.sync(handle)
    finally:
        files.close(handle)


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Write `data` to `path` atomically: a crash leaves the old file or the new one. Write, sync, rename, sync."""
    beside = path + ".new"
    create_file(files, beside, data)
    files.rename(beside, path)
    files.sync_directory(os.path.dirname(path))


def sync_file(files: Files, path: str) -> None:
    """Sync the content of a file."""
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
    """Copy a file, or its first `size` bytes, synced when this returns; returns the size. The caller syncs the
    directory."""
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
    """Remove a file if it exists."""
    with suppress(FileNotFoundError):
        files.remove(path)


# One object for the process: locks depend on shared handles.
REAL_FILES = RealFiles()


@contextmanager
def unavailable(path: str) -> Iterator[None]:
    """Translates errors of the operating system about a directory into ours."""
    try:
        yield
    except OSError as error:
        if isinstance(error, Unavailable) or error.errno is None:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f'no space left in "{path}"',
                detail="Partial writes were rolled back.",
                hint="Free space on that disk and try again.",
            ) from error
        if error.errno in NO_HANDLE:
            raise no_handle_left(error) from error
        raise Unavailable(
            f'"{error.filename or path}" cannot be used: {os.strerror(error.errno)}',
            detail=f'The home is "{path}"; this process has user id {os.getuid()}.',
            hint="Check that the directory exists and that this user can read and write it.",
        ) from error
