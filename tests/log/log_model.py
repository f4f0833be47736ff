"""A log as a list per partition: what the real one must equal, whatever was done to it and however often it died.

Nothing here is clever. An offset is a place in a list; what a reader sees is found by looking at every entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from mainstem.log.producer import Producer
from mainstem.log.rows.partitioner import key_bytes, partitions_of

# What a reader sees of a record: partition, offset, append time, change, headers, then the columns.
Shown = tuple[Any, ...]


@dataclass(slots=True)
class Entry:
    """One offset: a record with its fate, or the marker of a transaction."""

    row: dict[str, Any] | None
    at: int
    change: str = "insert"
    headers: list[dict[str, Any]] | None = None
    transaction: int = 0
    state: Literal["seen", "open", "aborted", "compacted", "marker"] = "seen"


@dataclass(slots=True)
class Sequences:
    """What a partition has of one producer: each sequence, its first entry, and where it lies."""

    appended: list[tuple[int, Entry, tuple[int, int]]] = field(default_factory=list)

    def kept(self) -> set[int]:
        """Those that count: what an aborted transaction appended may come again."""
        return {sequence for sequence, entry, _ in self.appended if entry.state != "aborted"}

    def places(self, wanted: int) -> list[tuple[int, int]]:
        """Where a sequence lies."""
        return [at for sequence, entry, at in self.appended if sequence == wanted and entry.state != "aborted"]


class ModelPartition:
    """The entries of one partition; their place is their offset."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: list[Entry] = []
        self.producers: dict[str, Sequences] = {}

    def stable(self) -> int:
        """Up to where everything is decided."""
        return next((at for at, entry in enumerate(self.entries) if entry.state == "open"), len(self.entries))

    def shown(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> list[Shown]:
        """What those see who go on from where they are: nothing may appear behind them later."""
        return self.committed(columns, start, self.stable() if stop is None else min(stop, self.stable()))

    def committed(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> list[Shown]:
        """Everything committed, also behind what is open: what a bounded read shows."""
        end = len(self.entries) if stop is None else stop
        return [
            (self.number, offset, entry.at, entry.change, entry.headers, *map(entry.row.get, columns))
            for offset, entry in enumerate(self.entries[:end])
            if offset >= start and entry.state == "seen" and entry.row is not None
        ]

    def decide(self, transaction: int, outcome: Literal["seen", "aborted"], now: int) -> None:
        theirs = [entry for entry in self.entries if entry.transaction == transaction and entry.state == "open"]
        for entry in theirs:
            entry.state = outcome
        if theirs:
            self.entries.append(Entry(None, now, state="marker"))


class ModelTopic:
    """A topic: partitions, and the columns it has by now."""

    def __init__(self, name: str, columns: dict[str, str], partitions: int) -> None:
        self.name = name
        self.columns = dict(columns)
        self.partitions = [ModelPartition(number) for number in range(partitions)]

    @property
    def ddl(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in self.columns.items())

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def placed(self, rows: Sequence[dict[str, Any]], keyless: int) -> dict[int, list[dict[str, Any]]]:
        """Which rows go to which partition; those without a key to `keyless`."""
        keys = pa.RecordBatch.from_arrays([pa.array([row["k"] for row in rows], pa.string())], ["k"])
        found: dict[int, list[dict[str, Any]]] = {}
        for row, number in zip(
            rows, partitions_of(key_bytes(keys, ("k",)), len(self.partitions)).tolist(), strict=True
        ):
            found.setdefault(keyless if number < 0 else number, []).append(row)
        return found

    def append(
        self,
        rows: dict[int, list[dict[str, Any]]],
        now: int,
        *,
        transaction: int = 0,
        producer: str = "",
        sequence: int = -1,
    ) -> dict[int, tuple[int, int]]:
        """Append rows to their partitions, unless they are there; where those that were not there before lie."""
        offsets: dict[int, tuple[int, int]] = {}
        if producer and sequence in self.sequences(producer):
            return offsets
        for number, part in rows.items():
            partition = self.partitions[number]
            first = len(partition.entries)
            for row in part:
                values = {name: value for name, value in row.items() if name != "record"}
                record = row.get("record", {})
                partition.entries.append(
                    Entry(
                        values,
                        now,
                        record.get("change", "insert"),
                        record.get("headers"),
                        transaction,
                        "open" if transaction else "seen",
                    )
                )
            if producer:
                at = (first, len(partition.entries))
                partition.producers.setdefault(producer, Sequences()).appended.append(
                    (sequence, partition.entries[first], at)
                )
            offsets[number] = (first, len(partition.entries))
        return offsets

    def sequences(self, producer: str) -> set[int]:
        """All that the topic has of a producer."""
        return {
            sequence
            for partition in self.partitions
            if producer in partition.producers
            for sequence in partition.producers[producer].kept()
        }

    def last_sequence(self, producer: str) -> int:
        return max(self.sequences(producer), default=-1)

    def shown(self, columns: Sequence[str] | None = None) -> list[Shown]:
        """What those see who go on from where they are, in each partition up to the first record that is open."""
        names = self.names if columns is None else [name for name in self.names if name in columns]
        return [row for partition in self.partitions for row in partition.shown(names)]

    def committed(
        self,
        columns: Sequence[str] | None = None,
        start: dict[int, int] | None = None,
        stop: dict[int, int] | None = None,
    ) -> list[Shown]:
        """What a bounded read gives: partitions that are not named are read from their start, and not at all to a stop."""
        names = self.names if columns is None else [name for name in self.names if name in columns]
        return [
            row
            for partition in self.partitions
            if stop is None or partition.number in stop
            for row in partition.committed(
                names,
                0 if start is None else start.get(partition.number, 0),
                None if stop is None else stop[partition.number],
            )
        ]

    def compacted_to(self, left: Iterable[Shown], now: int, tombstones: int) -> list[str]:
        """Take over what a compaction left, and say what it did wrong."""
        wrong = []
        kept = {(row[0], row[1]) for row in left}
        for partition in self.partitions:
            before = partition.shown(self.names)
            latest = {row[5]: row[1] for row in before}
            for row in before:
                offset, at, change, key = row[1], row[2], row[3], row[5]
                if (partition.number, offset) in kept:
                    if latest[key] != offset and partition.stable() == len(partition.entries):
                        wrong.append(f"{partition.number}:{offset} of key {key} is superseded and still there")
                    continue
                forgotten = change == "delete" and now - at >= tombstones
                if latest[key] == offset and not forgotten:
                    wrong.append(f"{partition.number}:{offset}, the latest of key {key}, is gone")
                partition.entries[offset].state = "compacted"
        return wrong


@dataclass(slots=True)
class ModelTransaction:
    """A transaction under way."""

    number: int
    begun_at: int
    producer: Producer | None = None


@dataclass(slots=True)
class ModelMessage:
    """A message of a queue that was given out and is not settled."""

    at: int
    partition: int
    offset: int
    deliveries: int = 0
    take: int = 0
    until: int = 0

    @property
    def age(self) -> tuple[int, int, int]:
        return self.at, self.partition, self.offset


class ModelQueue:
    """A queue: which messages are open, which are done, and what was rejected for which cause."""

    def __init__(self, topic: ModelTopic, *, lease: int, deliveries_max: int) -> None:
        self._topic = topic
        self._lease = lease
        self._deliveries_max = deliveries_max
        self.open: dict[tuple[int, int], ModelMessage] = {}
        self.given: set[tuple[int, int]] = set()
        self.rejected: list[tuple[int, int, str]] = []
        self.takes = 0

    def take(self, count: int, now: int) -> list[ModelMessage]:
        """What a take gives: what came back first, then what was never given out, the oldest first."""
        loose = [message for message in self.open.values() if not (message.take and message.until > now)]
        for message in loose:
            if message.deliveries >= self._deliveries_max:
                self.reject(message, "deliveries")
        due = [
            message
            for message in loose
            if (message.partition, message.offset) in self.open and (message.take or message.until <= now)
        ]
        chosen = sorted(due, key=lambda message: message.age)[:count]
        fresh = sorted(
            (
                ModelMessage(row[2], row[0], row[1])
                for row in self._topic.shown([])
                if (row[0], row[1]) not in self.given
            ),
            key=lambda message: message.age,
        )
        chosen += fresh[: count - len(chosen)]
        if chosen:
            self.takes += 1
        for message in chosen:
            message.deliveries += 1
            message.take, message.until = self.takes, now + self._lease
            self.open[message.partition, message.offset] = message
            self.given.add((message.partition, message.offset))
        return chosen

    def held(self, partition: int, offset: int, take: int) -> ModelMessage | None:
        """The message, if that delivery of it is the one that counts."""
        message = self.open.get((partition, offset))
        return message if message is not None and message.take == take else None

    def acknowledge(self, message: ModelMessage) -> None:
        del self.open[message.partition, message.offset]

    def release(self, message: ModelMessage, until: int) -> None:
        message.take, message.until = 0, until
        if message.deliveries >= self._deliveries_max:
            self.reject(message, "deliveries")

    def reject(self, message: ModelMessage, cause: str) -> None:
        del self.open[message.partition, message.offset]
        self.rejected.append((message.partition, message.offset, cause))
