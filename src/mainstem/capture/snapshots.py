"""Snapshots: reading the rows that a table has, chunk by chunk, while its changes are streamed.

A chunk is read without a lock and without a mark in the source. It is appended when the stream has reached the position
at which it was read; so everything that it shows was streamed before. Of the transactions streamed so far, some may not be
visible in it: their rows are newer, and the chunk's rows with the same keys are dropped. The stream wins.

    stream     ... T1 ....... T2 (commit streamed, not yet visible) ......|
    chunk            read: sees T1, not T2                     append: without the keys that T2 changed

The progress of a table is a part of the capture's state, committed with each chunk:

    after      the key after which the next chunk begins; null at the beginning
    rows       how many rows were appended
    first      the offsets of the topic where the snapshot began: keys that were not written since are not in the source,
               and are deleted at the end; null in the first snapshot of a topic, which has none
    where      only these rows
    reason     why it is read
    keys       only the rows with these keys, as the source writes them; those that it does not have are deleted
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.capture.capture_log import CaptureLog
from mainstem.capture.source import Changes, Chunk, SourceConnection, SourceTransaction, TableMoved, origin_array
from mainstem.crash_points import reach
from mainstem.errors import MainstemError, Unavailable, summary_of

__all__ = ["Snapshots", "aligned", "condition_refusal", "live_keys"]

LOGGER = logging.getLogger("mainstem.capture")

CHUNK_ROWS = 20_000
# Keys in one statement.
CHUNK_KEYS = 1000

Key = tuple[Any, ...]
# What `RowStore.apply` does: large values are looked up there later, so it must have those of a snapshot too.
Apply = Callable[[str, Sequence[str], Mapping[str, pa.Array], pa.Array], None]


def condition_refusal(connection: SourceConnection, table: str, where: str) -> str:
    """What a source, whose tables are described, says against a condition; empty if nothing."""
    try:
        connection.read_chunk(table, None, 1, where)
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001 - of the source's own library
        return summary_of(error).splitlines()[0]
    return ""


class Snapshots:
    """The tables that are still to be read, one after the other."""

    def __init__(
        self, log: CaptureLog, connection: SourceConnection, tables: Iterable[str], *, paused: bool, apply: Apply
    ) -> None:
        self._log = log
        self._connection = connection
        self._tables = list(tables)
        self.paused = paused
        self._apply = apply
        # With the keys that the source does not have, if keys were read.
        self._chunk: tuple[str, Chunk, pa.RecordBatch | None] | None = None
        # For each table that is read: the last transaction that changed a key, and the last that truncated it.
        self._touched: dict[str, dict[Key, int]] = {}
        self._truncated: dict[str, int] = {}
        # Streamed before their keys were noted here, and perhaps not visible yet.
        self._before = log.recent_transactions() if self.pending else []
        self._requested = False
        # The stream must have reached it before the first chunk of a table is read; "" when it has.
        self._targets: dict[str, str] = {}

    @property
    def pending(self) -> list[str]:
        """The tables that are still to be read."""
        return [table for table in self._tables if self.progress(table) is not None]

    def progress(self, table: str) -> dict[str, Any] | None:
        """How far a table is read; None if it is not being read."""
        found: dict[str, Any] | None = self._log.get(f"snapshot:{table}")
        return found

    def request(
        self, table: str, reason: str, where: str | None = None, keys: Sequence[Sequence[str]] | None = None
    ) -> None:
        """Note that a table is to be read, from the beginning; all of it if some of it is still to be read."""
        if self.progress(table) is not None:
            where = keys = None
        topic = self._log.topic(table)
        ends = {str(one): topic.backend.latest(one) for one in range(topic.settings.partitions)}
        first = ends if any(topic.backend.earliest(int(one)) < end for one, end in ends.items()) else None
        progress = {"after": None, "rows": 0, "first": first, "where": where, "reason": reason}
        self._log.note(f"snapshot:{table}", progress if keys is None else {**progress, "keys": list(map(list, keys))})
        self._before += [*self._log.recent_transactions(), *self._connection.unsettled()]
        self._requested = True
        self._targets.pop(table, None)
        if first is None:
            # Flows wait for its end; see `first_reads`.
            self._log.note(f"read:{topic.name}", dict.fromkeys(ends))
        if self._chunk is not None and self._chunk[0] == table:
            self._chunk = None

    def refusal(self, table: str, where: str) -> str:
        """What the source says against a condition; empty if nothing. A condition that is noted and cannot be read would
        end this run and every later one."""
        return condition_refusal(self._connection, table, where)

    def note(self, changes: Changes) -> None:
        """Rows of the stream, which win against a chunk."""
        if self.progress(changes.table) is None:
            return
        key = self._log.topic(changes.table).settings.key
        touched = self._touched.setdefault(changes.table, {})
        rows = zip(*(changes.columns[name].to_pylist() for name in key), strict=True)
        for row, transaction in zip(rows, changes.origin.field("transaction").to_pylist(), strict=True):
            touched[row] = transaction

    def note_truncated(self, table: str, transaction: int) -> None:
        """All rows of a table were deleted."""
        if self.progress(table) is not None:
            self._truncated[table] = transaction

    def step(self) -> bool:
        """Read a chunk, or append the one that was read; False if the stream must go on first, or nothing is left."""
        if self._chunk is None:
            table = next(iter(self.pending), None)
            if table is None or self.paused or self._waits_for_stream(table) or self._waits_for_earlier():
                return False
            read = self._read(table)
            if read is None:
                return True
            self._chunk = table, *read
            reach("capture_chunk_read")
        table, chunk, absent = self._chunk
        if not self._connection.has_reached(chunk.position):
            return False
        self._append(table, chunk, absent)
        self._chunk = None
        return True

    def _read(self, table: str) -> tuple[Chunk, pa.RecordBatch | None] | None:
        """The next rows; None if the source refuses the condition of a request, which is then dropped."""
        progress = self.progress(table)
        assert progress is not None
        if "keys" in progress:
            return self._connection.read_keys(table, [tuple(key) for key in progress["keys"][:CHUNK_KEYS]])
        after = None if progress["after"] is None else tuple(progress["after"])
        try:
            return self._connection.read_chunk(table, after, CHUNK_ROWS, progress["where"]), None
        except (MainstemError, TableMoved):
            raise
        except Exception as error:
            if progress["where"] is None:
                raise
            # It fails on some row; kept, it would end this run and every later one.
            said = summary_of(error).splitlines()[0]
            LOGGER.warning('the snapshot of "%s" where %s is given up: %s', table, progress["where"], said)
            self._log.note(f"snapshot:{table}", None)
            return None

    def _waits_for_stream(self, table: str) -> bool:
        """Whether the stream may still have rows that the table lost without an event, with a partition or when it was made
        again: they must be in the topic before the offsets in `first`."""
        progress = self.progress(table)
        assert progress is not None
        if progress["after"] is not None or progress["first"] is None:
            return False
        target = self._targets.get(table)
        if target is None:
            target = self._targets[table] = self._connection.now()
        if target and not self._connection.has_reached(target):
            return True
        if target:
            self._targets[table] = ""
            topic = self._log.topic(table)
            self._log.note(f"snapshot:{table}", {**progress, "first": self._log.appended_to(topic)})
            self._before += self._log.recent_transactions()
        return False

    def _waits_for_earlier(self) -> bool:
        """Whether a transaction that was streamed before the snapshot began is not visible yet: a chunk would have its
        rows as they were before it."""
        if self._before:
            self._before = self._connection.unseen(self._before)
        return bool(self._before)

    def note_committed(self, transactions: Sequence[SourceTransaction]) -> None:
        """Transactions of which some rows were read before the last request."""
        if self._requested:
            self._before += [one.id for one in transactions]
        self._requested = False

    def _append(self, table: str, chunk: Chunk, absent: pa.RecordBatch | None) -> None:
        topic = self._log.topic(table)
        progress = self.progress(table)
        assert progress is not None
        key = topic.settings.key
        kept = self._kept(table, [chunk.columns[name] for name in key], chunk)
        columns = {name: array.filter(kept) for name, array in chunk.columns.items()}
        count = int(pc.sum(kept).as_py() or 0) if chunk.rows else 0
        self._write(table, chunk, columns, "insert", progress["rows"], count)
        if absent is not None:
            kept = self._kept(table, [absent.column(name) for name in key], chunk)
            gone = {name: absent.column(name).filter(kept) for name in key}
            self._write(table, chunk, gone, "delete", progress["rows"] + count, len(gone[key[0]]))
        if rest := progress.get("keys", ())[CHUNK_KEYS:]:
            self._log.note(f"snapshot:{table}", {**progress, "keys": rest, "rows": progress["rows"] + count})
        elif chunk.last is None:
            self._delete_others(table, progress, chunk, count)
            self._log.note(f"snapshot:{table}", None)
            if None in (self._log.get(f"read:{topic.name}") or {}).values():
                self._log.note(f"read:{topic.name}", self._log.appended_to(topic))
            self._touched.pop(table, None)
            self._truncated.pop(table, None)
        else:
            self._log.note(
                f"snapshot:{table}", {**progress, "after": list(chunk.last), "rows": progress["rows"] + count}
            )

    def _write(
        self, table: str, chunk: Chunk, columns: Mapping[str, pa.Array], change: str, before: int, count: int
    ) -> None:
        if not count:
            return
        topic, changes = self._log.topic(table), pa.repeat(pa.scalar(change), count)
        self._apply(table, topic.settings.key, columns, changes)
        origin = _snapshot_origin(chunk, before, count)
        self._log.append(topic, {**columns, "origin": origin}, changes, None)

    def _kept(self, table: str, keys: Sequence[pa.Array], chunk: Chunk) -> pa.Array:
        """Which rows with these keys the stream has not written anew."""
        count = len(keys[0])
        truncated = self._truncated.get(table)
        if truncated is not None and not chunk.sees(truncated):
            return pa.array(np.zeros(count, np.bool_))
        # Those that this chunk sees, every later one sees.
        hidden = {one: by for one, by in self._touched.get(table, {}).items() if not chunk.sees(by)}
        self._touched[table] = hidden
        if not hidden:
            return pa.array(np.ones(count, np.bool_))
        return pa.array([row not in hidden for row in _rows(keys)], pa.bool_())

    def _delete_others(self, table: str, progress: Mapping[str, Any], chunk: Chunk, appended: int) -> None:
        """Delete the keys of the topic that were not written since the snapshot began: the source does not have them."""
        if progress["first"] is None or progress["where"] is not None or "keys" in progress:
            return
        topic = self._log.topic(table)
        first = {int(one): offset for one, offset in progress["first"].items()}
        known = topic.to_arrow(columns=list(topic.settings.key))
        keys = live_keys(known, topic.settings.key, before=first)
        # What this transaction appends is not in the topic yet.
        seen = set(_rows([chunk.columns[name] for name in topic.settings.key])) if chunk.rows else set()
        gone = [row for row in _rows([keys.column(name) for name in topic.settings.key]) if row not in seen]
        if not gone:
            return
        columns = {
            name: pa.array([row[place] for row in gone], topic.settings.stored_schema.field(name).type)
            for place, name in enumerate(topic.settings.key)
        }
        self._write(table, chunk, columns, "delete", progress["rows"] + appended, len(gone))


def _snapshot_origin(chunk: Chunk, before: int, count: int) -> pa.StructArray:
    return origin_array(
        pa.repeat(pa.scalar(chunk.position), count),
        pa.nulls(count, pa.int64()),
        pa.array(np.arange(before + 1, before + count + 1), pa.int64()),
        pa.repeat(pa.scalar(chunk.read_at, pa.timestamp("us", "UTC")), count),
        snapshot=True,
    )


def _rows(columns: Sequence[pa.Array]) -> list[Key]:
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def live_keys(records: pa.Table, key: Sequence[str], before: Mapping[int, int] | None = None) -> pa.Table:
    """The keys whose last record, by offset, is no deletion; only those whose last record is `before` an offset of its
    partition."""
    record = records.column("record")
    fields = [pc.struct_field(record, name) for name in ("change", "partition", "offset")]
    names = [f"k{number}" for number in range(len(key))]
    table = pa.table(
        [*(records.column(name) for name in key), *fields], names=[*names, "change", "partition", "offset"]
    )
    last = (
        aligned(table)
        .group_by(names, use_threads=False)
        .aggregate([("change", "last"), ("partition", "last"), ("offset", "last")])
    )
    wanted = pc.not_equal(last.column("change_last"), "delete")
    if before is not None:
        limits = pa.array([before.get(one, 0) for one in last.column("partition_last").to_pylist()], pa.int64())
        wanted = pc.and_(wanted, pc.less(last.column("offset_last"), limits))
    return last.filter(wanted).select(names).rename_columns(list(key))


def aligned(table: pa.Table) -> pa.Table:
    """The same rows in buffers of Arrow's own: what was mapped from a file may lie anywhere, which Arrow's groups dislike."""
    return pa.table(
        [
            pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
            for column in table.columns
        ],
        names=table.column_names,
    )
