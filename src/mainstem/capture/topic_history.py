"""TopicHistory: checksums of the records of a topic, by key, in a SQLite file that is deleted at the end.

    records   key | partition | offset | transaction of the source, or null | deleted | checksum of the row
    listed    key: those that the source has

Keys and rows are checksums of 16 bytes, so the memory is that of a batch, and the file is small however wide the rows are.
Records that were added here stay when the topic is compacted: so a row is known as it was at any moment since the start.
One thread.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from mainstem.log.topic import Topic

__all__ = ["HistoryRecord", "TopicHistory", "chunk_checksum", "row_checksums"]

_BYTES = 16


class HistoryRecord(NamedTuple):
    """A record of a key. `checksum`: of its row; None if it is a deletion."""

    partition: int
    offset: int
    transaction: int | None
    checksum: bytes | None


def row_checksums(columns: Sequence[pa.Array]) -> list[bytes]:
    """A checksum of each row.

    >>> first, second = row_checksums([pa.array([1, 1]), pa.array(["a", None])])
    >>> len(first), first == second
    (16, False)
    """
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest() for row in rows]


def chunk_checksum(rows: Iterable[bytes | None]) -> bytes:
    """One checksum of many rows in their order; a missing one counts too."""
    whole = blake2b(digest_size=_BYTES)
    for one in rows:
        whole.update(b"\0" * _BYTES if one is None else one)
    return whole.digest()


class TopicHistory:
    """The records of one topic so far. `columns`: those that are compared."""

    def __init__(self, topic: Topic, columns: Sequence[str]) -> None:
        self._topic = topic
        self._columns = list(columns)
        self._key = list(topic.settings.key)
        self._next = {one: topic.backend.earliest(one) for one in range(topic.settings.partitions)}
        self._folder = tempfile.TemporaryDirectory(prefix="mainstem-check-")
        self._database = sqlite3.connect(Path(self._folder.name, "history.sqlite"), isolation_level=None)
        # Of no use after a crash.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            'CREATE TABLE records (key BLOB, part INTEGER, "offset" INTEGER, txn INTEGER, checksum BLOB, '
            'PRIMARY KEY (key, part, "offset")) WITHOUT ROWID'
        )
        self._database.execute("CREATE TABLE listed (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def close(self) -> None:
        """Delete the file."""
        self._database.close()
        self._folder.cleanup()

    def catch_up(self) -> None:
        """Add the records that the topic has got."""
        partitions = range(self._topic.settings.partitions)
        starts = {one: max(self._next.get(one, 0), self._topic.backend.earliest(one)) for one in partitions}
        names = list(dict.fromkeys([*self._key, *self._columns, "origin"]))
        self._database.execute("BEGIN")
        for batch in self._topic.batches(start=starts, columns=names):
            self._add(batch)
        self._database.execute("COMMIT")

    def _add(self, batch: pa.RecordBatch) -> None:
        if not len(batch):
            return
        record, origin = batch.column("record"), batch.column("origin")
        keys = row_checksums([batch.column(name) for name in self._key])
        rows = row_checksums([batch.column(name) for name in self._columns])
        changes = record.field("change").to_pylist()
        partitions, offsets = record.field("partition").to_pylist(), record.field("offset").to_pylist()
        transactions = [None if one is None else one["transaction"] for one in origin.to_pylist()]
        self._database.executemany(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)",
            (
                (key, partition, offset, transaction, None if change == "delete" else row)
                for key, partition, offset, transaction, change, row in zip(
                    keys, partitions, offsets, transactions, changes, rows, strict=True
                )
            ),
        )
        for partition, offset in zip(partitions, offsets, strict=True):
            self._next[partition] = offset + 1

    def record(self, key: bytes, shows: Callable[[int], bool]) -> tuple[HistoryRecord | None, bool]:
        """The last record of a key whose transaction is shown; and whether newer ones were passed over."""
        passed = False
        for row in self._database.execute(
            'SELECT part, "offset", txn, checksum FROM records WHERE key = ? ORDER BY part DESC, "offset" DESC', (key,)
        ):
            found = HistoryRecord(*row)
            if found.transaction is None or shows(found.transaction):
                return found, passed
            passed = True
        return None, passed

    def list_keys(self, keys: Iterable[bytes]) -> None:
        """Note keys that the source has."""
        self._database.execute("BEGIN")
        self._database.executemany("INSERT OR IGNORE INTO listed VALUES (?)", ((key,) for key in keys))
        self._database.execute("COMMIT")

    def unlisted(self) -> Iterator[HistoryRecord]:
        """The last record of each key that was not listed and is not deleted."""
        rows = self._database.execute(
            'SELECT key, part, "offset", txn, checksum FROM records WHERE key NOT IN (SELECT key FROM listed) '
            'ORDER BY key, part, "offset"'
        )
        last: tuple[bytes, HistoryRecord] | None = None
        for key, *rest in rows:
            if last is not None and last[0] != key and last[1].checksum is not None:
                yield last[1]
            last = key, HistoryRecord(*rest)
        if last is not None and last[1].checksum is not None:
            yield last[1]

    def read(self, record: HistoryRecord, columns: Sequence[str]) -> Mapping[str, Any] | None:
        """Columns of a record; None if the topic was compacted since."""
        start, stop = {record.partition: record.offset}, {record.partition: record.offset + 1}
        for batch in self._topic.batches(start=start, stop=stop, columns=list(columns)):
            for row in batch.to_pylist():
                if row["record"]["offset"] == record.offset:
                    return dict(row)
        return None
