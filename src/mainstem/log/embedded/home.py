"""The home: the directory that holds a log.

    mainstem.json                  format and id of the home
    lock                           locked while topics are made, altered or deleted
    topics/<name>/                 topic.json, heads, <partition>/, groups/<name>/, queues/<name>/
    ledgers/<name>/                producers, transactions

A directory in it is created under a name that begins with a dot and renamed when it is complete; to delete one, it is
first renamed to such a name. So directories without a dot are always complete.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mainstem.durable_files import (
    Files,
    decode_checked,
    encode_checked,
    read_file,
    replace_file,
    unavailable,
)
from mainstem.errors import CorruptHome, Invalid, NewerFormat
from mainstem.file_locks import WRITE, PartitionLock, release_lock, share_lock
from mainstem.processes import alive, this_process

# 2: the file has a checksum.
FORMAT = 2
NEW, DELETED = ".new-", ".deleted-"


def describe_home(id: str) -> bytes:
    """The content of `mainstem.json`."""
    return encode_checked({"format": FORMAT, "id": id})


class Home:
    """An open home."""

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._files = files
        with unavailable(path):
            if not files.exists(f"{path}/mainstem.json"):
                self._create()
            self.id = self._read()
        self.lock: PartitionLock = share_lock(files, f"{path}/lock")
        self._sweep()

    def _create(self) -> None:
        files, path = self._files, self.path
        if files.exists(path) and (others := [name for name in files.list(path) if name not in PARTS]):
            raise Invalid(
                f'"{path}" is neither empty nor a home of Mainstem',
                detail=f"It holds {others[0]!r}" + (f" and {len(others) - 1} more." if len(others) > 1 else "."),
                hint="Give a new or an empty directory.",
            )
        for folder in (path, f"{path}/topics", f"{path}/ledgers"):
            files.make_directory(folder)
        if not files.exists(f"{path}/lock"):
            files.close(files.create(f"{path}/lock"))
        lock = share_lock(files, f"{path}/lock")
        try:
            with lock.hold(WRITE):
                if not files.exists(f"{path}/mainstem.json"):
                    replace_file(files, f"{path}/mainstem.json", describe_home(uuid.uuid4().hex))
                    # The directory entry of the home must survive a power cut too.
                    files.sync_directory(os.path.dirname(os.path.abspath(path)))
        finally:
            release_lock(lock)

    def _read(self) -> str:
        path = f"{self.path}/mainstem.json"
        try:
            content = decode_checked(read_file(self._files, path), since=2, known=FORMAT)
            version = int(content["format"])
            identity = str(content["id"]) if version <= FORMAT else ""
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptHome(
                f'"{path}" cannot be read',
                detail=f"It should hold the format and the id of the home as JSON: {error}.",
                hint='Restore it from a copy, or write {"format": 1, "id": "any"} into it.',
                path=path,
            ) from error
        if version > FORMAT:
            raise NewerFormat.of(f'home "{self.path}"', version, FORMAT)
        return identity

    def _sweep(self) -> None:
        """Remove the leftovers of an interrupted creation or deletion."""
        for folder in (f"{self.path}/topics", f"{self.path}/ledgers"):
            for name in self._files.list(folder):
                if name.startswith(DELETED) or (name.startswith(NEW) and not _is_in_use(name)):
                    with suppress(OSError):
                        self._files.remove_tree(f"{folder}/{name}")

    def close(self) -> None:
        release_lock(self.lock)

    @contextmanager
    def lock_topics(self) -> Iterator[None]:
        """Keeps other processes from creating, altering or deleting topics."""
        with self.lock.hold(WRITE):
            yield

    def topic_folder(self, name: str) -> str:
        return f"{self.path}/topics/{name}"

    def topic_names(self) -> list[str]:
        return [name for name in self._files.list(f"{self.path}/topics") if not name.startswith(".")]

    def make_folder(self, folder: str, fill: Callable[[str], None]) -> None:
        """Create a directory atomically: filled under another name, then renamed. Does nothing if it exists by then."""
        parent, name = os.path.split(folder)
        with unavailable(self.path):
            self._files.make_directory(parent)
            beside = f"{parent}/{NEW}{_process_word()}-{uuid.uuid4().hex[:8]}-{name}"
            try:
                fill(beside)
                self._files.sync_directory(beside)
                if not self._files.exists(folder):
                    self._files.rename(beside, folder)
            except OSError as error:
                if not self._files.exists(folder):
                    raise error
            finally:
                # Leftovers are removed when the home is opened again; the first error is raised.
                with suppress(OSError):
                    if self._files.exists(beside):
                        self._files.remove_tree(beside)
            self._files.sync_directory(parent)

    def remove_folder(self, folder: str) -> None:
        """Remove a directory: it is renamed first, so that it disappears at once."""
        parent, name = os.path.split(folder)
        gone = f"{parent}/{DELETED}{uuid.uuid4().hex[:8]}-{name}"
        self._files.rename(folder, gone)
        self._files.sync_directory(parent)
        self._files.remove_tree(gone)


PARTS = ("mainstem.json", "mainstem.json.new", "topics", "ledgers", "lock")


def _process_word() -> str:
    identity = this_process()
    return f"{identity['pid']}.{identity['started']}"


def _is_in_use(name: str) -> bool:
    pid, _, started = name.removeprefix(NEW).split("-")[0].partition(".")
    identity = this_process()
    return alive({"pid": int(pid), "started": int(started), "boot": identity["boot"]})
