"""The rejected messages of a queue go to a topic of their own, `<topic>.<queue>.rejected`, exactly once.

Two files are written, the queue's ledger and that topic, and a process may die between them. So:

1. The ledger records what is to be rejected, under the next sequence: the intent. From then on it is not delivered.
   (The sequence is the time, or one more than the last: it increases even if the queue is deleted and created again.)
2. The rows are appended to the topic by an idempotent producer named after the queue, with that sequence.
3. The ledger records that this is done.

A process that finds an intent without its end completes it, in the order of the sequences: a repeated append is
acknowledged and adds nothing. The order matters, because a producer treats a sequence below its last one as a repeat.

A row there has the columns of the origin topic, and a struct that says what happened:

    rejection: struct
        cause         string       rejected | expired | length | deliveries | fell_off
        reason        string
        deliveries    int32        number of deliveries
        first_error   string       of the releases that named one
        last_error    string
        topic, queue  string       where it comes from
        partition     int32
        offset        int64
        rejected_at   timestamp[us, UTC]

With cause `fell_off` the other columns are null: retention deleted the record before it was processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.clock import as_us
from mainstem.errors import FellOff, TopicNotFound
from mainstem.log.log import Log, TopicBackend
from mainstem.log.queues.queue_state import Address, QueueState, Rejection
from mainstem.log.record import next_offset, record_schema
from mainstem.log.rows.readable_values import readable_part
from mainstem.log.rows.rows import check_rows
from mainstem.log.rows.schema_evolution import fit
from mainstem.log.state_ledger import Entry, StateLedger
from mainstem.log.topic_settings import TopicSettings

__all__ = [
    "REJECTION",
    "RejectedTopic",
    "Rejections",
    "complete_rejections",
    "last_rejected",
    "rejected_rows",
    "rejected_schema",
    "rejected_topic",
]


# Appends to a queue's rejected topic, and reads it from its end.

# Rows of the rejected topic that are read at once.
ROWS_TOGETHER = 1_000


class RejectedTopic:
    """Appends each rejected message once, from any process. The topic is created with the first one."""

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self._name = name

    def append(self, sequence: int, rows: pa.Table) -> None:
        topic = self.make(rows.schema)
        # Omits values that an older version accepted and no reader can read; the origin topic still has them.
        rows = readable_part(rows)
        producer = self._log.shared_producer(f"mainstem.{self._name}")
        topic.append(check_rows(rows, topic.settings), producer=producer, sequence=sequence)

    def latest(self) -> Iterator[pa.Table]:
        try:
            topic = self._log.open_topic(self._name)
        except TopicNotFound:
            return
        begin, end = topic.earliest(0), topic.latest(0)
        while begin < end:
            start = max(begin, end - ROWS_TOGETHER)
            rows, position = [], start
            while position < end:
                try:
                    batch = topic.read(0, position, end - position)
                except FellOff:
                    # Retention dropped the oldest ones meanwhile.
                    return
                if batch is None:
                    break
                rows.append(batch.filter(pc.less(batch.column("record").field("offset"), end)))
                position = next_offset(batch)
            if rows:
                yield pa.Table.from_batches(rows)
            end = start

    def make(self, schema: pa.Schema) -> TopicBackend:
        """The topic, created or widened if needed."""
        try:
            topic = self._log.open_topic(self._name)
        except TopicNotFound:
            return self._log.create_topic(TopicSettings.of(self._name, schema=schema))
        missing = [field for field in schema if field.name not in topic.settings.schema.names]
        widened = [
            field
            for field in schema
            if field.name in topic.settings.schema.names
            and not topic.settings.schema.field(field.name).type.equals(field.type)
        ]
        if missing or widened:
            # The origin topic was altered since: its new columns have the same order here.
            topic.alter({"schema": schema})
        return topic


REJECTION = pa.struct(
    [
        ("cause", pa.string()),
        ("reason", pa.string()),
        ("deliveries", pa.int32()),
        ("first_error", pa.string()),
        ("last_error", pa.string()),
        ("topic", pa.string()),
        ("queue", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("rejected_at", pa.timestamp("us", "UTC")),
    ]
)


class Rejections(Protocol):
    """Appends to the rejected topic."""

    def append(self, sequence: int, rows: pa.Table) -> None:
        """Append rows once: the same sequence again, from any process, adds nothing. Durable when it returns.

        Creates the topic at the first call (no key, one partition: the partition of a row must not depend on whether
        its columns can still be read), and adds or widens its columns when the rows have more. Several processes may do
        this at the same time; none fences another.
        """

    def latest(self) -> Iterator[pa.Table]:
        """All rows with `record`, some at a time, the last ones first; within each table in the order of the topic."""


def rejected_topic(topic: str, queue: str) -> str:
    """The name of a queue's rejected topic.

    >>> rejected_topic("orders", "emails")
    'orders.emails.rejected'
    """
    return f"{topic}.{queue}.rejected"


def rejected_schema(origin: pa.Schema) -> pa.Schema:
    """The columns of the rejected topic: those of the origin, all nullable, and the struct.

    >>> rejected_schema(pa.schema([pa.field("n", pa.int64(), nullable=False)])).names
    ['n', 'rejection']
    """
    name, number = "rejection", 1
    # For a queue on a rejected topic, which has such a struct already.
    while name in {column.casefold() for column in origin.names}:
        number += 1
        name = f"rejection_{number}"
    fields = [pa.field(field.name, field.type, metadata=field.metadata) for field in origin]
    return pa.schema([*fields, pa.field(name, REJECTION)])


def last_rejected(rejections: Rejections, schema: pa.Schema, wanted: Mapping[Address, int], limit: int) -> pa.Table:
    """Of the wanted messages, with the time of their rejection, the rows of the last `limit`; in the order of the topic."""
    left = dict(wanted)
    found: list[pa.Table] = []
    struct = schema.names[-1]
    for rows in rejections.latest() if left else ():
        if struct not in rows.schema.names:
            continue
        chosen = []
        told = rows.column(struct).to_pylist()
        for index in reversed(range(len(told))):
            address = (told[index]["partition"], told[index]["offset"]) if told[index] else (-1, -1)
            # A message may have been rejected before, by this queue or by an earlier one of its name.
            if len(left) > len(wanted) - limit and left.get(address) == as_us(told[index]["rejected_at"]):
                del left[address]
                chosen.append(index)
        found.append(rows.take(pa.array(chosen[::-1], pa.int64())))
        oldest = min(left.values(), default=None)
        # They were appended in the order of their rejections.
        if oldest is None or len(left) <= len(wanted) - limit or (told[0] and as_us(told[0]["rejected_at"]) < oldest):
            break
    whole = record_schema(schema)
    return pa.concat_tables(
        [whole.empty_table(), *(rows for rows in reversed(found) if len(rows))], promote_options="default"
    )


def complete_rejections(
    ledger: StateLedger[QueueState],
    rejections: Rejections,
    rows_of: Callable[[int, list[Rejection]], pa.Table],
) -> None:
    """Append every decided rejection to its topic. `rows_of(decided_at, messages)` makes the rows."""
    for sequence, (decided_at, messages) in sorted(ledger.current().rejecting.items()):
        rejections.append(sequence, rows_of(decided_at, messages))
        ledger.decide(lambda state, now, sequence=sequence: (_done_entries(state, sequence), None))  # type: ignore[misc]


def _done_entries(state: QueueState, sequence: int) -> list[Entry]:
    return [{"kind": "rejected", "sequence": sequence}] if sequence in state.rejecting else []


def rejected_rows(
    origin: pa.Schema,
    messages: Sequence[Rejection],
    rows: Sequence[pa.RecordBatch | None],
    *,
    topic: str,
    queue: str,
    decided_at: int,
) -> pa.Table:
    """The rows to append for these messages; `rows` are the originals, None for a record that no longer exists."""
    schema = rejected_schema(origin)
    plain = pa.schema(list(schema)[:-1])
    nothing = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in plain], schema=plain)
    batches = [nothing if row is None else fit(row, plain) for row in rows]
    structs = [{**asdict(message), "topic": topic, "queue": queue, "rejected_at": decided_at} for message in messages]
    table = pa.Table.from_batches(batches, plain)
    return table.append_column(schema.field(len(schema) - 1), pa.array(structs, REJECTION))
