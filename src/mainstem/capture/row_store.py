"""RowStore: the large rows of captured tables as they are now, in a SQLite file of the home.

PostgreSQL does not send a large value again if it did not change. It sends such values only of rows that it stores out of
line, more than 2 kB; so rows below a much smaller size are not kept here. The file is derived: what it has not applied is
read from the topics, and without the file everything is.

    offsets   topic | partition | next offset
    rows      table | key as JSON | values of the columns that may be large, as JSON

One writer. It is applied before the transaction of the log is committed, and committed after it: a crash between them
leaves it behind the topics, never ahead.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from mainstem.log.topic import Topic

__all__ = ["RowStore", "key_text"]

# PostgreSQL moves values out of rows above 2,000 bytes in its own form, of which the text form of JSON or an array may be
# an eighth.
LARGE_BYTES = 256


class RowStore:
    """The rows of all captured tables of one capture."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._database = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._made(sqlite3.connect(self._path, isolation_level=None, check_same_thread=False))
        except sqlite3.DatabaseError:
            # Damaged, or of another version: it is made again.
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            return self._made(sqlite3.connect(self._path, isolation_level=None, check_same_thread=False))

    def _made(self, database: sqlite3.Connection) -> sqlite3.Connection:
        os.chmod(self._path, 0o600)
        database.execute("PRAGMA journal_mode = WAL")
        # A power cut may take back what was applied, which is then read from the topics.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS offsets (topic TEXT, partition INTEGER, offset INTEGER, PRIMARY KEY (topic, partition))"
        )
        database.execute(
            "CREATE TABLE IF NOT EXISTS rows (source TEXT, key TEXT, value TEXT, PRIMARY KEY (source, key)) WITHOUT ROWID"
        )
        return database

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # Applying

    def begin(self) -> None:
        """Begin to apply rows, unless this was begun."""
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")

    def apply(self, table: str, key: Sequence[str], columns: Mapping[str, pa.Array], change: pa.Array) -> None:
        """Keep the large ones of these rows, in their order, and forget those that are deleted."""
        stored = [name for name, array in columns.items() if name not in key and _may_be_large(array.type)]
        large = _sizes([columns[name] for name in stored], len(change)) >= LARGE_BYTES
        deleted = np.asarray(pc.equal(change, "delete"))
        wanted = np.flatnonzero(large | (deleted & self._has_rows(table)))
        if not len(wanted):
            return
        self.begin()
        places = pa.array(wanted)
        keys = [key_text(one) for one in _tuples([columns[name].take(places) for name in key])]
        values = {name: columns[name].take(places).to_pylist() for name in stored}
        for number, one in enumerate(keys):
            if deleted[wanted[number]]:
                self._database.execute("DELETE FROM rows WHERE source = ? AND key = ?", (table, one))
            else:
                row = json.dumps({name: _encoded(values[name][number]) for name in stored})
                self._database.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (table, one, row))

    def _has_rows(self, table: str) -> bool:
        return self._database.execute("SELECT 1 FROM rows WHERE source = ? LIMIT 1", (table,)).fetchone() is not None

    def clear(self, table: str) -> None:
        """Forget all rows of a table."""
        self.begin()
        self._database.execute("DELETE FROM rows WHERE source = ?", (table,))

    def commit(self, topics: Iterable[Topic]) -> None:
        """Make it durable that everything in these topics is applied."""
        if not self._database.in_transaction:
            return
        self._note_offsets(topics)
        self._database.execute("COMMIT")

    def rollback(self) -> None:
        """Forget what was applied since the last commit."""
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def _note_offsets(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for partition in range(topic.settings.partitions):
                self._database.execute(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)",
                    (topic.name, partition, topic.backend.latest(partition)),
                )

    def catch_up(self, table: str, topic: Topic) -> None:
        """Apply what the topic has and this store has not."""
        backend = topic.backend
        known = dict(self._database.execute("SELECT partition, offset FROM offsets WHERE topic = ?", (topic.name,)))
        starts = {}
        for partition in range(topic.settings.partitions):
            first = backend.earliest(partition)
            starts[partition] = max(first, int(known.get(partition, first)))
            if starts[partition] > backend.latest(partition):
                # The topic was made again, or the home restored from a copy.
                return self._start_again(table, topic)
        self.begin()
        for batch in topic.batches(start=starts):
            names = [name for name in batch.schema.names if name not in ("record", "origin", "before")]
            change = batch.column("record").field("change")
            self.apply(table, topic.settings.key, {name: batch.column(name) for name in names}, change)
        self._note_offsets([topic])
        self._database.execute("COMMIT")
        return None

    def _start_again(self, table: str, topic: Topic) -> None:
        self.clear(table)
        self._database.execute("DELETE FROM offsets WHERE topic = ?", (topic.name,))
        self._database.execute("COMMIT")
        self.catch_up(table, topic)

    # Looking up

    def find(self, table: str, key: str) -> dict[str, Any] | None:
        """The values of a large row; None if it is not kept."""
        row = self._database.execute("SELECT value FROM rows WHERE source = ? AND key = ?", (table, key)).fetchone()
        return None if row is None else json.loads(row[0])


def decoded(value: Any, data_type: pa.DataType) -> Any:
    """A value of `find` as Arrow takes it."""
    if value is None:
        return None
    if kinds.is_binary(data_type):
        return base64.b64decode(value)
    if kinds.is_decimal(data_type):
        return Decimal(value)
    return value


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, Decimal) else value


def key_text(key: Sequence[Any]) -> str:
    """A key as text."""
    return json.dumps(list(key), default=str, ensure_ascii=False)


def _tuples(columns: Sequence[pa.Array]) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _may_be_large(data_type: pa.DataType) -> bool:
    """Types that are stored out of line; arrays only of what JSON has."""
    if kinds.is_list(data_type):
        inner = data_type.value_type
        return bool(kinds.is_string(inner) or kinds.is_integer(inner) or kinds.is_boolean(inner))
    return bool(kinds.is_string(data_type) or kinds.is_binary(data_type) or kinds.is_decimal(data_type))


def _sizes(columns: Sequence[pa.Array], count: int) -> npt.NDArray[np.int64]:
    total = np.zeros(count, np.int64)
    for column in columns:
        if kinds.is_string(column.type) or kinds.is_binary(column.type):
            total += np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)
        elif kinds.is_list(column.type):
            total += 8 * np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
            if kinds.is_string(column.type.value_type):
                # Not exact, and never too small: all text of the column for each row of it.
                total += int(pc.sum(pc.binary_length(column.flatten())).as_py() or 0)
        else:
            total += 16
    return total
