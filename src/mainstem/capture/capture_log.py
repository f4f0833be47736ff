"""CaptureLog: what a capture writes into the log, each time in one transaction of its producer.

    <capture>.<table>                        rows of a table
    mainstem.capture.<name>.transactions     a row for each transaction of the source, with the position after it
    mainstem.capture.<name>.state            compacted; for each table its columns and its snapshot, and the source
    mainstem.capture.<name>.rejected         messages of the outbox that no topic accepted

The last row of `transactions` is the position of the capture: it is committed with the rows up to it, so after a crash
both are there or neither. A row without a transaction states that nothing happened up to a position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.capture.capture import Capture
from mainstem.capture.captured_table import CapturedTable, changed_key
from mainstem.capture.source import SourceTable, SourceTransaction
from mainstem.errors import Conflict, Invalid, InvalidRows, TopicNotFound
from mainstem.log.append_result import token_of
from mainstem.log.log import Log
from mainstem.log.producer import Producer
from mainstem.log.record import CHANGE, HEADERS, ORIGIN
from mainstem.log.rows.column_types import NUMBERS, kind_of
from mainstem.log.rows.schema_ddl import type_to_ddl
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.transaction import Transaction

__all__ = ["RECENT", "CaptureLog", "as_type", "last_position", "make_topic", "read_state", "topic_settings"]

TRANSACTIONS = "position STRING, transaction BIGINT, committed_at TIMESTAMP, changes MAP<STRING, BIGINT>, token STRING"
STATE = "name STRING, value STRING"
REJECTED = "topic STRING, key STRING, payload STRING, headers STRING, id STRING, reason STRING, position STRING"
# A source may send a transaction over this long; its process's end aborts it at once.
TIMEOUT = "1 hour"
KEPT = "30 days"
_STATE = re.compile(r"mainstem\.capture\.(.+)\.state")
# Transactions that are streamed and perhaps not visible yet: while a commit waits for a standby, so do nearly all others.
RECENT = 200_000


def topic_settings(capture: Capture, captured: CapturedTable, table: SourceTable) -> TopicSettings:
    """The topic of a table."""
    fields = [pa.field(column.name, column.data_type) for column in table.columns]
    if captured.before is not None:
        fields.append(pa.field("before", pa.struct(fields)))
    return TopicSettings.of(
        captured.topic(capture.name),
        schema=pa.schema([*fields, pa.field("origin", ORIGIN)]),
        key=list(table.key),
        event_time=captured.event_time,
        partitions=captured.partitions,
        keep=captured.keep,
    )


def make_topic(log: Log, capture: Capture, captured: CapturedTable, table: SourceTable) -> Topic:
    """The topic of a table, made or widened as the table needs it. It needs no producer, and so fences no run."""
    wanted = topic_settings(capture, captured, table)
    try:
        topic = Topic(log, log.open_topic(wanted.name))
    except TopicNotFound:
        topic = Topic(log, log.create_topic(wanted))
    _check_key(topic, captured, wanted)
    _check_owner(log, capture, topic.name)
    _widen(topic, captured, wanted)
    return topic


def _check_owner(log: Log, capture: Capture, topic: str) -> None:
    """A snapshot and a truncate delete the rows of a topic that its table does not have, so a topic has one table."""
    for name in log.topic_names():
        owner = _STATE.fullmatch(name)
        if owner is None or owner[1] == capture.name:
            continue
        for key, value in read_state(Topic(log, log.open_topic(name))).items():
            if key.startswith("table:") and value["settings"]["topic"] == topic:
                raise Conflict(
                    f'topic "{topic}" is written by capture "{owner[1]}"',
                    detail=f'It holds table "{key.partition(":")[2]}" of that capture.',
                    hint="Give each table a topic of its own: CapturedTable(..., into=...); two topics can be read as one by a union.",
                )


def _check_key(topic: Topic, captured: CapturedTable, wanted: TopicSettings) -> None:
    there = topic.settings
    if "origin" not in there.schema.names or not there.schema.field("origin").type.equals(ORIGIN):
        raise Conflict(
            f'topic "{there.name}" is not the topic of a captured table',
            detail='It has no column "origin" with the origin of each row.',
            hint=f"Choose another topic: CapturedTable({captured.name!r}, into=...).",
        )
    if there.key != wanted.key:
        raise changed_key(captured, there.key, wanted.key)


def _widen(topic: Topic, captured: CapturedTable, wanted: TopicSettings) -> None:
    """Columns that the topic lacks are added, those that became wider are widened."""
    there = topic.settings.schema
    fields = {field.name: field for field in there}
    fields.update({field.name: field for field in wanted.schema})
    if fields == {field.name: field for field in there}:
        return
    try:
        topic.alter(schema=pa.schema(list(fields.values())))
    except Invalid as error:
        raise Invalid(
            f'the columns of table "{captured.name}" no longer fit topic "{topic.name}"',
            detail=f"{error.summary}. {error.detail}",
            hint=f"Capture the table into a new topic: CapturedTable({captured.name!r}, into=...); or read the column as "
            'text from the beginning: postgres(..., types={"table.column": "STRING"}).',
        ) from error


class CaptureLog:
    """The topics of one run of a capture. Opening it fences every older run."""

    def __init__(self, log: Log, capture: Capture) -> None:
        self._log = log
        self.capture = capture
        self.producer = Producer(log, log.open_producer(f"mainstem.capture.{capture.name}"))
        self.transactions = self._own("transactions", TRANSACTIONS, keep=KEPT)
        self.state_topic = self._own("state", STATE, key="name", keep="latest per key")
        self._topics: dict[str, Topic] = {}
        self._open: Transaction | None = None
        self._ends: dict[str, dict[int, int]] = {}
        self._noted: dict[str, Any] = {}
        self.state = read_state(self.state_topic)
        self.position = last_position(self.transactions)

    def _own(self, kind: str, schema: str, **settings: Any) -> Topic:
        name = self.capture.own_topic(kind)
        try:
            return Topic(self._log, self._log.open_topic(name))
        except TopicNotFound:
            return Topic(self._log, self._log.create_topic(TopicSettings.of(name, schema=schema, **settings)))

    def recent_transactions(self) -> list[int]:
        """The ids of the last transactions that were appended."""
        return [one for one in self._recent("transaction")[0] if one is not None]

    def begin_history(self) -> None:
        """The transactions so far are not those of the source as it is now."""
        self.note("history", self.transactions.backend.latest(0))

    def appended(self) -> set[tuple[str, int]]:
        """The positions and ids of the last transactions that were appended."""
        return {(position, one) for position, one in zip(*self._recent("position", "transaction"), strict=True) if one}

    def _recent(self, *columns: str) -> list[list[Any]]:
        backend = self.transactions.backend
        start = max(backend.earliest(0), backend.latest(0) - RECENT, self.get("history") or 0)
        found = self.transactions.to_arrow(start={0: start}, columns=list(columns))
        return [found.column(name).to_pylist() for name in columns]

    # Topics of tables

    def topic(self, table: str) -> Topic:
        """The topic of a table."""
        return self._topics[table]

    def columns(self, captured: CapturedTable) -> list[str]:
        """The columns of a table's topic; some of them the table may no longer have."""
        name = captured.topic(self.capture.name)
        return list(self._log.open_topic(name).settings.schema.names) if name in self._log.topic_names() else []

    def outbox_topic(self, name: str) -> Topic:
        """Any topic of the log, for a message of the outbox."""
        return Topic(self._log, self._log.open_topic(name))

    def rejected(self) -> Topic:
        """The topic of rejected messages."""
        return self._own("rejected", REJECTED, keep=KEPT)

    def make_topic(self, captured: CapturedTable, table: SourceTable) -> Topic:
        """The topic of a table, made or widened as the table needs it."""
        topic = make_topic(self._log, self.capture, captured, table)
        self._topics[captured.name] = topic
        return topic

    # Writing

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun."""
        return self._open is not None

    def append(self, topic: Topic, columns: Mapping[str, pa.Array], change: pa.Array, headers: pa.Array | None) -> None:
        """Append rows as a part of the transaction; columns that are not given are null."""
        if not len(change):
            return
        schema, count = topic.settings.stored_schema, len(change)
        arrays = [
            self._as_field(topic, columns[field.name], field) if field.name in columns else pa.nulls(count, field.type)
            for field in schema
        ]
        record = pa.StructArray.from_arrays(
            [change, pa.nulls(count, HEADERS) if headers is None else headers],
            fields=[pa.field("change", CHANGE), pa.field("headers", HEADERS)],
        )
        try:
            self.append_rows(topic, pa.RecordBatch.from_arrays([*arrays, record], names=[*schema.names, "record"]))
        except InvalidRows as error:
            if error.row is None:
                raise
            raise self._refused(topic, columns, error.row, error) from error

    def _as_field(self, topic: Topic, array: pa.Array, field: pa.Field) -> pa.Array:
        """A column in the type of the topic. It may have had another one when these rows were changed."""
        kinds = kind_of(array.type), kind_of(field.type)
        try:
            # Only where values stay what they are: Arrow would read an integer as a moment, too.
            if array.null_count == len(array) or kinds[0] == kinds[1] or {*kinds} <= {*NUMBERS, "string"}:
                return as_type(array, field.type)
            said = ""
        except pa.ArrowException as error:
            said = f": {error}"
        table = self._table_of(topic)
        raise Invalid(
            f'changes of table "{table}" do not fit topic "{topic.name}"',
            detail=f'Column "{field.name}" is {type_to_ddl(array.type)} in them, and {type_to_ddl(field.type)} in the topic{said}. '
            "Its type was changed later. Nothing from these changes on was captured.",
            hint=f"Remove the capture with: mainstem capture drop PROGRAM.py {self.capture.name}. It then begins with a snapshot of the "
            f'table as it is now; into a new topic, CapturedTable("{table}", into=...), if its columns no longer fit this one.',
        )

    def _table_of(self, topic: Topic) -> str:
        return next((name for name, one in self._topics.items() if one.name == topic.name), topic.name)

    def _refused(self, topic: Topic, columns: Mapping[str, pa.Array], row: int, error: InvalidRows) -> Invalid:
        key = json.dumps({name: columns[name][row].as_py() for name in topic.settings.key}, default=str)
        large = "maximum size" in error.summary
        return Invalid(
            f'a row of table "{self._table_of(topic)}" is {"too large for" if large else "not accepted by"} topic "{topic.name}"',
            detail=f"The row with key {key}: {error.summary}. {error.detail} Nothing after it was captured.",
            hint="Raise record_bytes_max of the topic, or leave the large column out: CapturedTable(..., columns=[...])."
            if large
            else error.hint,
        )

    def append_rows(self, topic: Topic, rows: pa.RecordBatch | list[dict[str, Any]]) -> None:
        """Append rows with their `record`."""
        if self._open is None:
            self._open = self.producer.transaction(timeout=TIMEOUT)
        placed = self._open.append(topic, rows)
        ends = self._ends.setdefault(topic.name, {})
        ends.update({partition: end for partition, (_, end) in placed.offsets.items()})

    def note(self, name: str, value: Any) -> None:
        """Set a part of the state; None removes it. Written with the next commit."""
        if self.get(name) != value:
            self._noted[name] = value

    def appended_to(self, topic: Topic) -> dict[str, int]:
        """The end of each partition of a topic, with what the open transaction appended to it."""
        ends = self._ends.get(topic.name, {})
        return {str(one): ends.get(one, topic.backend.latest(one)) for one in range(topic.settings.partitions)}

    def get(self, name: str) -> Any:
        """A part of the state, as it will be after the next commit; None if there is none."""
        return self._noted[name] if name in self._noted else self.state.get(name)

    def commit(self, position: str | None, transactions: Sequence[SourceTransaction] = ()) -> None:
        """Commit what was appended and noted, and the position."""
        token = token_of(self._ends)
        if position is not None:
            rows = _transaction_rows(position, transactions, token)
            self.append_rows(self.transactions, rows)
        if self._noted:
            notes = [
                {"name": name, "value": None, "record": {"change": "delete"}} if value is None
                else {"name": name, "value": json.dumps(value)}
                for name, value in self._noted.items()
            ]  # fmt: skip
            self.append_rows(self.state_topic, notes)
        if self._open is not None:
            self._open.commit()
        for name, value in self._noted.items():
            if value is None:
                self.state.pop(name, None)
            else:
                self.state[name] = value
        self._open, self._ends, self._noted = None, {}, {}
        self.position = position or self.position

    def abort(self) -> None:
        """Forget what was appended and noted since the last commit."""
        if self._open is not None:
            self._open.abort()
        self._open, self._ends, self._noted = None, {}, {}


def _transaction_rows(position: str, transactions: Sequence[SourceTransaction], token: str) -> pa.RecordBatch:
    """A row for each transaction; and one for the position, if it is after the last of them."""
    alone = 0 if transactions and transactions[-1].position == position else 1
    counts = [len(one.changes) for one in transactions] + [0] * alone
    changes = pa.MapArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()),
        pa.array([table for one in transactions for table in one.changes], pa.string()),
        pa.array([count for one in transactions for count in one.changes.values()], pa.int64()),
    )
    nothing = [None] * alone
    return pa.RecordBatch.from_arrays(
        [
            pa.array([*(one.position for one in transactions), *[position] * alone], pa.string()),
            pa.array([*(one.id for one in transactions), *nothing], pa.int64()),
            pa.array([*(one.committed_at for one in transactions), *nothing], pa.timestamp("us", "UTC")),
            changes,
            pa.array([token] * len(transactions) + nothing, pa.string()),
        ],
        names=["position", "transaction", "committed_at", "changes", "token"],
    )


def last_position(transactions: Topic) -> str | None:
    """The position of a capture: that of the last row of its transactions, read from the end."""
    backend = transactions.backend
    first, end = backend.earliest(0), backend.latest(0)
    rows = 64
    while True:
        start = max(first, end - rows)
        found = transactions.to_arrow(start={0: start}, columns=["position"])
        if len(found):
            return str(found.column("position")[-1].as_py())
        if start == first:
            return None
        rows *= 8


def read_state(topic: Topic) -> dict[str, Any]:
    """The state of a capture, from its topic."""
    found = {}
    for row in topic.to_arrow().to_pylist():
        found[row["name"]] = None if row["record"]["change"] == "delete" else json.loads(row["value"])
    return {name: value for name, value in found.items() if value is not None}


def as_type(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """A column of the source in the type of the topic."""
    return array if array.type.equals(data_type) else array.cast(data_type)
