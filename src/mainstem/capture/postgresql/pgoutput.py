"""PgOutput: messages of PostgreSQL's logical replication (pgoutput, protocol 1) to events, as columns.

A message is one byte and its fields, numbers big-endian:

    B  commit lsn u64 | commit time i64 | xid u32                     a transaction begins; it is committed already
    R  oid u32 | schema | name | identity u8 | count u16 | columns    a table, before its first row and after each change
    I  oid | N row                                                    insert
    U  oid | [K key row or O old row] | N row                         update
    D  oid | K key row or O old row                                   delete
    T  count u32 | options u8 | oids                                  truncate
    C  flags u8 | commit lsn | end lsn | time                         the transaction ends
    row := count u16, then for each column: n (null) | u (unchanged, not sent) | t, length u32, text

Transactions come one after the other, in the order of their commits. Values are gathered as text, by table; Arrow
converts them when a batch is complete.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.capture.postgresql.postgres_types import PostgresType, Unrepresentable, arrow_array
from mainstem.capture.source import (
    Changes,
    Committed,
    Event,
    SourceTable,
    SourceTransaction,
    TableChanged,
    Truncated,
    origin_array,
)
from mainstem.log.record import HEADERS

__all__ = ["PgOutput", "Relation", "RelationColumn", "show_lsn"]

# PostgreSQL counts from this day.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
EPOCH_US = 946_684_800_000_000

# A value that did not change, and that PostgreSQL therefore did not send.
UNCHANGED = object()

_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")
_BEGIN, _COMMIT = struct.Struct(">QqI"), struct.Struct(">BQQq")

Value = bytes | None
Row = list[Any]


def show_lsn(lsn: int) -> str:
    """A position in the WAL as PostgreSQL writes it.

    >>> show_lsn(0x1_0000_00AB)
    '1/AB'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True)
class RelationColumn:
    """A captured column: its place in a row, its type in the source and in the topic; `mask` replaces its values."""

    name: str
    place: int
    postgres: PostgresType
    data_type: pa.DataType
    mask: Callable[[bytes], bytes] | None = None


@dataclass
class Relation:
    """A captured table as its rows are written now, and its rows that are not yet converted."""

    table: SourceTable
    columns: tuple[RelationColumn, ...]
    key: tuple[int, ...]
    before: bool = False
    rows: list[Row] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    olds: list[Row | None] = field(default_factory=list)
    headers: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    lacking: bool = False


# How a table is captured, from what the stream says of it: its oid, name with schema, and for each column name, type and
# modifier.
Describe = Callable[[int, str, str, Sequence[tuple[str, int, int]]], Relation | None]


