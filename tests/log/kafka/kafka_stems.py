"""Logs on the test process's broker, each with topics of its own."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mainstem.errors import Fenced
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.log.topic import Topic
from mainstem.log.transaction import Transaction
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker


def own_settings(broker: KafkaBroker, **more: Any) -> KafkaSettings:
    """Settings under which nothing is there yet."""
    return KafkaSettings((broker.address,), prefix=f"o{uuid.uuid4().hex[:8]}.", **more)


@contextmanager
def opened(settings: KafkaSettings) -> Iterator[Mainstem]:
    with Mainstem(KafkaLog(settings)) as stem:
        yield stem


def made_elsewhere(settings: KafkaSettings, topic: str, values: list[bytes | None], partitions: int = 1) -> None:
    """A topic as another program makes and fills it, with no idea of Mainstem."""
    servers = {"bootstrap.servers": settings.servers}
    name = settings.prefix + topic
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=300)[name].result()
    send_elsewhere(settings, topic, values, partitions)


def send_elsewhere(settings: KafkaSettings, topic: str, values: list[bytes | None], partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": settings.servers})
    for number, value in enumerate(values):
        producer.produce(settings.prefix + topic, value=value, partition=number % partitions)
    assert producer.flush(300) == 0


def begun_for_a_second(stem: Mainstem, topic: Topic, rows: list[dict[str, object]]) -> Transaction:
    """A transaction with these rows; begun again where the machine was too busy to append them within its second."""
    while True:
        transaction = stem.transaction(timeout="1 second")
        with suppress(Fenced):
            transaction.append(topic, rows)
            return transaction
