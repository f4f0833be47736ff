"""All system calls of the log, in one place, so that tests can make any of them fail.

`Files` is the protocol; `RealFiles` calls the operating system. Tests have one in memory that loses what was not
synced, and that can fail or stop at the Nth call. Nothing else under `mainstem.log` touches a file by itself, except
DuckDB, which is given paths of sealed files that were checked before.
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
    "as_ours",
    "closed",
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


# Checked JSON: the small files of a home, with a checksum of what they say.
#
#     {"format": 2, "id": "5f..", ..., "crc32c": 305419896}
#
# The checksum is one field of the JSON itself, so that an older Mainstem finds the format and says that it is too old. It is
# taken over the values (names sorted, no blanks), so a file that was written by hand or with other blanks can be sound, and
# bytes that are not what was written are noticed unless they say the same.


CHECKSUM = "crc32c"


def encode_checked(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A file's bytes: the content and its checksum.

    >>> encode_checked({"format": 2, "id": "5f"})
    b'{"format": 2, "id": "5f", "crc32c": 2922450713}\\n'
    """
    # As it is read again: names are text then, and sort as text.
    plain = json.loads(json.dumps(content))
    return json.dumps({**plain, CHECKSUM: _checksum(plain)}, indent=indent).encode() + b"\n"


def decode_checked(data: bytes, *, since: int = 0, known: int = 0, version: str = "format") -> dict[str, Any]:
    """The content, without its checksum; `ValueError` says what is wrong with it.

    Files with a `version` from `since` up to the one that is `known` have a checksum; older ones do not, and of a newer one
    that has none it is not known what it looks like.
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


# What the operating system says about a partition's files, as errors of ours.


# The process, or the machine, has no file handle left.
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


def as_ours(error: Exception, title: str, folder: str) -> Exception:
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


def closed(what: str) -> Invalid:
    """The error for use after `close()`: handles are numbers, and may refer to other files by then."""
    return Invalid(
        f"{what} is closed",
        detail="close(), or the end of the with block, has closed all files.",
        hint="Open the home again, and the topic, group or queue from it.",
    )


# Which files stay open between uses, so that a process with any number of partitions has a bounded number of handles.
#
# Whoever keeps handles for the next use (a partition the segment it appends to, its lock the tail, a topic its `heads`, a
# reader its segments) is a `Keeper` and says how many. When all of them together keep more than half of what the process may
# have open (`ulimit -n`), those that were not used lately let go of theirs, and open them again when they are used next.
#
# Nobody is asked to let go of a handle in use: a keeper takes the locks that guard its handle, without waiting, and keeps it
# if it does not get them, or if somebody has pinned it. The bound gives way to this: where more is in use at once, more is open,
# up to the limit of the process. Whoever has opened a file uses it once before it can be closed again, so every use ends. So a lock on a file is never lost, and nothing is written to a handle that means another file by
# now. Bytes that this process has written and not synced keep their handle: an error of the disk is told to handles that were
# open when it happened.
#
# A file that was let go may have been deleted since, and another one made at its path: it is known by its inode, and what
# reads it checks that its content is the one it knows (see `heads`). Thread-safe.


T = TypeVar("T")


# More than this is of no use: it is faster than any disk to open a file again.
HANDLES_MAX = 10_000

# So many of those that are kept are let go at once, so that not every opening has to look for one.
SHARE_LET_GO = 8


def handles_max() -> int:
    """The maximum number of handles this process keeps open: half of its limit. The program needs the rest."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HANDLES_MAX if limit == resource.RLIM_INFINITY else min(limit // 2, HANDLES_MAX)


class Keeper(Protocol):
    """Who keeps handles for the next use."""

    # Set at each use, cleared when it was spared once.
    recent: bool

    def let_go(self) -> int:
        """Close what is not in use, without waiting for anybody; how many handles."""
        ...


_registries: weakref.WeakSet[KeptFiles] = weakref.WeakSet()
_files: weakref.WeakSet[KeptFile] = weakref.WeakSet()


