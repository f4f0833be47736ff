"""StateTopic: one compacted topic on the brokers with all ledgers of a log, as read by this process.

Kafka has no conditional append, so readers decide: an entry says how many entries of its ledger its author had seen,
and is valid only if there are exactly that many. All readers see the same order and so decide alike. Of two concurrent
entries the first is valid; the author of the other sees that its own is not, and decides again.

    key      <ledger>|<unique>
    value    {"after": 17, "at": ..., "entries": [...]}      valid as the 18th if there were 17 before it
             {"after": 17, "at": ..., "drop": true}          the ledger is empty again
             {"count": 200, "state": {...}}                  the state after 200 entries, for readers without them

From time to time an author writes the state, and if nothing was written in between, deletes the keys before it:
compaction then removes them. A reader that has fewer entries than a state counts takes the state; others skip it.
Thread-safe.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition

from mainstem.clock import Clock
from mainstem.errors import Invalid
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import kafka_errors, unavailable
from mainstem.log.kafka.kafka_reads import PartitionFetch
from mainstem.log.state_ledger import Entry, MachineState
from mainstem.processes import Identity

__all__ = ["BEATS", "CommitsTopic", "KafkaLedger", "LEDGERS", "LedgerRecords", "Slot", "StateTopic", "WritersState"]


# CommitsTopic: records that become valid together with a transaction.
#
# A compacted topic, written only within transactions, right before they are committed:
#
#     sequence|<producer>|<topic id>    the highest sequence of a producer in a topic, and its offsets
#     outcome|<slot>                    the last committed transactions of one transactional id
#
# A record is visible if and only if its transaction was committed. Thread-safe.


# A transaction that has written here ends within milliseconds, unless its process died just then.
PAUSE_SECONDS = 0.02
ROWS = 10_000


class CommitsTopic:
    """The topic as far as this process has read it."""

    def __init__(self, clients: KafkaClients, topic: str, clock: Clock, settle: Callable[[], None]) -> None:
        self.topic = topic
        self._clients = clients
        self._clock = clock
        self._settle = settle
        self._guard = threading.RLock()
        self._fetch = PartitionFetch(clients, topic, 0, clock)
        self._position = 0
        self._values: dict[str, dict[str, Any]] = {}

    def values(self) -> dict[str, dict[str, Any]]:
        """Everything committed before now, by key. Waits for transactions that were writing here at the time of the
        call."""
        with self._guard:
            end = self._clients.ends(self.topic, [0], IsolationLevel.READ_UNCOMMITTED)[0]
            deadline = self._clock.monotonic() + int(self._clients.patience * 1_000_000)
            pause = threading.Event()
            while True:
                stable = self._clients.range(self.topic, 0)[1]
                while messages := self._fetch.read(self._position, stable, ROWS):
                    for message in messages:
                        value = message.value()
                        if value is not None:
                            self._values[message.key().decode()] = json.loads(value)
                    self._position = messages[-1].offset() + 1
                self._position = max(self._position, stable)
                if stable >= end:
                    return self._values
                if self._clock.monotonic() > deadline:
                    raise unavailable(self._clients.settings.servers, "a transaction of another process does not end")
                self._settle()
                pause.wait(PAUSE_SECONDS)

    def close(self) -> None:
        self._fetch.close()


# WritersState: the transactional ids of a log in use, and the process that uses each.
#
# opened     slot, process, timeout      a process writes transactions under this slot's id, with this timeout
# closed     slot                        the slot is free


@dataclass(slots=True)
class Slot:
    """One transactional id. A named one belongs to a producer, whose next run takes it over."""

    process: Identity
    timeout: int
    named: bool = False


@dataclass(slots=True)
class WritersState:
    """All slots in use, by number."""

    slots: dict[int, Slot] = field(default_factory=dict)

    def apply(self, entry: Entry, at: int) -> None:
        match entry["kind"]:
            case "opened":
                self.slots[entry["slot"]] = Slot(entry["process"], entry["timeout"], entry.get("named", False))
            case "closed":
                self.slots.pop(entry["slot"], None)

    def snapshot(self) -> dict[str, Any]:
        return {str(number): [slot.process, slot.timeout, slot.named] for number, slot in self.slots.items()}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        return cls({int(number): Slot(*fields) for number, fields in snapshot.items()})


# The partitions of the topic: entries, and the heartbeats of groups' members, which need no order.
LEDGERS, BEATS = 0, 1

POLL_SECONDS = 0.2

# Sends a message to a partition of the topic, by its key, and returns its offset once it is acknowledged.
Send = Callable[[str, int, str, bytes], int]
# Deletes keys in a partition of the topic.
Delete = Callable[[str, int, Iterable[str]], None]


@dataclass
class LedgerRecords:
    """The valid records of one ledger: the number of all entries, the last state, and the entries after it."""

    count: int = 0
    at: int = 0
    state: dict[str, Any] | None = None
    # The number of valid entries before `entries`.
    begins: int = 0
    entries: list[tuple[int, list[Entry]]] = field(default_factory=list)
    # Existing keys, to be deleted once a later state replaces them.
    keys: dict[str, None] = field(default_factory=dict)
    there: bool = False


class StateTopic:
    """The topic as far as this process has read it."""

    def __init__(self, clients: KafkaClients, topic: str, clock: Clock, send: Send, delete: Delete) -> None:
        self._clients = clients
        self._topic = topic
        self._clock = clock
        self._send = send
        self._delete = delete
        self._guard = threading.RLock()
        self._ledgers: dict[str, LedgerRecords] = {}
        self._consumer: Consumer | None = None
        self._position = 0
        # Whether entries that this process wrote are valid; None while unknown.
        self._verdicts: dict[str, bool | None] = {}

    @property
    def topic(self) -> str:
        return self._topic

    def close(self) -> None:
        with self._guard:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                consumer.close()

    def records(self, ledger: str) -> LedgerRecords:
        """The valid records of a ledger. Not to be changed by the caller."""
        with self._guard:
            self._read_to(self._clients.range(self._topic, LEDGERS)[1])
            return self._ledgers.setdefault(ledger, LedgerRecords())

    def names(self, prefix: str) -> list[str]:
        """The names of the ledgers with this prefix, without it, sorted."""
        with self._guard:
            self._read_to(self._clients.range(self._topic, LEDGERS)[1])
            found = [name for name, records in self._ledgers.items() if records.there and name.startswith(prefix)]
        return sorted(name.removeprefix(prefix) for name in found)

    def append(self, ledger: str, after: int, body: dict[str, Any]) -> bool:
        """Write one or several entries atomically; whether they are valid."""
        value = {"after": after, "at": max(self._clock.now(), self.records_at(ledger)), **body}
        key = self._key(ledger)
        with self._guard:
            self._verdicts[key] = None
            try:
                offset = self._send(self._topic, LEDGERS, key, _bytes(value))
                self._read_to(offset + 1)
                verdict = self._verdicts[key]
            finally:
                del self._verdicts[key]
        return bool(verdict)

    def records_at(self, ledger: str) -> int:
        with self._guard:
            return self._ledgers.setdefault(ledger, LedgerRecords()).at

    def write_state(self, ledger: str, count: int, state: dict[str, Any]) -> None:
        """Write the state after `count` entries; if nothing was written meanwhile, delete the entries before it."""
        with self._guard:
            records = self._ledgers[ledger]
            superfluous = list(records.keys)
            key = self._key(ledger)
            offset = self._send(self._topic, LEDGERS, key, _bytes({"count": count, "state": state}))
            self._read_to(offset + 1)
            clean = records.count == count
            self._delete(self._topic, LEDGERS, superfluous if clean else [key])

    def _key(self, ledger: str) -> str:
        return f"{ledger}|{uuid.uuid4().hex[:16]}"

    # Reading

    def _read_to(self, end: int) -> None:
        if self._position >= end:
            return
        if self._consumer is None:
            self._consumer = self._clients.consumer("read_uncommitted")
            self._consumer.assign([TopicPartition(self._topic, LEDGERS, self._position)])
        deadline = self._clock.monotonic() + int(self._clients.patience * 1_000_000)
        with kafka_errors(self._clients.settings.servers, self._topic):
            while self._position < end:
                message = self._consumer.poll(POLL_SECONDS)
                if message is not None:
                    self._take(message)
                elif self._clock.monotonic() > deadline:
                    raise unavailable(self._clients.settings.servers, f"nothing came from {self._topic}")

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # The last messages may have been compacted.
                self._position = max(self._position, message.offset())
                return
            raise KafkaException(error)
        self._position = message.offset() + 1
        key, value = message.key().decode(), message.value()
        records = self._ledgers.setdefault(key.rpartition("|")[0], LedgerRecords())
        if value is None:
            records.keys.pop(key, None)
        else:
            records.keys[key] = None
            self._judge(records, key, json.loads(value))

    def _judge(self, records: LedgerRecords, key: str, value: dict[str, Any]) -> None:
        if "count" in value:
            # A state of more entries replaces those here; one of as many makes them superfluous.
            if value["count"] >= records.count and (value["count"] > records.count or records.there):
                records.count, records.state, records.there = value["count"], value["state"], True
                records.begins, records.entries = records.count, []
            return
        counts = value["after"] == records.count
        if counts:
            records.count += 1
            records.at = max(records.at, value["at"])
            if value.get("drop"):
                records.state, records.begins, records.entries, records.there = None, records.count, [], False
            else:
                records.entries.append((records.at, value["entries"]))
                records.there = True
        if key in self._verdicts:
            self._verdicts[key] = counts


def _bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# KafkaLedger: a ledger in the log's state topic; see above how concurrent authors agree.


S = TypeVar("S", bound=MachineState)
T = TypeVar("T")

# After this many entries the state is written, so that opening a ledger reads little.
ENTRIES_MAX = 500


class KafkaLedger(Generic[S]):
    """One ledger, as this process knows it. Thread-safe."""

    def __init__(
        self,
        topic: StateTopic,
        name: str,
        clock: Clock,
        new_state: Callable[[], S],
        restore: Callable[[dict[str, Any]], S],
    ) -> None:
        self.name = name
        self._topic = topic
        self._clock = clock
        self._new_state = new_state
        self._restore = restore
        self._guard = threading.RLock()
        self._state = new_state()
        self._count = 0

    def current(self) -> S:
        """The state after everything any process has appended so far. Not to be changed by the caller."""
        with self._guard:
            return self._catch_up()

    def last_state(self) -> S:
        """The state as this process last read it. Not to be changed by the caller."""
        with self._guard:
            return self._state

    def _catch_up(self) -> S:
        records = self._topic.records(self.name)
        if self._count < records.begins:
            self._state = self._new_state() if records.state is None else self._restore(records.state)
            self._count = records.begins
        for at, entries in records.entries[self._count - records.begins :]:
            for entry in entries:
                self._state.apply(entry, at)
        self._count = records.count
        return self._state

    def decide(self, decision: Callable[[S, int], tuple[list[Entry], T]]) -> T:
        """Append the entries that `decision(state, now)` returns, durably, and only if nothing was appended meanwhile.

        On a conflict `decision` is called again with the newer state, so it may run several times and must have no side
        effects. Without entries nothing is written. If it raises, its error is raised here, and nothing is written.
        """
        with self._guard:
            while True:
                state = self._catch_up()
                entries, result = decision(state, max(self._clock.now(), self._topic.records_at(self.name)))
                if not entries:
                    return result
                if self._topic.append(self.name, self._count, {"entries": entries}):
                    self._write_state_if_due()
                    return result

    def _write_state_if_due(self) -> None:
        state = self._catch_up()
        if self._count - self._topic.records(self.name).begins >= ENTRIES_MAX:
            self._topic.write_state(self.name, self._count, state.snapshot())

    def drop(self) -> None:
        """Remove all entries."""
        with self._guard:
            while self._topic.records(self.name).there:
                self._catch_up()
                self._topic.append(self.name, self._count, {"drop": True})
            self._catch_up()

    def state_at(self, at: int) -> S:
        """Refused: superseded entries are compacted on Kafka."""
        raise Invalid(
            "a log on Kafka cannot look back in time at a queue",
            detail="The entries of its state are compacted once a later state is written.",
            hint="Rewind to a position instead: queue.rewind({partition: offset}), or an append's token.",
        )
