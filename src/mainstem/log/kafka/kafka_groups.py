"""GroupOffsets: copies a group's committed offsets to a Kafka consumer group, so that other tools see its lag.

Members, assignment and committed offsets of a group are decided in its ledger. Kafka's own consumer group
`<prefix><topic>.<group>` has no members and is only a copy: updated after each commit, without waiting for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from mainstem.clock import Clock
from mainstem.log.groups.group_state import GroupState
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import LOGGER
from mainstem.log.kafka.kafka_reads import PartitionFetch
from mainstem.log.kafka.kafka_writer import KafkaWriter
from mainstem.log.kafka.state_topic import BEATS, KafkaLedger, StateTopic
from mainstem.log.state_ledger import Entry

__all__ = ["HeartbeatsTopic", "GroupLedger", "GroupOffsets", "KafkaHeartbeats"]


# KafkaHeartbeats: the heartbeats of a group's members, beside the ledgers in the state topic.
#
# The age of a heartbeat is measured by the observer's clock, from when it received it: clocks of machines need not
# agree. So a new observer waits for one session before it considers any member dead.


ROWS = 10_000


class HeartbeatsTopic:
    """The last heartbeat of each member, by this process's own clock. Thread-safe."""

    def __init__(self, clients: KafkaClients, topic: str, clock: Clock, writer: KafkaWriter) -> None:
        self._clients = clients
        self._topic = topic
        self._clock = clock
        self._writer = writer
        self._guard = threading.RLock()
        self._fetch = PartitionFetch(clients, topic, BEATS, clock)
        self._position = -1
        self._heard: dict[str, int] = {}

    def heartbeat(self, key: str) -> None:
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


class KafkaHeartbeats:
    """The heartbeats of one group."""

    def __init__(self, topic: HeartbeatsTopic, group: str) -> None:
        self._topic = topic
        self._group = group

    def heartbeat(self, member: str) -> None:
        self._topic.heartbeat(f"{self._group}|{member}")

    def age(self, member: str) -> int | None:
        return self._topic.age(f"{self._group}|{member}")

    def forget(self, member: str) -> None:
        self._topic.forget(f"{self._group}|{member}")


T = TypeVar("T")


class GroupOffsets:
    """Kafka's copy of one group's offsets."""

    def __init__(self, clients: KafkaClients, topic: str, group: str, message_of: Callable[[int], int]) -> None:
        self._clients = clients
        self._topic = topic
        self._name = f"{topic}.{group}"
        self._message_of = message_of
        self._copied: dict[int, int] = {}

    def copy_offsets(self, committed: Mapping[int, int]) -> None:
        """Commit to Kafka the offsets that changed since this process last did."""
        changed = {
            partition: offset for partition, offset in committed.items() if self._copied.get(partition) != offset
        }
        if not changed:
            return
        places = [TopicPartition(self._topic, number, self._message_of(offset)) for number, offset in changed.items()]
        try:
            told = self._clients.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self._name, places)])
        except (KafkaException, ValueError) as error:
            LOGGER.info("offsets of group %s were not told: %s", self._name, error)
            return
        for future in told.values():
            future.add_done_callback(self._on_commit)
        self._copied |= changed

    def _on_commit(self, future: Any) -> None:
        if (error := future.exception()) is not None:
            # Repeated with the next commit: Mainstem itself does not depend on it.
            self._copied.clear()
            LOGGER.info("offsets of group %s were not told: %s", self._name, error)


class GroupLedger(KafkaLedger[GroupState]):
    """A group's ledger that copies its offsets to Kafka."""

    def __init__(self, topic: StateTopic, name: str, clock: Clock, offsets: GroupOffsets) -> None:
        super().__init__(topic, name, clock, GroupState, GroupState.restore)
        self._offsets = offsets

    def decide(self, decision: Callable[[GroupState, int], tuple[list[Entry], T]]) -> T:
        result = super().decide(decision)
        self._offsets.copy_offsets(self.last_state().committed)
        return result
