"""PostgresWriter: applies the batches of one run of a flow to one version of a view in PostgreSQL, exactly once.

    BEGIN
    epoch, batch in `progress`, locked     from here on no other run writes; a newer epoch: Fenced; batch committed: done
    COPY into two temporary tables, changes, rows, offsets, batch number
    COMMIT

A newer run starts by locking the same row, so it starts before or after a transaction of an older one, never within.
If the older run holds the lock and does not continue (its process was paused, its machine died), the newer run has the
server end its session: what it had not committed is rolled back.

If the connection ends while a batch is written, the outcome of its COMMIT is unknown. So the writer connects again,
takes the lock, which a transaction that is still being committed holds, and reads the last committed batch: if it is
this one, it is done; if not, the batch is written again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from mainstem.batch import Batch, FlowRun, Offsets
from mainstem.clock import Clock
from mainstem.crash_points import reach
from mainstem.errors import Conflict, Fenced, ViewNotFound
from mainstem.log.backoff import Backoff
from mainstem.views.merge_batch import MergedColumns, merge_columns
from mainstem.views.postgres.postgres_address import is_lost, rolled_back_by_server, translated
from mainstem.views.postgres.postgres_columns import copy_rows, unfit
from mainstem.views.postgres.postgres_history import PostgresHistory
from mainstem.views.postgres.postgres_pool import LOCK_MS_MAX, Session
from mainstem.views.postgres.postgres_tables import DELETES, UPSERTS
from mainstem.views.postgres.postgres_watch import channel_of
from mainstem.views.view_facts import Facts, no_such_version
from mainstem.views.view_store import KeptSince, WrittenRows

if TYPE_CHECKING:
    from mainstem.views.postgres.postgres_backend import PostgresStore

__all__ = ["PostgresWriter"]

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# Deadlocks with other people's sessions, and connections that end: after so many in a row the flow has to wait a while.
TRIES = 5
AGAIN = Backoff("20 milliseconds", max="1 second", growth="exponential")
# A run that says nothing for so long inside a transaction is stopped, or its machine is gone.
IDLE_MS_MAX = 60_000
# Of commits that are too old, how many are dropped with a batch: more than come.
TRIM_COMMITS_MAX = 1_000
EMPTY_COPY = copy_rows([pa.array([], pa.int64())])


class PostgresWriter:
    """Writes one version of a view for one run of a flow. One thread at a time."""

    def __init__(self, store: PostgresStore, run: FlowRun, *, clock: Clock) -> None:
        self.run = run
        self.version = run.version
        self._store = store
        self._clock = clock
        facts = store.facts()
        if run.version not in facts.numbers():
            raise no_such_version(store.view, facts, run.version)
        self._tables = store.tables(facts, run.version)
        self._name = f"mainstem writer {facts.id[:8]} v{run.version} "
        self._committed_batch = -1
        self._connection: Session | None = None
        self._sent_changes: int | None = None
        self._without_history = False
        with self._translated():
            self._begin_run()

    # A run

    def _begin_run(self) -> None:
        """Connect, and fence older runs; returns the last committed batch."""
        self.close()
        connection = self._store.pool.connect(f"{self._name}{self.run.epoch}")
        try:
            connection.execute(f"SET lock_timeout = {LOCK_MS_MAX}")
            connection.execute(f"SET idle_in_transaction_session_timeout = {IDLE_MS_MAX}")
            # Of a batch's rows each is looked up by its key. Not knowing how many they are, PostgreSQL may choose to read all
            # rows of the view instead.
            connection.execute("SET enable_hashjoin = off")
            connection.execute("SET enable_mergejoin = off")
            # What is said to be in must be on disk; a server that promises more may go on doing so.
            durable = (
                "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = $1"
            )
            connection.execute(durable, ("off",))
            for statement in self._tables.staging():
                connection.execute(statement)
            self._end_older_sessions(connection)
            with self._transaction(connection):
                self._committed_batch = self._claim(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _end_older_sessions(self, connection: Session) -> None:
        """End the sessions that an older run, or this one before its connection broke, left inside a transaction."""
        found = connection.execute(
            "SELECT pid, application_name FROM pg_stat_activity WHERE starts_with(application_name, $1) "
            "AND pid <> pg_backend_pid() AND datname = current_database() AND usename = current_user AND state <> 'idle'",
            (self._name,),
        ).fetchall()
        for pid, name in found:
            epoch = name.removeprefix(self._name)
            if epoch.isdigit() and int(epoch) <= self.run.epoch:
                connection.execute("SELECT pg_terminate_backend($1)", (pid,))

    def _claim(self, connection: Session) -> int:
        flow, epoch, committed_batch, recording = self._locked_progress(connection)
        if flow is not None and flow != self.run.flow:
            raise Conflict(
                f'view "{self._store.view}" is written by flow "{flow}"',
                detail=f'Flow "{self.run.flow}" wants to write version {self.version} of it too; '
                "each would overwrite the other's rows.",
                hint=f'Give the flow its own view, or its old name: Flow(..., name="{flow}").',
            )
        self._check_epoch(epoch)
        update = f"UPDATE {self._tables.table('progress')} SET flow = $1, epoch = $2"
        connection.execute(update, (self.run.flow, self.run.epoch))
        if recording:
            self._keep_history(
                connection, self._store.facts_in(connection), committed_batch, self._last_position(connection)
            )
        return committed_batch

    def _locked_progress(self, connection: Session) -> tuple[str | None, int, int, int]:
        select = f"SELECT flow, epoch, batch, recording FROM {self._tables.table('progress')} FOR UPDATE"
        flow, epoch, batch, recording = _row(connection.execute(select))
        return flow, epoch, batch, recording

    def _check_epoch(self, epoch: int) -> None:
        if epoch > self.run.epoch:
            raise Fenced(
                f'this run of flow "{self.run.flow}" is fenced from view "{self._store.view}"',
                detail=f"This run has epoch {self.run.epoch}; a newer run with epoch {epoch} has started. Nothing of the batch "
                "was written.",
                hint="Only one run of a flow may write; the newer one continues. Start this one again to take over.",
                epoch=self.run.epoch,
                current_epoch=epoch,
            )

    # Batches

    @property
    def committed_batch(self) -> int:
        """The number of the last committed batch; -1 if there is none."""
        return self._committed_batch

    def holds(self, number: int) -> bool:
        """Whether this batch is committed already."""
        return number <= self._committed_batch

    def prepare(self, rows: pa.Table) -> MergedColumns:
        """The rows as they will be written; its `rejections` are known before anything is written."""
        tables = self._tables
        fits = partial(unfit, key=tables.key)
        return merge_columns(rows, tables.schema, tables.key, view=self._store.view, unfit=fits)

    def apply(self, rows: pa.Table, batch: Batch) -> WrittenRows:
        """Commit the rows and the batch together. Idempotent: a committed batch changes nothing."""
        return self.commit(self.prepare(rows), batch)

    def commit(self, merged: MergedColumns, batch: Batch) -> WrittenRows:
        """Commit prepared rows and the batch together. Idempotent: a committed batch changes nothing."""
        rejected = len(merged.rejections)
        payloads = copy_rows(merged.upserts), copy_rows(merged.deletes)
        # What this call sent off to be committed, should the answer not come.
        self._sent_changes = None
        with self._translated():
            for tried in range(1, TRIES + 1):
                try:
                    if self._connection is None:
                        self._begin_run()
                    if not self._committed_batch >= batch.number:
                        self._write(payloads, batch)
                    break
                except psycopg.Error as error:
                    lost = is_lost(error)
                    if lost:
                        self.close()
                    if tried == TRIES or not (lost or rolled_back_by_server(error)):
                        raise
                    if not lost:
                        # The other one has what it wanted now, if it gets the time: whoever asks again at once is before it.
                        time.sleep(AGAIN.delay(tried).total_seconds())
        if self._sent_changes is None:
            return WrittenRows(0, rejected, 0, merged.rejections)
        reach("view_committed")
        return WrittenRows(merged.rows, rejected, self._sent_changes, merged.rejections)

    def _write(self, payloads: tuple[bytes, bytes], batch: Batch) -> None:
        connection = self._connection
        assert connection is not None
        with self._transaction(connection):
            _, epoch, self._committed_batch, recording = self._locked_progress(connection)
            self._check_epoch(epoch)
            if self._committed_batch >= batch.number:
                return
            last = self._last_position(connection)
            changes = self._write_rows(connection, payloads, last if recording else None)
            reach("view_rows_written")
            self._write_progress(connection, batch, last, recording)
            reach("view_batch_written")
            self._sent_changes = changes
        self._committed_batch = batch.number

    def close(self) -> None:
        """Release the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Inside of the transaction

    def _write_rows(self, connection: Session, payloads: tuple[bytes, bytes], last: int | None) -> int:
        """Rows and, behind position `last`, their changes; a version that is not live keeps none (None)."""
        tables, changed = self._tables, 0
        for payload, table, record, write in (
            (payloads[0], UPSERTS, tables.record_upserts, tables.upsert),
            (payloads[1], DELETES, tables.record_deletes, tables.delete),
        ):
            if payload == EMPTY_COPY:
                continue
            with connection.cursor() as cursor:
                with cursor.copy(tables.copy(table)) as copy:
                    copy.write(payload)
                if last is not None:
                    cursor.execute(record, (last + changed,))
                cursor.execute(write)
                changed += cursor.rowcount
        return changed

    def _write_progress(self, connection: Session, batch: Batch, before: int, recording: int) -> None:
        now, table = self._clock.now(), self._tables.table
        after = self._last_position(connection)
        facts = self._store.facts_in(connection)
        if recording and self._keep_history(connection, facts, self._committed_batch, before):
            PostgresHistory(connection, self._tables).reach(batch.offsets, after)
        if after > before:
            insert = f"INSERT INTO {table('commits')} VALUES ($1, $2, $3, $4)"
            connection.execute(insert, (after, now, self.run.epoch, batch.number))
            self._trim(connection, facts, after, now)
        self._write_offsets(connection, batch.offsets)
        connection.execute(f"UPDATE {table('progress')} SET batch = $1, applied_at = $2", (batch.number, now))
        connection.execute("SELECT pg_notify($1, '')", (channel_of(self._tables.id),))

    def _write_offsets(self, connection: Session, offsets: Offsets) -> None:
        # Behind a view of which an older version was put to use, it may go back: what that one lacks is not in any more.
        upsert = (
            f"INSERT INTO {self._tables.table('offsets')} VALUES ($1, $2, $3) "
            'ON CONFLICT (topic, partition) DO UPDATE SET "end" = excluded."end"'
        )
        ends = [(topic, number, end) for topic, ends in offsets.items() for number, end in ends.items()]
        with connection.cursor() as cursor:
            cursor.executemany(upsert, ends)

    def _trim(self, connection: Session, facts: Facts, last: int, now: int) -> None:
        """Drop changes beyond their retention; the last one always stays.

        What was dropped lies in the index until the server cleans up: so each time it is begun where the last one ended.
        """
        table = self._tables.table
        (trimmed,) = _row(connection.execute(f"SELECT trimmed FROM {table('progress')}"))
        first = (
            f"SELECT * FROM {table('commits')} WHERE end_position > $1 ORDER BY end_position LIMIT {TRIM_COMMITS_MAX}"
        )
        oldest = f"SELECT max(end_position) FROM ({first}) AS first WHERE committed_at < $2 AND end_position < $3"
        too_late = now - max(facts.changes_age_us, facts.history_age_us)
        (too_old,) = _row(connection.execute(oldest, (trimmed, too_late, last)))
        # A history has no gaps: it is kept for its time, however many changes there are.
        too_many = 0 if facts.history_age_us else last - facts.changes_max
        gone = min(max(too_many, too_old or 0), last - 1)
        if gone > trimmed:
            if facts.history_age_us and gone > 0:
                PostgresHistory(connection, self._tables).begin_at(gone)
            for name, column in (("changes", "position"), ("commits", "end_position")):
                delete = f"DELETE FROM {table(name)} WHERE {column} > $1 AND {column} <= $2"
                connection.execute(delete, (trimmed, gone))
            connection.execute(f"UPDATE {table('progress')} SET trimmed = $1", (gone,))

    def _keep_history(self, connection: Session, facts: Facts, committed_batch: int, position: int) -> bool:
        """Begin the history, or end it, as the view's settings say; whether there is one, at `position` at least."""
        history = PostgresHistory(connection, self._tables)
        if not facts.history_age_us:
            # Nobody gives it one while the view is to have none: looked for once.
            if not self._without_history:
                history.end()
            self._without_history = True
            return False
        self._without_history = False
        untouched = committed_batch < 0 and position == 0
        history.keep(KeptSince(-1 if untouched else position, self._clock.now()))
        return True

    def _last_position(self, connection: Session) -> int:
        return int(_row(connection.execute(f"SELECT max(position) FROM {self._tables.table('changes')}"))[0])

    @contextmanager
    def _transaction(self, connection: Session) -> Iterator[None]:
        connection.execute(BEGIN)
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # Also an interrupt from the keyboard: the transaction must not stay open.
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with translated(self._store.pool.address, self._store.view):
                yield
        except ViewNotFound as error:
            raise ViewNotFound(
                f'view "{self._store.view}" was dropped while flow "{self.run.flow}" wrote it',
                detail=f"The database no longer has the schema {self._tables.name} of version {self.version}.",
                hint="Start the flow again: it rebuilds the view from the log.",
                view=self._store.view,
            ) from error


def _row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The one row that there always is."""
    found = cursor.fetchone()
    assert found is not None
    return found
