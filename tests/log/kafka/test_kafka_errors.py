"""What Kafka's client raises, in Mainstem's words."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from mainstem.errors import Fenced
from mainstem.log.kafka.kafka_errors import kafka_errors


def test_an_exception_of_the_client_that_was_on_its_way_is_the_one_that_counts() -> None:
    """A function that the client calls meanwhile makes Python say SystemError."""
    fenced = KafkaException(KafkaError(KafkaError._FENCED))
    with pytest.raises(Fenced), kafka_errors("broker:9092"):
        raise SystemError("returned a result with an exception set") from fenced


def test_a_fault_of_python_stays_one() -> None:
    with pytest.raises(SystemError), kafka_errors("broker:9092"):
        raise SystemError("a fault")
