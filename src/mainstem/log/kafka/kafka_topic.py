"""A topic of the log on Kafka, as `Topic` uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from mainstem.clock import Clock, as_datetime
from mainstem.log.append_result import AppendResult, token_of
from mainstem.log.groups.group_state import GroupState
from mainstem.log.kafka.kafka_admin import topic_configs
from mainstem.log.kafka.kafka_clients import KafkaClients, MachineProcesses, known_dead
from mainstem.log.kafka.kafka_errors import kafka_errors, not_on_kafka
from mainstem.log.kafka.kafka_groups import GroupOffsets, KafkaHeartbeats
from mainstem.log.kafka.kafka_messages import TRANSACTION_HEADER
from mainstem.log.kafka.kafka_reads import KafkaMoment, KafkaReads
from mainstem.log.kafka.named_writer import Known, Messages, known_without_sequence
from mainstem.log.kafka.state_topic import LEDGERS, KafkaLedger
from mainstem.log.lag import Lag
from mainstem.log.log import check_partition
from mainstem.log.missed_deletions import Compacted
from mainstem.log.partition_reads import Position
from mainstem.log.producer import ProducerRun
from mainstem.log.queues.queue_state import QueueState
from mainstem.log.rows.rows import CheckedRows
from mainstem.log.rows.stored_batch import by_partition
from mainstem.log.state_ledger import Entry, StateLedger
from mainstem.log.steps import Steps
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.upkeep_report import CompactionReport, PartitionFacts, RetentionReport, TakeOverReport, Verification
from mainstem.log.watermark import NO_TIME, times_of
from mainstem.processes import Identity

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_log import KafkaLog
    from mainstem.log.log import ArchivedPartition

__all__ = ["DeclaredWatermarks", "KafkaTopic", "KafkaAppendWatch", "MICROSECOND"]


# KafkaAppendWatch: waits for an append to any of some partitions, by any process on any machine.


# How often to check whether one of the processes has ended, or the bell was rung.
LOOK_SECONDS = 0.1


class KafkaAppendWatch:
    """Waits for appends, also for those since the last return of `wait`. Not thread-safe.

    The ends of partitions are compared first, so a busy reader fetches nothing twice. Only a reader that has to wait
    uses a long poll.
    """

    def __init__(self, clients: KafkaClients, topics: Mapping[str, int | range], clock: Clock, bell: str = "") -> None:
        self._clients = clients
        self._bell = bell
        self._rung_at = self._bell_changed_at()
        self._topics = {topic: [parts] if isinstance(parts, int) else list(parts) for topic, parts in topics.items()}
        self._clock = clock
        self._consumer: Consumer | None = None
        self._seen = self._ends()
        self._listening: dict[tuple[str, int], int] = {}

    def _ends(self) -> dict[tuple[str, int], int]:
        return {
            (topic, partition): end
            for topic, partitions in self._topics.items()
            for partition, end in self._clients.ends(topic, partitions).items()
        }

    def wait(self, seconds: float, processes: Iterable[Identity] = ()) -> bool:
        """Whether a record was appended, or one of the processes ended, within this time."""
        watched = list(processes)
        deadline = self._clock.monotonic() + int(seconds * 1_000_000)
        with kafka_errors(self._clients.settings.servers):
            ends = self._ends()
            if ends != self._seen:
                self._seen = ends
                return True
            consumer = self._consumer_at(ends)
            while True:
                if any(known_dead(process) for process in watched) or self._is_rung():
                    return True
                left = (deadline - self._clock.monotonic()) / 1_000_000
                if left <= 0:
                    return False
                message = consumer.poll(min(left, LOOK_SECONDS) if watched or self._bell else left)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    self._listening = {}
                    self._seen = self._ends()
                    return True
                if error.code() == KafkaError._PARTITION_EOF:
                    place = message.topic(), message.partition()
                    if message.offset() > ends[place]:
                        # The end of a transaction: not a message, but it makes records visible.
                        self._listening = {}
                        self._seen = self._ends()
                        return True
                elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return True
                else:
                    raise KafkaException(error)

    def _bell_changed_at(self) -> int:
        try:
            return os.stat(self._bell).st_mtime_ns if self._bell else 0
        except FileNotFoundError:
            return 0

    def _is_rung(self) -> bool:
        """Whether there was a write to the bell since the last one that was noticed."""
        before, self._rung_at = self._rung_at, self._bell_changed_at()
        return before != self._rung_at

    def _consumer_at(self, ends: dict[tuple[str, int], int]) -> Consumer:
        if self._consumer is None:
            self._consumer = self._clients.consumer()
        if self._listening != ends:
            places = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
            self._consumer.assign(places)
            self._listening = dict(ends)
        return self._consumer

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


# DeclaredWatermarks: the watermarks that producers have declared for a topic, and the offsets after which they hold.
#
# Kafka stores only append times with its records. So declared watermarks are in a ledger, `stated/<topic id>`:
#
#     stated     at, ends      no record after these offsets, one for each partition, is earlier than `at`
#
# It applies to a reader that has read up to these ends. They are the ends of all written records, decided or not: all
# that a producer appended before its declaration is before them.


# A reader that is further behind learns the earliest of these first.
DECLARATIONS_MAX = 200


@dataclass(slots=True)
class DeclaredWatermarks:
    """The declarations of one topic, in ascending order.

    >>> declared = DeclaredWatermarks()
    >>> declared.apply({"at": 100, "ends": {"0": 5, "1": 0}}, 0)
    >>> declared.watermark_at({0: 5, 1: 2}), declared.watermark_at({0: 4, 1: 2}) == NO_TIME
    (100, True)
    """

    declarations: list[tuple[int, dict[int, int]]] = field(default_factory=list)

    def apply(self, entry: Entry, at: int) -> None:
        # A declared watermark never decreases.
        if not self.declarations or entry["at"] > self.declarations[-1][0]:
            self.declarations.append((entry["at"], {int(number): end for number, end in entry["ends"].items()}))
            del self.declarations[:-DECLARATIONS_MAX]

    def watermark_at(self, positions: Mapping[int, int]) -> int:
        """The declared watermark for a reader at these offsets; NO_TIME if there is none."""
        held = (
            at for at, ends in self.declarations if all(positions.get(number, 0) >= end for number, end in ends.items())
        )
        return max(held, default=NO_TIME)

    def snapshot(self) -> dict[str, Any]:
        return {"statements": self.declarations}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        found = cls()
        for at, ends in snapshot["statements"]:
            found.apply({"at": at, "ends": ends}, 0)
        return found


MICROSECOND = timedelta(microseconds=1)
# The number of a transaction of another program.
FOREIGN = -1
# The approximate number of rows in a message that is a block of rows.
ROWS_IN_BLOCK = 8192


class KafkaTopic:
    """One topic, open in this process. Thread-safe."""

    processes = MachineProcesses()

    def __init__(self, log: KafkaLog, name: str, topic_id: str) -> None:
        self.name = name
        self.id = topic_id
        # The name on the brokers.
        self.kafka_name = log.kafka_name(name)
        self._log = log
        self._reads = KafkaReads(log, self)
        self._turn = 0

    @property
    def settings(self) -> TopicSettings:
        return self._log.topic_entry(self.name, self.id).settings

    @property
    def settings_seen(self) -> TopicSettings:
        """The settings as this process last read them, without a request to a broker."""
        return self._log.topic_entry(self.name, self.id, "last").settings

    @property
    def adopted(self) -> bool:
        return self._log.topic_entry(self.name, self.id, "last").adopted

    @property
    def clock(self) -> Clock:
        return self._log.clock

    # Appending

    def append(
        self,
        rows: CheckedRows,
        *,
        partition: int | None = None,
        producer: ProducerRun | None = None,
        sequence: int | None = None,
        transaction: int = 0,
    ) -> AppendResult:
        partitions = rows.settings.partitions
        check_partition(rows.settings, partition)
        # Raises if the topic was deleted, or deleted and made anew: who checked the rows has just looked.
        self._log.topic_entry(self.name, self.id, "last")
        if not rows.batch.num_rows:
            return AppendResult({}, as_datetime(self.clock.now()), self.token(), appended=False)
        parts: dict[int, CheckedRows] = {}
        codec = self._reads.codec

        def messages_of(number: int | None) -> Messages:
            keyless = number % partitions if number is not None else self._next_turn(partitions)
            parts.update({partition: rows} if partition is not None else _split_rows(rows, keyless))
            return {number: codec.messages(part) for number, part in parts.items()}

        known, appended = self._send(messages_of, self._log.append_time(), producer, sequence, transaction)
        if not appended and sequence is not None:
            parts = _split_rows(rows, sequence % partitions)
        offsets = {
            int(number): codec.row_range(first, end, parts.get(int(number)))
            for number, (first, end) in known["offsets"].items()
        }
        # With one partition, its end after this append is known without a request.
        alone = appended and not transaction and producer is None and partitions == 1
        token = token_of({self.name: {0: offsets[0][1]}}) if alone else self.token()
        return AppendResult(offsets, as_datetime(known["at"]), token, appended)

    def _send(
        self,
        messages_of: Callable[[int | None], Messages],
        at: int,
        producer: ProducerRun | None,
        sequence: int | None,
        transaction: int,
    ) -> tuple[Known, bool]:
        if transaction:
            return self._log.append_in(transaction, self, messages_of, at, sequence, numbered=producer is not None)
        if producer is not None:
            return self._log.named_writer(producer).append(self, sequence, messages_of, at)
        offsets = self._log.writer.send(self.kafka_name, messages_of(None), at // 1000)
        return known_without_sequence(offsets, at), True

    def _next_turn(self, partitions: int) -> int:
        self._turn += 1
        return self._turn % partitions

    def token(self) -> str:
        return token_of({self.name: self._reads.ends()})

    def alter(self, changes: dict[str, Any]) -> None:
        settings = self._log.alter_topic(self.name, self.id, changes)
        if settings.partitions > 1:
            self._log.admin.grow(self.kafka_name, settings.partitions)
        if not self.adopted:
            self._log.admin.configure(self.kafka_name, topic_configs(settings))

    # Reading

    def offsets_of_rows(self, rows: int) -> int:
        """The approximate number of offsets that this many rows take."""
        in_message = self._reads.codec.first_row(1)
        return rows if in_message == 1 else max(1, rows // ROWS_IN_BLOCK) * in_message

    def message_of(self, row: int) -> int:
        """The offset of the message that has a row."""
        return self._reads.codec.message_of(row)

    def first_row(self, message: int) -> int:
        """The offset of the first row of a message."""
        return self._reads.codec.first_row(message)

    def written_ends(self) -> dict[int, int]:
        """The end of each partition, with undecided records."""
        return self._reads.written_ends(range(self.settings_seen.partitions))

    def open_transactions(self, partition: int) -> dict[int, int]:
        """The transaction that blocks readers of a partition, by number, with its first offset; empty if none does.

        The number is `FOREIGN` if it is not a transaction of Mainstem.
        """
        found = self._reads.first_undecided(partition)
        if found is None:
            return {}
        number = dict(found.headers() or ()).get(TRANSACTION_HEADER)
        return {FOREIGN if number is None else int(number): self.first_row(found.offset())}

    def owner_of(self, transaction: int) -> int | None:
        """The id of the process that has a transaction open; None if unknown."""
        return None if transaction == FOREIGN else self._log.transactions.owner_of(transaction)

    def moment(self) -> KafkaMoment:
        return self._reads.moment()

    def read(
        self, partition: int, start: int, rows_max: int, columns: Sequence[str] | None = None, delay: int | None = None
    ) -> pa.RecordBatch | None:
        return self._reads.read(partition, start, rows_max, columns, delay)

    def earliest(self, partition: int) -> int:
        return self._reads.range(partition)[0]

    def latest(self, partition: int) -> int:
        return self._reads.range(partition)[1]

    def end(self, partition: int) -> int:
        """The high watermark: it includes records of open transactions."""
        return self._reads.written_ends([partition])[partition]

    def at_time(self, partition: int, at: int) -> int:
        return self._reads.at_time(partition, at, self.latest(partition))

    def appended_at(self, partition: int, offset: int) -> int:
        """When the first record from an offset on was appended; now, if there is none."""
        record = self.read(partition, offset, 1, [])
        return self.clock.now() if record is None else int(times_of(record.column("record").field("appended_at"))[0])

    def count_records(self, partition: int, start: int, stop: int) -> int:
        """By offsets: a broker does not say which of them are transaction markers."""
        return max(0, stop - start)

    def behind(self, partition: int, offset: int) -> Lag:
        return self._reads.behind(partition, offset)

    def bytes_behind(self, partition: int, offset: int) -> int:
        return self.behind(partition, offset).bytes

    def compaction(self, partition: int) -> Compacted | None:
        """None: the broker does not tell which tombstones it has removed."""
        return None

    def partition_facts(self, partition: int) -> PartitionFacts:
        """The number of records in a partition."""
        start = self.earliest(partition)
        behind = self.behind(partition, start)
        return PartitionFacts(partition, start, self.latest(partition), behind.records, behind.bytes)

    def hold(self, holder: str, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Nothing: the brokers drop records by age. Who reads them later than that is told."""

    def read_held(
        self, partition: int, start: int, stop: int, columns: Sequence[str] | None, delay: int | None = None,
        fields: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        return self.moment().read(partition, start, stop, columns, delay)

    def freeze(self, home: str, start: Position, stop: Position, delay: int | None) -> None:
        """None: a log on Kafka has no files of ours."""

    def sealed_files(self) -> None:
        """None: a log on Kafka has no files of ours."""

    def steps(self, partition: int, start: int, rows_min: int) -> Steps:
        raise not_on_kafka("cut a topic by event time", "Kafka does not know the event times of its records.")

    def first_after(self, partition: int, start: int, stop: int, time: int) -> int:
        raise not_on_kafka("find a record by event time", "Kafka does not know the event times of its records.")

    def watermark_from(self, positions: Mapping[int, int], delay: int) -> int:
        raise not_on_kafka("compute a record's watermark", "Kafka does not know the event times of its records.")

    def earliest_append(self, positions: Mapping[int, int], now: int) -> int:
        raise not_on_kafka("compute a record's watermark", "Kafka does not know the event times of its records.")

    def watermark_holders(self, positions: Mapping[int, int], delay: int) -> dict[int, int]:
        raise not_on_kafka("compute a record's watermark", "Kafka does not know the event times of its records.")

    def declare_watermark(self, at: int) -> None:
        """Declare that records after the current ends are not earlier than this."""
        ends = {
            str(number): end for number, end in self._reads.written_ends(range(self.settings_seen.partitions)).items()
        }
        self._watermarks_ledger().decide(lambda state, now: ([{"kind": "stated", "at": at, "ends": ends}], None))

    def declared_watermark(self, positions: Mapping[int, int]) -> int:
        """The declared watermark at these offsets; NO_TIME if there is none."""
        return self._watermarks_ledger().current().watermark_at(positions)

    def forget_watermarks(self) -> None:
        """Delete the declared watermarks with the topic."""
        self._watermarks_ledger().drop()

    def _watermarks_ledger(self) -> KafkaLedger[DeclaredWatermarks]:
        return self._log.ledger(f"stated/{self.id}", DeclaredWatermarks, DeclaredWatermarks.restore)

    def open_archive(self, archive: str, partition: int) -> ArchivedPartition:
        raise not_on_kafka("archive expired records", "Kafka deletes expired records by itself.")

    def watch_appends(self, *ledgers: StateLedger[Any]) -> KafkaAppendWatch:
        topics: dict[str, int | range] = {self.kafka_name: range(self.settings.partitions)}
        if ledgers:
            topics[self._log.state.topic] = LEDGERS
        return KafkaAppendWatch(self._log.clients, topics, self.clock)

    def settle(self) -> None:
        self._log.transactions.settle()

    # Upkeep

    def seal(self) -> int:
        """Nothing to do: a log on Kafka has no files of ours."""
        return 0

    def compact(self) -> CompactionReport:
        raise not_on_kafka("compact a topic on request", "The brokers compact topics by themselves.")

    def drop_expired(self) -> RetentionReport:
        """Delete expired records now; the brokers also do so by themselves from time to time."""
        age = self.settings.keep.age
        if age is None:
            return RetentionReport()
        before = self.clock.now() - age // MICROSECOND
        cuts, records = {}, 0
        for number in range(self.settings.partitions):
            low, end = self._reads.message_range(number)
            cut = min(end, self._reads.message_at(number, before, end))
            if cut > low:
                cuts[number] = cut
                records += cut - low
        if cuts:
            self._log.admin.delete_before(self.kafka_name, cuts)
        return RetentionReport(segments=len(cuts), records=records)

    def verify(self) -> Verification:
        """Read everything; the client checks the checksum of each batch."""
        found = Verification(self.name)
        moment = self.moment()
        for number in range(self.settings.partitions):
            for batch in moment.read(number, moment.earliest(number), moment.latest(number), None):
                found.records += batch.num_rows
                found.bytes += batch.nbytes
        return found

    def take_over(self) -> TakeOverReport:
        """Nothing to do: there are no locks. Open transactions of dead processes are aborted."""
        self.settle()
        return TakeOverReport()

    # Groups and queues

    def groups(self) -> list[str]:
        return self._log.state.names(f"group/{self.id}/")

    def queues(self) -> list[str]:
        return self._log.state.names(f"queue/{self.id}/")

    def group_ledger(self, name: str) -> KafkaLedger[GroupState]:
        offsets = GroupOffsets(self._log.clients, self.kafka_name, name, self._reads.codec.message_of)
        return self._log.group_ledger(f"group/{self.id}/{name}", offsets)

    def queue_ledger(self, name: str) -> KafkaLedger[QueueState]:
        return self._log.ledger(f"queue/{self.id}/{name}", QueueState, QueueState.restore)

    def heartbeats(self, group: str) -> KafkaHeartbeats:
        return KafkaHeartbeats(self._log.heartbeats, f"{self.id}/{group}")

    def delete_group(self, name: str) -> None:
        self.group_ledger(name).drop()

    def delete_queue(self, name: str) -> None:
        self.queue_ledger(name).drop()


def _split_rows(rows: CheckedRows, keyless: int) -> dict[int, CheckedRows]:
    """The rows of each partition, with their changes and headers."""
    settings = rows.settings
    numbered = rows.batch.append_column("record.row", pa.array(range(rows.batch.num_rows), pa.int64()))
    placed = by_partition(numbered, settings, keyless)
    found = {}
    for number, batch in placed.items():
        places = batch.column("record.row")
        found[number] = CheckedRows(
            batch.select(rows.batch.schema.names),
            settings,
            None if rows.change is None else rows.change.take(places),
            None if rows.headers is None else rows.headers.take(places),
        )
    return found
