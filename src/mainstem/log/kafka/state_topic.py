"""StateTopic: one compacted topic on the brokers in which all ledgers of a log lie, and what a process knows of it.

Kafka has no conditional append, so its readers decide: an entry says how many entries of its ledger its author had seen,
and counts only if that is how many there are. Every reader sees the same order and so comes to the same verdict. Of two
authors who wrote at once the first one's entry counts; the other sees that its own does not, and decides anew.

    key      <ledger>|<unique>
    value    {"after": 17, "at": ..., "entries": [...]}      counts as the 18th if 17 counted before it
             {"after": 17, "at": ..., "drop": true}          the ledger is empty again
             {"count": 200, "state": {...}}                  what 200 entries add up to; for who has not got them all

From time to time an author writes down the state, and if nobody wrote in between, deletes the keys before it: compaction
then takes them away. A reader that finds fewer entries than a state counts takes the state; any other passes over it.
Thread-safe.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mainstem.clock import Clock
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import kafka_errors, unavailable
from mainstem.log.state_ledger import Entry

__all__ = ["LEDGERS", "LedgerRecords", "StateTopic"]

# The partitions of the topic: entries, and beside them the signs of life of groups' members, which need no order.
LEDGERS, BEATS = 0, 1

POLL_SECONDS = 0.2

# What sends a message to a partition of the topic, by its key, and gives its offset once it is acknowledged.
Send = Callable[[str, int, str, bytes], int]
# What deletes keys in a partition of the topic.
Delete = Callable[[str, int, Iterable[str]], None]


@dataclass
class LedgerRecords:
    """What counts of one ledger: how many entries there were ever, the last state written down, and those after it."""

    count: int = 0
    at: int = 0
    state: dict[str, Any] | None = None
    # How many entries had counted when `entries` begins.
    begins: int = 0
    entries: list[tuple[int, list[Entry]]] = field(default_factory=list)
    # Keys that are still there, to be deleted once a later state makes them superfluous.
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
        # Verdicts on what this process has written and not asked about yet.
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
        """What any process has written so far. Not to be changed by the caller."""
        with self._guard:
            self._read_to(self._clients.range(self._topic, LEDGERS)[1])
            return self._ledgers.setdefault(ledger, LedgerRecords())

    def names(self, prefix: str) -> list[str]:
        """The ledgers that are there and whose names begin so, without it, sorted."""
        with self._guard:
            self._read_to(self._clients.range(self._topic, LEDGERS)[1])
            found = [name for name, records in self._ledgers.items() if records.there and name.startswith(prefix)]
        return sorted(name.removeprefix(prefix) for name in found)

    def append(self, ledger: str, after: int, body: dict[str, Any]) -> bool:
        """Write an entry, or several that are one; whether it counts."""
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
        """Write down what `count` entries add up to; if nobody wrote meanwhile, what came before it is deleted."""
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
                # What lay at the end may have been compacted away.
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
            # Of more entries than are here: the others are gone. Of as many: what is here need not be kept any more.
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
