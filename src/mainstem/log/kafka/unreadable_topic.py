"""UnreadableTopic: what a topic's codec cannot read lies in `<topic>.unreadable`, with its bytes and the reason, once.

Any number of readers come across the same message, from anywhere in the topic. So it is not they who append it: the one who
comes across one looks through the partition from where the last such look ended, and appends all it finds, in one
transaction with how far it looked. Readers pass over what they cannot read.

    value, key   BINARY      as they came
    topic        STRING
    partition    INT
    offset       BIGINT
    reason       STRING
    appended_at  TIMESTAMP   of the message
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.clock import as_datetime
from mainstem.log.kafka.kafka_codec import codec_of
from mainstem.log.kafka.kafka_messages import time_of
from mainstem.log.kafka.named_writer import Known, Messages
from mainstem.log.kafka.partition_fetch import PartitionFetch
from mainstem.log.rows import check_rows
from mainstem.log.topic_settings import TopicSettings

if TYPE_CHECKING:
    from mainstem.log.kafka.kafka_log import KafkaLog
    from mainstem.log.kafka.kafka_topic import KafkaTopic

__all__ = ["UnreadableTopic", "unreadable_topic"]

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("reason", pa.string()),
        ("appended_at", pa.timestamp("us", "UTC")),
    ]
)
MESSAGES = 10_000


def unreadable_topic(topic: str) -> str:
    """The name of the topic of what cannot be read of a topic.

    >>> unreadable_topic("orders")
    'orders.unreadable'
    """
    return f"{topic}.unreadable"


class UnreadableTopic:
    """The way into the topic of the unreadable."""

    def __init__(self, log: KafkaLog, topic: KafkaTopic) -> None:
        self._log = log
        self._topic = topic

    def report(self, partition: int, end: int) -> None:
        """Have everything unreadable of a partition before the message `end` lie there."""
        log, topic = self._log, self._topic
        run = log.shared_producer(f"mainstem.unreadable.{topic.id}.{partition}")
        writer = log.named_writer(run)
        target = log.create_topic(TopicSettings.of(unreadable_topic(topic.name), schema=SCHEMA))

        def make(known: Known) -> tuple[int, Messages] | None:
            if end - 1 <= known["sequence"]:
                return None
            rows = self._rows(partition, known["sequence"] + 1, end)
            checked = check_rows(rows, target.settings)
            return end - 1, {0: codec_of(target.settings).messages(checked)} if rows else {}

        if writer.known(target.id)["sequence"] < end - 1:
            writer.append_from(target.kafka_name, target.id, log.append_time(), make)

    def _rows(self, partition: int, start: int, end: int) -> list[dict[str, Any]]:
        """All that cannot be read from one message to another."""
        topic, settings = self._topic, self._topic.settings
        codec = codec_of(settings)
        start = max(start, self._log.clients.range(topic.kafka_name, partition)[0])
        fetch = PartitionFetch(self._log.clients, topic.kafka_name, partition, self._log.clock)
        found: list[dict[str, Any]] = []
        try:
            while messages := fetch.read(start, end, MESSAGES):
                start = messages[-1].offset() + 1
                _, _, unreadable = codec.rows(partition, messages, settings, 0, 1 << 62)
                found += [
                    {
                        "value": message.value(),
                        "key": message.key(),
                        "topic": topic.name,
                        "partition": partition,
                        "offset": message.offset(),
                        "reason": reason,
                        "appended_at": as_datetime(time_of(message)),
                    }
                    for message, reason in unreadable
                ]
        finally:
            fetch.close()
        return found
