"""A broker that dies and comes back loses nothing acknowledged, repeats nothing, and shows nothing that was aborted."""

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from mainstem.errors import BrokerUnavailable, Fenced, Unavailable
from mainstem.log.kafka.kafka_clients import KafkaClients
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_settings import KafkaSettings
from mainstem.log.kafka.named_writer import NamedWriter
from mainstem.log.topic import Topic
from mainstem.log.transaction import Transaction
from mainstem.stem import Mainstem
from tests.contracts.shown_rows import numbers
from tests.kafka_broker import KafkaBroker
from tests.log.kafka.broker_watch import KEYS, SECONDS_MAX, Appender, Follower, row_of, violations
from tests.log.kafka.kafka_stems import begun_for_a_second

# How often it is killed; before a release more often.
EVERY_RUN, LONG = 3, 50
STOPS = 3
# The number of the rows that end a topic.
LAST = 1_000_000


@pytest.fixture(scope="module")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A broker of its own: what a killed one has to look at before it lets people in again grows with its topics."""
    broker = KafkaBroker()
    yield broker
    broker.close()


@pytest.fixture
def settings(kafka_broker: KafkaBroker) -> KafkaSettings:
    # On a busy machine a broker may take longer to come back than is usual to wait for one.
    return KafkaSettings(
        (kafka_broker.address,), prefix=f"k{uuid.uuid4().hex[:8]}.", patience=timedelta(seconds=SECONDS_MAX)
    )


@pytest.fixture
def stem(settings: KafkaSettings) -> Iterator[Mainstem]:
    with Mainstem(KafkaLog(settings)) as stem:
        yield stem


@pytest.fixture
def counted(stem: Mainstem) -> Topic:
    return stem.create_topic("counted", schema="k string, n bigint", key="k", partitions=4)


@pytest.mark.parametrize("kills", [EVERY_RUN, pytest.param(LONG, marks=pytest.mark.long)])
def test_a_broker_killed_over_and_over_loses_repeats_and_invents_nothing(
    kafka_broker: KafkaBroker,
    settings: KafkaSettings,
    stem: Mainstem,
    counted: Topic,
    kills: int,
    fault_report: Callable[..., None],
) -> None:
    with Mainstem(KafkaLog(settings)) as other:
        appender, follower = Appender(stem, counted), Follower(other.topic("counted"))
        for kill in range(kills):
            appender.wait_for(len(appender.acknowledged) + 10 + 7 * (kill % EVERY_RUN))
            kafka_broker.restart()
        appender.wait_for(len(appender.acknowledged) + 10)
        appender.stop()
        follower.read_all(appender.acknowledged)
    found = violations(appender.acknowledged, follower.seen)
    fault_report("S8", points=kills, compared=len(appender.acknowledged) * len(KEYS), violations=found)


def test_a_commit_delayed_past_its_transaction_is_there_whole_or_not_at_all(
    kafka_broker: KafkaBroker, stem: Mainstem, counted: Topic, fault_report: Callable[..., None]
) -> None:
    told: dict[int, str] = {}
    for number in range(STOPS):
        transaction = begun_for_a_second(stem, counted, row_of(number))
        kafka_broker.stop()
        try:
            commit = threading.Thread(target=_commit, args=(transaction, told, number))
            commit.start()
            # Longer than the transaction may take, or about as long.
            commit.join(0.6 + number)
        finally:
            kafka_broker.cont()
        commit.join()
    found = seen(counted)
    whole = {number: sum(found[number, key] for key in KEYS) for number in range(STOPS)}
    expected = {"committed": (4,), "over": (0,), "unknown": (0, 4)}
    wrong = [
        f"{number} is {told[number]}: {rows} rows"
        for number, rows in whole.items()
        if rows not in expected[told[number]]
    ]
    fault_report("S8", points=STOPS, compared=STOPS * len(KEYS), violations=wrong, outcomes=list(told.values()))


def _commit(transaction: Transaction, told: dict[int, str], number: int) -> None:
    try:
        transaction.commit()
        told[number] = "committed"
    except Fenced:
        told[number] = "over"
    except Unavailable:
        told[number] = "unknown"


def test_a_broker_that_comes_late_is_waited_for(kafka_broker: KafkaBroker, settings: KafkaSettings) -> None:
    kafka_broker.kill()
    try:
        with pytest.raises(BrokerUnavailable):
            KafkaLog(KafkaSettings(settings.brokers, patience=settings.patience * 0))
    finally:
        kafka_broker.start()
    with Mainstem(KafkaLog(settings)) as stem:
        topic = stem.create_topic("orders", schema="n bigint")
        topic.append([{"n": 1}])
        assert numbers(topic.to_arrow()) == [1]


# What the first test must catch


def test_a_reader_of_what_is_not_committed_would_be_caught(
    stem: Mainstem, counted: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = KafkaClients.consumer
    monkeypatch.setattr(
        KafkaClients, "consumer", lambda self, isolation="", wait=500: committed(self, "read_uncommitted", wait)
    )
    counted.append(row_of(0))
    undone = stem.transaction()
    undone.append(counted, row_of(-1))
    undone.abort()
    assert [found for found in violations([0], seen(counted)) if found.startswith("aborted")]


def test_a_producer_that_stores_no_sequence_would_be_caught(
    stem: Mainstem, counted: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgotten(self: NamedWriter, topic_id: str) -> dict[str, object]:
        return {"sequence": -1, "offsets": {}, "at": 0}

    stem.producer("counting").append(counted, row_of(0), sequence=0)
    monkeypatch.setattr(NamedWriter, "known_appends", forgotten)
    # A later run, which cannot know whether it went through.
    stem.producer("counting").append(counted, row_of(0), sequence=0)
    assert [found for found in violations([0], seen(counted)) if found.startswith("twice")]


def test_an_append_that_was_acknowledged_too_early_would_be_caught(counted: Topic) -> None:
    counted.append(row_of(0))
    assert violations([0, 1], seen(counted)) == [f"lost 1 {key}" for key in KEYS]


def seen(topic: Topic) -> Counter[tuple[int, str]]:
    """What comes before a last row in every partition: brokers show what was decided a moment later."""
    topic.append(row_of(LAST))
    found: Counter[tuple[int, str]] = Counter()
    for batch in topic.follow(start="earliest", wait="5 minutes"):
        found.update((row["n"], row["k"]) for row in batch.to_pylist())
        if all(found[LAST, key] for key in KEYS):
            break
    return Counter({place: count for place, count in found.items() if place[0] != LAST})
