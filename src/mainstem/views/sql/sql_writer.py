"""SqlWriter: applies the batches of one run of a flow to one version of a view in an SQL database, exactly once.

Rows, their changes, the batch's number and the end offsets of each source are committed in one transaction:

    begin
    flow, epoch, batch in `progress`, locked     a newer epoch: Fenced; batch committed already: done
    rows, changes, commits, history, offsets, batch number
    commit

A database adds how it connects, how a transaction begins, how rows are written, and how a run that was paused inside its
transaction is kept from committing after a newer run has started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Conflict, Fenced, ViewNotFound
from mainstem.views.sql.sql_history import SqlHistory
from mainstem.views.sql.sql_tables import SqlConnection, SqlTables
from mainstem.views.view_facts import Facts
from mainstem.views.view_store import KeptSince, PreparedRows, WrittenRows

__all__ = ["SqlWriter"]

Connection = TypeVar("Connection", bound=SqlConnection)
Prepared = TypeVar("Prepared", bound=PreparedRows)


class SqlWriter(ABC, Generic[Connection, Prepared]):
    """Writes one version of a view for one run of a flow. One thread at a time."""

    _tables: SqlTables

    def __init__(self, view: str, run: FlowRun, clock: Clock) -> None:
        self.run = run
        self.version = run.version
        self._view = view
        self._clock = clock
        self._committed_batch = -1
        # The number of changes of the batch that is being committed; None before its COMMIT is sent.
        self._sent_changes: int | None = None
        # The facts for which it was checked that there is no history to end.
        self._without_history: Facts | None = None

    @property
    def committed_batch(self) -> int:
        """The number of the last committed batch; -1 if there is none."""
        return self._committed_batch

    def holds(self, number: int) -> bool:
        """Whether this batch is committed already."""
        return number <= self._committed_batch

    @abstractmethod
    def prepare(self, rows: pa.Table) -> Prepared:
        """The rows as they will be written; its `rejections` are known before anything is written."""

    def apply(self, rows: pa.Table, batch: Batch) -> WrittenRows:
        """Commit the rows and the batch together. Idempotent: a committed batch changes nothing."""
        return self.commit(self.prepare(rows), batch)

    def commit(self, merged: Prepared, batch: Batch) -> WrittenRows:
        """Commit prepared rows and the batch together. Idempotent: a committed batch changes nothing."""
        self._sent_changes = None
        with self._translate_errors():
            self._write_batch(merged, batch)
        rejected = len(merged.rejections)
        if self._sent_changes is None:
            return WrittenRows(0, rejected, 0, merged.rejections)
        reach("view_committed")
        return WrittenRows(merged.rows, rejected, self._sent_changes, merged.rejections)

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    # Implemented for each database

    @abstractmethod
    def _translate_errors(self) -> AbstractContextManager[None]:
        """Raises the errors of the database as our own."""

    @abstractmethod
    def _transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """A transaction that is committed at the end, and rolled back if anything is raised."""

    @abstractmethod
    def _facts(self, connection: Connection) -> Facts:
        """The facts of the view, inside the transaction."""

    @abstractmethod
    def _write_batch(self, merged: Prepared, batch: Batch) -> None:
        """Call `_write` until the outcome is known."""

    @abstractmethod
    def _write_rows(self, connection: Connection, merged: Prepared, last: int | None) -> int:
        """Write rows and, after position `last`, their changes, unless it is None (not live). Returns the number of changes."""

    @abstractmethod
    def _before_commit(self, connection: Connection) -> None:
        """Called last inside the transaction of a batch."""

    # Inside the transaction

    def _claim(self, connection: Connection) -> None:
        """Begin the run: older ones are fenced from here on."""
        flow, epoch, self._committed_batch, recording = self._progress(connection)
        if flow is not None and flow != self.run.flow:
            raise Conflict(
                f'view "{self._view}" is written by flow "{flow}"',
                detail=f'Flow "{self.run.flow}" wants to write version {self.version} of it too; '
                "each would overwrite the other's rows.",
                hint=f'Give the flow its own view, or its old name: Flow(..., name="{flow}").',
            )
        self._check_epoch(epoch)
        update = f"UPDATE {self._tables.table('progress')} SET flow = $1, epoch = $2"
        connection.write(update, self.run.flow, self.run.epoch)
        if recording:
            history = SqlHistory(connection, self._tables)
            self._keep_history(history, self._facts(connection), history.last_position())

    def _progress(self, connection: Connection) -> tuple[str | None, int, int, int]:
        select = f"SELECT flow, epoch, batch, recording FROM {self._tables.table('progress')}{self._tables.for_update}"
        ((flow, epoch, batch, recording),) = connection.query(select)
        return flow, epoch, batch, recording

    def _check_epoch(self, epoch: int) -> None:
        if epoch > self.run.epoch:
            raise Fenced(
                f'this run of flow "{self.run.flow}" is fenced from view "{self._view}"',
                detail=f"This run has epoch {self.run.epoch}; a newer run with epoch {epoch} has started. Nothing of the batch "
                "was written.",
                hint="Only one run of a flow may write; the newer one continues. Start this one again to take over.",
                epoch=self.run.epoch,
                current_epoch=epoch,
            )

    def _write(self, connection: Connection, merged: Prepared, batch: Batch) -> None:
        with self._transaction(connection):
            _, epoch, self._committed_batch, recording = self._progress(connection)
            self._check_epoch(epoch)
            if self.holds(batch.number):
                return
            last = SqlHistory(connection, self._tables).last_position()
            changes = self._write_rows(connection, merged, last if recording else None)
            reach("view_rows_written")
            self._write_progress(connection, batch, last, recording)
            reach("view_batch_written")
            self._before_commit(connection)
            self._sent_changes = changes
        self._committed_batch = batch.number

    def _write_progress(self, connection: Connection, batch: Batch, before: int, recording: int) -> None:
        now, table, history = self._clock.now(), self._tables.table, SqlHistory(connection, self._tables)
        after, facts = history.last_position(), self._facts(connection)
        if recording and self._keep_history(history, facts, before):
            history.reach(batch.offsets, after)
        if after > before:
            commit = after, now, self.run.epoch, batch.number
            connection.write(f"INSERT INTO {table('commits')} VALUES ($1, $2, $3, $4)", *commit)
            history.trim(facts, after, now)
        connection.write_many(
            # The offset may go back: the source may be a view that was switched to an older version, which has applied less.
            f"INSERT INTO {table('offsets')} VALUES ($1, $2, $3) "
            'ON CONFLICT (topic, partition) DO UPDATE SET "end" = excluded."end"',
            [(topic, number, end) for topic, ends in batch.offsets.items() for number, end in ends.items()],
        )
        connection.write(f"UPDATE {table('progress')} SET batch = $1, applied_at = $2", batch.number, now)

    def _keep_history(self, history: SqlHistory, facts: Facts, position: int) -> bool:
        """Begin or end the history, as the view's settings say; returns whether there is one."""
        if not facts.history_age_us:
            if facts != self._without_history and not history.end():
                self._without_history = facts
            return False
        untouched = self._committed_batch < 0 and position == 0
        history.keep(KeptSince(-1 if untouched else position, self._clock.now()))
        return True

    def _dropped_error(self, detail: str) -> ViewNotFound:
        """The error for a dropped version: rows written to it would be lost silently."""
        return ViewNotFound(
            f'view "{self._view}" was dropped while flow "{self.run.flow}" wrote it',
            detail=detail,
            hint="Start the flow again: it rebuilds the view from the log.",
            view=self._view,
        )
