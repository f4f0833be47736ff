"""What producers state of time on Kafka: it counts for who has read what was there by then, and goes with its topic."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainstem.clock import as_us
from mainstem.errors import Fenced, Invalid
from mainstem.log.kafka.kafka_topic import DECLARATIONS_MAX, DeclaredWatermarks, KafkaTopic
from mainstem.log.kafka.state_topic import ENTRIES_MAX
from mainstem.log.topic import Topic
from mainstem.log.watermark import NO_TIME
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import opened, own_settings

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ROOT = Path(__file__).parent.parent.parent.parent
# States something, and is gone.
STATING = """
import sys
from datetime import datetime
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.stem import Mainstem
with Mainstem(KafkaLog(KafkaSettings((sys.argv[1],), prefix=sys.argv[2]))) as stem:
    stem.producer("gone").declare_watermark("timed", datetime.fromisoformat(sys.argv[3]))
"""


def reached(topic: Topic, *positions: int) -> int | None:
    """How many minutes after noon are declared for who has read up to these offsets."""
    backend = topic.backend
    assert isinstance(backend, KafkaTopic)
    at = backend.declared_watermark(dict(enumerate(positions)))
    return None if at == NO_TIME else (at - as_us(NOON)) // 60_000_000


def timed(stem: Mainstem) -> Topic:
    return stem.create_topic("timed", schema="n bigint, at timestamp", event_time="at", partitions=2)


def test_a_statement_counts_behind_what_was_written_before_it(kafka_broker: KafkaBroker) -> None:
    settings = own_settings(kafka_broker)
    with opened(settings) as stem, opened(settings) as other:
        topic = timed(stem)
        one, two = stem.producer("one"), stem.producer("two")
        assert reached(topic, 100, 100) is None
        topic.append([{"n": 1, "at": NOON}] * 3, partition=0)
        one.declare_watermark(topic, NOON + 10 * MINUTE)
        assert [reached(topic, 2, 0), reached(topic, 3, 0)] == [None, 10]
        # Of several the one that is least far counts, and nothing ever goes back.
        two.declare_watermark("timed", NOON + 5 * MINUTE)
        one.declare_watermark(topic, NOON + 30 * MINUTE)
        assert reached(topic, 3, 0) == 10
        topic.append([{"n": 2, "at": NOON}], partition=1)
        two.declare_watermark(topic, NOON + 20 * MINUTE)
        assert [reached(topic, 3, 0), reached(topic, 3, 1), reached(other.topic("timed"), 3, 1)] == [10, 20, 20]
        # What is written and not decided is before the statement, too.
        with stem.transaction() as transaction:
            transaction.append(topic, [{"n": 3, "at": NOON}])
            two.declare_watermark(topic, NOON + 25 * MINUTE)
            assert reached(topic, 3, 1) == 20
        ends = [topic.backend.latest(number) for number in range(2)]
        assert reached(topic, *ends) == 25
        with pytest.raises(Invalid, match="zone"):
            one.declare_watermark(topic, datetime(2026, 1, 1, 13))  # noqa: DTZ001 - refused for that
        other.producer("one")
        with pytest.raises(Fenced, match="newer run"):
            one.declare_watermark(topic, NOON + 99 * MINUTE)
        stem.delete_topic("timed")
        assert reached(timed(stem), 100, 100) is None


def test_a_producer_whose_process_is_gone_holds_nobody_back(kafka_broker: KafkaBroker) -> None:
    settings = own_settings(kafka_broker)
    with opened(settings) as stem:
        topic = timed(stem)
        command = [sys.executable, "-c", STATING, settings.servers, settings.prefix, NOON.isoformat()]
        subprocess.run(command, check=True, timeout=120, cwd=ROOT)
        assert reached(topic, 0, 0) == 0
        stem.producer("here").declare_watermark(topic, NOON + 7 * MINUTE)
        assert reached(topic, 0, 0) == 7


def test_what_was_stated_is_kept_in_short_and_comes_back_as_it_was() -> None:
    declared = DeclaredWatermarks()
    for number in range(ENTRIES_MAX):
        declared.apply({"at": number, "ends": {"0": number}}, 0)
        declared.apply({"at": number - 1, "ends": {"0": 0}}, 0)
    again = DeclaredWatermarks.restore(declared.snapshot())

    assert len(declared.declarations) == DECLARATIONS_MAX
    assert again == declared
    first = ENTRIES_MAX - DECLARATIONS_MAX
    assert [declared.watermark_at({0: at}) for at in (first - 1, first, first + 7)] == [NO_TIME, first, first + 7]
