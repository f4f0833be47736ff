"""TransactionNotes: the spans that Mainstem's transactions wrote, in a topic beside the others.

Kafka does not tell which records belong to one transaction. So each transaction of Mainstem that wrote more than one
message writes a note to `mainstem.transactions`, one partition, as its last record before the commit:

    value    {"transaction": 17, "spans": {"<topic id>": {"<partition>": [first message, the one behind the last]}}}

Notes are read uncommitted, so no reader waits for a writer that stopped between its note and its commit. A reader that
sees a record of a transaction also finds its note, which was written before the commit. A note of an open or aborted
transaction does no harm: its records are not visible, and no batch is cut because of them.

Notes are kept longer than the records: `keep_milliseconds`.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import IsolationLevel

from mainstem.clock import Clock
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_messages import Outgoing
from mainstem.log.kafka.kafka_reads import PartitionFetch
from mainstem.log.keep_rule import Keep
from mainstem.log.transaction_cut import TransactionSpans

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_writer import Ranges

__all__ = ["TransactionNotes", "WrittenSpans", "keep_milliseconds"]

ROWS = 10_000
MILLISECOND = timedelta(milliseconds=1)
# Brokers drop whole segments, each up to a week long by default: records stay that much longer.
MARGIN = timedelta(days=14)

# The id of a topic, and a partition.
Lane = tuple[str, int]


def keep_milliseconds(topics: Iterable[Keep]) -> int:
    """The retention of notes (`retention.ms`): longer than that of all topics; -1: forever.

    >>> keep_milliseconds([Keep.parse("1 day"), Keep.parse("2 days")]) // 86_400_000
    16
    >>> keep_milliseconds([Keep.parse("1 day"), Keep.parse("forever")])
    -1
    """
    longest = timedelta(0)
    for keep in topics:
        if keep.age is None:
            return -1
        longest = max(longest, keep.age)
    return (longest + MARGIN) // MILLISECOND


class WrittenSpans:
    """The spans that one transaction has written so far."""

    def __init__(self) -> None:
        self._messages = 0
        self._spans: dict[str, dict[str, list[int]]] = {}

    def add(self, topic_id: str, offsets: Ranges, messages: int) -> None:
        self._messages += messages
        known = self._spans.setdefault(topic_id, {})
        for number, (first, end) in offsets.items():
            before = known.get(str(number), [first, end])
            known[str(number)] = [min(first, before[0]), max(end, before[1])]

    def has(self, topic_id: str, partition: int) -> bool:
        """Whether it has written to a partition."""
        return str(partition) in self._spans.get(topic_id, {})

    def note(self, transaction: int) -> Outgoing | None:
        """Its note; None if it wrote a single message, which is always atomic."""
        if self._messages < 2:
            return None
        value = {"transaction": transaction, "spans": self._spans}
        return Outgoing(None, json.dumps(value, separators=(",", ":")).encode(), None)


class TransactionNotes:
    """The notes that one reader needs, as far as it has read them: one row for each partition of each transaction.

    The offset of its note identifies a transaction. Not thread-safe.
    """

    def __init__(self, clients: KafkaClients, topic: str, clock: Clock) -> None:
        self._clients = clients
        self._topic = topic
        self._fetch = PartitionFetch(clients, topic, 0, clock, isolation="read_uncommitted")
        self._lanes: dict[Lane, int] = {}
        # Note, lane, first, end: one array each, for fast searches.
        self._rows = np.empty((4, 0), np.int64)
        # The offset up to which notes were read, and the one before the last read.
        self._position = self._before = 0

    @property
    def needed_from(self) -> int:
        """A reader that has passed the offsets given to `forget` needs no notes before this one."""
        return int(self._rows[0].min(initial=self._position))

    def begin_at(self, position: int) -> None:
        """Skip notes that are known not to be needed, before the first read."""
        self._position = max(self._position, position)

    def read(self, topics: Container[str] | None, starts: Mapping[Lane, int]) -> None:
        """Read all notes written so far, of some topics or all; ignores spans before the starts."""
        end = self._clients.ends(self._topic, [0], IsolationLevel.READ_UNCOMMITTED)[0]
        position = self._position
        if end > position:
            # Expired notes are skipped.
            position = max(position, self._clients.range(self._topic, 0)[0])
        parts = [self._rows]
        while messages := self._fetch.read(position, end, ROWS):
            found = [
                (message.offset(), self._lanes.setdefault((topic, int(number)), len(self._lanes)), first, last)
                for message in messages
                for topic, spans in json.loads(message.value())["spans"].items()
                if topics is None or topic in topics
                for number, (first, last) in spans.items()
                if first >= starts.get((topic, int(number)), 0)
            ]
            parts.append(np.array(found, np.int64).reshape(-1, 4).T)
            position = messages[-1].offset() + 1
        # Assigned at once, so that an interrupted read can be repeated.
        self._rows = np.ascontiguousarray(np.concatenate(parts, axis=1))
        self._before, self._position = self._position, max(position, end)

    def forget(self, starts: Mapping[Lane, int]) -> None:
        """Forget transactions that began before these offsets, and those of other topics read since the last call."""
        # A topic that did not exist at the last read may be read from its beginning.
        limits = np.full(len(self._lanes), -1, np.int64)
        for lane, at in starts.items():
            if lane in self._lanes:
                limits[self._lanes[lane]] = at
        notes, lanes, firsts, _ = self._rows
        begin = limits[lanes]
        self._rows = self._rows[:, np.where(begin < 0, notes >= self._before, firsts >= begin)]

    def drop_lost(self, written: Mapping[Lane, int]) -> bool:
        """Forget spans after the ends of partitions; whether there were any. Brokers have lost them, since notes come
        last."""
        limits = np.full(len(self._lanes), np.iinfo(np.int64).max)
        for lane, end in written.items():
            if lane in self._lanes:
                limits[self._lanes[lane]] = end
        there = self._rows[3] <= limits[self._rows[1]]
        self._rows = self._rows[:, there]
        return not there.all()

    def find_touching(self, ends: Mapping[Lane, int]) -> dict[Lane, TransactionSpans]:
        """For each lane, the spans of all transactions that have a record before an end in any lane."""
        limits = np.zeros(len(self._lanes), np.int64)
        for lane, at in ends.items():
            if lane in self._lanes:
                limits[self._lanes[lane]] = at
        notes, lanes, firsts, lasts = self._rows
        touched = np.unique(notes[firsts < limits[lanes]])
        # They are in the order of their notes.
        places = np.searchsorted(notes, touched, side="left")
        counts = np.searchsorted(notes, touched, side="right") - places
        chosen = np.repeat(places - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        found = {}
        for lane in ends:
            own = chosen[lanes[chosen] == self._lanes.get(lane, -1)]
            found[lane] = TransactionSpans(notes[own], firsts[own], lasts[own])
        return found

    def close(self) -> None:
        self._fetch.close()
