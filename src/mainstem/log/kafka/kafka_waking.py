"""KafkaWaking: sleeps until something is appended to one of some partitions, by any process on any machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from mainstem.clock import Clock
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import kafka_errors
from mainstem.log.kafka.kafka_processes import known_dead
from mainstem.log.processes import Identity

__all__ = ["KafkaWaking"]

# Between two looks whether one of the processes has ended.
LOOK_SECONDS = 0.1


class KafkaWaking:
    """Waits for appends. What was appended since the last return of `wait` counts too. For one thread.

    Ends of partitions are compared first, so a reader that is kept busy fetches nothing twice. Only who really waits lets
    the broker hold a question until there is an answer.
    """

    def __init__(self, clients: KafkaClients, topics: Mapping[str, int | range], clock: Clock) -> None:
        self._clients = clients
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
        """Whether something came, or one of the processes ended, within so many seconds."""
        watched = list(processes)
        deadline = self._clock.monotonic() + int(seconds * 1_000_000)
        with kafka_errors(self._clients.settings.servers):
            ends = self._ends()
            if ends != self._seen:
                self._seen = ends
                return True
            consumer = self._positioned(ends)
            while True:
                if any(known_dead(process) for process in watched):
                    return True
                left = (deadline - self._clock.monotonic()) / 1_000_000
                if left <= 0:
                    return False
                message = consumer.poll(min(left, LOOK_SECONDS) if watched else left)
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
                        # The end of a transaction: no message, but it lets others be seen.
                        self._listening = {}
                        self._seen = self._ends()
                        return True
                elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return True
                else:
                    raise KafkaException(error)

    def _positioned(self, ends: dict[tuple[str, int], int]) -> Consumer:
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
