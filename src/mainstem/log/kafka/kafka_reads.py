"""KafkaReads: a topic's messages as rows, with `record` as the last column, and their offsets."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition

from mainstem.clock import Clock
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_codec import KafkaCodec, codec_of
from mainstem.log.kafka.kafka_errors import kafka_errors, not_on_kafka, unavailable
from mainstem.log.kafka.kafka_messages import time_of
from mainstem.log.lag import Lag
from mainstem.log.log import fell_off
from mainstem.log.query_limits import QueryLimits
from mainstem.log.record import record_schema
from mainstem.log.sql_sandbox import SqlSandbox, TableNames, Tables, as_table, show_tables, translate_error
from mainstem.log.topic_settings import TopicSettings

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_log import KafkaLog
    from mainstem.log.kafka.kafka_topic import KafkaTopic

__all__ = ["KafkaMoment", "KafkaReads", "PartitionFetch", "PartitionFetches", "query"]


# Topics on Kafka as tables: DuckDB over the rows of the topics in a query, read when it runs.
#
# All rows of such a topic go through this process: use it for topics of up to some million records. Each partition is
# read as of one moment; a transaction may be visible in one partition and not yet in another.


def query(log: KafkaLog, sql: str, parameters: Sequence[object], tables: Tables, limits: QueryLimits) -> pa.Table:
    """The result as a table. `tables` can be queried beside the topics; a topic of the same name takes precedence."""
    if (shown := show_tables(sql, log.topic_names(), tables)) is not None:
        return shown
    try:
        with SqlSandbox.open(limits) as sandbox:
            topics = set(log.topic_names())
            names = TableNames.of(sql, topics | tables.keys())
            asked = names.apply_to(sandbox.connection, sql)
            for name, called in names.called.items():
                if name in topics:
                    _register(sandbox, called, log, name, limits.until)
                else:
                    sandbox.connection.register(called, tables[name]())
            sandbox.lock()
            return sandbox.answer(asked, parameters)
    except duckdb.Error as error:
        raise translate_error(log, error, tables, sql) from error


def _register(sandbox: SqlSandbox, called: str, log: KafkaLog, name: str, until: int | None) -> None:
    topic = log.open_topic(name)
    moment, settings = topic.moment(), topic.settings
    batches: list[pa.RecordBatch] = []
    for number in range(settings.partitions):
        for batch in moment.read(number, moment.earliest(number), moment.latest(number), None):
            sandbox.check_time()
            batches.append(batch)
    rows = pa.Table.from_batches(batches, settings.record_schema)
    as_table(sandbox.connection, called, rows, settings, until)


# PartitionFetch: the messages of one partition; a read continues where the last one ended.


POLL_SECONDS = 0.2
# How long the broker may delay an empty answer. Short: the last record may be followed by a marker, which is not a
# message, so only an empty answer shows that there are no more messages. Then the partition is not asked again.
WAIT_MILLISECONDS = 10
TOGETHER_MAX = 10_000
# Partitions that are open at the same time; each has a connection.
OPEN_MAX = 16


class PartitionFetch:
    """One partition's messages, in order; uncommitted ones only on request. A read holds a lock."""

    def __init__(
        self, clients: KafkaClients, topic: str, partition: int, clock: Clock, isolation: str = "read_committed"
    ) -> None:
        self._clients = clients
        self._clock = clock
        self._isolation = isolation
        self._place = topic, partition
        self._guard = threading.Lock()
        self._consumer: Consumer | None = None
        self._next = -1
        self._waiting: deque[Message] = deque()
        # A range of offsets known to have no message.
        self._empty = -1, -1

    def read(self, start: int, stop: int, count: int) -> list[Message]:
        """The next 1 to `count` messages from `start` on and before `stop`; none only if there are none."""
        with self._guard, kafka_errors(self._clients.settings.servers, self._place[0]):
            if start >= stop or (self._empty[0] <= start and stop <= self._empty[1]):
                return []
            return self._read(start, stop, count)

    def _read(self, start: int, stop: int, count: int) -> list[Message]:
        consumer = self._consumer_at(start)
        deadline = self._clock.monotonic() + int(self._clients.patience * 1_000_000)
        found: list[Message] = []
        while len(found) < count:
            if not self._waiting:
                self._receive(consumer, 0 if found else POLL_SECONDS)
            if not self._waiting:
                if found:
                    break
                if self._clock.monotonic() > deadline:
                    self._next = -1
                    raise unavailable(self._clients.settings.servers, f"nothing came from {self._place[0]}")
                continue
            message = self._waiting[0]
            error = message.error()
            if error is not None:
                self._waiting.popleft()
                if error.code() != KafkaError._PARTITION_EOF:
                    self._next = -1
                    raise KafkaException(error)
                if message.offset() >= stop:
                    self._rest(found[-1].offset() + 1 if found else start, message.offset())
                    break
                continue
            if message.offset() >= stop:
                if not found:
                    self._empty = start, stop
                break
            found.append(self._waiting.popleft())
        if found and self._next >= 0:
            self._next = found[-1].offset() + 1
            if self._next >= stop:
                self._rest(self._next, stop)
        return found

    def _consumer_at(self, start: int) -> Consumer:
        topic, partition = self._place
        if self._consumer is None:
            self._consumer = self._clients.consumer(self._isolation, WAIT_MILLISECONDS)
            self._next = -1
        if self._next != start:
            self._waiting.clear()
            self._consumer.assign([TopicPartition(topic, partition, start)])
            self._next = start
        return self._consumer

    def _receive(self, consumer: Consumer, seconds: float) -> None:
        message = consumer.poll(seconds)
        if message is not None:
            self._waiting.append(message)
            self._waiting.extend(consumer.consume(TOGETHER_MAX, 0))

    def _rest(self, first: int, end: int) -> None:
        """Stop fetching from the broker until the next read."""
        self._empty = first, end
        self._waiting.clear()
        self._next = -1
        if self._consumer is not None:
            self._consumer.unassign()

    def close(self) -> None:
        with self._guard:
            consumer, self._consumer = self._consumer, None
            self._waiting.clear()
        if consumer is not None:
            consumer.close()


