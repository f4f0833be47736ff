"""A broker that answers without a place: for messages that it knows from before it was killed, or for an end just after.

The messages are real, and so is the broker; only the place is taken out of its answers.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Message, Producer

from mainstem.errors import Unavailable
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_messages import Outgoing
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.log.kafka.kafka_writer import locate_messages
from mainstem.stem import Mainstem
from tests.contracts.shown_rows import numbers
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import opened, own_settings


class WithoutPlace:
    """A message as it is told of."""

    def __init__(self, message: Message) -> None:
        self._message = message

    def offset(self) -> int:
        return int(OFFSET_INVALID)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class Forgetful:
    """A producer of a broker that does not tell places."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def produce(self, *parts: Any, on_delivery: Any, **more: Any) -> None:
        self._producer.produce(*parts, on_delivery=lambda no, told: on_delivery(no, WithoutPlace(told)), **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@pytest.fixture
def settings(kafka_broker: KafkaBroker) -> KafkaSettings:
    return own_settings(kafka_broker)


@pytest.fixture
def stem(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mainstem]:
    made = KafkaClients.producer
    monkeypatch.setattr(KafkaClients, "producer", lambda self, **more: Forgetful(made(self, **more)))
    with opened(settings) as stem:
        yield stem


@pytest.mark.parametrize("codec", ["json", "arrow"])
def test_the_places_are_found(stem: Mainstem, codec: str) -> None:
    topic = stem.create_topic("t", schema="n bigint", key="n", partitions=2, codec=codec)
    for first in range(0, 60, 20):
        placed = topic.append([{"n": number} for number in range(first, first + 20)])
        there = topic.to_arrow().to_pylist()
        for partition, (begin, end) in placed.offsets.items():
            here = [row for row in there if row["record"]["partition"] == partition]
            found = {row["n"] for row in here if begin <= row["record"]["offset"] < end}
            assert found == {row["n"] for row in here if row["n"] >= first}
        assert topic.to_arrow(start=placed.token).num_rows == 0
    assert sorted(row["n"] for row in topic.to_arrow().to_pylist()) == list(range(60))


def test_the_same_again_is_another_one(stem: Mainstem) -> None:
    topic = stem.create_topic("t", schema="n bigint")
    places = [topic.append([{"n": 1}, {"n": 1}]).offsets[0] for _ in range(3)]
    assert places == [(0, 2), (2, 4), (4, 6)]


def test_producers_and_transactions_and_queues_work_as_ever(stem: Mainstem) -> None:
    topic = stem.create_topic("t", schema="n bigint")
    producer = stem.producer("p")
    for sequence in (0, 1, 1):
        producer.append(topic, [{"n": sequence}], sequence=sequence)
    with stem.transaction() as transaction:
        transaction.append(topic, [{"n": 2}])
    assert numbers(topic.batches()) == [0, 1, 2]
    queue = topic.queue("q")
    taken = queue.take(10)
    queue.acknowledge(taken)
    assert [message.row["n"] for message in taken] == [0, 1, 2]
    assert queue.take(10) == []


def test_what_is_not_there_is_not_found(stem: Mainstem, settings: KafkaSettings) -> None:
    topic = stem.create_topic("t", schema="n bigint")
    topic.append([{"n": 1}])
    clients = stem.log.clients  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="the offsets are not known"):
        locate_messages(clients, settings.prefix + "t", 0, [Outgoing(None, b"other", None)], 0)


class NotYet:
    """What a broker says of an end before it knows it."""

    offset = int(OFFSET_INVALID)

    def result(self) -> "NotYet":
        return self


class Hesitant:
    """Brokers that do not know the ends of topics when they are asked for the first times."""

    def __init__(self, admin: Any, times: int) -> None:
        self._admin = admin
        self.left = times

    def list_offsets(self, wanted: dict[Any, Any], **more: Any) -> Any:
        self.left -= 1
        return self._admin.list_offsets(wanted, **more) if self.left < 0 else dict.fromkeys(wanted, NotYet())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)


def test_an_end_that_is_not_known_yet_is_asked_for_again(settings: KafkaSettings) -> None:
    with opened(settings) as stem:
        topic = stem.create_topic("t", schema="n bigint", partitions=2)
        topic.append([{"n": number} for number in range(9)])
        clients = stem.log.clients  # type: ignore[attr-defined]
        clients.admin = hesitant = Hesitant(clients.admin, times=3)
        token = topic.append([{"n": 9}]).token
        assert hesitant.left < 0
        assert topic.to_arrow(start=token).num_rows == 0
        assert topic.to_arrow(stop=token).num_rows == 10
