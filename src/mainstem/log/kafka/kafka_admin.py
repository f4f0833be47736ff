"""KafkaAdmin: creates, alters and deletes topics on the brokers, with the configuration for their settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from mainstem.clock import Clock
from mainstem.errors import TopicNotFound
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import code_of, kafka_errors, unavailable
from mainstem.log.state_ledger import Entry
from mainstem.log.topic_settings import TopicSettings

__all__ = ["KafkaAdmin", "TopicEntry", "TopicsState", "topic_configs"]


# TopicsState: the facts about a log's topics that Kafka does not store.
#
# created    name, id, settings, adopted     a topic was created, or adopted from other programs
# altered    name, settings
# deleted    name


@dataclass(slots=True)
class TopicEntry:
    """One topic. `id` is unique forever; `adopted`: other programs write to it, and may write anything."""

    id: str
    settings: TopicSettings
    adopted: bool = False


@dataclass(slots=True)
class TopicsState:
    """All topics, by name."""

    topics: dict[str, TopicEntry] = field(default_factory=dict)

    def apply(self, entry: Entry, at: int) -> None:
        name = entry["name"]
        match entry["kind"]:
            case "created":
                settings = TopicSettings.from_json(entry["settings"])
                self.topics[name] = TopicEntry(entry["id"], settings, entry.get("adopted", False))
            case "altered":
                self.topics[name].settings = TopicSettings.from_json(entry["settings"])
            case "deleted":
                self.topics.pop(name, None)

    def snapshot(self) -> dict[str, Any]:
        return {name: [it.id, it.settings.to_json(), it.adopted] for name, it in self.topics.items()}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        return cls(
            {
                name: TopicEntry(topic_id, TopicSettings.from_json(settings), adopted)
                for name, (topic_id, settings, adopted) in snapshot.items()
            }
        )


MILLISECOND = timedelta(milliseconds=1)
PAUSE_SECONDS = 0.05


def topic_configs(settings: TopicSettings) -> dict[str, str]:
    """A topic's settings as configuration of Kafka.

    >>> topic_configs(TopicSettings.of("orders", schema="id STRING", keep="7 days"))["retention.ms"]
    '604800000'
    """
    keep = settings.keep
    configs = {
        "cleanup.policy": "compact" if keep.compacted else "delete",
        "retention.ms": str(-1 if keep.age is None else keep.age // MILLISECOND),
        "retention.bytes": str(-1 if keep.size is None else keep.size),
        # A record is as large as its columns; JSON may need twice that.
        "max.message.bytes": str(min(2 * settings.record_bytes_max + (1 << 20), (1 << 31) - 1)),
        "message.timestamp.type": "CreateTime",
    }
    if keep.compacted:
        configs["delete.retention.ms"] = str(keep.tombstones // MILLISECOND)
        configs["min.compaction.lag.ms"] = str(keep.lag_min // MILLISECOND)
        if keep.lag_max is not None:
            configs["max.compaction.lag.ms"] = str(max(1, keep.lag_max // MILLISECOND))
    return configs


class KafkaAdmin:
    """Operations on topics. Thread-safe."""

    def __init__(self, clients: KafkaClients, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        self._settings = clients.settings

    def partitions(self) -> dict[str, int]:
        """The number of partitions of each topic on the brokers."""
        with kafka_errors(self._settings.servers):
            topics = self._clients.admin.list_topics(timeout=self._clients.patience).topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def create(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        """Create topics with this many partitions; existing ones do not change."""

        def attempt() -> bool:
            made = self._clients.admin.create_topics(
                [self._new(name, number, configs) for name, (number, configs) in topics.items()],
                operation_timeout=self._clients.patience,
            )
            for future in made.values():
                try:
                    future.result()
                except KafkaException as error:
                    if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
            # A topic being deleted still exists for a while; a new one has no leader at first.
            return all(self._leads(name, number) for name, (number, _) in topics.items())

        self._until(attempt, f"topics {', '.join(topics)} were not made in time")

    def _leads(self, name: str, partitions: int) -> bool:
        """Whether a topic can be used."""
        if name not in self.partitions():
            return False
        try:
            self._clients.ends(name, range(partitions))
        except TopicNotFound:
            return False
        return True

    def _new(self, name: str, partitions: int, configs: Mapping[str, str]) -> NewTopic:
        settings = self._settings
        more = (
            {} if settings.min_insync_replicas is None else {"min.insync.replicas": str(settings.min_insync_replicas)}
        )
        copies = -1 if settings.replication_factor is None else settings.replication_factor
        return NewTopic(name, num_partitions=partitions, replication_factor=copies, config={**configs, **more})

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it no longer exists."""

        def attempt() -> bool:
            try:
                self._clients.admin.delete_topics([name], operation_timeout=self._clients.patience)[name].result()
            except KafkaException as error:
                if code_of(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            return name not in self.partitions()

        self._until(attempt, f"topic {name} was not deleted in time")

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions to a topic."""
        with kafka_errors(self._settings.servers, name):
            if self.partitions()[name] < partitions:
                self._clients.admin.create_partitions([NewPartitions(name, partitions)])[name].result()
        self._until(lambda: self.partitions()[name] >= partitions, f"topic {name} did not grow in time")

    def configure(self, name: str, configs: Mapping[str, str]) -> None:
        """Change some configurations of a topic; the others do not change."""
        entries = [
            ConfigEntry(key, value, ConfigSource.DYNAMIC_TOPIC_CONFIG, incremental_operation=AlterConfigOpType.SET)
            for key, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        with kafka_errors(self._settings.servers, name):
            self._clients.admin.incremental_alter_configs([resource])[resource].result()

    def delete_before(self, name: str, offsets: Mapping[int, int]) -> None:
        """Delete the messages before an offset in each partition."""
        places = [TopicPartition(name, partition, offset) for partition, offset in offsets.items()]
        with kafka_errors(self._settings.servers, name):
            for future in self._clients.admin.delete_records(places).values():
                future.result()

    def _until(self, attempt: Callable[[], bool], said: str) -> None:
        deadline = self._clock.monotonic() + int(self._clients.patience * 1_000_000)
        pause = threading.Event()
        with kafka_errors(self._settings.servers):
            while not attempt():
                if self._clock.monotonic() > deadline:
                    raise unavailable(self._settings.servers, said)
                pause.wait(PAUSE_SECONDS)
