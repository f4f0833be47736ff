"""The log on Apache Kafka: topics on brokers, used by any number of processes on any number of machines.

On the brokers lie, each under the log's prefix, the topics themselves and three of Mainstem's own: `mainstem.state`, in which
all ledgers are (topics, producers, groups, queues), and `mainstem.commits` and `mainstem.transactions`, which are written within
transactions alone.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import pyarrow as pa

from mainstem.clock import Clock, SystemClock
from mainstem.errors import Conflict, TopicNotFound, Unavailable
from mainstem.log import group_decisions
from mainstem.log.group_state import GroupState
from mainstem.log.kafka.arrow_codec import check_arrow
from mainstem.log.kafka.commits_topic import CommitsTopic
from mainstem.log.kafka.group_offsets import GroupLedger, GroupOffsets
from mainstem.log.kafka.kafka_admin import KafkaAdmin, topic_configs
from mainstem.log.kafka.kafka_beats import BeatsTopic
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_ledger import KafkaLedger
from mainstem.log.kafka.kafka_messages import Outgoing
from mainstem.log.kafka.kafka_producers import KafkaProducers
from mainstem.log.kafka.kafka_refusals import not_on_kafka
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.log.kafka.kafka_topic import KafkaTopic
from mainstem.log.kafka.kafka_transactions import KafkaTransactions
from mainstem.log.kafka.kafka_writer import KafkaWriter
from mainstem.log.kafka.named_writer import Known, Messages, NamedWriter, known_after, number_of, unnumbered
from mainstem.log.kafka.partition_fetch import PartitionFetches
from mainstem.log.kafka.raw_codec import check_raw
from mainstem.log.kafka.state_topic import StateTopic
from mainstem.log.kafka.topics_state import TopicEntry, TopicsState
from mainstem.log.kafka.transaction_notes import keep_milliseconds
from mainstem.log.kafka.writers_state import WritersState
from mainstem.log.keep_rule import Keep
from mainstem.log.log import Promise
from mainstem.log.missing_topic import no_such_topic
from mainstem.log.producer_run import ProducerRun
from mainstem.log.query_limits import QueryLimits
from mainstem.log.state_ledger import Entry, MachineState
from mainstem.log.take_over_report import TakeOverReport
from mainstem.log.topic_settings import TopicSettings, difference
from mainstem.names import check_own_name

__all__ = ["KafkaLog"]

S = TypeVar("S", bound=MachineState)

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
        # Where transactions note what they wrote; see `transaction_notes`.
        self.notes_topic = self.kafka_name("mainstem.transactions")
        self._make_own(state, commits)
        self.writer = KafkaWriter(self.clients)
        self.fetches = PartitionFetches(self.clients, self.clock)
        self.state = StateTopic(self.clients, state, self.clock, self._send_one, self._delete_keys)
        self.beats = BeatsTopic(self.clients, state, self.clock, self.writer)
        self.commits = CommitsTopic(self.clients, commits, self.clock, self._settle)
        self.transactions = KafkaTransactions(
            self.clients, settings.prefix, self.clock,
            lambda: self.ledger("writers", WritersState, WritersState.restore), lambda: self.commits, self.notes_topic,
        )  # fmt: skip
        self.producers = KafkaProducers(self)

    def kafka_name(self, topic: str) -> str:
        """What a topic is called on the brokers."""
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
        for part in (self.writer, self.fetches, self.beats, self.commits, self.state, self.clients):
            part.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.title} is closed", detail="It was closed by this program.", hint="Open it again.")

    def append_time(self) -> int:
        """Now, to the millisecond that Kafka keeps; never earlier than this process has said before."""
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

    def _known(self) -> KafkaLedger[TopicsState]:
        return self.ledger("topics", TopicsState, TopicsState.restore)

    def topic_names(self) -> list[str]:
        return sorted(self._known().current().topics)

    def topic_entry(self, name: str, topic_id: str, look: Literal["now", "last"] = "now") -> TopicEntry:
        """What is known of a topic, now or when last looked; raises if it is gone, or another one has its name."""
        ledger = self._known()
        entry = (ledger.current() if look == "now" else ledger.seen()).topics.get(name)
        if entry is None or entry.id != topic_id:
            raise self._no_topic(name)
        return entry

    def create_topic(self, settings: TopicSettings) -> KafkaTopic:
        """Make a topic, or open it if it is there with the same settings."""
        settings = _checked(settings)
        self._note_topic(settings, must_exist=False)
        topic = self.open_topic(settings.name)
        if differences := difference(topic.settings, settings):
            raise Conflict(
                f'topic "{settings.name}" exists with other settings',
                detail=f"Of the topic that is there: {'; '.join(differences)}.",
                hint=f'Open it as it is with stem.topic("{settings.name}"), or change it: '
                f"mainstem topic alter {settings.name} ...",
            )
        self.admin.create({topic.kafka_name: (settings.partitions, topic_configs(settings))})
        return topic

    def adopt_topic(self, settings: TopicSettings) -> KafkaTopic:
        """Take over a topic of other programs, with as many partitions as it has."""
        there = self.admin.partitions().get(self.kafka_name(settings.name))
        if there is None:
            raise TopicNotFound(
                f'topic "{settings.name}" does not exist on Kafka',
                detail=f"The brokers at {self.kafka_settings.servers} do not have {self.kafka_name(settings.name)}.",
                hint="Create it instead.",
                topic=settings.name,
            )
        settings = _checked(settings.altered(partitions=there))
        self._note_topic(settings, must_exist=True)
        topic = self.open_topic(settings.name)
        if differences := difference(topic.settings, settings):
            raise Conflict(
                f'topic "{settings.name}" is known with other settings',
                detail=f"Of the topic that is known: {'; '.join(differences)}.",
                hint=f'Open it as it is with stem.topic("{settings.name}").',
            )
        return topic

    def _note_topic(self, settings: TopicSettings, *, must_exist: bool) -> None:
        topic_id = uuid.uuid4().hex
        if settings.name in self._known().current().topics:
            return
        if not must_exist and self.kafka_name(settings.name) in self.admin.partitions():
            raise Conflict(
                f'topic "{settings.name}" is on Kafka already, and not of this log',
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
        self._known().decide(decision)
        self._keep_notes()

    def _keep_notes(self, *more: Keep) -> None:
        """Have notes of transactions kept as long as records of the topics can be, before there is one that keeps them longer.

        Looked at again until nothing has changed: another process may have made a topic meanwhile.
        """
        kept = None
        while (wanted := keep_milliseconds([*self._keeps(), *more])) != kept:
            self.admin.configure(self.notes_topic, {"retention.ms": str(wanted)})
            kept = wanted

    def _keeps(self) -> list[Keep]:
        return [entry.settings.keep for entry in self._known().current().topics.values()]

    def open_topic(self, name: str) -> KafkaTopic:
        check_own_name(name, "topic")
        with self._guard:
            self._check_open()
            entry = self._known().current().topics.get(name)
            if entry is None:
                raise self._no_topic(name)
            topic = self._topics.get(name)
            if topic is None or topic.id != entry.id:
                topic = self._topics[name] = KafkaTopic(self, name, entry.id)
            return topic

    def _no_topic(self, name: str) -> TopicNotFound:
        return no_such_topic(name, self.title, self.topic_names())

    def alter_topic(self, name: str, topic_id: str, changes: dict[str, Any]) -> TopicSettings:
        def decision(state: TopicsState, now: int) -> tuple[list[Entry], TopicSettings]:
            entry = state.topics.get(name)
            if entry is None or entry.id != topic_id:
                raise self._no_topic(name)
            settings = _checked(entry.settings.altered(**changes))
            return [{"kind": "altered", "name": name, "settings": settings.to_json()}], settings

        if "keep" in changes:
            self._keep_notes(Keep.parse(changes["keep"]))
        return self._known().decide(decision)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its groups and queues; appends of other processes are refused."""
        topic = self.open_topic(name)
        self.admin.delete(topic.kafka_name)
        for group in topic.groups():
            topic.delete_group(group)
        for queue in topic.queues():
            topic.delete_queue(queue)
        topic.forget_statements()

        def decision(state: TopicsState, now: int) -> tuple[list[Entry], None]:
            there = name in state.topics and state.topics[name].id == topic.id
            return ([{"kind": "deleted", "name": name}] if there else []), None

        self._known().decide(decision)

    # Producers and transactions

    def open_producer(self, name: str) -> ProducerRun:
        """Begin a run of a producer: older runs are fenced, and what they left open is aborted."""
        return self.producers.open(name)

    def shared_producer(self, name: str) -> ProducerRun:
        """A producer of Mainstem's own that several processes use at once."""
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
        """Append within a transaction; if it is numbered, under a sequence of its producer."""
        found = self.transactions.get(transaction)
        if found.named is None or not numbered:
            offsets = found.send(topic.kafka_name, topic.id, messages_of(None), at // 1000)
            return unnumbered(offsets, at), True
        known = found.sequences.get(topic.id) or found.named.known(topic.id)
        number, repeated = number_of(known, sequence, topic.name, found.named.name)
        if repeated:
            return (known if number == known["sequence"] else {**known, "offsets": {}}), False
        offsets = found.send(topic.kafka_name, topic.id, messages_of(number), at // 1000)
        written = known_after(known, number, offsets, at)
        found.sequences[topic.id] = found.says[found.named.key(topic.id)] = written
        return written, True

    def join_group_offsets(self, transaction: int, topic: str, group: str) -> None:
        self.transactions.get(transaction).groups.append((topic, group))

    def end_transaction(self, transaction: int, outcome: str) -> None:
        for topic, group in self.transactions.end(transaction, outcome):
            ledger = self.open_topic(topic).group_ledger(group)
            ledger.decide(lambda state, now: (group_decisions.settle(state, str(transaction), outcome), None))

    def outcome(self, transaction: str) -> Literal["open", "committed", "aborted"]:
        """What became of a transaction; one whose owner is known to be gone is aborted by asking."""
        return self.transactions.outcome(int(transaction))

    # Reading

    def take_over(self) -> TakeOverReport:
        """Nothing to do: there are no locks. What dead processes left open is aborted."""
        self._settle()
        return TakeOverReport()

    def unreadable(self, topic: KafkaTopic, partition: int, end: int) -> None:
        """See to it that what cannot be read of a partition up to an offset lies in the topic of the unreadable."""
        from mainstem.log.kafka.unreadable_topic import UnreadableTopic

        UnreadableTopic(self, topic).report(partition, end)

    def query(
        self,
        sql: str,
        parameters: Sequence[object],
        tables: Mapping[str, Callable[[], pa.Table]] | None = None,
        limits: QueryLimits | None = None,
    ) -> pa.Table:
        from mainstem.log.kafka.kafka_query import query  # DuckDB is loaded when the first question is asked

        return query(self, sql, parameters, tables or {}, limits or QueryLimits())


def _checked(settings: TopicSettings) -> TopicSettings:
    if settings.archive is not None:
        raise not_on_kafka("copy what it drops to an archive", "Kafka drops records by itself.")
    settings = settings if settings.codec is not None else settings.with_codec("json")
    if settings.codec == "raw":
        check_raw(settings)
    elif settings.codec == "arrow":
        check_arrow(settings)
    return settings
