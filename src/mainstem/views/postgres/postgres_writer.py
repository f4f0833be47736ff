"""PostgresWriter: applies the batches of one run of a flow to one version of a view in PostgreSQL, exactly once.

In the transaction of `SqlWriter` the row in `progress` is locked, and a batch is copied into two temporary tables first.
A newer run starts by locking the same row, so it starts before or after a transaction of an older one, never within.
If the older run holds the lock and does not continue (its process was paused, its machine died), the newer run lets the
server terminate its session, which rolls back the open transaction.

If the connection ends while a batch is written, the outcome of its COMMIT is unknown. So the writer connects again,
takes the lock, which a transaction that is still being committed holds, and reads the last committed batch: if it is
this one, it is done; if not, the batch is written again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa

from mainstem.batch import Batch, FlowRun
from mainstem.clock import Clock
from mainstem.errors import ViewNotFound
from mainstem.log.backoff import Backoff
from mainstem.log.rows.merged_rows import Rejection, merge_columns
from mainstem.postgres.postgres_address import is_lost, rolled_back_by_server
from mainstem.postgres.postgres_columns import copy_rows, unfit
from mainstem.postgres.postgres_pool import Session
from mainstem.views.merge_batch import check_columns
from mainstem.views.postgres.postgres_tables import DELETES, UPSERTS, PostgresTables
from mainstem.views.postgres.postgres_view_errors import translate_view_errors
from mainstem.views.postgres.postgres_watch import channel_of
from mainstem.views.sql.sql_writer import SqlWriter
from mainstem.views.view_facts import Facts, check_version

if TYPE_CHECKING:
    from mainstem.views.postgres.postgres_backend import PostgresStore

__all__ = ["PostgresWriter"]

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# After this many deadlocks or lost connections in a row, the runner retries the flow with a longer delay.
TRIES = 5
AGAIN = Backoff("20 milliseconds", max="1 second", growth="exponential")
EMPTY_COPY = copy_rows([pa.array([], pa.int64())])


@dataclass(frozen=True)
class CopiedRows:
    """A batch as it is sent: rows to upsert and keys to delete, each as the content of a COPY."""

    upserts: bytes
    deletes: bytes
    rows: int
    rejections: tuple[Rejection, ...]


class PostgresWriter(SqlWriter[Session, CopiedRows]):
    """Writes one version of a view in PostgreSQL for one run of a flow. One thread at a time."""

    _tables: PostgresTables

    def __init__(self, store: PostgresStore, run: FlowRun, *, clock: Clock) -> None:
        super().__init__(store.view, run, clock)
        self._store = store
        facts = store.facts()
        check_version(store.view, facts, run.version)
        self._tables = store.tables(facts, run.version)
        self._name = f"mainstem writer {facts.id[:8]} v{run.version} "
        self._connection: Session | None = None
        with self._translate_errors():
            self._begin_run()

    def _begin_run(self) -> Session:
        """Connect, and fence older runs."""
        connection = self._store.pool.connect_writer(f"{self._name}{self.run.epoch}")
        try:
            for statement in self._tables.staging():
                connection.execute(statement)
            self._end_older_sessions(connection)
            with self._transaction(connection):
                self._claim(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

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

    def prepare(self, rows: pa.Table) -> CopiedRows:
        tables = self._tables
        fits = partial(unfit, key=tables.key)
        check_columns(rows.schema, tables.schema, view=self._view)
        merged = merge_columns(rows, tables.schema, tables.key, name=self._view, unfit=fits)
        return CopiedRows(copy_rows(merged.upserts), copy_rows(merged.deletes), merged.rows, merged.rejections)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            with translate_view_errors(self._store.pool.address, self._view):
                yield
        except ViewNotFound as error:
            detail = f"The database no longer has the schema {self._tables.name} of version {self.version}."
            raise self._dropped_error(detail) from error

    @contextmanager
    def _transaction(self, connection: Session) -> Iterator[None]:
        connection.execute(BEGIN)
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # Also after Ctrl-C: the transaction must not stay open.
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            raise

    def _facts(self, connection: Session) -> Facts:
        return self._store.facts_in(connection)

    def _write_batch(self, merged: CopiedRows, batch: Batch) -> None:
        for tried in range(1, TRIES + 1):
            try:
                connection = self._connection or self._begin_run()
                if not self.holds(batch.number):
                    self._write(connection, merged, batch)
                return
            except psycopg.Error as error:
                lost = is_lost(error)
                if lost:
                    self.close()
                if tried == TRIES or not (lost or rolled_back_by_server(error)):
                    raise
                if not lost:
                    # Let the other transaction finish: an immediate retry would take the lock first.
                    time.sleep(AGAIN.delay(tried).total_seconds())

    def _write_rows(self, connection: Session, merged: CopiedRows, last: int | None) -> int:
        tables, changed = self._tables, 0
        for payload, table, record, write in (
            (merged.upserts, UPSERTS, tables.record_upserts, tables.upsert),
            (merged.deletes, DELETES, tables.record_deletes, tables.delete),
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

    def _before_commit(self, connection: Session) -> None:
        connection.execute("SELECT pg_notify($1, '')", (channel_of(self._tables.id),))
