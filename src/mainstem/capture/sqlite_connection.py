"""SqliteConnection: reads the changes that triggers noted in a SQLite file.

A position is the sequence number of a change. SQLite has one writer at a time, so numbers are given in the order of
commits, and every reader sees whole transactions: all changes up to the highest number that a reader sees are a number of
whole transactions, and none will be added among them. Which of them belong to the same transaction the file does not say.
So what is new in one look is committed as one transaction, whose id is that highest number.

Changes up to a confirmed position are removed from the file, not at once and few at a time: each removal is a write, for
which the application may have to wait a moment.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn
from urllib.parse import quote

import pyarrow as pa

from mainstem.capture.captured_table import CapturedTable
from mainstem.capture.outbox_table import OUTBOX, sqlite_outbox_sql
from mainstem.capture.source import (
    Committed,
    Event,
    Health,
    SourceColumn,
    SourceTable,
    SourceTransaction,
    TableChanged,
    check_types,
    lost_position,
)
from mainstem.capture.sqlite_rows import NotedRow, SqliteRows
from mainstem.capture.sqlite_triggers import EVENTS, Names, Shape, outbox_shape, quoted, read_shape, trigger_sql
from mainstem.capture.sqlite_types import decode_text
from mainstem.errors import DatabaseUnavailable, Invalid, NotFound

__all__ = ["SqliteConnection"]

# A piece of the changes: large enough to make the cost of an append small, small enough for memory.
ROWS_MAX = 20_000
BYTES_MAX = 8 << 20
# How long a reader waits for a writer of the file.
BUSY_SECONDS_MAX = 5.0
# How long a removal waits: it can be tried again, and the application comes first.
POLITE_SECONDS_MAX = 0.05
POLL_SECONDS = 0.02
# Changes are removed when so many are confirmed or so much time has passed, so many in one transaction.
REMOVED_ROWS_MIN, REMOVED_SECONDS, REMOVED_ROWS_MAX = 5_000, 10.0, 1_000

# 1970-01-01 as a Julian day.
_EPOCH_DAY = 2_440_587.5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class SqliteChunk:
    """Rows of a table that one reader saw, and the highest sequence number that it saw."""

    columns: dict[str, pa.Array]
    rows: int
    last: tuple[str, ...] | None
    read_at: datetime
    sequence: int

    @property
    def position(self) -> str:
        return str(self.sequence)

    def sees(self, transaction: int) -> bool:
        """Whether the rows show all changes up to this one."""
        return transaction <= self.sequence


class SqliteConnection:
    """An open file; see `SourceConnection`. One thread."""

    def __init__(
        self, path: str, capture: str, tables: Sequence[CapturedTable], types: Mapping[str, pa.DataType],
        mask: Callable[[bytes], bytes], *, with_outbox: bool,
    ) -> None:  # fmt: skip
        self._path = path
        self._capture = capture
        self._captured = {one.name: one for one in tables}
        self._types = types
        self._rows = SqliteRows(self._captured, types, mask)
        self._with_outbox = with_outbox
        self._names = Names(capture)
        self._changes = quoted(self._names.changes)
        self._state = quoted(self._names.state)
        self._shapes: dict[int, Shape] = {}
        self._current: dict[str, int] = {}
        self._read = self._target = 0
        self._counts: dict[str, int] = {}
        self._changed_at = 0
        self._versions: tuple[int, int] | None = None
        self._confirmed = self._removed = 0
        self._removed_at = time.monotonic()
        self._row_counts: dict[str, int] = {}
        self._database = self._connect()
        try:
            self._file = self._file_number()
            with self._errors():
                self._load()
        except BaseException:
            self.close()
            raise

    # Opening

    def _connect(self) -> sqlite3.Connection:
        if not os.path.exists(self._path):
            raise NotFound(
                f'the SQLite file "{self._path}" does not exist',
                detail=f'Capture "{self._capture}" reads it. Nothing was made.',
                hint="Check the path; the application makes the file.",
            )
        with self._errors():
            found = sqlite3.connect(
                f"file:{quote(self._path)}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS_MAX
            )
        found.text_factory = decode_text
        return found

    def _file_number(self) -> tuple[int, int]:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return (0, 0)
        return (found.st_dev, found.st_ino)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises SQLite's errors as our own."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "readonly" in str(error) or "unable to open" in str(error):
                raise Invalid(
                    f'capture "{self._capture}" cannot write to the SQLite file "{self._path}"',
                    detail=f"SQLite says: {error}. Triggers note changes in the file, and a capture removes them.",
                    hint="Let its user write to the file and to its directory.",
                ) from error
            raise DatabaseUnavailable(
                f'the SQLite file "{self._path}" cannot be read now',
                detail=f"SQLite says: {error}.",
                hint="The capture tries again. If it stays so, look for a process that holds a transaction open.",
                address=self._path,
            ) from error
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:
                raise
            raise Invalid(
                f'"{self._path}" cannot be read as a SQLite file',
                detail=f"SQLite says: {error}.",
                hint="Check the path, and the file with: PRAGMA integrity_check.",
            ) from error

    @contextmanager
    def _transaction(self, how: str = "DEFERRED") -> Iterator[None]:
        self._database.execute(f"BEGIN {how}")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def close(self) -> None:
        """Close the file; what is confirmed is removed, unless another writer is at work."""
        with suppress(sqlite3.Error, DatabaseUnavailable, Invalid):
            if self._confirmed > self._removed:
                self._remove(rounds=10)
        self._database.close()

    def _load(self) -> None:
        """What the file has of this capture."""
        self._shapes, self._current = {}, {}
        rows = self._state_rows()
        # The id that the table of changes got when it was made.
        self.identity: Mapping[str, str] = {"changes": dict(rows).get("id", "")}
        for name, value in rows:
            kind, _, rest = name.partition(":")
            if kind == "shape":
                self._shapes[int(rest)] = Shape.from_json(json.loads(value))
            elif kind == "current":
                self._current[rest] = int(value)

    def _state_rows(self) -> list[tuple[str, str]]:
        if not self._has_table(self._names.state) or not self._has_table(self._names.changes):
            return []
        return self._database.execute(f"SELECT name, value FROM {self._state}").fetchall()

    def _has_table(self, name: str) -> bool:
        statement = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self._database.execute(statement, [name]).fetchone() is not None

    # Set-up

    def tables(self) -> list[SourceTable]:
        """The captured tables as they are now."""
        with self._errors():
            shapes = [read_shape(self._database, one, self._path) for one in self._captured.values()]
        found = [self._source_table(shape) for shape in shapes]
        check_types(self._types, found)
        return found

    def _source_table(self, shape: Shape) -> SourceTable:
        # A column is known by its name: the file does not tell a renamed one from a new one. Its number is that of the name.
        # The triggers of before have not noted a new column, so the rows must be read again.
        columns = tuple(
            SourceColumn(name, self._rows.type_of(shape, name, declared), _number_of(name), declared, filled=True)
            for name, declared in shape.columns
        )
        return SourceTable(shape.name, columns, shape.key)

    def is_own(self, known: Mapping[str, str]) -> bool:
        """A file says nothing of homes."""
        return True

    def prepare(self) -> str:
        """Make the tables and triggers, unless they exist. The position after which every change is noted."""
        with self._errors():
            # Only a first start and a change need the file's one lock for writers, which the application may hold.
            if not self._is_prepared():
                with self._transaction("IMMEDIATE"):
                    if not self._state_rows():
                        self._make_tables()
                    self._make_triggers()
            self._load()
            rows = dict(self._state_rows())
        self._removed = int(rows["confirmed"])
        return rows["confirmed"]

    def _is_prepared(self) -> bool:
        with self._transaction():
            self._load()
            wanted = self._wanted()
            return (
                bool(self._state_rows())
                and {name for name, number in self._current.items() if number} == {shape.name for shape in wanted}
                and all(self._current_shape(one.name) == one and self._has_triggers(one) for one in wanted)
            )

    def _make_tables(self) -> None:
        for name in (self._names.changes, self._names.state):
            statement = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE AND name <> ?"
            if (row := self._database.execute(statement, [name, name]).fetchone()) is not None:
                raise Invalid(
                    f'the SQLite file "{self._path}" has a capture whose name differs from "{self._capture}" in case only',
                    detail=f'Its table "{row[0]}" exists, and SQLite takes both names for the same. Nothing was changed.',
                    hint="Give this capture another name.",
                )
        # What is left of tables that were made or removed halfway by others is of no use.
        self._drop_all()
        self._database.execute(
            f"CREATE TABLE {self._changes} (sequence INTEGER PRIMARY KEY AUTOINCREMENT, shape INTEGER, change TEXT, at REAL)"
        )
        self._database.execute(f"CREATE TABLE {self._state} (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)")
        rows = [("id", str(uuid.uuid4())), ("confirmed", "0")]
        self._database.executemany(f"INSERT INTO {self._state} VALUES (?, ?)", rows)

    def _make_triggers(self) -> list[Shape]:
        """Triggers as the captured tables need them now; the shapes that changed."""
        self._load()
        if self._with_outbox:
            self._database.execute(sqlite_outbox_sql())
        changed = []
        wanted = self._wanted()
        for shape in wanted:
            if self._current_shape(shape.name) == shape and self._has_triggers(shape):
                continue
            self._drop_triggers(shape.name)
            number = max(self._shapes, default=0) + 1
            self._widen(len(shape.columns))
            for statement in trigger_sql(self._names, shape, number):
                self._database.execute(statement)
            self._note(f"shape:{number}", json.dumps(shape.to_json()))
            self._note(f"current:{shape.name}", str(number))
            self._shapes[number], self._current[shape.name] = shape, number
            changed.append(shape)
        for name in self._current.keys() - {shape.name for shape in wanted}:
            # No longer captured: should it be captured again, its changes in between are lost.
            self._drop_triggers(name)
            self._note(f"current:{name}", "0")
            if name == OUTBOX:
                self._drop_unread_outbox()
        return changed

    def _wanted(self) -> list[Shape]:
        found = [read_shape(self._database, one, self._path) for one in self._captured.values()]
        return [*found, outbox_shape()] if self._with_outbox else found

    def _current_shape(self, name: str) -> Shape | None:
        return self._shapes.get(self._current.get(name, 0))

    def _note(self, name: str, value: str) -> None:
        self._database.execute(f"INSERT OR REPLACE INTO {self._state} VALUES (?, ?)", [name, value])

    def _widen(self, count: int) -> None:
        """The table of changes has so many old and new values."""
        there = {
            name for (name,) in self._database.execute("SELECT name FROM pragma_table_info(?)", [self._names.changes])
        }
        for place in range(1, count + 1):
            for name in (f"o{place}", f"n{place}"):
                if name not in there:
                    self._database.execute(f"ALTER TABLE {self._changes} ADD COLUMN {name}")

    def _triggers(self) -> dict[str, str]:
        """The triggers of this capture in the file, and their tables."""
        found = self._database.execute("SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'")
        prefixes = tuple(self._names.trigger("", event) for event in EVENTS)
        return {name: table for name, table in found.fetchall() if name.startswith(prefixes)}

    def _has_triggers(self, shape: Shape) -> bool:
        there = self._triggers()
        return all(there.get(self._names.trigger(shape.table, event)) == shape.table for event in shape.events)

    def _drop_triggers(self, name: str) -> None:
        shape = self._current_shape(name)
        tables = {shape.table} if shape is not None else set()
        if name in self._captured:
            tables.add(self._captured[name].table)
        for table in tables:
            for event in EVENTS:
                self._database.execute(f"DROP TRIGGER IF EXISTS {quoted(self._names.trigger(table, event))}")

    def _drop_unread_outbox(self) -> None:
        """Without a trigger messages would be lost without a word; without the table, the application is told."""
        read = self._database.execute("SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", [OUTBOX])
        if read.fetchone() is None:
            self._database.execute(f"DROP TABLE IF EXISTS {OUTBOX}")

    def changed_tables(self) -> list[SourceTable]:
        """None: its triggers tell of every change of a table."""
        return []

    def unsettled(self) -> list[int]:
        """None: a transaction is visible as soon as it can be read."""
        return []

    def check_position(
        self, position: str, identity: Mapping[str, str], appended: Callable[[], set[tuple[str, int]]]
    ) -> None:
        """Raise `PositionLost` unless the file still has every change after a position."""
        with self._errors(), self._transaction():
            self._load()
            rows = dict(self._state_rows())
            if not rows:
                self._lost(position, "the file has no table of changes: it was dropped, or it is another file")
            if identity.get("changes", rows["id"]) != rows["id"]:
                self._lost(position, "the table of changes was made again, or it is another file")
            if int(rows["confirmed"]) > int(position):
                self._lost(position, f"changes up to {rows['confirmed']} were removed")
            if self._last_sequence() < int(position):
                self._lost(position, f"the last change is {self._last_sequence()}: the file was restored from a copy")
            for shape in self._wanted_before():
                if shape is None:
                    continue
                if not self._has_triggers(shape):
                    self._lost(
                        position,
                        f'triggers on table "{shape.table}" are missing: it was made again, or they were dropped',
                    )

    def _wanted_before(self) -> list[Shape | None]:
        """The shapes of captured tables that were captured before."""
        names = [*self._captured, *([OUTBOX] if self._with_outbox else [])]
        known = {shape.name: shape for _, shape in sorted(self._shapes.items())}
        return [known.get(name) if self._current.get(name) == 0 else self._current_shape(name) for name in names]

    def _lost(self, position: str, why: str) -> NoReturn:
        raise lost_position(self._capture, str(self._path), f"change {position}", why)

    # The stream

    def start(self, position: str) -> None:
        """Begin to read the changes after a position."""
        self._read = self._target = int(position)
        self._confirmed = max(self._confirmed, int(position))
        self._versions = None

    def read(self, seconds: float) -> list[Event]:
        """The next events; looks for one every few milliseconds, but at most so long."""
        deadline = time.monotonic() + seconds
        while True:
            with self._errors():
                events = self._look()
            if events:
                return events
            self._remove_if_due()
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(left, POLL_SECONDS))

    def _look(self) -> list[Event]:
        if self._file_number() != self._file:
            self._start_again("the file was replaced")
        events: list[Event] = []
        if self._read == self._target:
            versions = self._pragma("data_version"), self._pragma("schema_version")
            if versions == self._versions:
                return []
            if self._versions is None or versions[1] != self._versions[1]:
                events += self._check_schema()
                # Making triggers changed it again.
                versions = self._pragma("data_version"), self._pragma("schema_version")
            self._versions = versions
        with self._transaction():
            if self._read == self._target:
                self._target = self._last_sequence()
                self._rows.begin_transaction()
                self._counts, self._changed_at = {}, 0
            self._check_removed()
            rows = self._next_rows()
            gone = self._replaced(rows)
        events += self._convert(rows, gone)
        if self._read == self._target and events:
            events.append(self._committed())
        return events

    def _check_removed(self) -> None:
        """Another home may have a capture with this name and file; it would remove what this one has not read."""
        row = self._database.execute(f"SELECT value FROM {self._state} WHERE name = 'confirmed'").fetchone()
        if row is None or int(row[0]) > self._read:
            self._start_again("another reader removed some")

    def _pragma(self, name: str) -> int:
        return int(self._database.execute(f"PRAGMA {name}").fetchone()[0])

    def _last_sequence(self) -> int:
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", [self._names.changes]).fetchone()
        return 0 if row is None else int(row[0])

    def _start_again(self, why: str) -> NoReturn:
        """What was lost is found when the file is opened again."""
        raise DatabaseUnavailable(
            f'the SQLite file "{self._path}" must be opened again',
            detail=f"Its changes are no longer noted: {why}.",
            hint="The capture opens it again, and stops if changes were lost.",
            address=self._path,
        )

    def _check_schema(self) -> list[Event]:
        """Tables that have other columns now: their triggers are made anew."""
        with self._transaction():
            self._load()
            wanted, there = self._wanted(), self._state_rows()
            lacking = next(
                (one for one in wanted if not self._has_triggers(self._current_shape(one.name) or one)), None
            )
            same = all(self._current_shape(one.name) == one for one in wanted)
        if not there or lacking is not None:
            self._start_again("its triggers were dropped" if there else "the table of changes was dropped")
        if same:
            return []
        with self._transaction("IMMEDIATE"):
            changed = self._make_triggers()
        return [TableChanged(self._source_table(shape)) for shape in changed if shape.name in self._captured]

    def _next_rows(self) -> list[tuple[Any, ...]]:
        width = max((len(shape.columns) for shape in self._shapes.values()), default=0)
        names = [f"{kind}{place}" for kind in "on" for place in range(1, width + 1)]
        cursor = self._database.execute(
            f"SELECT sequence, shape, change, at{''.join(f', {name}' for name in names)} FROM {self._changes} "
            "WHERE sequence > ? AND sequence <= ? ORDER BY sequence",
            [self._read, self._target],
        )
        rows: list[tuple[Any, ...]] = []
        size = 0
        while len(rows) < ROWS_MAX and size < BYTES_MAX and (some := cursor.fetchmany(250)):
            rows += some
            size += sum(len(value) for row in some for value in row if isinstance(value, str | bytes))
        cursor.close()
        self._read = rows[-1][0] if rows else self._target
        return rows

    def _replaced(self, rows: Sequence[tuple[Any, ...]]) -> set[int]:
        """The changes of rows that another one replaced, and that are not left."""
        gone = set()
        for row in rows:
            if row[2] == "replaced":
                shape = self._shapes[row[1]]
                places = {name: place for place, (name, _) in enumerate(shape.columns)}
                # Twice: the first finds the rows by the key's index, the second compares bytes.
                values = [row[4 + places[name]] for name in shape.key for _ in range(2)]
                where = " AND ".join(
                    f"{quoted(name)} IS ? AND {quoted(name)} COLLATE BINARY IS ?" for name in shape.key
                )
                if (
                    self._database.execute(f"SELECT 1 FROM {quoted(shape.table)} WHERE {where}", values).fetchone()
                    is None
                ):
                    gone.add(row[0])
        return gone

    def _convert(self, rows: Sequence[tuple[Any, ...]], gone: set[int]) -> list[Event]:
        by_shape: dict[int, list[NotedRow]] = {}
        width = (len(rows[0]) - 4) // 2 if rows else 0
        for sequence, number, change, at, *values in rows:
            shape = self._shapes[number]
            if shape.name not in self._captured and not (self._with_outbox and shape.name == OUTBOX):
                continue
            count = len(shape.columns)
            noted = by_shape.setdefault(number, [])
            old, new = values[:count], values[width : width + count]
            before = len(noted)
            moment = round((at - _EPOCH_DAY) * 86_400_000)
            if shape.name == OUTBOX:
                noted.append(self._rows.message(shape, new, moment))
            else:
                noted += self._rows.changes(shape, change, old, new, moment, sequence in gone)
            if len(noted) > before:
                self._counts[shape.name] = self._counts.get(shape.name, 0) + len(noted) - before
                self._changed_at = max(self._changed_at, noted[-1].at)
        return [
            self._rows.event(self._shapes[number], noted, self._target) for number, noted in by_shape.items() if noted
        ]

    def _committed(self) -> Committed:
        position, moment = str(self._target), self._changed_at * 1000
        done = [SourceTransaction(position, self._target, moment, self._counts)] if self._counts else []
        return Committed(position, done)

    def has_reached(self, position: str) -> bool:
        """Whether all changes up to a position have been read."""
        return self._read >= int(position)

    def now(self) -> str:
        """The number of the last change."""
        with self._errors():
            return str(self._last_sequence())

    def unseen(self, transactions: Sequence[int]) -> list[int]:
        """None: what a reader of changes sees, every later reader sees."""
        return []

    # Removing what is confirmed

    def confirm(self, position: str) -> None:
        """Changes up to a position may be removed."""
        self._confirmed = max(self._confirmed, int(position))
        self._remove_if_due()

    def _remove_if_due(self) -> None:
        waiting = self._confirmed - self._removed
        due = waiting >= REMOVED_ROWS_MIN or time.monotonic() - self._removed_at > REMOVED_SECONDS
        if waiting > 0 and due:
            self._remove(rounds=1)

    def _remove(self, rounds: int) -> None:
        """Remove some of the confirmed changes; a busy file is left alone until later."""
        self._database.execute(f"PRAGMA busy_timeout = {int(POLITE_SECONDS_MAX * 1000)}")
        try:
            for _ in range(rounds):
                end = min(self._confirmed, self._removed + REMOVED_ROWS_MAX)
                with self._transaction("IMMEDIATE"):
                    self._database.execute(f"DELETE FROM {self._changes} WHERE sequence <= ?", [end])
                    self._note("confirmed", str(end))
                self._removed = end
                if end >= self._confirmed:
                    break
        except sqlite3.OperationalError:
            # The application writes. What is not removed now is removed later.
            pass
        finally:
            self._database.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS_MAX * 1000)}")
        if self._removed >= self._confirmed:
            self._removed_at = time.monotonic()

    # Snapshots

    def read_chunk(self, table: str, after: tuple[str, ...] | None, rows: int, where: str | None = None) -> SqliteChunk:
        """The next rows of a table in the order of its key, and the changes that they show."""
        with self._errors(), self._transaction():
            shape = read_shape(self._database, self._captured[table], self._path)
            key = ", ".join(map(quoted, shape.key))
            conditions, values = [], []
            if after is not None:
                conditions.append(f"({key}) > ({', '.join('?' * len(after))})")
                values = [_value(one) for one in after]
            if where is not None:
                # The user's own SQL.
                conditions.append(f"({where})")
            found = self._database.execute(
                f"SELECT {', '.join(quoted(name) for name, _ in shape.columns)} FROM {quoted(shape.table)} "
                f"{'WHERE ' + ' AND '.join(conditions) if conditions else ''} ORDER BY {key} LIMIT ?",
                [*values, rows],
            ).fetchall()
            sequence, moment = self._moment()
        names = [name for name, _ in shape.columns]
        for name in shape.key:
            place = names.index(name)
            if any(row[place] is None for row in found):
                raise self._rows.null_key(shape, name)
        last = None
        if len(found) == rows:
            last = tuple(_kept(found[-1][names.index(name)]) for name in shape.key)
        return SqliteChunk(self._rows.arrays(shape, found), len(found), last, moment, sequence)

    def _moment(self) -> tuple[int, datetime]:
        """The last change that this transaction sees, and the time."""
        (day,) = self._database.execute("SELECT julianday('now')").fetchone()
        return self._last_sequence(), _EPOCH + timedelta(milliseconds=round((day - _EPOCH_DAY) * 86_400_000))

    def key_texts(self, table: str, keys: pa.RecordBatch) -> list[tuple[str, ...]]:
        """Keys as text; a value that SQLite has no type for is the text that `arrow_array` reads."""
        names = self._shape(table).key
        return [
            tuple(map(_kept_key, key)) for key in zip(*(keys.column(name).to_pylist() for name in names), strict=True)
        ]

    def read_keys(self, table: str, keys: Sequence[tuple[str, ...]]) -> tuple[SqliteChunk, pa.RecordBatch]:
        """The rows with these keys, and the keys that no row has. All rows are read: a file may have a value of a key in
        several forms, such as two texts of one time, so it cannot be looked up."""
        with self._errors(), self._transaction():
            shape = read_shape(self._database, self._captured[table], self._path)
            wanted = self._rows.key_arrays(shape, [[_value(one) for one in key] for key in keys])
            left = set(_key_rows(wanted))
            places = [[name for name, _ in shape.columns].index(one) for one in shape.key]
            names = ", ".join(quoted(name) for name, _ in shape.columns)
            cursor = self._database.execute(f"SELECT {names} FROM {quoted(shape.table)}")
            found: list[Any] = []
            while rows := cursor.fetchmany(ROWS_MAX):
                here = self._rows.key_arrays(shape, [[row[place] for place in places] for row in rows])
                found += [row for row, key in zip(rows, _key_rows(here), strict=True) if key in left]
            sequence, moment = self._moment()
        there = self._rows.arrays(shape, found)
        left -= set(_key_rows([there[name] for name in shape.key]))
        absent = pa.array([key in left for key in _key_rows(wanted)], pa.bool_())
        chunk = SqliteChunk(there, len(found), None, moment, sequence)
        return chunk, pa.RecordBatch.from_arrays(wanted, names=list(shape.key)).filter(absent)

    def _shape(self, table: str) -> Shape:
        with self._errors():
            return read_shape(self._database, self._captured[table], self._path)

    def precedes(self, position: str, other: str) -> bool:
        """Whether a change is before another one."""
        return int(position) < int(other)

    def find_rows(self, table: str, keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        """Rows as they are now. Triggers note whole rows, so no value ever has to be looked up."""
        raise NotImplementedError

    def count_rows(self, table: str) -> int:
        """How many rows a table had when this connection first counted them."""
        if table not in self._row_counts:
            with self._errors():
                shape = read_shape(self._database, self._captured[table], self._path)
                (count,) = self._database.execute(f"SELECT count(*) FROM {quoted(shape.table)}").fetchone()
            self._row_counts[table] = int(count)
        return self._row_counts[table]

    # Health and end

    def health(self) -> Health:
        """About how many bytes the changes in the file have, by the size of the first hundred."""
        with self._errors():
            position = self._last_sequence()
            rows = self._database.execute(f"SELECT * FROM {self._changes} ORDER BY sequence LIMIT 100").fetchall()
        if not rows:
            return Health(0, None, str(position))
        size = sum(len(value) if isinstance(value, str | bytes) else 4 for row in rows for value in row)
        return Health(size * (position - rows[0][0] + 1) // len(rows), None, str(position))

    def drop(self, *, in_use: bool = False) -> None:
        """Remove tables and triggers. Another run of the capture is fenced by the log, and stops."""
        with self._errors(), self._transaction("IMMEDIATE"):
            self._drop_all()
            self._load()
        self._confirmed = self._removed = 0

    def _drop_all(self) -> None:
        for trigger in self._triggers():
            self._database.execute(f"DROP TRIGGER {quoted(trigger)}")
        self._database.execute(f"DROP TABLE IF EXISTS {self._changes}")
        self._database.execute(f"DROP TABLE IF EXISTS {self._state}")
        self._drop_unread_outbox()


def _number_of(name: str) -> int:
    """A number for a column that depends on its name alone."""
    return uuid.uuid5(uuid.NAMESPACE_OID, name).int >> 80


def _kept(value: Any) -> str:
    """A value of a key as text; `_value` reads it."""
    if isinstance(value, bytes):
        return f"blob {value.hex()}"
    return f"{type(value).__name__} {value!r}" if not isinstance(value, str) else f"text {value}"


def _kept_key(value: Any) -> str:
    """A value of a topic's key as text; `_value` reads it."""
    if isinstance(value, bool):
        return _kept(int(value))
    return _kept(value if isinstance(value, int | float | bytes | str) else str(value))


def _key_rows(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _value(kept: str) -> Any:
    kind, _, text = kept.partition(" ")
    match kind:
        case "blob":
            return bytes.fromhex(text)
        case "int":
            return int(text)
        case "float":
            return float(text)
    return text
