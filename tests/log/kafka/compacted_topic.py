"""A compacted topic that the broker itself compacts, within a second instead of a week."""

from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.keep_rule import Keep
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem

SCHEMA = "k string, n bigint"
PARTITIONS = 2
# A segment ends after a tenth of a second, and is worth compacting at once.
EAGER = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100"}
# Rows of this key only move the log on: the segment that is written to is never compacted.
FILLER = "filler"
ROUNDS_MAX = 500


class CompactedTopic:
    """A topic with its latest rows. What was superseded is really gone once `compacted()` returns."""

    def __init__(self, stem: Mainstem, name: str = "stock") -> None:
        assert isinstance(stem.log, KafkaLog)
        self.log = stem.log
        keep = Keep.latest_per_key(tombstones="100 milliseconds")
        self.topic: Topic = stem.create_topic(name, schema=SCHEMA, key="k", keep=keep, partitions=PARTITIONS)
        self.kafka_name = self.log.kafka_name(name)
        self.log.admin.configure(self.kafka_name, EAGER)
        self.latest: dict[str, int] = {}

    def put(self, rows: dict[str, int]) -> None:
        self.topic.append([{"k": k, "n": n} for k, n in rows.items()])
        self.latest |= rows

    def delete(self, *keys: str) -> None:
        self.topic.delete(list(keys))
        for key in keys:
            del self.latest[key]

    def compacted(self) -> None:
        """Write on until the broker has nothing but the latest of each key, and no deletion; then what is there."""
        for number in range(ROUNDS_MAX):
            # In both partitions, a later one in the place of an earlier.
            for partition in range(PARTITIONS):
                self.topic.append([{"k": f"{FILLER}-{partition}", "n": number}], partition=partition)
            there = [key for key, _ in self.messages() if not key.startswith(FILLER)]
            if sorted(there) == sorted(self.latest):
                return
        raise AssertionError(f"the broker did not compact: {len(there)} messages for {len(self.latest)} keys")

    def messages(self) -> list[tuple[str, bytes | None]]:
        """Key and value of every message on the broker, as a program sees them that knows nothing of Mainstem."""
        settings = {
            "bootstrap.servers": self.log.kafka_settings.servers, "group.id": "probe", "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }  # fmt: skip
        consumer = Consumer(settings)
        found: list[tuple[str, bytes | None]] = []
        try:
            consumer.assign([TopicPartition(self.kafka_name, number, 0) for number in range(PARTITIONS)])
            ended: set[int] = set()
            while len(ended) < PARTITIONS:
                message: Any = consumer.poll(10)
                if message.error() is None:
                    found.append((message.key().decode(), message.value()))
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF
                    ended.add(message.partition())
        finally:
            consumer.close()
        return found


def without_filler(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not row["k"].startswith(FILLER)]
