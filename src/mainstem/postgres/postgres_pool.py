"""Connections to a PostgreSQL database, shared by all views of a process that are in it.

A connection is used by one thread at a time and kept for the next. A forked process does not use those that it inherits.
Values are read in the form of `arrow_column`: moments and days as numbers since 1970, Booleans as 0 and 1.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection, RawCursor, RawServerCursor
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper, Loader, PyFormat
from psycopg.pq import Format, TransactionStatus

from mainstem.postgres.postgres_address import PostgresAddress, is_lost, unreachable
from mainstem.postgres.postgres_columns import EPOCH_DAYS, EPOCH_US

__all__ = ["Encoded", "LOCK_MS_MAX", "PostgresPool", "Session", "pool_of"]

Row = tuple[Any, ...]

# Idle connections that are kept; more are closed after use.
IDLE_MAX = 4
# A transaction takes as long as its batch; one that takes longer is most likely of a paused process.
LOCK_MS_MAX = 30_000
# A run that is idle for so long inside a transaction is paused, or its machine is down.
IDLE_MS_MAX = 60_000


# Large enough to make the cost per batch small, small enough to read a view of any size in little memory.
BATCH_ROWS = 65_536


class Session(Connection[Row]):
    """A connection that runs the statements of every SQL database.

    It need not be closed explicitly: psycopg closes it when it is garbage-collected, only in the process that opened it.
    """

    def __del__(self, *_: Any) -> None:
        pass

    def query(self, sql: str, *values: Any) -> list[Row]:
        return self.execute(sql, values, binary=True).fetchall()

    def stream(self, sql: str, *values: Any) -> Iterator[list[Row]]:
        with RawServerCursor(self, "mainstem_rows") as cursor:
            cursor.execute(sql, values, binary=True)
            while rows := cursor.fetchmany(BATCH_ROWS):
                yield rows

    def write(self, sql: str, *values: Any) -> int:
        return self.execute(sql, values).rowcount

    def write_many(self, sql: str, rows: Iterable[Row]) -> None:
        with self.cursor() as cursor:
            cursor.executemany(sql, list(rows))


class Encoded:
    """A value that is already in PostgreSQL's binary form."""

    __slots__ = ("data", "oid")

    def __init__(self, data: bytes, oid: int) -> None:
        self.data, self.oid = data, oid


class _EncodedDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type, context: AdaptContext | None = None, oid: int = 0) -> None:
        super().__init__(cls, context)
        self.oid = oid

    def dump(self, obj: Encoded) -> Buffer:
        return obj.data

    def get_key(self, obj: Encoded, format: PyFormat) -> Any:
        return (Encoded, obj.oid)

    def upgrade(self, obj: Encoded, format: PyFormat) -> Dumper:
        return _EncodedDumper(Encoded, None, obj.oid)


class _Number(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> int:
        return int.from_bytes(data, "big", signed=True)


class _Day(_Number):
    def load(self, data: Buffer) -> int:
        return int.from_bytes(data, "big", signed=True) + EPOCH_DAYS


class _Moment(_Number):
    def load(self, data: Buffer) -> int:
        return int.from_bytes(data, "big", signed=True) + EPOCH_US


class PostgresPool:
    """The connections of this process to one database. Thread-safe."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._idle: list[Session] = []
        self._guard = threading.Lock()

    def connect(self, name: str = "mainstem") -> Session:
        """A dedicated connection, outside a transaction; `name` is shown by the server."""
        try:
            connection = Session.connect(
                **{"application_name": name, **self.address.parameters},
                autocommit=True,
                cursor_factory=RawCursor,
                # Prepared statements would outlive dropped tables, and break connection poolers.
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            # Without its traceback, whose frames have the password.
            raise unreachable(self.address, error) from error.with_traceback(None)
        for one, loader in (("bool", _Number), ("date", _Day), ("time", _Number), ("timestamp", _Moment)):
            connection.adapters.register_loader(one, loader)
        connection.adapters.register_loader("timestamptz", _Moment)
        connection.adapters.register_dumper(Encoded, _EncodedDumper)
        return connection

    def connect_writer(self, name: str) -> Session:
        """A dedicated connection for batches: one transaction each, which is on disk when it is committed."""
        connection = self.connect(name)
        try:
            connection.execute(f"SET lock_timeout = {LOCK_MS_MAX}")
            connection.execute(f"SET idle_in_transaction_session_timeout = {IDLE_MS_MAX}")
            # Rows of a batch are looked up by their key. PostgreSQL does not know how few there are, and might scan the whole
            # table instead.
            connection.execute("SET enable_hashjoin = off")
            connection.execute("SET enable_mergejoin = off")
            # A stricter setting of the server is kept.
            durable = (
                "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = $1"
            )
            connection.execute(durable, ("off",))
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def borrow(self, begin: str) -> Iterator[Session]:
        """A connection in a transaction begun with `begin`; it is rolled back at the end unless it was committed."""
        connection = self._begin(begin)
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _begin(self, begin: str) -> Session:
        while True:
            with self._guard:
                kept = self._idle.pop() if self._idle else None
            connection = kept or self.connect()
            try:
                connection.execute(begin)
                return connection
            except psycopg.Error as error:
                connection.close()
                # An idle connection may have ended with the server: nothing was sent yet, so retry.
                if kept is None or not is_lost(error):
                    raise

    def _give_back(self, connection: Session) -> None:
        try:
            if connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
                connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()
        with self._guard:
            if not connection.closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the unused connections."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def leave_to_parent(self) -> None:
        """In a forked process: forget the connections of the parent."""
        self._guard, self._idle = threading.Lock(), []


_pools: dict[str, PostgresPool] = {}


def pool_of(address: PostgresAddress) -> PostgresPool:
    """The connections to this database."""
    return _pools.setdefault(address.url, PostgresPool(address))


@atexit.register
def _close_all() -> None:
    for pool in _pools.values():
        pool.close()


def _leave_to_parent() -> None:
    """After a fork: else both processes would use one socket."""
    for pool in _pools.values():
        pool.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