class KeptFiles:
    """The handles that a process keeps. Thread-safe."""

    def __init__(self, handles_max: Callable[[], int]) -> None:
        self._handles_max = handles_max
        # In the order in which they were opened.
        self._keepers: weakref.WeakKeyDictionary[Keeper, int] = weakref.WeakKeyDictionary()
        self.renew_in_child()
        _registries.add(self)

    def renew_in_child(self) -> None:
        self._guard = threading.Lock()

    @property
    def handles(self) -> int:
        """How many are kept now."""
        with self._guard:
            return sum(self._keepers.values())

    def keeps(self, keeper: Keeper, handles: int) -> None:
        """Note that somebody keeps so many handles from now on; if that is too many in all, others let go of theirs."""
        with self._guard:
            self._keepers.pop(keeper, None)
            if not handles:
                return
            keeper.recent = True
            self._keepers[keeper] = handles
            most = self._handles_max()
            excess = sum(self._keepers.values()) - most
        if excess > 0:
            self._let_go(excess + most // SHARE_LET_GO, keeper)

    def let_go_of_all(self) -> bool:
        """Let go of everything that is not in use, because the process has no handle left; whether there was any."""
        return self._let_go(self.handles) > 0

    def _let_go(self, wanted: int, asking: Keeper | None = None) -> int:
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
                # A close that fails has closed the handle, and what had to be synced was.
                with suppress(OSError):
                    freed += keeper.let_go()
        return freed


class KeptFile:
    """A file that is opened again when it was let go. It is held open by whoever holds one of its `turns`, or has pinned it.

    Who does neither may use `handle` to read: what was read counts only if the file was not let go meanwhile, since a handle
    is a number and may have meant another file. If it was, the next try has to pin it: else two files that are opened for
    each other could be let go in turn without end.
    """

    def __init__(self, files: Files, path: str, *, turns: int = 1) -> None:
        self.path = path
        self.closed = False
        self.times_let_go = 0
        self.recent = True
        self.inode = files.identity(path)[0]
        self.handle = files.open(path)
        self._files = files
        self._count = turns
        self.renew_in_child()
        _files.add(self)
        files.kept.keeps(self, 1)

    def renew_in_child(self) -> None:
        """A thread that had a turn, or had pinned it, does not exist in a forked child."""
        self.turns = tuple(threading.Lock() for _ in range(self._count))
        # Guards the handle while it is opened and closed, and the number of those who have pinned it.
        self._opening = threading.Lock()
        self._pins = 0

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Inside, once it is opened, it is not let go. It may be closed for good."""
        with self._opening:
            self._pins += 1
        try:
            yield
        finally:
            with self._opening:
                self._pins -= 1

    def opened(self) -> int:
        """The handle; opened again if it was let go. Raises `FileNotFoundError` if the file is not there any more."""
        self.recent = True
        handle = self.handle
        return handle if handle >= 0 else self._open_again()

    def _open_again(self) -> int:
        with self._opening:
            if self.closed:
                raise closed(f'"{self.path}"')
            if self.handle < 0:
                self.check_path()
                handle = self._files.open(self.path)
                # If it was replaced just now the handle stays open: to close it would end a lock that another user of the
                # new file may hold.
                self.check_path()
                self.handle = handle
                self._files.kept.keeps(self, 1)
            return self.handle

    def read(self, use: Callable[[int], T]) -> T:
        """What `use` gives for the handle, without a turn."""
        with self.pinned():
            try:
                found = use(self.opened())
            except OSError:
                if not self.closed:
                    raise
            else:
                if not self.closed:
                    return found
        raise closed(f'"{self.path}"')

    def check_path(self) -> None:
        """Raises `FileNotFoundError` unless this file is at its path."""
        if self._files.identity(self.path)[0] != self.inode:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def let_go(self) -> int:
        with ExitStack() as taken:
            for turn in (*self.turns, self._opening):
                if not turn.acquire(blocking=False):
                    return 0
                taken.callback(turn.release)
            return 0 if self._pins else self._close()

    def close(self) -> None:
        """For good. Who holds a turn is waited for by the caller."""
        with self._opening:
            self.closed = True
            self._close()

    def _close(self) -> int:
        # In this order: who reads without a turn sees that it was let go before the handle can mean another file.
        self.times_let_go += 1
        handle, self.handle = self.handle, -1
        if handle < 0:
            return 0
        self._files.kept.keeps(self, 0)
        self._files.close(handle)
        return 1


def _renew_in_child() -> None:
    for registry in list(_registries):
        registry.renew_in_child()
    for file in list(_files):
        file.renew_in_child()


os.register_at_fork(after_in_child=_renew_in_child)


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


# One object for the process: handles with locks on them are shared by it.
REAL_FILES = RealFiles()


@contextmanager
def unavailable(path: str) -> Iterator[None]:
    """Turns what the operating system says about a directory into our own errors."""
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
