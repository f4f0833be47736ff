"""Files in memory: what was written, what of it is on disk, and every way to lose the difference.

A `Machine` has directories and files, each with what a process would read now (the page cache) and what a power cut
would leave (the disk): data gets there by `sync`, names by `sync_directory`, and what was in neither may be there or
not, in part or in pieces. `MemoryFiles` is one process on it, with its own handles and locks.

    files = MemoryFiles()
    files.fail_at(17, errno.EIO)     the 17th call from now fails; of a write a part may be done
    files.stop_at(17)                the process is killed at that call: `Stopped` is raised, then and ever after
    files.killed()                   the same machine as a new process finds it when this one was killed
    files.crash(seed, mode)          another machine, as after a power cut; this one stays as it is
    files.process()                  a further process on the same machine
    files.machine.seen = look        called with the name of each call before it is made; 0 is then this very call

As strict as POSIX allows, and so stricter than ext4: an fsync of a new file does not bring its name to disk. A failed
fsync forgets what it could not write: the pages stay readable, and no later fsync brings them to disk.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count as counter
from typing import TYPE_CHECKING, Literal, TypeVar

import pyarrow as pa

from mainstem.durable_files import KeptFiles
from tests.log.embedded.memory_disk import Directory, Mode, Node, after_power_cut, rename

if TYPE_CHECKING:
    from mainstem.durable_files import Files


T = TypeVar("T")

# What can fail because the process has no handle left.
NEEDS_HANDLE = ("open", "create", "list", "sync_directory", "remove_tree", "arrow_input")


class Stopped(BaseException):
    """The process was killed at this call."""


class Machine:
    """What all processes share: the files, the locks, and the plan of what goes wrong."""

    def __init__(self, seed: int = 0) -> None:
        self.guard = threading.RLock()
        self.random = random.Random(seed)
        self.numbers = counter(1)
        self.root = Directory(0)
        self.locks: dict[tuple[int, int], MemoryFiles] = {}
        self.pids = counter(1 << 24)  # above every pid that Linux gives
        self.calls = 0
        self.counts: Counter[str] = Counter()
        self.fails: dict[int, int] = {}
        self.failed: list[str] = []
        self.failed_at: set[int] = set()
        self.stops: dict[int, str] = {}
        self.seen: Callable[[str], None] | None = None
        # How many handles each process keeps open between uses.
        self.handles_max = 1000


class MemoryFiles:
    """One process that uses the machine's files. Thread-safe."""

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()
        self.pid = next(self.machine.pids)
        self.kept = KeptFiles(lambda: self.machine.handles_max)
        self.dead = False
        self._handles: dict[int, Node] = {}
        self._numbers = counter(1)

    # What goes wrong

    @property
    def calls(self) -> int:
        """How many calls there were, of all processes."""
        return self.machine.calls

    @property
    def counts(self) -> Counter[str]:
        return self.machine.counts

    def fail_at(self, call: int, error: int, *, calls: int = 1) -> None:
        """Let the call that comes as the `call`th from now fail, and so many after it."""
        first = self.machine.calls + call
        self.machine.fails.update(dict.fromkeys(range(first, first + calls), error))

    def stop_at(self, call: int, *, done: Literal["nothing", "part", "all"] = "nothing") -> None:
        """Kill the process that comes to make the `call`th call from now, before, in, or after it."""
        self.machine.stops[self.machine.calls + call] = done

    def process(self) -> MemoryFiles:
        return MemoryFiles(self.machine)

    def kill(self) -> None:
        """End this process: its locks are gone, what it wrote stays."""
        with self.machine.guard:
            self.dead = True
            self._handles.clear()
            self.machine.locks = {at: holder for at, holder in self.machine.locks.items() if holder is not self}

    def killed(self) -> MemoryFiles:
        """End this process, and give a new one on the same machine, which has no plan of what goes wrong any more."""
        self.kill()
        self.machine.fails.clear()
        self.machine.stops.clear()
        self.machine.seen = None
        return self.process()

    def crash(self, seed: int, mode: Mode) -> MemoryFiles:
        """A machine as after a power cut. What was not synced is gone, or there in part, as `mode` and seed say."""
        chance = random.Random(f"{seed}/{mode}")
        machine = Machine(seed)
        copies: dict[int, Node] = {}

        def survived(directory: Directory) -> Directory:
            entries = dict(directory.durable)
            for change in directory.unsynced:
                if mode == "kept" or (mode != "lost" and chance.random() < 0.5):
                    rename(entries, change)
            copy = Directory(next(machine.numbers))
            for name, entry in entries.items():
                if isinstance(entry, Directory):
                    copy.entries[name] = survived(entry)
                    continue
                if entry.number not in copies:
                    node = copies[entry.number] = Node(next(machine.numbers))
                    node.cached = after_power_cut(entry, mode, chance)
                    node.durable = bytearray(node.cached)
                copy.entries[name] = copies[entry.number]
            copy.durable = dict(copy.entries)
            return copy

        with self.machine.guard:
            machine.root = survived(self.machine.root)
        return MemoryFiles(machine)

    def _called(self, name: str) -> tuple[int, str]:
        """Count a call; the error it is to end with (0 for none), and how much of it is done before the process dies."""
        machine = self.machine
        if self.dead:
            raise Stopped(name)
        machine.calls += 1
        machine.counts[name] += 1
        if machine.seen is not None:
            machine.seen(name)
        done = machine.stops.pop(machine.calls, "")
        if done == "nothing":
            self.kill()
            raise Stopped(name)
        error = machine.fails.pop(machine.calls, 0)
        if error == errno.EMFILE and name not in NEEDS_HANDLE:
            error = 0
        if name == "unlock" and machine.calls - 1 in machine.failed_at:
            error = 0  # the kernel gives up a lock without a disk: it does not fail twice
        if error:
            machine.failed.append(name)
            machine.failed_at.add(machine.calls)
        return error, done

    def _end(self, name: str, done: str) -> None:
        if done:
            self.kill()
            raise Stopped(name)

    def _call(self, name: str, do: Callable[[], T]) -> T:
        """A call that is done whole or not at all."""
        with self.machine.guard:
            error, done = self._called(name)
            if error:
                raise OSError(error, os.strerror(error))
            result = do()
            self._end(name, done)
            return result

    # Files

    def open(self, path: str) -> int:
        return self._call("open", lambda: self._handle(self._node(path)))

    def create(self, path: str) -> int:
        return self._call("create", lambda: self._create(path))

    def _create(self, path: str) -> int:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if node is None:
            node = Node(next(self.machine.numbers))
            directory.change({name: node})
        elif node.cached:
            node.change((0, None))
        return self._handle(node)

    def close(self, handle: int) -> None:
        # The handle is gone, also when an error is told.
        with self.machine.guard:
            if self.dead:
                return  # not by the process: the garbage collector comes by later
            error, done = self._called("close")
            node = self._handles.pop(handle)
            locks = self.machine.locks
            # As POSIX has it: the process's locks on a file go with any of its handles.
            for at in [at for at, holder in locks.items() if at[0] == node.number and holder is self]:
                del locks[at]
            if error:
                raise OSError(error, os.strerror(error))
            self._end("close", done)

    def pread(self, handle: int, length: int, position: int) -> bytes:
        return self._call("pread", lambda: bytes(self._handles[handle].cached[position : position + length]))

    def read_buffer(self, handle: int, length: int, position: int) -> pa.Buffer:
        return pa.py_buffer(self.pread(handle, length, position))

    def pwrite(self, handle: int, data: bytes, position: int) -> None:
        self._write("pwrite", handle, bytes(data), position)

    def pwritev(self, handle: int, buffers: Sequence[bytes | pa.Buffer], position: int) -> None:
        self._write("pwritev", handle, b"".join(map(bytes, buffers)), position)

    def _write(self, name: str, handle: int, data: bytes, position: int) -> None:
        with self.machine.guard:
            error, done = self._called(name)
            node = self._handles[handle]
            written = self.machine.random.randrange(len(data) + 1) if error or done == "part" else len(data)
            if written:
                node.change((position, data[:written]))
            if error:
                raise OSError(error, os.strerror(error))
            self._end(name, done)

    def size(self, handle: int) -> int:
        return self._call("size", lambda: len(self._handles[handle].cached))

    def truncate(self, handle: int, size: int) -> None:
        self._call("truncate", lambda: self._handles[handle].change((size, None)))

    def sync(self, handle: int) -> None:
        with self.machine.guard:
            error, done = self._called("sync")
            node = self._handles[handle]
            if error or done == "part":
                # Some of it came to the disk; the rest is forgotten, whether anyone is left to be told or not.
                node.unsynced = [change for change in node.unsynced if self.machine.random.random() < 0.5]
                node.sync()
            else:
                node.sync()
            if error:
                raise OSError(error, os.strerror(error))
            self._end("sync", done)

    # Directories

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", lambda: self._directory(path).sync())

    def rename(self, path: str, to: str) -> None:
        self._call("rename", lambda: self._rename(path, to))

    def _rename(self, path: str, to: str) -> None:
        directory, name = self._parent(path)
        entry = self._entry(path)
        target, target_name = self._parent(to)
        there = target.entries.get(target_name)
        if isinstance(there, Directory) and there.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), to)
        if directory is target:
            directory.change({name: None, target_name: entry})
        else:
            directory.change({name: None})
            target.change({target_name: entry})

    def remove(self, path: str) -> None:
        self._call("remove", lambda: self._remove(path))

    def _remove(self, path: str) -> None:
        self._node(path)
        directory, name = self._parent(path)
        directory.change({name: None})

    def remove_tree(self, path: str) -> None:
        def remove() -> None:
            self._directory(path)
            directory, name = self._parent(path)
            directory.change({name: None})

        self._call("remove_tree", remove)

    def make_directory(self, path: str) -> None:
        def make() -> None:
            directory = self.machine.root
            for name in path.strip("/").split("/"):
                entry = directory.entries.get(name)
                if entry is None:
                    entry = Directory(next(self.machine.numbers))
                    directory.change({name: entry})
                if not isinstance(entry, Directory):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                directory = entry

        self._call("make_directory", make)

    def list(self, path: str) -> list[str]:
        return self._call("list", lambda: sorted(self._directory(path).entries))

    def exists(self, path: str) -> bool:
        def exists() -> bool:
            try:
                self._entry(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

        return self._call("exists", exists)

    def identity(self, path: str) -> tuple[int, int, int]:
        def identity() -> tuple[int, int, int]:
            node = self._node(path)
            return node.number, node.changes, len(node.cached)

        return self._call("identity", identity)

    def arrow_input(self, path: str) -> pa.NativeFile:
        return self._call("arrow_input", lambda: pa.BufferReader(bytes(self._node(path).cached)))

    def arrow_output(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_Output(self, self.create(path)), mode="w")

    # Locks

    def try_lock(self, handle: int, byte: int) -> bool:
        def take() -> bool:
            at = (self._handles[handle].number, byte)
            return self.machine.locks.setdefault(at, self) is self

        return self._call("try_lock", take)

    def unlock(self, handle: int, byte: int) -> None:
        def give() -> None:
            at = (self._handles[handle].number, byte)
            if self.machine.locks.get(at) is self:
                del self.machine.locks[at]

        self._call("unlock", give)

    def lock_holder(self, handle: int, byte: int) -> int | None:
        def holder() -> int | None:
            found = self.machine.locks.get((self._handles[handle].number, byte))
            return None if found is None or found is self else found.pid

        return self._call("lock_holder", holder)

    # For tests that look or put something there themselves; none of these is a call that can fail.

    def content(self, path: str) -> bytes:
        return bytes(self._node(path).cached)

    def put(self, path: str, data: bytes) -> None:
        """Make a file, or replace its content, on disk at once."""
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if not isinstance(node, Node):
            node = Node(next(self.machine.numbers))
            directory.entries[name] = directory.durable[name] = node
        node.cached, node.durable = bytearray(data), bytearray(data)
        node.unsynced.clear()
        node.changes += 1

    def names(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def copy(self) -> MemoryFiles:
        """Another machine with all that is written here, as if synced."""
        return self.crash(0, "kept")

    def sync_everything(self) -> None:
        def sync(directory: Directory) -> None:
            directory.sync()
            for entry in directory.entries.values():
                if isinstance(entry, Directory):
                    sync(entry)
                else:
                    entry.sync()

        sync(self.machine.root)

    # Paths

    def _entry(self, path: str) -> Node | Directory:
        entry: Node | Directory = self.machine.root
        for name in path.strip("/").split("/"):
            if not isinstance(entry, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if not name:
                continue
            if name not in entry.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            entry = entry.entries[name]
        return entry

    def _node(self, path: str) -> Node:
        entry = self._entry(path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return entry

    def _directory(self, path: str) -> Directory:
        entry = self._entry(path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return entry

    def _parent(self, path: str) -> tuple[Directory, str]:
        folder, _, name = path.rstrip("/").rpartition("/")
        return self._directory(folder), name

    def _handle(self, node: Node) -> int:
        handle = next(self._numbers)
        self._handles[handle] = node
        return handle


class _Output:
    """What pyarrow writes to, through the calls that are counted."""

    def __init__(self, files: MemoryFiles, handle: int) -> None:
        self._files, self._handle, self._position = files, handle, 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self._files.pwrite(self._handle, bytes(data), self._position)
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._files.close(self._handle)


if TYPE_CHECKING:
    _check: Files = MemoryFiles()
