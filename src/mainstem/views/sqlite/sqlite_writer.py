"""ViewWriter: applies the batches of one run of a flow to one version of a view, exactly once.

The transaction of `SqlWriter` is synced (WAL, synchronous=FULL). The epoch is checked inside it, twice:

    BEGIN IMMEDIATE           from here on no other run writes
    epoch in the file         a newer run started before this transaction: Fenced
    rows, changes, offsets, batch number, epoch
    epoch in v<n>.fence       a newer run started meanwhile, and waits for the lock: Fenced, rolled back
    COMMIT

A newer run first raises the fence, then waits for the lock, then writes its epoch into the file. So a run that was paused
inside its transaction finds the fence raised when it continues. If it was paused after its last check, its commit is
valid: the newer run, which still waits, starts after it and finds the batch committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.views.merge_batch import MergedBatch, merge_batch
from mainstem.views.sql.sql_writer import SqlWriter
from mainstem.views.sqlite.view_file import SqliteConnection, ViewFile, connect, transaction, translate_errors
from mainstem.views.sqlite.view_folder import ViewFolder
from mainstem.views.view_facts import Facts
from mainstem.views.view_store import WrittenRows

__all__ = ["ViewWriter"]


class ViewWriter(SqlWriter[SqliteConnection, MergedBatch]):
    """Writes one version of a view in SQLite for one run of a flow. One thread at a time."""

    _tables: ViewFile

    def __init__(self, folder: ViewFolder, run: FlowRun, *, clock: Clock) -> None:
        super().__init__(folder.view, run, clock)
        self._folder = folder
        self._path = folder.version_path(run.version)
        # Whether this connection records changes; a version that is not live keeps none.
        self._recording = False
        with folder.lock():
            fence, self._holder = folder.fence(run.version)
            self._check_epoch(fence)
            folder.raise_fence(run.version, run.epoch)
        with self._translate_errors():
            self._connection = connect(self._path)
        try:
            with self._translate_errors():
                self._tables = ViewFile.read(self._connection, self._path)
                self._inode = os.stat(self._path).st_ino
                with self._transaction(self._connection):
                    self._claim(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def prepare(self, rows: pa.Table) -> MergedBatch:
        return merge_batch(rows, self._tables.schema, self._tables.key, view=self._view)

    def commit(self, merged: MergedBatch, batch: Batch) -> WrittenRows:
        written = super().commit(merged, batch)
        self._folder.wake()
        return written

    def close(self) -> None:
        self._connection.close()

    def _translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(self._path, self._view, holder=self._holder)

    @contextmanager
    def _transaction(self, connection: SqliteConnection) -> Iterator[None]:
        recording = self._recording
        try:
            with transaction(connection, "BEGIN IMMEDIATE"):
                yield
        except BaseException:
            # The rollback removes triggers that the transaction created.
            self._recording = recording
            raise

    def _facts(self, connection: SqliteConnection) -> Facts:
        return self._folder.facts()

    def _write_batch(self, merged: MergedBatch, batch: Batch) -> None:
        try:
            there = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            there = False
        if not there:
            raise self._dropped_error(f"{self._path} is no longer the file of version {self.version}.")
        self._write(self._connection, merged, batch)

    def _write_rows(self, connection: SqliteConnection, merged: MergedBatch, last: int | None) -> int:
        self._record_changes(connection, recording=last is not None)
        changed = 0
        for statement, columns in ((self._tables.upsert, merged.upserts), (self._tables.delete, merged.deletes)):
            if columns[0]:
                changed += connection.executemany(statement, zip(*columns, strict=True)).rowcount
        return changed

    def _record_changes(self, connection: SqliteConnection, *, recording: bool) -> None:
        """A version that is not live does not keep its changes: when it becomes live, the difference is written into it."""
        if recording == self._recording:
            return
        for name, statement in self._tables.triggers.items():
            connection.execute(statement if recording else f"DROP TRIGGER temp.{name}")
        self._recording = recording

    def _check_epoch(self, epoch: int) -> None:
        super()._check_epoch(max(epoch, self._folder.fence(self.version)[0]))

    def _before_commit(self, connection: SqliteConnection) -> None:
        self._check_epoch(self.run.epoch)
        reach("view_checked")
