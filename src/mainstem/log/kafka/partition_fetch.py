"""PartitionFetch: the messages of one partition, read on from where the last reader left off."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mainstem.clock import Clock
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import kafka_errors, unavailable

__all__ = ["PartitionFetch", "PartitionFetches"]

POLL_SECONDS = 0.2
# How long the broker may hold a question it has no answer to. Short: what follows the last record may be a marker, which
# is no message, so only the broker's answer tells that nothing more is there. Nothing is asked once that is known.
WAIT_MILLISECONDS = 10
TOGETHER_MAX = 10_000
# Partitions that are read at the same time; each has a connection.
OPEN_MAX = 16


class PartitionFetch:
    """One partition's messages, in order; those of transactions that are not committed only if asked for. A lock is held while
    one reads."""

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
        # Known to hold no message: from the one to the other.
        self._empty = -1, -1

    def read(self, start: int, stop: int, count: int) -> list[Message]:
        """The next 1 to `count` messages from `start` on and before `stop`; none only if there are none."""
        with self._guard, kafka_errors(self._clients.settings.servers, self._place[0]):
            if start >= stop or (self._empty[0] <= start and stop <= self._empty[1]):
                return []
            return self._read(start, stop, count)

    def _read(self, start: int, stop: int, count: int) -> list[Message]:
        consumer = self._positioned(start)
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

    def _positioned(self, start: int) -> Consumer:
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
        """Ask the broker no more until somebody wants to know again."""
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
        """The fetch of a partition; of a topic that was made anew under its name another one."""
        key = topic, topic_id, partition
        old: list[PartitionFetch] = []
        with self._guard:
            fetch = self._open.pop(key, None) or PartitionFetch(self._clients, topic, partition, self._clock)
            # The one asked for last is the last to go.
            self._open[key] = fetch
            while len(self._open) > OPEN_MAX:
                old.append(self._open.pop(next(iter(self._open))))
        for one in old:
            one.close()
        return fetch

    def messages(self, topic: str, topic_id: str, partition: int, start: int, stop: int) -> Iterator[list[Message]]:
        """All messages of a range, some at a time."""
        while found := self.of(topic, topic_id, partition).read(start, stop, TOGETHER_MAX):
            yield found
            start = found[-1].offset() + 1

    def close(self) -> None:
        with self._guard:
            fetches, self._open = list(self._open.values()), {}
        for fetch in fetches:
            fetch.close()
