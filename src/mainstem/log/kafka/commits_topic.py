"""CommitsTopic: what transactions say of themselves in the very moment they become true.

A compacted topic that is only ever written within transactions, and only right before they are committed:

    sequence|<producer>|<topic id>    the highest sequence of a producer in a topic, and where it lies
    outcome|<slot>                    the last transactions of one transactional id that were committed

A record is there if and only if its transaction was committed. Thread-safe.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import IsolationLevel

from mainstem.clock import Clock
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import unavailable
from mainstem.log.kafka.partition_fetch import PartitionFetch

__all__ = ["CommitsTopic"]

# A transaction that has written here is about to end: that takes milliseconds, unless its process died just then.
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
        """All that was committed before now, by key. Waits for transactions that were writing here when asked."""
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
