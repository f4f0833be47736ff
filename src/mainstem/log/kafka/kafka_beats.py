"""KafkaBeats: signs of life of a group's members, beside the ledgers in the state topic.

How long a member has been silent is measured by the clock of who looks, from when it saw the last sign: machines need not
agree on the time. So a new onlooker waits for one session before it takes anybody for dead.
"""

from __future__ import annotations

import threading

from mainstem.clock import Clock
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_writer import KafkaWriter
from mainstem.log.kafka.partition_fetch import PartitionFetch
from mainstem.log.kafka.state_topic import BEATS

__all__ = ["BeatsTopic", "KafkaBeats"]

ROWS = 10_000


class BeatsTopic:
    """When each member was last heard of, by this process's own clock. Thread-safe."""

    def __init__(self, clients: KafkaClients, topic: str, clock: Clock, writer: KafkaWriter) -> None:
        self._clients = clients
        self._topic = topic
        self._clock = clock
        self._writer = writer
        self._guard = threading.RLock()
        self._fetch = PartitionFetch(clients, topic, BEATS, clock)
        self._position = -1
        self._heard: dict[str, int] = {}

    def beat(self, key: str) -> None:
        self._writer.send_one(self._topic, BEATS, key, b"1", self._clock.now() // 1000)

    def forget(self, key: str) -> None:
        self._writer.send_one(self._topic, BEATS, key, None, self._clock.now() // 1000)

    def age(self, key: str) -> int | None:
        with self._guard:
            self._listen()
            heard = self._heard.get(key)
            return None if heard is None else self._clock.boot() - heard

    def _listen(self) -> None:
        low, end = self._clients.range(self._topic, BEATS)
        self._position = max(self._position, low)
        while messages := self._fetch.read(self._position, end, ROWS):
            for message in messages:
                key = message.key().decode()
                if message.value() is None:
                    self._heard.pop(key, None)
                else:
                    self._heard[key] = self._clock.boot()
            self._position = messages[-1].offset() + 1
        self._position = max(self._position, end)

    def close(self) -> None:
        self._fetch.close()


class KafkaBeats:
    """The members of one group."""

    def __init__(self, topic: BeatsTopic, group: str) -> None:
        self._topic = topic
        self._group = group

    def beat(self, member: str) -> None:
        self._topic.beat(f"{self._group}|{member}")

    def age(self, member: str) -> int | None:
        return self._topic.age(f"{self._group}|{member}")

    def forget(self, member: str) -> None:
        self._topic.forget(f"{self._group}|{member}")
