"""PostgresConnection: a slot that is read, and a session beside it that reads tables and the catalog.

Positions are those of the WAL (LSN). Only a position that the log holds durably is confirmed, so the slot's
`confirmed_flush_lsn` is never ahead of it; if it is, the slot is another one or was moved, and changes may be lost.

A commit is streamed before a reader can see it. So what a chunk of a snapshot shows is decided by the ids of transactions
(`pg_current_snapshot()`), and the stream's position only tells that everything visible has been streamed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
import pyarrow as pa
from psycopg import errors, pq, sql

from mainstem.capture.captured_table import CapturedTable, changed_key
from mainstem.capture.outbox_table import OUTBOX, postgres_outbox_sql
from mainstem.capture.postgresql.pgoutput import EPOCH_US, PgOutput, Relation, RelationColumn, show_lsn
from mainstem.capture.postgresql.postgres_catalog import (
    CatalogTable,
    SlotFacts,
    check_server,
    foreign_holder,
    publication_tables,
    read_table,
    read_types,
    refuse_setup,
    renamed_table,
    signatures,
    slot_facts,
)
from mainstem.capture.postgresql.postgres_copy import copy_columns
from mainstem.capture.postgresql.postgres_session import PostgresSession
from mainstem.capture.postgresql.postgres_types import SESSION_OPTIONS, Unrepresentable, arrow_array
from mainstem.capture.source import (
    Event,
    Health,
    Reached,
    SourceTable,
    TableMoved,
    check_renamed,
    check_types,
    lost_position,
)
from mainstem.clock import SystemClock
from mainstem.errors import DatabaseUnavailable, Invalid
from mainstem.postgres.postgres_address import is_lost, unreachable

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

    from mainstem.capture.postgresql.postgres_source import PostgresSource

__all__ = ["PostgresConnection", "parse_lsn"]

LOGGER = logging.getLogger("mainstem.capture")

# A batch of the stream: large enough to make the cost of a transaction of the log small, small enough for memory.
ROWS_MAX = 20_000
BYTES_MAX = 8 << 20
# A silent server is asked after the first time, and given up after the second.
ASK_SECONDS, SILENT_SECONDS_MAX = 5.0, 20.0
STATUS_SECONDS = 5.0
# A stream that was closed holds its slot until the server notices.
FREED_SECONDS_MAX = 5.0
# After this long a position that the server has not written yet is not waited for.
FLUSH_SECONDS = 0.7
# Rows of a chunk after these bytes are read by the next one.
CHUNK_BYTES_MAX = 64 << 20
# A lock that every reader takes; it waits for ALTER TABLE and TRUNCATE.
LOCK_SECONDS_MAX = 10

_HEADER_BYTES = 25


def parse_lsn(position: str) -> int:
    """The number of a position.

    >>> parse_lsn("1/AB") == 0x1_0000_00AB
    True
    """
    high, _, low = position.partition("/")
    return int(high, 16) << 32 | int(low, 16)


@dataclass
class PostgresChunk:
    """Rows of a table that one snapshot of the database had."""

    columns: dict[str, pa.Array]
    rows: int
    last: tuple[str, ...] | None
    read_at: datetime
    position: str
    next: int
    running: frozenset[int]

    def sees(self, transaction: int) -> bool:
        """Whether the rows show a transaction; the stream has the lower 32 bits of its id."""
        return sees(transaction, self.next, self.running)


def sees(transaction: int, following: int, running: frozenset[int]) -> bool:
    """Whether a snapshot of the database shows a transaction. `following`: the first id that was not yet given;
    `running`: lower ids that had not ended.

    >>> sees(7, 10, frozenset([8])), sees(8, 10, frozenset([8])), sees(10, 10, frozenset())
    (True, False, False)
    >>> sees(0xFFFFFFFE, (3 << 32) + 5, frozenset()), sees(6, (3 << 32) + 5, frozenset())
    (True, False)
    """
    # The nearest id with these lower bits; ids in use are less than 2^31 apart.
    whole = following + (transaction - following + (1 << 31)) % (1 << 32) - (1 << 31)
    return whole < following and whole not in running


class PostgresConnection:
    """An open source; see `SourceConnection`. One thread."""

    def __init__(self, source: PostgresSource, capture: str, home: str, mask: Callable[[bytes], bytes]) -> None:
        self._source = source
        self._capture = capture
        self._address = source.address
        self._mask = mask
        self._name = source.slot(capture)
        # Tells an older run of this home, which may be ended, from a run of another home.
        owner = hashlib.sha256(os.path.realpath(home).encode()).hexdigest()[:12]
        self._title = f"mainstem {capture[:40]} {owner}"
        self._by_name = {(one.schema or "public", one.table): one for one in source.all_tables()}
        self._catalog: dict[str, CatalogTable] = {}
        self._chunk_rows: dict[str, int] = {}
        self._unsettled: list[int] = []
        self._stream_connection: psycopg.Connection[Any] | None = None
        self._stream: PGconn | None = None
        self._output: PgOutput | None = None
        self._reached = self._confirmed = self._said = self._flushed = self._wanted = 0
        self._heard = self._asked = self._told = self._wanted_at = 0.0
        self._session = self._connect()
        try:
            with self._errors():
                self.identity = self._identify()
                check_server(self._session, source, self._name)
        except BaseException:
            self.close()
            raise

    # Connecting

    def _connect(self) -> PostgresSession:
        options = " ".join(f"-c {name}={value}" for name, value in SESSION_OPTIONS.items())
        given = str(self._address.parameters.get("options") or "")
        parameters = {**self._address.parameters, "application_name": self._title, "options": f"{options} {given}"}
        try:
            return PostgresSession.connect(**parameters, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            # Without its traceback, whose frames have the password.
            raise unreachable(self._address, error) from error.with_traceback(None)

    def _identify(self) -> Mapping[str, str]:
        row = self._session.execute(
            "SELECT s.system_identifier::text, c.timeline_id::text, current_database() "
            "FROM pg_control_system() s, pg_control_checkpoint() c"
        ).fetchone()
        assert row is not None
        return {"system": row[0], "timeline": row[1], "database": row[2], "slot": self._name}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises PostgreSQL's errors as our own."""
        try:
            yield
        except errors.InsufficientPrivilege as error:
            raise refuse_setup(self._source, self._capture, self._address.safe(error)) from error
        except psycopg.Error as error:
            if is_lost(error) or isinstance(error, psycopg.OperationalError):
                raise unreachable(self._address, error) from error.with_traceback(None)
            raise

    def close(self) -> None:
        """Close both connections."""
        self._close_stream()
        self._session.close()

    def _close_stream(self) -> None:
        if self._stream_connection is not None:
            self._stream_connection.close()
            self._stream_connection = self._stream = None

    # Set-up

    def tables(self) -> list[SourceTable]:
        """The captured tables as they are now; that of the outbox if it exists."""
        with self._errors():
            wanted = self._source.all_tables() if self._has_outbox() else self._source.tables
            self._catalog = {one.name: self._read_table(one) for one in wanted}
        found = [one.table for one in self._catalog.values()]
        check_types(self._source.types, found)
        return found

    def _read_table(self, captured: CapturedTable) -> CatalogTable:
        with self._session.transaction():
            # As one moment had it: an ALTER between two of its queries must not go unnoticed.
            self._session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return read_table(self._session, self._name, self._source, captured)

    def changed_tables(self) -> list[SourceTable]:
        """The tables that are not as they were when they were last described."""
        with self._errors():
            found = signatures(self._session, self._name, [one.oid for one in self._catalog.values()])
            changed = [one for one in self._catalog.values() if found.get(one.oid) != one.signature]
            for one in changed:
                self._describe_again(one)
            if changed:
                # A table that was dropped and made again is not published any more.
                self._publish()
        return [self._catalog[one.captured.name].table for one in changed]

    def _describe_again(self, former: CatalogTable) -> CatalogTable:
        try:
            found = self._read_table(former.captured)
        except Invalid as error:
            raise renamed_table(self._session, former.captured, former.oid) or error from None
        self._catalog[former.captured.name] = found
        return found

    def unsettled(self) -> list[int]:
        """The transactions that ran when a table was published, and may have changed it before."""
        return self._unsettled

    def _has_outbox(self) -> bool:
        row = self._session.execute("SELECT to_regclass(%s) IS NOT NULL", [f"public.{OUTBOX}"]).fetchone()
        return self._source.with_outbox and row is not None and bool(row[0])

    def prepare(self) -> str:
        """Make the publication and the slot, unless they exist, and the table of the outbox. The position where the slot
        begins."""
        for _ in range(3):
            with suppress(errors.DuplicateObject, errors.DuplicateTable, errors.UniqueViolation):
                return self._prepare()
            # Another process made one of the three after it was looked for.
        return self._prepare()

    def _prepare(self) -> str:
        if self._source.with_outbox and not self._has_outbox():
            with self._errors():
                self._session.execute(postgres_outbox_sql())
        self.tables()
        with self._errors():
            # Before anything is changed: the slot and the publication may be those of another home.
            self._refuse_foreign(end=False)
            self._publish()
            if (facts := slot_facts(self._session, self._name)) is not None:
                self._check_own(facts)
                return show_lsn(facts.confirmed)
            row = self._session.execute(
                "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [self._name]
            ).fetchone()
            assert row is not None
            return str(row[0])

    def _publish(self) -> None:
        """The publication has exactly the captured tables."""
        wanted = {(one.schema or "public", one.table): one.where for one in self._source.all_tables()}
        published = publication_tables(self._session, self._name)
        same = published is not None and published.keys() == wanted.keys() and all(
            (published[one] is None) == (wanted[one] is None) for one in wanted
        )  # fmt: skip
        # The server has conditions in a form of its own, so they are set again: they may have changed.
        if same and not any(wanted.values()):
            return
        try:
            self._session.execute(
                self._source.publication_sql(self._capture, "CREATE" if published is None else "ALTER")
            )
        except errors.InsufficientPrivilege as error:
            if same:
                # An administrator made it.
                return
            raise refuse_setup(self._source, self._capture, self._address.safe(error)) from error
        # What they changed before is not in the stream.
        self._unsettled += self._snapshot()[1]
        for one in list(self._catalog.values()):
            self._catalog[one.captured.name] = self._read_table(one.captured)

    def _check_own(self, facts: SlotFacts) -> None:
        """Another reader may need a slot that is not ours: it is neither read nor dropped."""
        if facts.foreign:
            raise Invalid(
                f'the replication slot "{self._name}" is not of this capture',
                detail=f"On the server {facts.foreign}.",
                hint='Give the capture a slot of its own: postgres(..., slot="..."). Or, if nobody reads it: '
                f"SELECT pg_drop_replication_slot('{self._name}');",
            )

    def check_position(
        self, position: str, identity: Mapping[str, str], appended: Callable[[], set[tuple[str, int]]]
    ) -> None:
        """Raise `PositionLost` unless the slot still has every change after a position."""
        for name, what in (("system", "another server"), ("timeline", "another timeline of the server"),
                           ("database", "another database"), ("slot", "another slot")):  # fmt: skip
            if name in identity and identity[name] != self.identity[name]:
                self._lost(position, f"it is {what}: {identity[name]} before, {self.identity[name]} now")
        with self._errors():
            facts = slot_facts(self._session, self._name)
            if facts is None:
                self._lost(position, f'its replication slot "{self._name}" does not exist any more')
            if facts.foreign:
                self._lost(position, f'the replication slot "{self._name}" is another one: {facts.foreign}')
            if reason := facts.invalid:
                self._lost(position, f'its replication slot "{self._name}" was invalidated: {reason}')
            if facts.confirmed > parse_lsn(position):
                self._lost(
                    position, f'its replication slot "{self._name}" begins at {show_lsn(facts.confirmed)}, later'
                )
            if parse_lsn(self.now()) < parse_lsn(position):
                self._lost(position, f"the server is at {self.now()}, earlier: it was restored from a copy")
        if facts.confirmed < parse_lsn(position):
            self._check_history(facts.confirmed, position, appended())

    def _check_history(self, confirmed: int, position: str, appended: set[tuple[str, int]]) -> None:
        """The slot still has transactions of which the log has the rows: exactly these. A server that was restored from an
        older copy of its data has others at the same positions."""
        self._open_stream(show_lsn(confirmed))
        published: set[tuple[str, int]] = set()
        captured: set[tuple[str, int]] = set()
        for transaction, oids in self._transactions_until(parse_lsn(position)):
            published.add(transaction)
            if any(one.oid in oids for one in self._catalog.values()):
                captured.add(transaction)
        self._close_stream()
        known = {one for one in appended if confirmed < parse_lsn(one[0]) <= parse_lsn(position)}
        if not known <= published or not captured <= appended:
            self._lost(position, "are other transactions before that position: the server was restored from a copy")

    def _transactions_until(self, position: int) -> Iterator[tuple[tuple[str, int], set[int]]]:
        """The position and id of each transaction, and the oids of the tables that it changed."""
        assert self._stream is not None
        reached, transaction, oids = 0, 0, set[int]()
        while reached < position:
            size, data = self._stream.get_copy_data(1)
            if size < 0:
                self._ended(size)
            if size == 0:
                self._heard_or_ask()
                if not self._poll(0.05):
                    self._tell(ask=True)
                continue
            if data[0] != 119:  # not w: a keepalive
                reached = int.from_bytes(data[1:9], "big")
                continue
            kind, body = data[_HEADER_BYTES], bytes(data[_HEADER_BYTES + 1 :])
            if kind == 66:  # B
                reached, transaction, oids = int.from_bytes(body[:8], "big"), int.from_bytes(body[16:20], "big"), set()
            elif kind in (73, 85, 68):  # I, U, D
                oids.add(int.from_bytes(body[:4], "big"))
            elif kind == 84:  # T
                oids.update(int.from_bytes(body[at : at + 4], "big") for at in range(5, len(body), 4))
            elif kind == 67 and oids:  # C
                yield (show_lsn(int.from_bytes(body[9:17], "big")), transaction), oids

    def _lost(self, position: str, why: str) -> NoReturn:
        raise lost_position(self._capture, self._address.shown, position, why)

    # The stream

    def start(self, position: str) -> None:
        """Begin to stream the changes after a position."""
        if not self._catalog:
            self.tables()
        self._open_stream(position)

    def _open_stream(self, position: str) -> None:
        self._confirmed = self._reached = self._said = parse_lsn(position)
        parameters = {
            **self._address.parameters,
            "replication": "database",
            "application_name": self._title,
            "options": " ".join(f"-c {name}={value}" for name, value in SESSION_OPTIONS.items()),
        }
        try:
            # Not PGconn.connect(): it stops all threads of the process until the server answers.
            connection = psycopg.connect(**parameters, autocommit=True)
        except psycopg.Error as error:
            raise unreachable(self._address, error) from error.with_traceback(None)
        self._stream_connection, self._stream = connection, connection.pgconn
        self._stream.nonblocking = 0
        self._output = PgOutput(self._describe, self._refuse)
        publication = psycopg.sql.quote(self._name)
        command = (
            f"START_REPLICATION SLOT {sql.Identifier(self._name).as_string(None)} LOGICAL {position} "
            f"(proto_version '1', publication_names {publication})"
        )
        self._begin(command.encode())
        self._heard = self._told = time.monotonic()

    def _begin(self, command: bytes) -> None:
        assert self._stream is not None
        deadline = time.monotonic() + SILENT_SECONDS_MAX
        while True:
            result = self._stream.exec_(command)
            if result.status == pq.ExecStatus.COPY_BOTH:
                return
            state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            said = result.error_message.decode(errors="replace")
            if state != errors.ObjectInUse.sqlstate or time.monotonic() > deadline:
                self._stream_error(said, state)
            with self._errors():
                self._refuse_foreign(end=True)
            time.sleep(0.05)

    def _stream_error(self, said: str, state: str = "") -> NoReturn:
        """What the server says of the slot: lost positions are found when the stream is opened again."""
        raise DatabaseUnavailable(
            f'the stream of changes from "{self._address.shown}" ended',
            detail=f"PostgreSQL says: {self._address.safe(said) or 'nothing'}.{f' ({state})' if state else ''}",
            hint="The capture connects again. Nothing is lost: what was not committed is read again.",
            address=self._address.shown,
        )

    def read(self, seconds: float) -> list[Event]:
        """The next events; waits for one, but at most so long."""
        assert self._stream is not None
        assert self._output is not None
        output, stream = self._output, self._stream
        deadline = time.monotonic() + seconds
        while True:
            size, data = stream.get_copy_data(1)
            if size > 0:
                if data[0] == 119:  # w
                    output.feed(bytes(data[_HEADER_BYTES:]))
                    if output.full(ROWS_MAX, BYTES_MAX):
                        return self._take()
                else:
                    self._keepalive(bytes(data))
                continue
            if size < 0:
                self._ended(size)
            self._heard_or_ask()
            if self._poll(0):
                continue
            if output.whole or (output.end > self._reached and not output.inside):
                return self._take()
            if self._reached > self._said and not output.inside:
                self._said = self._reached
                return [Reached(show_lsn(self._reached))]
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            self._poll(min(left, 1.0))

    def _take(self) -> list[Event]:
        assert self._output is not None
        events = self._output.take()
        if not self._output.inside:
            self._said = self._reached = max(self._reached, self._output.end)
        return events

    def _poll(self, seconds: float) -> bool:
        """Whether anything came; waits at most so long."""
        assert self._stream is not None
        # Not select(): a process with more than 1,024 open files cannot use it.
        waiting = select.poll()
        waiting.register(self._stream.socket, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return False
        try:
            self._stream.consume_input()
        except psycopg.OperationalError as error:
            self._stream_error(str(error))
        self._heard = time.monotonic()
        return True

    def _keepalive(self, data: bytes) -> None:
        reached = int.from_bytes(data[1:9], "big")
        assert self._output is not None
        if not self._output.inside and not self._output.whole:
            self._reached = max(self._reached, reached)
        if data[17]:
            self._tell()

    def _ended(self, size: int) -> NoReturn:
        assert self._stream is not None
        said = self._stream.error_message.decode(errors="replace")
        if size == -1:
            result = self._stream.get_result()
            said = result.error_message.decode(errors="replace") if result is not None else said
        self._stream_error(said)

    def _heard_or_ask(self) -> None:
        """Tells the server that this client is alive; asks a silent one, and gives it up in the end."""
        now = time.monotonic()
        if now - self._heard > SILENT_SECONDS_MAX:
            self._stream_error(f"nothing for {SILENT_SECONDS_MAX:.0f} seconds")
        if now - self._told > STATUS_SECONDS:
            self._tell(ask=now - self._heard > ASK_SECONDS)

    def _tell(self, *, ask: bool = False) -> None:
        assert self._stream is not None
        now = SystemClock().now() - EPOCH_US
        body = b"".join(
            number.to_bytes(8, "big", signed=True) for number in (self._reached, self._confirmed, self._confirmed, now)
        )
        try:
            self._stream.put_copy_data(b"r" + body + bytes([ask]))
            self._stream.flush()
        except psycopg.OperationalError as error:
            self._stream_error(str(error))
        self._told = time.monotonic()

    def has_reached(self, position: str) -> bool:
        """Whether all changes up to a position have been read; asks the server how far it is."""
        wanted = parse_lsn(position)
        if max(self._reached, self._flushed) >= wanted:
            return True
        now = time.monotonic()
        if wanted != self._wanted:
            self._wanted, self._wanted_at = wanted, now
        if now - self._asked > 0.002:
            self._asked = now
            self._tell(ask=True)
        if now - self._wanted_at > FLUSH_SECONDS and not (self._output and self._output.inside):
            # What no commit waits for may stay unwritten until something else is, and is not streamed before. A commit that
            # does not wait is written within three times wal_writer_delay.
            self._wanted_at = now
            with self._errors():
                row = self._session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None
            if self._reached >= parse_lsn(row[0]):
                self._flushed = wanted
                return True
        return False

    def confirm(self, position: str) -> None:
        """Let the server remove WAL up to a position."""
        self._confirmed = max(self._confirmed, parse_lsn(position))
        self._tell()

    def now(self) -> str:
        """The position of the last WAL that was written."""
        with self._errors():
            row = self._session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return str(row[0])

    # Tables of the stream

    def _describe(self, oid: int, schema: str, name: str, columns: Sequence[tuple[str, int, int]]) -> Relation | None:
        # By its oid: between two renames it may have had another name.
        known = next((one for one in self._catalog.values() if one.oid == oid), None)
        captured = self._by_name.get((schema, name)) if known is None else known.captured
        if captured is None:
            return None
        former = self._catalog[captured.name]
        with self._errors():
            catalog = self._describe_again(former)
            types = read_types(self._session, [(type_oid, modifier) for _, type_oid, modifier in columns])
        if catalog.oid != oid and (schema, name) not in self._by_name:
            # Another table has its name now, which `changed_tables` tells.
            self._catalog[captured.name] = former
            return None
        if catalog.table.key != former.table.key:
            check_renamed(catalog.table, {one.number: one.name for one in former.columns})
            raise changed_key(captured, former.table.key, catalog.table.key)
        names = [one for one, _, _ in columns]
        if not {*catalog.table.key} <= {*names}:
            raise Invalid(
                f'changes of table "{captured.name}" lack its key',
                detail=f"It is ({', '.join(catalog.table.key)}), they have the columns: {', '.join(names)}. It was changed later. "
                "Nothing from these changes on was captured.",
                hint=f"Remove the capture with: mainstem capture drop PROGRAM.py {self._capture}. It then begins with a snapshot "
                "of the table as it is now.",
            )
        return catalog.relation(self._source, columns, types, self._mask)

    def _refuse(self, table: str, column: str, key: str, error: Unrepresentable) -> Exception:
        shown = error.value if len(error.value) < 80 else f"{error.value[:80]}..."
        return Invalid(
            f'column "{column}" of table "{table}" has a value that the topic cannot hold',
            detail=f"The row with key {key} has {shown!r}: {error.reason}. Nothing after it was captured.",
            hint=f'Capture the column as text: postgres(..., types={{"{table}.{column}": "STRING"}}), into a new topic or one '
            "whose column is STRING.",
        )

    # Snapshots

    def unseen(self, transactions: Sequence[int]) -> list[int]:
        """Those that a new snapshot of the database does not show."""
        with self._errors():
            following, running = self._snapshot()
        return [one for one in transactions if not sees(one, following, running)]

    def _snapshot(self) -> tuple[int, frozenset[int]]:
        row = self._session.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        _, following, running = str(row[0]).split(":")
        return int(following), frozenset(int(one) for one in running.split(",") if one)

    def read_chunk(
        self, table: str, after: tuple[str, ...] | None, rows: int, where: str | None = None
    ) -> PostgresChunk:
        """The next rows of a table in the order of its key, with what the snapshot saw."""
        catalog = self._catalog[table]
        relation = self._relation(catalog)
        names = [column.name for column in relation.columns]
        rows = min(rows, self._chunk_rows.get(table, rows))
        return self._read(catalog, relation, catalog.chunk_sql(names, after, rows, where), rows)

    def _relation(self, catalog: CatalogTable) -> Relation:
        columns = [(one.name, *one.type_and_modifier) for one in catalog.columns]
        return catalog.relation(self._source, columns, catalog.types, self._mask)

    def _read(
        self, catalog: CatalogTable, relation: Relation, statement: sql.Composed, rows: int | None
    ) -> PostgresChunk:
        names = [column.name for column in relation.columns]
        with self._errors(), self._session.transaction():
            self._session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self._session.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS_MAX}s'")
            # Before the snapshot: to an older snapshot a table that is truncated or rewritten afterwards is empty.
            self._lock(catalog)
            following, running = self._snapshot()
            # Rows that are asked for by their keys are few, and all of them are needed.
            bytes_max = CHUNK_BYTES_MAX if rows is not None else None
            values, cut = copy_columns(self._session, statement, len(names), bytes_max)
            row = self._session.execute("SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()").fetchone()
        assert row is not None
        count = len(values[0]) if values else 0
        last = None
        if cut:
            # Of such large rows the next chunk has no more than these.
            self._chunk_rows[catalog.table.name] = count
        if count == rows or cut:
            places = [names.index(one) for one in catalog.table.key]
            last = tuple(values[place][-1].as_py().decode() for place in places)
        arrays = {}
        for column, given in zip(relation.columns, values, strict=True):
            arrays[column.name] = self._chunk_array(relation, column, given, values)
        return PostgresChunk(arrays, count, last, row[1].astimezone(UTC), str(row[0]), following, running)

    def _lock(self, catalog: CatalogTable) -> None:
        """Nobody alters the table until the end of the transaction; raises `TableMoved` if somebody has."""
        try:
            self._session.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(catalog.sql_name))
            found = signatures(self._session, self._name, [catalog.oid]).get(catalog.oid)
        except errors.UndefinedTable:
            found = None
        if found != catalog.signature:
            raise TableMoved(catalog.table)

    def _chunk_array(
        self, relation: Relation, column: RelationColumn, given: pa.BinaryArray, values: Sequence[pa.BinaryArray]
    ) -> pa.Array:
        if column.mask is not None:
            given = pa.array([None if one is None else column.mask(one) for one in given.to_pylist()], pa.binary())
        try:
            return arrow_array(given, column.postgres, column.data_type)
        except Unrepresentable as error:
            places = {one.name: number for number, one in enumerate(relation.columns)}
            key = {one: (values[places[one]][error.index].as_py() or b"").decode() for one in relation.table.key}
            raise self._refuse(relation.table.name, column.name, str(key), error) from None

    def key_texts(self, table: str, keys: pa.RecordBatch) -> list[tuple[str, ...]]:
        """Keys in the text form of their types."""
        names = self._catalog[table].table.key
        return [
            tuple(map(_text_of, key)) for key in zip(*(keys.column(name).to_pylist() for name in names), strict=True)
        ]

    def read_keys(self, table: str, keys: Sequence[tuple[str, ...]]) -> tuple[PostgresChunk, pa.RecordBatch]:
        """The rows with these keys, and the keys that no row has."""
        catalog = self._catalog[table]
        relation = self._relation(catalog)
        names = [column.name for column in relation.columns]
        try:
            chunk = self._read(catalog, relation, catalog.keys_sql(names, keys), None)
        except errors.DataError:
            # No row can have it, such as a text that is not a value of an enum. The others are read.
            valid = [key for key in keys if self._is_valid(catalog, key)]
            statement = catalog.keys_sql(names, valid) if valid else catalog.chunk_sql(names, None, 0, None)
            chunk = self._read(catalog, relation, statement, None)
        key_columns = [next(one for one in relation.columns if one.name == name) for name in catalog.table.key]
        wanted = [
            arrow_array([key[place].encode() for key in keys], column.postgres, column.data_type)
            for place, column in enumerate(key_columns)
        ]
        there = set(zip(*(chunk.columns[name].to_pylist() for name in catalog.table.key), strict=True))
        absent = pa.array(
            [key not in there for key in zip(*(one.to_pylist() for one in wanted), strict=True)], pa.bool_()
        )
        return chunk, pa.RecordBatch.from_arrays(wanted, names=list(catalog.table.key)).filter(absent)

    def _is_valid(self, catalog: CatalogTable, key: tuple[str, ...]) -> bool:
        try:
            with self._errors():
                self._session.execute(sql.SQL("SELECT {}").format(catalog.key_sql(key)))
        except errors.DataError:
            return False
        return True

    def precedes(self, position: str, other: str) -> bool:
        """Whether an LSN is before another one."""
        return parse_lsn(position) < parse_lsn(other)

    def find_rows(self, table: str, keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        """Rows as they are now."""
        catalog = self._catalog[table]
        described = [(one.name, *one.type_and_modifier) for one in catalog.columns]
        there = {one.name for one in catalog.columns}
        # A column that was dropped since has no value.
        wanted = [*catalog.table.key, *(one for one in columns if one not in catalog.table.key and one in there)]
        relation = catalog.relation(self._source, described, catalog.types, self._mask)
        found: list[list[bytes | None]] = [[] for _ in wanted]
        with self._errors():
            for key in keys.to_pylist():
                for row in self._session.execute(catalog.find_sql(wanted, key)):
                    for column, value in zip(found, row, strict=True):
                        column.append(None if value is None else str(value).encode())
        by_name = {column.name: column for column in relation.columns}
        arrays = [
            arrow_array(
                [None if one is None or by_name[name].mask is None else by_name[name].mask(one) for one in given]  # type: ignore[misc]
                if by_name[name].mask is not None
                else given,
                by_name[name].postgres,
                by_name[name].data_type,
            )
            for name, given in zip(wanted, found, strict=True)
        ]
        dropped = [name for name in columns if name not in there]
        nothing = [pa.nulls(len(found[0]), pa.string()) for _ in dropped]
        return pa.table([*arrays, *nothing], names=[*wanted, *dropped])

    def count_rows(self, table: str) -> int:
        """About how many rows a table has, as the last ANALYZE or VACUUM saw it."""
        catalog = self._catalog[table]
        with self._errors():
            row = self._session.execute(
                "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = %s", [catalog.oid]
            ).fetchone()
        return int(row[0]) if row else 0

    # Health and end

    def health(self) -> Health:
        """How much WAL the slot holds, and how much more it may."""
        with self._errors():
            facts = slot_facts(self._session, self._name)
            position = self.now()
        if facts is None:
            return Health(0, None, position)
        return Health(facts.held_bytes, facts.left_bytes, position)

    def drop(self, *, in_use: bool = False) -> None:
        """Remove slot and publication."""
        self._close_stream()
        with self._errors():
            deadline = time.monotonic() + (SILENT_SECONDS_MAX if in_use else FREED_SECONDS_MAX)
            while (facts := slot_facts(self._session, self._name)) is not None:
                self._check_own(facts)
                try:
                    self._session.execute("SELECT pg_drop_replication_slot(%s)", [self._name])
                except errors.ObjectInUse as error:
                    self._refuse_foreign(end=in_use)
                    if time.monotonic() > deadline:
                        raise DatabaseUnavailable(
                            f'the replication slot "{self._name}" is in use',
                            detail=f'PostgreSQL says: {self._address.safe(error)}. It is another run of capture "{self._capture}".',
                            hint=f"Stop that run: mainstem capture stop {self._capture}.",
                            address=self._address.shown,
                        ) from error
                    time.sleep(0.05)
            if publication_tables(self._session, self._name) is not None:
                statement = sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(self._name))
                try:
                    self._session.execute(statement)
                except errors.InsufficientPrivilege:
                    # An administrator made it; it holds nothing.
                    shown = statement.as_string(None)
                    LOGGER.warning(
                        'the publication of capture "%s" stays, its owner can remove it: %s;', self._capture, shown
                    )

    def _refuse_foreign(self, *, end: bool) -> None:
        """Raise `Invalid` if another program reads the slot. With `end` an older run of this capture is ended; its appends
        are fenced already."""
        if holder := foreign_holder(self._session, self._name, self._title, end=end):
            raise Invalid(
                f'the replication slot "{self._name}" is in use',
                detail=f"Process {holder[0]} of the server reads it, as {holder[1]!r}; it is not of this capture.",
                hint='End that reader, or give this capture a slot of its own: postgres(..., slot="...").',
            )


def _text_of(value: object) -> str:
    """A value of a key in the text form of its type.

    >>> _text_of(b"ab"), _text_of(datetime(2024, 1, 1, 12, tzinfo=UTC)), _text_of(True), _text_of(7)
    ('\\\\x6162', '2024-01-01 12:00:00+00:00', 't', '7')
    """
    if isinstance(value, bool):
        return "t" if value else "f"
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
