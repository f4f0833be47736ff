"""ViewWriter: applies the batches of one run of a flow to one version of a view, exactly once.

Rows, their changes, the batch's number and the end offsets of each source are committed in one transaction of SQLite,
synced (WAL, synchronous=FULL). The epoch is checked inside it, twice:

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
from contextlib import contextmanager

import pyarrow as pa

from mainstem.batch import Batch, FlowRun, Offsets
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Conflict, Fenced, ViewNotFound
from mainstem.views.merge_batch import MergedBatch, merge_batch
from mainstem.views.sqlite.sqlite_history import SqliteHistory
from mainstem.views.sqlite.view_file import ViewFile, connect, translated
from mainstem.views.sqlite.view_folder import ViewFolder
from mainstem.views.view_store import KeptSince, WrittenRows

__all__ = ["ViewWriter"]


class ViewWriter:
    """Writes one version of a view in SQLite for one run of a flow. One thread at a time."""

    def __init__(self, folder: ViewFolder, run: FlowRun, *, clock: Clock, lock_seconds: float | None = None) -> None:
        self.run = run
        self.version = run.version
        self._folder = folder
        self._clock = clock
        self._path = folder.version_path(run.version)
        self._committed_batch = -1
        # Whether this connection writes changes down; a version that is not live keeps none.
        self._recording = 0
        with folder.locked():
            fence, self._holder = folder.fence(run.version)
            if fence > run.epoch:
                raise self._fenced(fence)
            folder.raise_fence(run.version, run.epoch)
        with self._translated():
            self._connection = connect(self._path, lock_seconds=lock_seconds)
        try:
            with self._translated():
                self.file = ViewFile.read(self._connection, self._path)
                self._inode = os.stat(self._path).st_ino
                self._history = SqliteHistory(self._connection, self.file)
                self._begin_run()
        except BaseException:
            self._connection.close()
            raise

    def _begin_run(self) -> None:
        with self._transaction():
            flow, epoch, committed_batch, recording = self._connection.execute(
                "SELECT flow, epoch, batch, recording FROM progress"
            ).fetchone()
            if flow is not None and flow != self.run.flow:
                raise Conflict(
                    f'view "{self._folder.view}" is written by flow "{flow}"',
                    detail=f'Flow "{self.run.flow}" wants to write version {self.version} of it too; '
                    "each would overwrite the other's rows.",
                    hint=f'Give the flow its own view, or its old name: Flow(..., name="{flow}").',
                )
            if epoch > self.run.epoch:
                raise self._fenced(epoch)
            self._connection.execute("UPDATE progress SET flow = ?, epoch = ?", (self.run.flow, self.run.epoch))
            self._committed_batch = int(committed_batch)
            if recording:
                self._keep_history(self._last_position())

    @property
    def committed_batch(self) -> int:
        """The number of the last committed batch; -1 if there is none."""
        return self._committed_batch

    def holds(self, number: int) -> bool:
        """Whether this batch is committed already."""
        return number <= self._committed_batch

    def prepare(self, rows: pa.Table) -> MergedBatch:
        """The rows as they will be written; its `rejections` are known before anything is written."""
        return merge_batch(rows, self.file.schema, self.file.key, view=self._folder.view)

    def apply(self, rows: pa.Table, batch: Batch) -> WrittenRows:
        """Commit the rows and the batch together. Idempotent: a committed batch changes nothing."""
        return self.commit(self.prepare(rows), batch)

    def commit(self, merged: MergedBatch, batch: Batch) -> WrittenRows:
        """Commit prepared rows and the batch together. Idempotent: a committed batch changes nothing."""
        rejected = len(merged.rejections)
        with self._translated():
            self._check_still_there()
            with self._transaction():
                committed_batch, recording = self._check_epoch()
                if batch.number <= committed_batch:
                    self._committed_batch = committed_batch
                    return WrittenRows(0, rejected, 0, merged.rejections)
                self._record_changes(recording)
                before = self._last_position()
                changes = self._write_rows(merged)
                reach("view_rows_written")
                self._write_progress(batch, before)
                reach("view_batch_written")
                self._check_fence()
                reach("view_checked")
            self._committed_batch = batch.number
        reach("view_committed")
        self._folder.wake()
        return WrittenRows(merged.rows, rejected, changes, merged.rejections)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # Inside of the transaction

    def _write_rows(self, merged: MergedBatch) -> int:
        changed = 0
        if merged.upserts[0]:
            changed += self._connection.executemany(self.file.upsert, zip(*merged.upserts, strict=True)).rowcount
        if merged.deletes[0]:
            changed += self._connection.executemany(self.file.delete, zip(*merged.deletes, strict=True)).rowcount
        return changed

    def _write_progress(self, batch: Batch, before: int) -> None:
        now = self._clock.now()
        execute = self._connection.execute
        after = self._last_position()
        if self._recording and self._keep_history(before):
            self._history.reach(batch.offsets, after)
        if after > before:
            execute("INSERT INTO commits VALUES (?, ?, ?, ?)", (after, now, self.run.epoch, batch.number))
            self._trim(after, now)
        self._write_offsets(batch.offsets)
        execute("UPDATE progress SET batch = ?, applied_at = ?", (batch.number, now))

    def _write_offsets(self, offsets: Offsets) -> None:
        ends = [(topic, number, end) for topic, ends in offsets.items() for number, end in ends.items()]
        self._connection.executemany(
            # Behind a view of which an older version was put to use, it may go back: what that one lacks is not in any more.
            'INSERT INTO offsets VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "end" = excluded."end"',
            ends,
        )

    def _trim(self, last: int, now: int) -> None:
        """Drop changes beyond their retention; the last one always stays."""
        facts = self._folder.facts()
        too_old = self._history.too_old(now - max(facts.changes_age_us, facts.history_age_us), last)
        # A history has no gaps: it is kept for its time, however many changes there are.
        too_many = 0 if facts.history_age_us else last - facts.changes_max
        gone = min(max(too_many, too_old), last - 1)
        if gone > 0:
            if facts.history_age_us:
                self._history.begin_at(gone)
            self._connection.execute("DELETE FROM changes WHERE position <= ?", (gone,))
            self._connection.execute("DELETE FROM commits WHERE end_position <= ?", (gone,))

    def _keep_history(self, position: int) -> bool:
        """Begin the history, or end it, as the view's settings say; whether there is one, at `position` at least."""
        if not self._folder.facts().history_age_us:
            self._history.end()
            return False
        untouched = self._committed_batch < 0 and position == 0
        self._history.keep(KeptSince(-1 if untouched else position, self._clock.now()))
        return True

    def _last_position(self) -> int:
        return int(self._connection.execute("SELECT max(position) FROM changes").fetchone()[0])

    def _record_changes(self, recording: int) -> None:
        """A version that is not live does not keep its changes: when it becomes live, the difference is written into it."""
        if recording == self._recording:
            return
        for name, statement in self.file.triggers.items():
            self._connection.execute(statement if recording else f"DROP TRIGGER temp.{name}")
        self._recording = recording

    def _check_epoch(self) -> tuple[int, int]:
        epoch, committed_batch, recording = self._connection.execute(
            "SELECT epoch, batch, recording FROM progress"
        ).fetchone()
        if epoch > self.run.epoch:
            raise self._fenced(epoch)
        self._check_fence()
        return committed_batch, recording

    def _check_fence(self) -> None:
        epoch, _ = self._folder.fence(self.version)
        if epoch > self.run.epoch:
            raise self._fenced(epoch)

    def _check_still_there(self) -> None:
        """Rows written to a file that was dropped would be lost silently."""
        try:
            there = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            there = False
        if not there:
            raise ViewNotFound(
                f'view "{self._folder.view}" was dropped while flow "{self.run.flow}" wrote it',
                detail=f"{self._path} is no longer the file of version {self.version}.",
                hint="Start the flow again: it rebuilds the view from the log.",
                view=self._folder.view,
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        recording = self._recording
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # Also an interrupt from the keyboard: the transaction must not stay open.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            # Triggers that were made in it are gone with it.
            self._recording = recording
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        with translated(self._path, self._folder.view, holder=self._holder):
            yield

    def _fenced(self, epoch: int) -> Fenced:
        return Fenced(
            f'this run of flow "{self.run.flow}" is fenced from view "{self._folder.view}"',
            detail=f"This run has epoch {self.run.epoch}; a newer run with epoch {epoch} has started. Nothing of the batch "
            "was written.",
            hint="Only one run of a flow may write; the newer one continues. Start this one again to take over.",
            epoch=self.run.epoch,
            current_epoch=epoch,
        )
