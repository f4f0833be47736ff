"""The log on Apache Kafka: topics on brokers, used by any number of processes on any number of machines.

The brokers hold, with the log's prefix, the topics themselves and three internal ones: `mainstem.state` with all
ledgers (topics, producers, groups, queues), and `mainstem.commits` and `mainstem.transactions`, which are written
only within transactions.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import pyarrow as pa

from mainstem.clock import Clock, SystemClock, as_datetime
from mainstem.errors import Conflict, Invalid, TopicNotFound, Unavailable
from mainstem.log.groups import group_state as group_decisions
from mainstem.log.groups.group_state import GroupState
from mainstem.log.kafka.debezium_codec import check_debezium
from mainstem.log.kafka.kafka_admin import KafkaAdmin, TopicEntry, TopicsState, topic_configs
from mainstem.log.kafka.kafka_clients import KafkaClients, known_dead, this_process
from mainstem.log.kafka.kafka_codec import check_arrow, check_raw, codec_of
from mainstem.log.kafka.kafka_errors import not_on_kafka
from mainstem.log.kafka.kafka_flow_cut import KafkaFlowCut
from mainstem.log.kafka.kafka_groups import GroupLedger, GroupOffsets, HeartbeatsTopic
from mainstem.log.kafka.kafka_messages import Outgoing, time_of
from mainstem.log.kafka.kafka_reads import PartitionFetch, PartitionFetches
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.log.kafka.kafka_topic import KafkaAppendWatch, KafkaTopic
from mainstem.log.kafka.kafka_transactions import KafkaTransactions
from mainstem.log.kafka.kafka_writer import KafkaWriter, TransactionalWriter
from mainstem.log.kafka.named_writer import Known, Messages, NamedWriter, known_after, known_without_sequence, number_of
from mainstem.log.kafka.state_topic import CommitsTopic, KafkaLedger, StateTopic, WritersState
from mainstem.log.kafka.transaction_notes import keep_milliseconds
from mainstem.log.keep_rule import Keep
from mainstem.log.log import Promise, check_same_settings, no_such_topic
from mainstem.log.producer import ProducerRun, ProducersState, check_epoch
from mainstem.log.query_limits import QueryLimits
from mainstem.log.rows.rows import check_rows
from mainstem.log.state_ledger import Entry, MachineState
from mainstem.log.topic_settings import TopicSettings
from mainstem.log.upkeep_report import TakeOverReport, Verification
from mainstem.names import check_own_name

__all__ = ["KafkaLog", "KafkaProducers", "UnreadableTopic", "unreadable_topic"]


# UnreadableTopic: messages that a topic's codec cannot decode go to `<topic>.unreadable` once, with bytes and reason.
#
# Any number of readers may find the same message. So a reader does not append just what it found: it scans the
# partition from where the last such scan ended, and appends all unreadable messages in one transaction with the end of
# the scan. Readers skip unreadable messages.
#
#     value, key   BINARY      unchanged
#     topic        STRING
#     partition    INT
#     offset       BIGINT
#     reason       STRING
#     appended_at  TIMESTAMP   of the message


SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("reason", pa.string()),
        ("appended_at", pa.timestamp("us", "UTC")),
    ]
)
MESSAGES = 10_000


def unreadable_topic(topic: str) -> str:
    """The name of the topic for a topic's unreadable messages.

    >>> unreadable_topic("orders")
    'orders.unreadable'
    """
    return f"{topic}.unreadable"


class UnreadableTopic:
    """Appends to the topic of unreadable messages."""

    def __init__(self, log: KafkaLog, topic: KafkaTopic) -> None:
        self._log = log
        self._topic = topic

    def report(self, partition: int, end: int) -> None:
        """Append all unreadable messages of a partition before the message `end`."""
        log, topic = self._log, self._topic
        run = log.shared_producer(f"mainstem.unreadable.{topic.id}.{partition}")
        writer = log.named_writer(run)
        target = log.create_topic(TopicSettings.of(unreadable_topic(topic.name), schema=SCHEMA))

        def make(known: Known) -> tuple[int, Messages] | None:
            if end - 1 <= known["sequence"]:
                return None
            rows = self._rows(partition, known["sequence"] + 1, end)
            checked = check_rows(rows, target.settings)
            return end - 1, {0: codec_of(target.settings).messages(checked)} if rows else {}

        if writer.known_appends(target.id)["sequence"] < end - 1:
            writer.append_from(target.kafka_name, target.id, log.append_time(), make)

    def _rows(self, partition: int, start: int, end: int) -> list[dict[str, Any]]:
        """The unreadable messages between two offsets, as rows."""
        topic, settings = self._topic, self._topic.settings
        codec = codec_of(settings)
        start = max(start, self._log.clients.range(topic.kafka_name, partition)[0])
        fetch = PartitionFetch(self._log.clients, topic.kafka_name, partition, self._log.clock)
        found: list[dict[str, Any]] = []
        try:
            while messages := fetch.read(start, end, MESSAGES):
                start = messages[-1].offset() + 1
                _, _, unreadable = codec.rows(partition, messages, settings, 0, 1 << 62)
                found += [
                    {
                        "value": message.value(),
                        "key": message.key(),
                        "topic": topic.name,
                        "partition": partition,
                        "offset": message.offset(),
                        "reason": reason,
                        "appended_at": as_datetime(time_of(message)),
                    }
                    for message, reason in unreadable
                ]
        finally:
            fetch.close()
        return found


# KafkaProducers: the named producers of a log: the current run of each, and its writer.


# The transaction timeout of a named producer: its own appends take milliseconds.
TIMEOUT = 60_000_000


class KafkaProducers:
    """The runs opened by this process. Thread-safe."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._guard = threading.RLock()
        self._writers: dict[tuple[str, int], NamedWriter] = {}
        self._shared: dict[str, ProducerRun] = {}

    def _ledger(self) -> KafkaLedger[ProducersState]:
        return self._log.ledger("producers", ProducersState, ProducersState.restore)

    def open(self, name: str) -> ProducerRun:
        """Begin a run. The broker fences older ones."""
        run = self._run(name, self._open_run(name))
        with self._guard:
            writer = self._writers[name, run.epoch] = self._writer(name, run, shared=False)
        writer.writer()
        return run

    def share(self, name: str) -> ProducerRun:
        """A producer that several processes use in turn; none of them is fenced."""
        with self._guard:
            run = self._shared.get(name)
            if run is None:
                run = self._shared[name] = self._run(name, 0)
                self._writers[name, 0] = self._writer(name, run, shared=True)
            return run

    def writer(self, run: ProducerRun) -> NamedWriter:
        return self._writers[run.name, run.epoch]

    def _open_run(self, name: str) -> int:
        def decision(state: ProducersState, now: int) -> tuple[list[Entry], int]:
            known = state.producers.get(name)
            entry = {"kind": "opened", "name": name, "process": this_process()}
            return [entry], 1 if known is None else known.epoch + 1

        return self._ledger().decide(decision)

    def _run(self, name: str, epoch: int) -> ProducerRun:
        def read_sequence(topic: str) -> int:
            known = self._writers[name, epoch].known_appends(self._log.open_topic(topic).id)
            return int(known["sequence"])

        def last(topic: str) -> int:
            writer, topic_id = self._writers[name, epoch], self._log.open_topic(topic).id
            return max(read_sequence(topic), self._log.transactions.open_sequence(writer, topic_id))

        def state(topic: str, at: int) -> None:
            self._declare_watermark(name, epoch, topic, at)

        return ProducerRun(
            name, 0, epoch, check=lambda: self.check(name, epoch), state=state, last_sequence=last,
            kept_sequence=read_sequence,
            # An append is a Kafka transaction: it is never incomplete.
            incomplete_sequence=lambda topic: None, shared=epoch == 0,
        )  # fmt: skip

    def _declare_watermark(self, name: str, epoch: int, topic: str, at: int) -> None:
        """Record a producer's watermark, and the topic's: the lowest of all producers that are not known to be dead."""
        backend = self._log.open_topic(topic)

        def decision(state: ProducersState, now: int) -> tuple[list[Entry], None]:
            return [{"kind": "stated", "name": name, "topic": backend.id, "at": at}], None

        self.check(name, epoch)
        self._ledger().decide(decision)
        declared = [
            producer.declared[backend.id]
            for producer in self._ledger().current().producers.values()
            if backend.id in producer.declared and not known_dead(producer.process)
        ]
        backend.declare_watermark(min(declared))

    def _writer(self, name: str, run: ProducerRun, *, shared: bool) -> NamedWriter:
        transactional_id = f"{self._log.kafka_settings.prefix}mainstem.producer.{name}"
        return NamedWriter(
            name,
            lambda: TransactionalWriter(self._log.clients, transactional_id, TIMEOUT),
            self._log.commits,
            self._log.notes_topic,
            shared=shared,
            run_check=run.check if not shared else lambda: None,
        )

    def check(self, name: str, epoch: int) -> None:
        """Raises if a newer run was opened."""
        current = self._ledger().current().producers[name].epoch
        check_epoch(name, epoch, current)

    def close(self) -> None:
        with self._guard:
            writers, self._writers = list(self._writers.values()), {}
        for writer in writers:
            writer.close()


