"""TransactionNotes: where Mainstem's own transactions wrote, in a topic beside the others.

Kafka does not tell which records belong to one transaction. So each transaction of Mainstem that wrote more than one message
says so in `mainstem.transactions`, one partition, as the last thing before its commit and as a part of it:

    value    {"transaction": 17, "spans": {"<topic id>": {"<partition>": [first message, the one behind the last]}}}

Notes are read whether their transactions are decided or not. So no reader waits for a writer that stopped between its
note and its commit. Whoever sees a record of a transaction finds its note, since that was written before the commit. A
note of a transaction that is open or was aborted does no harm: its records are not there, and no batch has to be cut
because of them.

A note is kept as long as the records can be: `keep_milliseconds`.
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
# Brokers drop whole segments, each a week after it was begun if not told otherwise: records stay that much longer.
MARGIN = timedelta(days=14)

# The id of a topic, and a partition.
Lane = tuple[str, int]


def keep_milliseconds(topics: Iterable[Keep]) -> int:
    """For how long notes are kept (`retention.ms`): longer than the records of any of the topics; -1 for ever.

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
    """Where one transaction has written so far."""

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
        """Its note; None if it wrote a single message, which is always visible as a whole."""
        if self._messages < 2:
            return None
        value = {"transaction": transaction, "spans": self._spans}
        return Outgoing(None, json.dumps(value, separators=(",", ":")).encode(), None)


class TransactionNotes:
    """The notes that matter to one reader, as far as it has read them: one row for each partition of each transaction.

    A transaction is known by the offset of its note. For one thread.
    """

    def __init__(self, clients: KafkaClients, topic: str, clock: Clock) -> None:
        self._clients = clients
        self._topic = topic
        self._fetch = PartitionFetch(clients, topic, 0, clock, isolation="read_uncommitted")
        self._lanes: dict[Lane, int] = {}
        # Note, lane, first, end: each by itself, so that it is looked at fast.
        self._rows = np.empty((4, 0), np.int64)
        # Up to where notes were read, and up to where they had been read the time before.
        self._position = self._before = 0

    @property
    def needed_from(self) -> int:
        """Notes before this one never matter again to who has passed what `forget` was told."""
        return int(self._rows[0].min(initial=self._position))

    def begin_at(self, position: int) -> None:
        """Pass over what is known not to matter, before anything is read."""
        self._position = max(self._position, position)

    def read(self, topics: Container[str] | None, starts: Mapping[Lane, int]) -> None:
        """Read all that is written now. Of some topics, or all; of what lies before the starts nothing is taken."""
        end = self._clients.ends(self._topic, [0], IsolationLevel.READ_UNCOMMITTED)[0]
        position = self._position
        if end > position:
            # Those that are too old are gone.
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
        # All at once: who is interrupted reads the same again.
        self._rows = np.ascontiguousarray(np.concatenate(parts, axis=1))
        self._before, self._position = self._position, max(position, end)

    def forget(self, starts: Mapping[Lane, int]) -> None:
        """Forget what began before these offsets, and what is known of other topics since the last reading."""
        # A topic that was not there when notes were last read may be read from its beginning on.
        limits = np.full(len(self._lanes), -1, np.int64)
        for lane, at in starts.items():
            if lane in self._lanes:
                limits[self._lanes[lane]] = at
        notes, lanes, firsts, _ = self._rows
        begin = limits[lanes]
        self._rows = self._rows[:, np.where(begin < 0, notes >= self._before, firsts >= begin)]

    def drop_lost(self, written: Mapping[Lane, int]) -> bool:
        """Forget what was written behind the ends of partitions, if there is any: brokers have lost it, since notes come last."""
        limits = np.full(len(self._lanes), np.iinfo(np.int64).max)
        for lane, end in written.items():
            if lane in self._lanes:
                limits[self._lanes[lane]] = end
        there = self._rows[3] <= limits[self._rows[1]]
        self._rows = self._rows[:, there]
        return not there.all()

    def touching(self, ends: Mapping[Lane, int]) -> dict[Lane, TransactionSpans]:
        """Of each lane where all transactions wrote that have a record before an end, in any lane."""
        limits = np.zeros(len(self._lanes), np.int64)
        for lane, at in ends.items():
            if lane in self._lanes:
                limits[self._lanes[lane]] = at
        notes, lanes, firsts, lasts = self._rows
        touched = np.unique(notes[firsts < limits[lanes]])
        # They lie in the order of their notes.
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
