"""Where messages lie whose place the broker did not tell.

A broker that comes back after it was killed may have written messages and never said so. The client sends them again, the
broker knows them by their numbers and writes nothing; but it does not always know any more where it put them. They are
looked up among what is there since they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicPartition

from mainstem.errors import Unavailable
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_errors import kafka_errors, unavailable
from mainstem.log.kafka.kafka_messages import Outgoing

__all__ = ["place_of"]


def place_of(
    clients: KafkaClients, topic: str, partition: int, sent: Sequence[Outgoing], milliseconds: int
) -> tuple[int, int]:
    """The offset of the first of some messages that were sent in this order, and the one after the last."""
    with kafka_errors(clients.settings.servers, topic):
        there = _since(clients, topic, partition, milliseconds)
    places: list[int] = []
    left = list(sent)
    # From the end: the same may have been sent before.
    for message in reversed(there):
        if left and (message.key(), message.value()) == (left[-1].key, left[-1].value):
            left.pop()
            places.append(message.offset())
    if left:
        raise Unavailable(
            f'"{topic}" was appended to, but where is not known',
            detail=f"The brokers at {clients.settings.servers} have acknowledged it without its place, and it was not found.",
            hint="Look whether it is there before you append it again; a producer, stem.producer(name), repeats nothing.",
        )
    return places[-1], places[0] + 1


def _since(clients: KafkaClients, topic: str, partition: int, milliseconds: int) -> list[Message]:
    end = clients.ends(topic, [partition], IsolationLevel.READ_UNCOMMITTED)[partition]
    found: list[Message] = []
    # Also what a transaction under way has written: it may be ours.
    consumer = clients.consumer("read_uncommitted", 10)
    try:
        first = clients.at_time(topic, partition, milliseconds, consumer)
        if first is None or first >= end:
            return found
        consumer.assign([TopicPartition(topic, partition, first)])
        while True:
            message = consumer.poll(clients.patience)
            if message is None:
                raise unavailable(clients.settings.servers, f"nothing came from {topic}")
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                return found
            found.append(message)
            if message.offset() + 1 >= end:
                return found
    finally:
        consumer.close()