S = TypeVar("S", bound=MachineState)


# The guarantees that a log on Kafka does not give.
NOT_PROMISED = frozenset([Promise.DENSE_OFFSETS, Promise.REWIND, Promise.WATERMARKS])


class KafkaLog:
    """A log on Kafka. Thread-safe."""

    promises = frozenset(Promise) - NOT_PROMISED

    def __init__(
        self,
        settings: KafkaSettings | str,
        *,
        home: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings = KafkaSettings.of(settings, home) if isinstance(settings, str) else settings
        self.clock: Clock = clock or SystemClock()
        self.kafka_settings = settings
        self.title = f'the log on "{settings.address}"'
        self.address = settings.address
        self._guard = threading.RLock()
        self._ledgers: dict[str, KafkaLedger[Any]] = {}
        self._topics: dict[str, KafkaTopic] = {}
        self._last_at = 0
        self._closed = False
        self.clients = KafkaClients(settings, self.clock)
        self.identity = f"{self.clients.connect()} {settings.prefix}"
        self.admin = KafkaAdmin(self.clients, self.clock)
        state, commits = self.kafka_name("mainstem.state"), self.kafka_name("mainstem.commits")
        # Where transactions record what they wrote; see `transaction_notes`.
        self.notes_topic = self.kafka_name("mainstem.transactions")
        self._make_own(state, commits)
        self.writer = KafkaWriter(self.clients)
        self.fetches = PartitionFetches(self.clients, self.clock)
        self.state = StateTopic(self.clients, state, self.clock, self._send_one, self._delete_keys)
        self.heartbeats = HeartbeatsTopic(self.clients, state, self.clock, self.writer)
        self.commits = CommitsTopic(self.clients, commits, self.clock, self._settle)
        self.transactions = KafkaTransactions(
            self.clients, settings.prefix, self.clock,
            lambda: self.ledger("writers", WritersState, WritersState.restore), lambda: self.commits, self.notes_topic,
        )  # fmt: skip
        self.producers = KafkaProducers(self)

    def limit_patience(self, seconds: float) -> None:
        """Wait at most this long for a broker that does not answer, if the settings say longer."""
        self.clients.patience = min(self.clients.patience, seconds)

    def kafka_name(self, topic: str) -> str:
        """The name of a topic on the brokers."""
        return self.kafka_settings.prefix + topic

    def _make_own(self, state: str, commits: str) -> None:
        if not {state, commits, self.notes_topic} <= set(self.admin.partitions()):
            large = {"max.message.bytes": str(16 << 20)}
            compacted = {"cleanup.policy": "compact", **large}
            notes = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", **large}
            self.admin.create({state: (2, compacted), commits: (1, compacted), self.notes_topic: (1, notes)})

    def _settle(self) -> None:
        self.transactions.settle()

    def _send_one(self, topic: str, partition: int, key: str, value: bytes) -> int:
        return self.writer.send_one(topic, partition, key, value, self.clock.now() // 1000)

    def _delete_keys(self, topic: str, partition: int, keys: Iterable[str]) -> None:
        gone = [Outgoing(key.encode(), None, None) for key in keys]
        if gone:
            self.writer.send(topic, {partition: gone}, self.clock.now() // 1000)

    def close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
        self.transactions.close()
        self.producers.close()
        for part in (self.writer, self.fetches, self.heartbeats, self.commits, self.state, self.clients):
            part.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.title} is closed", detail="It was closed by this program.", hint="Open it again.")

    def append_time(self) -> int:
        """Now, in whole milliseconds as Kafka stores it; never decreases in this process."""
        with self._guard:
            self._last_at = max(self._last_at, -(-self.clock.now() // 1000) * 1000)
            return self._last_at

    def ledger(self, name: str, new_state: Callable[[], S], restore: Callable[[dict[str, Any]], S]) -> KafkaLedger[S]:
        with self._guard:
            self._check_open()
            ledger = self._ledgers.get(name)
            if ledger is None:
                ledger = self._ledgers[name] = KafkaLedger(self.state, name, self.clock, new_state, restore)
            return ledger

    def group_ledger(self, name: str, offsets: GroupOffsets) -> KafkaLedger[GroupState]:
        with self._guard:
            self._check_open()
            return self._ledgers.setdefault(name, GroupLedger(self.state, name, self.clock, offsets))

    # Topics

    def _topics_ledger(self) -> KafkaLedger[TopicsState]:
        return self.ledger("topics", TopicsState, TopicsState.restore)

    def topic_names(self) -> list[str]:
        return sorted(self._topics_ledger().current().topics)

    def topic_entry(self, name: str, topic_id: str, look: Literal["now", "last"] = "now") -> TopicEntry:
        """The entry of a topic, read now or as last read; raises if it was deleted or recreated."""
        ledger = self._topics_ledger()
        entry = (ledger.current() if look == "now" else ledger.last_state()).topics.get(name)
        if entry is None or entry.id != topic_id:
            raise self._no_topic(name)
        return entry

    def create_topic(self, settings: TopicSettings) -> KafkaTopic:
        """Create a topic, or open it if it exists with the same settings."""
        settings = _check_settings(settings)
        if settings.codec == "debezium":
            raise Invalid(
                f'topic "{settings.name}" cannot be created with the codec "debezium"',
                detail="Debezium creates and writes such a topic; here it is only read.",
                hint=f'Adopt it: stem.adopt_topic("{settings.name}", schema="...", key="...", codec="debezium").',
            )
        self._note_topic(settings, must_exist=False)
        topic = self.open_topic(settings.name)
        check_same_settings(topic.settings, settings)
        self.admin.create({topic.kafka_name: (settings.partitions, topic_configs(settings))})
        return topic

    def adopt_topic(self, settings: TopicSettings) -> KafkaTopic:
        """Adopt a topic of other programs, with the partitions it has."""
        there = self.admin.partitions().get(self.kafka_name(settings.name))
        if there is None:
            raise TopicNotFound(
                f'topic "{settings.name}" does not exist on Kafka',
                detail=f"The brokers at {self.kafka_settings.servers} do not have {self.kafka_name(settings.name)}.",
                hint="Create it instead.",
                topic=settings.name,
            )
        settings = _check_settings(settings.alter(partitions=there))
        self._note_topic(settings, must_exist=True)
        topic = self.open_topic(settings.name)
        check_same_settings(topic.settings, settings)
        return topic

    def _note_topic(self, settings: TopicSettings, *, must_exist: bool) -> None:
        topic_id = uuid.uuid4().hex
        if settings.name in self._topics_ledger().current().topics:
            return
        if not must_exist and self.kafka_name(settings.name) in self.admin.partitions():
            raise Conflict(
                f'topic "{settings.name}" exists on Kafka, but does not belong to this log',
                detail=f"The brokers at {self.kafka_settings.servers} have {self.kafka_name(settings.name)}.",
                hint=f'Adopt it with its schema: stem.adopt_topic("{settings.name}", schema="...").',
            )

        def decision(state: TopicsState, now: int) -> tuple[list[Entry], None]:
            entry = {
                "kind": "created",
                "name": settings.name,
                "id": topic_id,
                "settings": settings.to_json(),
                "adopted": must_exist,
            }
            return ([] if settings.name in state.topics else [entry]), None

        self._keep_notes(settings.keep)
        self._topics_ledger().decide(decision)
        self._keep_notes()

    def _keep_notes(self, *more: Keep) -> None:
        """Set the retention of the notes of transactions to that of the topics, before a topic with a longer one is
        created.

        Repeated until nothing has changed: another process may have created a topic meanwhile.
        """
        kept = None
        while (wanted := keep_milliseconds([*self._keeps(), *more])) != kept:
            self.admin.configure(self.notes_topic, {"retention.ms": str(wanted)})
            kept = wanted

    def _keeps(self) -> list[Keep]:
        return [entry.settings.keep for entry in self._topics_ledger().current().topics.values()]

    def open_topic(self, name: str) -> KafkaTopic:
        check_own_name(name, "topic")
        with self._guard:
            self._check_open()
            entry = self._topics_ledger().current().topics.get(name)
            if entry is None:
                raise self._no_topic(name)
            topic = self._topics.get(name)
            if topic is None or topic.id != entry.id:
                topic = self._topics[name] = KafkaTopic(self, name, entry.id)
            return topic

    def watch_appends(self, topics: Iterable[str], bell: str = "") -> KafkaAppendWatch:
        opened = [self.open_topic(name) for name in topics]
        parts: dict[str, int | range] = {topic.kafka_name: range(topic.settings_seen.partitions) for topic in opened}
        return KafkaAppendWatch(self.clients, parts, self.clock, bell)

    def flow_cut(self) -> KafkaFlowCut:
        return KafkaFlowCut(self)

    def _no_topic(self, name: str) -> TopicNotFound:
        return no_such_topic(name, self.title, self.topic_names())

    def alter_topic(self, name: str, topic_id: str, changes: dict[str, Any]) -> TopicSettings:
        def decision(state: TopicsState, now: int) -> tuple[list[Entry], TopicSettings]:
            entry = state.topics.get(name)
            if entry is None or entry.id != topic_id:
                raise self._no_topic(name)
            settings = _check_settings(entry.settings.alter(**changes))
            return [{"kind": "altered", "name": name, "settings": settings.to_json()}], settings

        if "keep" in changes:
            self._keep_notes(Keep.parse(changes["keep"]))
        return self._topics_ledger().decide(decision)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its groups and queues; appends of other processes raise."""
        topic = self.open_topic(name)
        self.admin.delete(topic.kafka_name)
        for group in topic.groups():
            topic.delete_group(group)
        for queue in topic.queues():
            topic.delete_queue(queue)
        topic.forget_watermarks()

        def decision(state: TopicsState, now: int) -> tuple[list[Entry], None]:
            there = name in state.topics and state.topics[name].id == topic.id
            return ([{"kind": "deleted", "name": name}] if there else []), None

        self._topics_ledger().decide(decision)

    # Producers and transactions

    def open_producer(self, name: str) -> ProducerRun:
        """Begin a run of a producer: older runs are fenced, and their open transactions are aborted."""
        return self.producers.open(name)

    def shared_producer(self, name: str) -> ProducerRun:
        """An internal producer that several processes use at once."""
        return self.producers.share(name)

    def named_writer(self, run: ProducerRun) -> NamedWriter:
        return self.producers.writer(run)

    def begin_transaction(self, timeout: int, producer: ProducerRun | None = None) -> int:
        self._check_open()
        return self.transactions.begin(timeout, None if producer is None else self.named_writer(producer))

    def append_in(
        self,
        transaction: int,
        topic: KafkaTopic,
        messages_of: Callable[[int | None], Messages],
        at: int,
        sequence: int | None,
        *,
        numbered: bool,
    ) -> tuple[Known, bool]:
        """Append within a transaction; with a producer, under one of its sequences."""
        found = self.transactions.get(transaction)
        if found.named is None or not numbered:
            offsets = found.send(topic.kafka_name, topic.id, messages_of(None), at // 1000)
            return known_without_sequence(offsets, at), True
        known = found.sequences.get(topic.id) or found.named.known_appends(topic.id)
        number, repeated = number_of(known, sequence, topic.name, found.named.name)
        if repeated:
            return (known if number == known["sequence"] else {**known, "offsets": {}}), False
        offsets = found.send(topic.kafka_name, topic.id, messages_of(number), at // 1000)
        written = known_after(known, number, offsets, at)
        found.sequences[topic.id] = found.commit_records[found.named.key(topic.id)] = written
        return written, True

    def join_group_offsets(self, transaction: int, topic: str, group: str) -> None:
        self.transactions.get(transaction).groups.append((topic, group))

    def end_transaction(self, transaction: int, outcome: str) -> None:
        for topic, group in self.transactions.end(transaction, outcome):
            ledger = self.open_topic(topic).group_ledger(group)
            ledger.decide(lambda state, now: (group_decisions.settle(state, str(transaction), outcome), None))

    def outcome(self, transaction: str) -> Literal["open", "committed", "aborted"]:
        """The outcome of a transaction; one whose owner is known to be dead is aborted first."""
        return self.transactions.outcome(int(transaction))

    # Reading

    def take_over(self) -> TakeOverReport:
        """Nothing to do: there are no locks. Open transactions of dead processes are aborted."""
        self._settle()
        return TakeOverReport()

    def copy_to(self, home: str) -> None:
        """None: the log is on the brokers, not in the home."""

    def verify_ledgers(self, step: Callable[[str], None]) -> Iterator[Verification]:
        """None: its ledgers are on the brokers."""
        return iter(())

    def unreadable(self, topic: KafkaTopic, partition: int, end: int) -> None:
        """Append the unreadable messages of a partition up to an offset to the topic for them."""

        UnreadableTopic(self, topic).report(partition, end)

    def query(
        self,
        sql: str,
        parameters: Sequence[object],
        tables: Mapping[str, Callable[[], pa.Table]] | None = None,
        limits: QueryLimits | None = None,
    ) -> pa.Table:
        from mainstem.log.kafka.kafka_reads import query  # loads DuckDB on the first query

        return query(self, sql, parameters, tables or {}, limits or QueryLimits())


def _check_settings(settings: TopicSettings) -> TopicSettings:
    if settings.archive is not None:
        raise not_on_kafka("archive expired records", "Kafka deletes expired records by itself.")
    settings = settings if settings.codec is not None else settings.with_codec("json")
    if settings.codec == "raw":
        check_raw(settings)
    elif settings.codec == "arrow":
        check_arrow(settings)
    elif settings.codec == "debezium":
        check_debezium(settings)
    return settings
