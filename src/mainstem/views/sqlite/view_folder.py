"""The directory of a view: which versions it has, which one is live, and which changes each one served.

    views/<name>/
        view.json           key, versions with their schemas, the live one, the history of live ones, the retention of changes
        lock                locked while versions are created, switched or dropped
        wake                written after each commit: wakes waiting readers
        v<n>.sqlite         the rows of version n; beside it SQLite's own -wal and -shm
        v<n>.fence          epoch and process of the run that writes version n

The directory is created completely under a name that begins with a dot and then renamed; it is dropped by renaming it
back to such a name. view.json is replaced atomically: a reader sees one live version or the next, never none.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from mainstem.durable_files import RealFiles, copy_file, read_file, replace_file, sync_file, unavailable
from mainstem.errors import ViewNotFound
from mainstem.file_locks import WRITE, release_lock, share_lock
from mainstem.processes import identity_of
from mainstem.views.sqlite.view_file import ViewFile, connect
from mainstem.views.view_facts import Facts, no_such_view

__all__ = ["ViewFolder", "view_names"]

_FILES = RealFiles()
_FENCE = struct.Struct("<qq")


class ViewFolder:
    """One view's directory. Thread-safe."""

    def __init__(self, home: str, view: str) -> None:
        self.home = home
        self.view = view
        self.path = f"{home}/views/{view}"
        self._seen: tuple[tuple[int, int, int], Facts] | None = None

    def exists(self) -> bool:
        return os.path.exists(f"{self.path}/view.json")

    def facts(self) -> Facts:
        """The current content of view.json; raises `ViewNotFound` if there is no view."""
        path = f"{self.path}/view.json"
        seen = self._seen
        try:
            identity = _FILES.identity(path)
            if seen is not None and seen[0] == identity:
                return seen[1]
            facts = Facts.decode(read_file(_FILES, path), path, self.view)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._not_found() from error
        # If it was replaced meanwhile, the next call sees another identity and reads it again.
        self._seen = (identity, facts)
        return facts

    def _not_found(self) -> ViewNotFound:
        return no_such_view(self.view, view_names(self.home), f'The home "{self.home}"')

    def write_facts(self, facts: Facts) -> None:
        """Replace view.json; only with the lock held."""
        replace_file(_FILES, f"{self.path}/view.json", facts.encode())

    def version_path(self, number: int) -> str:
        return f"{self.path}/v{number}.sqlite"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Inside, no other process or thread creates, switches or drops versions."""
        try:
            lock = share_lock(_FILES, f"{self.path}/lock")
        except FileNotFoundError as error:
            raise self._not_found() from error
        try:
            with lock.hold(WRITE):
                yield
        finally:
            release_lock(lock)

    # Creating and dropping

    def create(self, facts: Facts, schema: pa.Schema) -> None:
        """Create the view with its first version; does nothing if another process was first."""
        parent = f"{self.home}/views"
        beside = f"{parent}/.new-{os.getpid()}-{uuid.uuid4().hex[:8]}-{self.view}"
        with unavailable(self.home):
            os.makedirs(beside, mode=0o700)
            _sweep(parent)
            try:
                file = ViewFile(self.view, facts.live, facts.key, schema, f"{beside}/v{facts.live}.sqlite")
                file.create_file(recording=1)
                for name in ("lock", "wake"):
                    _FILES.close(_FILES.create(f"{beside}/{name}"))
                replace_file(_FILES, f"{beside}/view.json", facts.encode())
                try:
                    os.rename(beside, self.path)
                except OSError as error:
                    # Another process was first: its view is used.
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                _FILES.sync_directory(parent)
                _FILES.sync_directory(self.home)
            finally:
                shutil.rmtree(beside, ignore_errors=True)

    def keep_changes(self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None) -> None:
        """Set the retention of changes, by number and age, and of the history; None leaves a setting unchanged."""
        if self.facts().with_retention(changes_max, changes_age_us, history_age_us) != self.facts():
            with self.lock():
                self.write_facts(self.facts().with_retention(changes_max, changes_age_us, history_age_us))

    def add_version(self, schema: pa.Schema, number: int, created_at: int) -> None:
        """Create a version beside the others; only with the lock held."""
        facts = self.facts()
        with unavailable(self.home):
            ViewFile(self.view, number, facts.key, schema, self.version_path(number)).create_file(recording=0)
            self.write_facts(facts.with_version(number, schema, created_at))

    def remove_version(self, number: int) -> None:
        """Remove a version that is not live; only with the lock held."""
        self.write_facts(self.facts().without_version(number))
        for suffix in (".sqlite", ".sqlite-wal", ".sqlite-shm", ".fence"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self.path}/v{number}{suffix}")

    def copy_to(self, home: str) -> int:
        """Copy the view into another home, each version as of one of its commits; returns the number of bytes."""
        there = ViewFolder(home, self.view)
        _FILES.make_directory(there.path)
        size = 0
        with self.lock():
            facts = self.facts()
            for number in facts.numbers():
                size += _copy_database(self.version_path(number), there.version_path(number))
                with suppress(FileNotFoundError):
                    copy_file(_FILES, f"{self.path}/v{number}.fence", f"{there.path}/v{number}.fence")
        for name in ("lock", "wake"):
            _FILES.close(_FILES.create(f"{there.path}/{name}"))
        there.write_facts(facts)
        return size

    def problems(self) -> Iterator[tuple[str, str]]:
        """The problems of each version's file, by SQLite's own check. It finds structural damage only: SQLite has no checksums
        of values."""
        for number in self.facts().numbers():
            path = self.version_path(number)
            if not os.path.exists(path):
                yield path, "the file is missing"
                continue
            try:
                connection = connect(path)
                try:
                    said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
                finally:
                    connection.close()
            except sqlite3.DatabaseError as error:
                said = [str(error)]
            if said != ["ok"]:
                yield path, "; ".join(line for text in said for line in text.splitlines())

    def remove(self) -> None:
        """Drop the view: first its name, then its files."""
        gone = f"{self.home}/views/.deleted-{uuid.uuid4().hex[:8]}-{self.view}"
        try:
            os.rename(self.path, gone)
        except FileNotFoundError as error:
            raise self._not_found() from error
        _FILES.sync_directory(f"{self.home}/views")
        shutil.rmtree(gone, ignore_errors=True)

    # Waking and fencing

    def wake(self) -> None:
        """Wake waiting readers after a commit."""
        with suppress(OSError):
            handle = os.open(f"{self.path}/wake", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(handle, uuid.uuid4().bytes, 0)
            finally:
                os.close(handle)

    def fence(self, version: int) -> tuple[int, int]:
        """Epoch and process of the latest run that writes a version."""
        try:
            data = read_file(_FILES, f"{self.path}/v{version}.fence")
        except FileNotFoundError:
            return 0, 0
        return _FENCE.unpack(data) if len(data) == _FENCE.size else (0, 0)

    def raise_fence(self, version: int, epoch: int) -> None:
        """Fence older runs; only with the lock held."""
        path = f"{self.path}/v{version}.fence"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(handle, _FENCE.pack(epoch, os.getpid()), 0)
        finally:
            os.close(handle)


def _copy_database(path: str, to: str) -> int:
    """Copy the committed content of a SQLite file; a file that SQLite cannot read is copied byte by byte."""
    try:
        source = connect(path)
        try:
            target = sqlite3.connect(to, isolation_level=None)
            try:
                # All pages in one step: a consistent snapshot.
                source.backup(target)
            finally:
                target.close()
        finally:
            source.close()
        os.chmod(to, 0o600)
        sync_file(_FILES, to)
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal"):
            if os.path.exists(path + suffix):
                copy_file(_FILES, path + suffix, to + suffix)
    # A file that is missing here is missing in the copy too.
    return os.path.getsize(to) if os.path.exists(to) else 0


def _sweep(parent: str) -> None:
    """Remove the files of interrupted drops and creations."""
    for name in _FILES.list(parent):
        made = name.removeprefix(".new-").split("-")[0]
        cut_short = name.startswith(".new-") and made.isdigit() and identity_of(int(made)) is None
        if name.startswith(".deleted-") or cut_short:
            shutil.rmtree(f"{parent}/{name}", ignore_errors=True)


def view_names(home: str) -> list[str]:
    """The views of a home, sorted."""
    try:
        return [name for name in _FILES.list(f"{home}/views") if not name.startswith(".")]
    except FileNotFoundError:
        return []