class PartitionFetches:
    """The partitions that were read last, of all topics of a log."""

    def __init__(self, clients: KafkaClients, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        self._guard = threading.Lock()
        self._open: dict[tuple[str, str, int], PartitionFetch] = {}

    def of(self, topic: str, topic_id: str, partition: int) -> PartitionFetch:
        """The fetch of a partition; a recreated topic gets a new one."""
        key = topic, topic_id, partition
        old: list[PartitionFetch] = []
        with self._guard:
            fetch = self._open.pop(key, None) or PartitionFetch(self._clients, topic, partition, self._clock)
            # Moved to the end: the least recently used one is evicted.
            self._open[key] = fetch
            while len(self._open) > OPEN_MAX:
                old.append(self._open.pop(next(iter(self._open))))
        for one in old:
            one.close()
        return fetch

    def messages(self, topic: str, topic_id: str, partition: int, start: int, stop: int) -> Iterator[list[Message]]:
        """All messages of a range, in chunks."""
        while found := self.of(topic, topic_id, partition).read(start, stop, TOGETHER_MAX):
            yield found
            start = found[-1].offset() + 1

    def close(self) -> None:
        with self._guard:
            fetches, self._open = list(self._open.values()), {}
        for fetch in fetches:
            fetch.close()


MICROSECOND = timedelta(microseconds=1)
MESSAGES_MAX = 10_000


class KafkaMoment:
    """A snapshot of the ends of all partitions. A transaction may be visible in one of them and not yet in another."""

    def __init__(self, reads: KafkaReads, ends: dict[int, int]) -> None:
        self._reads = reads
        self._ends = ends

    def earliest(self, partition: int) -> int:
        return min(self._reads.range(partition)[0], self._ends[partition])

    def latest(self, partition: int) -> int:
        return self._ends[partition]

    def at_time(self, partition: int, at: int) -> int:
        return self._reads.at_time(partition, at, self._ends[partition])

    def read(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._reads.batches(partition, start, stop, columns, delay)


class KafkaReads:
    """Reads one topic. Offsets are those of rows; the codec maps them to messages."""

    def __init__(self, log: KafkaLog, topic: KafkaTopic) -> None:
        self._log = log
        self._topic = topic
        # The last undecided message found in each partition.
        self._undecided: dict[int, Message] = {}

    @property
    def codec(self) -> KafkaCodec:
        return codec_of(self._topic.settings_seen)

    # Offsets

    def message_range(self, partition: int) -> tuple[int, int]:
        return self._log.clients.range(self._topic.kafka_name, partition)

    def range(self, partition: int) -> tuple[int, int]:
        """The offset of the first existing row, and the end of the committed ones."""
        low, end = self.message_range(partition)
        return self.codec.first_row(low), self.codec.first_row(end)

    def ends(self) -> dict[int, int]:
        partitions = range(self._topic.settings_seen.partitions)
        ends = self._log.clients.ends(self._topic.kafka_name, partitions)
        return {number: self.codec.first_row(end) for number, end in ends.items()}

    def written_ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """The ends of all written messages, decided or not."""
        ends = self._log.clients.ends(self._topic.kafka_name, partitions, IsolationLevel.READ_UNCOMMITTED)
        return {number: self.codec.first_row(end) for number, end in ends.items()}

    def first_undecided(self, partition: int) -> Message | None:
        """The first message after the committed ones; None if there is none, or only markers."""
        name = self._topic.kafka_name
        start = self.message_range(partition)[1]
        end = self._log.clients.ends(name, [partition], IsolationLevel.READ_UNCOMMITTED)[partition]
        known = self._undecided.get(partition)
        if start >= end or (known is not None and known.offset() == start):
            return known if start < end else None
        fetch = PartitionFetch(self._log.clients, name, partition, self._topic.clock, isolation="read_uncommitted")
        try:
            for message in fetch.read(start, end, 1):
                self._undecided[partition] = message
                return message
            return None
        finally:
            fetch.close()

    def moment(self) -> KafkaMoment:
        # Refreshed: columns or partitions may have been added.
        _ = self._topic.settings
        ends = self.ends()
        if ends != self.written_ends(ends):
            # A transaction is open. If its process has died, it would hold back all later records until its timeout.
            self._topic.settle()
            ends = self.ends()
        return KafkaMoment(self, ends)

    def message_at(self, partition: int, at: int, end: int) -> int:
        """The first message appended at that time or later, before `end`."""
        # Kafka's times are whole milliseconds: round up.
        found = self._log.clients.at_time(self._topic.kafka_name, partition, max(0, -(-at // 1000)))
        return end if found is None else min(found, end)

    def at_time(self, partition: int, at: int, end: int) -> int:
        codec = self.codec
        return codec.first_row(self.message_at(partition, at, codec.message_of(end)))

    def behind(self, partition: int, offset: int) -> Lag:
        """How far a reader that reads `offset` next is behind."""
        codec, settings = self.codec, self._topic.settings_seen
        low, end = self.message_range(partition)
        first = max(codec.message_of(offset), low)
        if first >= end:
            return Lag()
        [message] = self._fetch(partition, first, end, 1) or [None]
        if message is None:
            return Lag()
        age = max(0, self._topic.clock.now() - time_of(message))
        keep = settings.keep.age
        size = len(message.value() or b"") + len(message.key() or b"")
        records = codec.rows_between(message, offset, end)
        return Lag(
            records=records,
            # Estimated from the size of the next one: the exact size would need a fetch.
            bytes=size * (end - message.offset()),
            seconds=age / 1_000_000,
            until_dropped=None if keep is None else max(keep - age * MICROSECOND, timedelta(0)),
        )

    # Rows

    def read(
        self, partition: int, start: int, rows_max: int, columns: Sequence[str] | None, delay: int | None
    ) -> pa.RecordBatch | None:
        _ = self._topic.settings
        low, stop = self.range(partition)
        for batch in self.batches(partition, start, stop, columns, delay, rows_max, low):
            return batch.slice(0, rows_max) if batch.num_rows > rows_max else batch
        return None

    def batches(
        self,
        partition: int,
        start: int,
        stop: int,
        columns: Sequence[str] | None,
        delay: int | None,
        rows_max: int = MESSAGES_MAX,
        low: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        if delay is not None:
            raise not_on_kafka("compute a record's watermark", "Kafka does not know the event times of its records.")
        if start >= stop:
            return
        self._check_kept(partition, start, self.range(partition)[0] if low is None else low)
        settings, codec = self._topic.settings_seen, self.codec
        schema = _schema(settings, columns)
        first, end = codec.message_of(start), codec.message_after(stop)
        while messages := self._fetch(partition, first, end, min(rows_max, MESSAGES_MAX)):
            first = messages[-1].offset() + 1
            rows, record, unreadable = codec.rows(partition, messages, settings, start, stop)
            if unreadable:
                self._log.unreadable(self._topic, partition, first)
            if rows.num_rows:
                yield pa.RecordBatch.from_arrays([*rows.select(schema.names[:-1]).columns, record], schema=schema)

    def _fetch(self, partition: int, start: int, stop: int, count: int) -> list[Message]:
        return self._log.fetches.of(self._topic.kafka_name, self._topic.id, partition).read(start, stop, count)

    def _check_kept(self, partition: int, start: int, low: int) -> None:
        if start < low:
            raise fell_off(self._topic.name, partition, start, low)


def _schema(settings: TopicSettings, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return settings.record_schema
    plain = [field for field in settings.stored_schema if field.name in columns]
    return record_schema(pa.schema(plain), settings.event_time)