class PgOutput:
    """Decodes messages. `rows` and `size` tell how much is gathered; `take` converts it.

    `describe` tells how a table is captured. `refuse` makes the error of a value that the topic's type cannot have.
    """

    def __init__(self, describe: Describe, refuse: Callable[[str, str, str, Unrepresentable], Exception]) -> None:
        self._describe = describe
        self._refuse = refuse
        self._relations: dict[int, Relation | None] = {}
        self._events: list[Event] = []
        self._transactions: list[SourceTransaction] = []
        # Of the transactions that gathered rows belong to.
        self._positions: list[str] = []
        self._ids: list[int] = []
        self._times: list[int] = []
        self._number = 0
        self._counts: dict[str, int] = {}
        self.inside = False
        # Whether a part of the current transaction was taken.
        self._parted = False
        self.rows = 0
        self.size = 0
        self.end = 0

    def feed(self, data: bytes) -> None:
        """Take one message; `data` begins with its kind."""
        kind = data[0]
        if kind == 73:  # I
            relation = self._relations[_U32.unpack_from(data, 1)[0]]
            if relation is not None:
                row, _ = _row(data, 6, relation)
                self._add(relation, "insert", row, None)
                self.size += len(data)
        elif kind == 85:  # U
            relation = self._relations[_U32.unpack_from(data, 1)[0]]
            if relation is not None:
                old, at = (None, 5) if data[5] == 78 else _row(data, 6, relation)
                row, _ = _row(data, at + 1, relation)
                self._update(relation, old, row, whole=data[5] == 79)
                self.size += len(data)
        elif kind == 68:  # D
            relation = self._relations[_U32.unpack_from(data, 1)[0]]
            if relation is not None:
                old, _ = _row(data, 6, relation)
                self._delete(relation, old, whole=data[5] == 79)
                self.size += len(data)
        elif kind == 66:  # B
            lsn, at, xid = _BEGIN.unpack_from(data, 1)
            self._positions.append(show_lsn(lsn))
            self._ids.append(xid)
            self._times.append(at + EPOCH_US)
            self._number, self._counts, self.inside = 0, {}, True
        elif kind == 67:  # C
            _, _, end, at = _COMMIT.unpack_from(data, 1)
            self.inside = False
            self.end = end
            if self._counts:
                self._transactions.append(SourceTransaction(show_lsn(end), self._ids[-1], at + EPOCH_US, self._counts))
        elif kind == 82:  # R
            self._relation(data)
        elif kind == 84:  # T
            self._truncate(data)

    def full(self, rows_max: int, bytes_max: int) -> bool:
        """Whether it is time to take what is gathered: between two transactions, unless one alone is as much as that."""
        if self.inside:
            return self._number >= rows_max <= self.rows or self.size >= 4 * bytes_max
        return self.rows >= rows_max or self.size >= bytes_max or (self._parted and self.whole)

    @property
    def whole(self) -> bool:
        """Whether there is something to take, and it ends with a whole transaction."""
        return not self.inside and bool(self.rows or self._events or self._transactions)

    def take(self) -> list[Event]:
        """What is gathered, as events; the last one is `Committed` if it ends with a whole transaction."""
        for relation in self._relations.values():
            if relation is not None:
                self._convert(relation)
        events, self._events = self._events, []
        self._parted = self.inside
        if not self.inside:
            if self._transactions or events:
                events.append(Committed(show_lsn(self.end), self._transactions))
            self._transactions = []
            self._positions, self._ids, self._times = [], [], []
        self.rows = self.size = 0
        return events

    def _add(
        self, relation: Relation, change: str, row: Row, old: Row | None, header: tuple[str, bytes] | None = None
    ) -> None:
        self._number += 1
        self.rows += 1
        if header is not None:
            relation.headers[len(relation.rows)] = header
        relation.rows.append(row)
        relation.changes.append(change)
        relation.transactions.append(len(self._ids) - 1)
        relation.numbers.append(self._number)
        if relation.before:
            relation.olds.append(old)
        name = relation.table.name
        self._counts[name] = self._counts.get(name, 0) + 1

    def _update(self, relation: Relation, old: Row | None, row: Row, *, whole: bool) -> None:
        if old is None:
            self._add(relation, "update", row, None)
            return
        if whole:
            # The old row has what was not sent again.
            row = [before if value is UNCHANGED else value for before, value in zip(old, row, strict=True)]
        # A large key is not sent again either; the old row has it.
        for place in relation.key:
            row[place] = old[place] if row[place] is UNCHANGED else row[place]
        key = [row[place] for place in relation.key]
        former = [old[place] for place in relation.key]
        if key == former:
            self._add(relation, "update", row, old if whole else None)
            return
        self._add(relation, "delete", _only_key(old, relation), old if whole else None,
                  ("new_key", _key_json(relation, key)))  # fmt: skip
        self._add(relation, "insert", row, None, ("old_key", _key_json(relation, former)))

    def _delete(self, relation: Relation, old: Row, *, whole: bool) -> None:
        self._add(relation, "delete", _only_key(old, relation), old if whole else None)

    def _relation(self, data: bytes) -> None:
        oid = _U32.unpack_from(data, 1)[0]
        schema, at = _text(data, 5)
        name, at = _text(data, at)
        at += 1
        count = _U16.unpack_from(data, at)[0]
        at += 2
        columns = []
        for _ in range(count):
            column, at = _text(data, at + 1)
            columns.append((column, _U32.unpack_from(data, at)[0], int.from_bytes(data[at + 4 : at + 8], signed=True)))
            at += 8
        known = self._relations.get(oid)
        if known is not None:
            self._convert(known)
        relation = self._describe(oid, schema, name, columns)
        self._relations[oid] = relation
        if relation is not None:
            self._events.append(TableChanged(relation.table))

    def _truncate(self, data: bytes) -> None:
        count = _U32.unpack_from(data, 1)[0]
        for number in range(count):
            relation = self._relations[_U32.unpack_from(data, 6 + 4 * number)[0]]
            if relation is not None:
                self._convert(relation)
                self._number += 1
                self._counts[relation.table.name] = self._counts.get(relation.table.name, 0) + 1
                moment = EPOCH + timedelta(microseconds=self._times[-1] - EPOCH_US)
                origin = {"position": self._positions[-1], "transaction": self._ids[-1], "number": self._number,
                          "committed_at": moment, "snapshot": False}  # fmt: skip
                self._events.append(Truncated(relation.table.name, origin))

    def _convert(self, relation: Relation) -> None:
        """The gathered rows of a table become columns."""
        if not relation.rows:
            return
        gathered = list(zip(*relation.rows, strict=True))
        unchanged = {}
        if relation.lacking:
            for column in relation.columns:
                values = gathered[column.place]
                mask = np.fromiter((value is UNCHANGED for value in values), np.bool_, len(values))
                if mask.any():
                    unchanged[column.name] = mask
                    gathered[column.place] = tuple(None if value is UNCHANGED else value for value in values)
        columns = {column.name: self._array(relation, column, gathered) for column in relation.columns}
        places = pa.array(relation.transactions, pa.int64())
        origin = origin_array(
            pa.array(self._positions, pa.string()).take(places),
            pa.array(self._ids, pa.int64()).take(places),
            pa.array(relation.numbers, pa.int64()),
            pa.array(self._times, pa.timestamp("us", "UTC")).take(places),
            snapshot=False,
        )
        self._events.append(
            Changes(
                relation.table.name, columns, pa.array(relation.changes, pa.string()), origin, unchanged,
                self._before(relation) if relation.before else None, _headers(relation),
            )
        )  # fmt: skip
        for gathered_list in (relation.rows, relation.changes, relation.transactions, relation.numbers, relation.olds):
            gathered_list.clear()
        relation.headers.clear()
        relation.lacking = False

    def _array(self, relation: Relation, column: RelationColumn, gathered: Sequence[Sequence[Value]]) -> pa.Array:
        values = gathered[column.place]
        if column.mask is not None:
            values = [None if value is None else column.mask(value) for value in values]
        try:
            return arrow_array(values, column.postgres, column.data_type)
        except Unrepresentable as error:
            shown = _key_json(relation, [gathered[place][error.index] for place in relation.key]).decode()
            raise self._refuse(relation.table.name, column.name, shown, error) from None

    def _before(self, relation: Relation) -> pa.StructArray:
        """The rows before the changes; null for an insert."""
        nothing: Row = [None] * len(relation.rows[0])
        gathered = list(zip(*(nothing if old is None else old for old in relation.olds), strict=True))
        arrays = [self._array(relation, column, gathered) for column in relation.columns]
        missing = pa.array([old is None for old in relation.olds])
        names = [column.name for column in relation.columns]
        return pa.StructArray.from_arrays(arrays, names=names, mask=missing)


