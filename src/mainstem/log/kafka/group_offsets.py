"""GroupOffsets: what a group has committed, told to Kafka under its own name, so that other tools see its lag.

Members, assignment and committed offsets of a group are decided in its ledger. Kafka's own consumer group
`<prefix><topic>.<group>` has no members and is only ever a copy: told behind each commit, and not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from mainstem.clock import Clock
from mainstem.log.group_state import GroupState
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import LOGGER
from mainstem.log.kafka.kafka_ledger import KafkaLedger
from mainstem.log.kafka.state_topic import StateTopic
from mainstem.log.state_ledger import Entry

__all__ = ["GroupLedger", "GroupOffsets"]

T = TypeVar("T")


class GroupOffsets:
    """Kafka's copy of one group's offsets."""

    def __init__(self, clients: KafkaClients, topic: str, group: str, message_of: Callable[[int], int]) -> None:
        self._clients = clients
        self._topic = topic
        self._name = f"{topic}.{group}"
        self._message_of = message_of
        self._told: dict[int, int] = {}

    def tell(self, committed: Mapping[int, int]) -> None:
        """Tell Kafka what has changed since it was last told by this process."""
        changed = {partition: offset for partition, offset in committed.items() if self._told.get(partition) != offset}
        if not changed:
            return
        places = [TopicPartition(self._topic, number, self._message_of(offset)) for number, offset in changed.items()]
        try:
            told = self._clients.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self._name, places)])
        except (KafkaException, ValueError) as error:
            LOGGER.info("offsets of group %s were not told: %s", self._name, error)
            return
        for future in told.values():
            future.add_done_callback(self._noted)
        self._told |= changed

    def _noted(self, future: Any) -> None:
        if (error := future.exception()) is not None:
            # Told again with the next commit: nothing of ours hangs on it.
            self._told.clear()
            LOGGER.info("offsets of group %s were not told: %s", self._name, error)


class GroupLedger(KafkaLedger[GroupState]):
    """A group's ledger that tells Kafka of its offsets."""

    def __init__(self, topic: StateTopic, name: str, clock: Clock, offsets: GroupOffsets) -> None:
        super().__init__(topic, name, clock, GroupState, GroupState.restore)
        self._offsets = offsets

    def decide(self, decision: Callable[[GroupState, int], tuple[list[Entry], T]]) -> T:
        result = super().decide(decision)
        self._offsets.tell(self.seen().committed)
        return result
