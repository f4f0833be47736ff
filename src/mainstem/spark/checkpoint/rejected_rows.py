"""Rejected rows of a flow's sink: written into the topic `<flow>.rejected`, exactly once, with the reason.

    the columns of the rows         those that fit the topic's schema
    row: string                     the whole row as JSON
    rejection: struct
        reason          string
        sink            string      "topic big_orders"
        version         int         of the flow
        batch           bigint
        topic           string      where the row comes from, as far as its `record` and the flow say
        partition       int         null after an operator that keeps state: its rows have places of its own
        offset          bigint      as partition
        rejected_at     timestamp

They are appended before the sink commits the batch, or in the same transaction if the sink is a topic, by the flow's own
producer with the batch number as sequence: a replayed batch appends nothing twice. The producer is named after the
checkpoint too: if that is deleted, batch numbers and sequences start again.

`rejected_max` is checked before anything is written.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from mainstem.batch import Batch
from mainstem.errors import InvalidRows, MainstemError, SchemaMismatch
from mainstem.log.log import Log, TopicBackend
from mainstem.log.producer import Producer
from mainstem.log.queues.queue_rejections import RejectedTopic
from mainstem.log.rows.normal_schema import normal_type
from mainstem.log.rows.readable_values import python_rows, readable_part
from mainstem.log.rows.rows import check_rows
from mainstem.log.transaction import Transaction
from mainstem.spark.checkpoint.checkpoint_check import checkpoint_id

__all__ = [
    "TIMEOUT",
    "RejectedRows",
    "Rejection",
    "readable",
    "reject",
    "rejected_topic_of",
    "storable",
    "widened_topic",
]

REJECTION = pa.struct(
    [
        ("reason", pa.string()),
        ("sink", pa.string()),
        ("version", pa.int32()),
        ("batch", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("rejected_at", pa.timestamp("us", "UTC")),
    ]
)
# Of a row that is larger as text only the beginning is kept: it may have been rejected for its size.
TEXT_MAX = 1 << 18
TEXT_KEPT = 1 << 12
TIMEOUT = "10 minutes"


class RowRejection(Protocol):
    """The number of the row in its table, from 0, and the reason, as views and topics report it."""

    @property
    def row(self) -> int: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class Rejection:
    """A rejected row: its number in the batch, from 0, and the reason."""

    row: int
    reason: str


def rejected_topic_of(flow: str) -> str:
    """The name of the topic of a flow's rejected rows.

    >>> rejected_topic_of("revenue")
    'revenue.rejected'
    """
    return f"{flow}.rejected"


def reject(
    batch: Batch,
    rows: pa.Table | None,
    rejections: Sequence[RowRejection],
    *,
    taken: int,
    transaction: Transaction | None = None,
) -> None:
    """Append the rejected rows of a batch to their topic; call it before the sink commits."""
    if rows is None or not rejections:
        return
    if batch.rejected is None:
        raise InvalidRows(
            f"the sink cannot store {len(rejections)} rows of batch {batch.number}",
            detail=f"{rejections[0].reason}.",
            hint="Correct the rows.",
        )
    batch.rejected.check(rejections, taken)
    batch.rejected.append(rows, rejections, batch, transaction)


class RejectedRows:
    """Appends the rejected rows of one run to their topic. For one thread."""

    def __init__(
        self,
        log: Log,
        checkpoint: str,
        *,
        sink: str,
        topics: Sequence[str] = (),
        share_max: float = 1.0,
        staged: bool = False,
    ) -> None:
        """`staged`: the `record` of a row has the bucket of a stage, and the number of the row in it."""
        self._log = log
        self._checkpoint = checkpoint
        self._sink = sink
        # A row's `record` does not name its topic; it is known only if the flow reads one topic.
        self._origin = topics[0] if len(topics) == 1 else None
        self._share_max = share_max
        self._staged = staged
        self._producer: Producer | None = None

    def check(self, rejections: Sequence[RowRejection], taken: int) -> None:
        """Raise if these are more than the flow allows."""
        count = len(rejections)
        if count / (taken + count) <= self._share_max:
            return
        reasons = "; ".join(dict.fromkeys(rejection.reason for rejection in rejections[:1000]))
        raise InvalidRows(
            f"the {self._sink} rejects {count:,} of {taken + count:,} rows, more than rejected_max allows",
            detail=f"rejected_max is {self._share_max:g}. The reasons: {_short(reasons)}. Nothing of the batch was written.",
            hint="Correct the program or the sink, or allow more: Flow(..., rejected_max=...).",
        )

    def append(
        self, rows: pa.Table, rejections: Sequence[RowRejection], batch: Batch, transaction: Transaction | None = None
    ) -> None:
        """Append them, once per batch: durable when this returns, or with the transaction."""
        name = rejected_topic_of(batch.run.flow)
        table = self._table(rows, rejections, batch)
        topic = widened_topic(self._log, name, table.schema)
        if self._producer is None:
            run = self._log.open_producer(
                f"mainstem.flow.{batch.run.flow}.v{batch.run.version}.rejected.{checkpoint_id(self._checkpoint)}"
            )
            self._producer = Producer(self._log, run)
        if self._producer.kept_sequence(name) >= batch.number:
            return
        known = topic.settings.schema
        fitting = [
            field.name
            for field in table.schema
            if field.name in known.names and known.field(field.name).type.equals(field.type)
        ]
        checked = check_rows(table.select(fitting), topic.settings)
        if transaction is not None:
            topic.append(checked, producer=self._producer.run, sequence=batch.number, transaction=transaction.id)
        else:
            # In one transaction: when the batch is replayed, a part of them would be taken for all.
            with self._producer.transaction(timeout=TIMEOUT) as own:
                own.append(name, table.select(fitting), sequence=batch.number)

    def _table(self, rows: pa.Table, rejections: Sequence[RowRejection], batch: Batch) -> pa.Table:
        refused = rows.take(pa.array([rejection.row for rejection in rejections], pa.int64()))
        records = refused.column("record").to_pylist() if "record" in refused.schema.names else [None] * len(refused)
        plain = refused.drop_columns(["record"]) if "record" in refused.schema.names else refused
        texts = [json.dumps(readable(row), ensure_ascii=False) for row in python_rows(plain)]
        # Values that become null here are in the text.
        plain = readable_part(plain)
        large = [len(text) > TEXT_MAX for text in texts]
        if any(large):
            texts = [f"{text[:TEXT_KEPT]}..." if cut else text for text, cut in zip(texts, large, strict=True)]
            # A null index gives a row of nulls.
            plain = plain.take(pa.array([None if cut else row for row, cut in enumerate(large)], pa.int64()))
        now = self._log.clock.now()
        places = [{} if record is None or self._staged else record for record in records]
        about = [
            {
                "reason": rejection.reason,
                "sink": self._sink,
                "version": batch.run.version,
                "batch": batch.number,
                "topic": (record or {}).get("topic", self._origin),
                "partition": place.get("partition"),
                "offset": place.get("offset"),
                "rejected_at": now,
            }
            for rejection, record, place in zip(rejections, records, places, strict=True)
        ]
        columns = {field.name: plain.column(field.name) for field in plain.schema if storable(field)}
        return pa.table({**columns, "row": texts, "rejection": pa.array(about, REJECTION)})


def storable(field: pa.Field) -> bool:
    """Whether the log supports a column of this type and name."""
    try:
        normal_type(field.type, field.name)
    except MainstemError:
        return False
    return field.name not in ("row", "rejection")


def widened_topic(log: Log, name: str, schema: pa.Schema) -> TopicBackend:
    """The topic, created if it does not exist, with the columns of the rows added if they fit its schema."""
    if name not in log.topic_names():
        return RejectedTopic(log, name).make(schema)
    topic = log.open_topic(name)
    known = topic.settings.schema
    added = [field for field in schema if field.name not in known.names]
    if added:
        with suppress(SchemaMismatch):
            topic.alter({"schema": pa.schema([*known, *added])})
    return topic


def readable(value: Any) -> Any:
    """A value that can be written as JSON."""
    if isinstance(value, dict):
        return {str(key): readable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [readable(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _short(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:500]}..."