def _row(data: bytes, at: int, relation: Relation) -> tuple[Row, int]:
    """The values of a row, and where the next field of the message begins."""
    count = _U16.unpack_from(data, at)[0]
    at += 2
    values: Row = []
    for _ in range(count):
        kind = data[at]
        if kind == 116:  # t
            first = at + 5
            at = first + _U32.unpack_from(data, at + 1)[0]
            values.append(data[first:at])
        else:
            at += 1
            if kind == 117:  # u
                relation.lacking = True
                values.append(UNCHANGED)
            else:
                values.append(None)
    return values, at


def _only_key(row: Row, relation: Relation) -> Row:
    only: Row = [None] * len(row)
    for place in relation.key:
        only[place] = row[place]
    return only


def _key_json(relation: Relation, values: Sequence[Value]) -> bytes:
    shown = {}
    for name, value in zip(relation.table.key, values, strict=True):
        column = next(column for column in relation.columns if column.name == name)
        masked = value if value is None or column.mask is None else column.mask(value)
        shown[name] = None if masked is None else masked.decode("utf-8", "replace")
    return json.dumps(shown, ensure_ascii=False).encode()


def _headers(relation: Relation) -> pa.Array | None:
    if not relation.headers:
        return None
    found: Iterator[tuple[str, bytes] | None] = (relation.headers.get(n) for n in range(len(relation.rows)))
    return pa.array([None if one is None else [{"key": one[0], "value": one[1]}] for one in found], HEADERS)


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
