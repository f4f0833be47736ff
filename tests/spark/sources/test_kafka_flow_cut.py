"""On Kafka too a batch of a flow has all of a transaction of Mainstem's own or nothing of it, over all its sources."""

import os
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

import mainstem
from mainstem.clock import ManualClock, as_datetime
from mainstem.log.kafka.kafka_log import KafkaLog
from mainstem.log.kafka.kafka_writer import TransactionalWriter
from mainstem.log.kafka.transaction_notes import WrittenSpans
from mainstem.log.rows.rows import check_rows
from mainstem.log.topic import Topic
from mainstem.log.transaction import Transaction
from mainstem.stem import Mainstem
from tests.kafka_broker import KafkaBroker
from tests.spark.sources.asked_sources import AskedSources
from tests.spark.sources.test_flow_cut import entangle, parts_of, write


@pytest.fixture
def stem(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Mainstem]:
    """A home without Spark: its sources are asked by the tests."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "kafka.toml").write_text(f'prefix = "c{uuid.uuid4().hex[:8]}."\n')
    with mainstem.open(home, log=f"kafka://{kafka_broker.address}") as opened:
        yield opened


@pytest.fixture
def topic(stem: Mainstem) -> Topic:
    return stem.create_topic("t", schema="n BIGINT", partitions=4)


def test_a_batch_that_is_cut_by_its_rows_cuts_no_transaction(stem: Mainstem, topic: Topic, tmp_path: Path):
    for number in range(20):
        with stem.transaction() as transaction:
            for partition in range(4):
                write(topic, transaction, partition, 100 * number + partition)
    batches = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "rows_max": 11}]).batches()
    assert parts_of(batches) == dict.fromkeys(range(20), 1)
    assert len(batches) > 5


def test_appends_and_transactions_of_a_producer_are_whole(stem: Mainstem, tmp_path: Path):
    topic = stem.create_topic("keyed", schema="n BIGINT", key="n", partitions=4)
    producer = stem.producer("p")
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "keyed"}])
    stalled = stem.transaction()
    write(topic, stalled, 0, 100)
    producer.append("keyed", [{"n": 200 + place} for place in range(8)])
    with producer.transaction() as transaction:
        transaction.append("keyed", [{"n": 300 + place} for place in range(8)])
    # All but what is in one partition could be read.
    assert [topic.backend.latest(number) > 0 for number in range(4)] == [False, True, True, True]
    assert sources.batches() == []
    stalled.commit()
    [batch] = sources.batches()
    assert batch == [100, *range(200, 208), *range(300, 308)]


def test_sources_of_one_flow_agree_also_after_restarts(stem: Mainstem, topic: Topic, tmp_path: Path):
    other = stem.create_topic("u", schema="n BIGINT", partitions=3, codec="arrow")
    chance = random.Random(5)
    for number in range(30):
        with stem.transaction() as transaction:
            for place in range(3):
                write(chance.choice([topic, other]), transaction, chance.randrange(3), 100 * number + place)
    requests = [{"topic": "t", "rows_max": 7}, {"topic": "u", "rows_max": 50_000}, {"topic": "t", "rows_max": 9}]
    sources = AskedSources(stem, tmp_path / "cp", requests)
    found, empty = [], 0
    while empty < 4:
        if chance.random() < 0.2:
            sources.restart()
        rows = sources.batch()
        empty = 0 if rows else empty + 1
        found += [rows] if rows else []
    assert len(found) > 4
    assert parts_of(found) == dict.fromkeys(range(30), 1)
    assert sorted(n for batch in found for n in batch) == sorted(
        [*topic.to_arrow()["n"].to_pylist() * 2, *other.to_arrow()["n"].to_pylist()]
    )


def test_topics_of_a_pattern_agree_with_other_sources(stem: Mainstem, topic: Topic, tmp_path: Path):
    stem.create_topic("many.a", schema="n BIGINT", partitions=2)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}, {"topic": "many.*", "pattern": True}])
    found = []
    for number in range(4):
        if number == 2:
            stem.create_topic("many.b", schema="n BIGINT", partitions=2)
        with stem.transaction() as transaction:
            write(topic, transaction, 1, 100 * number)
            write(stem.topic("many.b" if number >= 2 else "many.a"), transaction, 1, 100 * number + 1)
        found += sources.batches(3)
    # Also the first one that wrote to a topic that was made while the flow ran.
    assert parts_of(found) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert sum(map(len, found)) == 8


def test_with_a_writer_stalled_inside_a_transaction_all_that_does_not_depend_on_it_goes_on(
    stem: Mainstem, topic: Topic, tmp_path: Path
):
    other = stem.create_topic("u", schema="n BIGINT")
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}])
    elsewhere = AskedSources(stem, tmp_path / "other", [{"topic": "u"}])
    stalled = stem.transaction()
    write(topic, stalled, 0, 100)
    with stem.transaction() as transaction:
        write(topic, transaction, 0, 200)
        write(topic, transaction, 1, 201)
        write(other, transaction, 0, 202)
    # It is decided, and of partition 1 it could be read.
    assert [topic.backend.latest(number) for number in (0, 1)] == [0, 2]
    assert sources.batches() == []
    [holder] = sources.note.waits
    assert holder == (stalled.id, "t", 0, os.getpid())
    # Other flows go on, and partitions in which nothing depends on it.
    assert elsewhere.batches() == [[202]]
    write(topic, None, 3, 300)
    assert sources.batches() == [[300]]
    stalled.abort()
    assert sources.batches() == [[200, 201]]
    assert sources.note.waits == ()


class CommitFailed(Exception):
    pass


def test_a_writer_that_stops_between_its_note_and_its_commit_holds_nobody_up(
    stem: Mainstem, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def failing(self: TransactionalWriter) -> None:
        raise CommitFailed

    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}])
    stopped = stem.transaction()
    write(topic, stopped, 0, 100)
    write(topic, stopped, 1, 101)
    with monkeypatch.context() as patch:
        patch.setattr(TransactionalWriter, "commit", failing)
        with pytest.raises(CommitFailed):
            stopped.commit()
    with stem.transaction() as transaction:
        write(topic, transaction, 2, 200)
        write(topic, transaction, 3, 201)
    assert sources.batches() == [[200, 201]]
    # What was aborted after all holds nobody up either.
    stopped.abort()
    with stem.transaction() as transaction:
        write(topic, transaction, 0, 300)
        write(topic, transaction, 1, 301)
    assert sources.batches() == [[300, 301]]


def test_overlapping_transactions_are_one_batch_beyond_its_limits(stem: Mainstem, topic: Topic, tmp_path: Path):
    entangle(stem, topic, 5)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "rows_max": 2}])
    assert [len(batch) for batch in sources.batches()] == [9]
    assert sources.note.torn == 0


def test_transactions_that_overlap_without_end_do_not_stop_a_flow(stem: Mainstem, topic: Topic, tmp_path: Path):
    entangle(stem, topic, 8)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "rows_max": 4, "bytes_max": 60}])
    batches = sources.batches()
    assert sum(map(len, batches)) == 15
    assert len(batches) > 1
    # What was cut is said.
    assert sources.note.torn >= sum(count > 1 for count in parts_of(batches).values()) > 0
    assert sources.note.last_torn


def test_what_was_written_to_a_topic_of_the_same_name_before_does_not_count(
    stem: Mainstem, topic: Topic, tmp_path: Path
):
    other = stem.create_topic("u", schema="n BIGINT")
    with stem.transaction() as transaction:
        write(other, transaction, 0, *range(50))
        write(topic, transaction, 0, 100)
    stem.delete_topic("u")
    again = stem.create_topic("u", schema="n BIGINT")
    write(again, None, 0, 200)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}, {"topic": "u"}])
    assert sources.batches() == [[100, 200]]


def test_records_that_brokers_have_lost_are_not_waited_for(stem: Mainstem, topic: Topic, tmp_path: Path):
    log = stem.log
    assert isinstance(log, KafkaLog)
    write(topic, None, 0, 100)
    spans = WrittenSpans()
    spans.add(topic.backend.id, {0: (0, 1), 1: (500, 502)}, 3)
    note = spans.note(7)
    assert note is not None
    log.writer.send(log.notes_topic, {0: [note]}, 0)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}])
    assert sources.batches() == [[100]]


def test_a_flow_that_is_told_to_begin_within_a_message_does_so(stem: Mainstem, tmp_path: Path):
    topic = stem.create_topic("blocks", schema="n BIGINT", codec="arrow")
    write(topic, None, 0, 10, 11, 12)
    assert AskedSources(stem, tmp_path / "cp", [{"topic": "blocks", "start": {"0": 1}}]).batches() == [[11, 12]]


def test_notes_are_read_once_and_kept_as_long_as_records(stem: Mainstem, topic: Topic, tmp_path: Path):
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}])
    for number in range(3):
        with stem.transaction() as transaction:
            write(topic, transaction, 0, 100 * number)
            write(topic, transaction, 1, 100 * number + 1)
        assert len(sources.batch()) == 2
    log = stem.log
    assert isinstance(log, KafkaLog)
    [at] = sources.offsets
    # The last transaction is passed with the next batch.
    assert at is not None
    assert at["noted"] > 0
    assert kept(log) == -1
    stem.delete_topic("t")
    stem.create_topic("v", schema="n BIGINT", keep="1 day")
    assert kept(log) == 15 * 86_400_000
    stem.topic("v").alter(keep="200 days")
    assert kept(log) == 214 * 86_400_000


def kept(log: KafkaLog) -> int:
    resource = ConfigResource(ResourceType.TOPIC, log.notes_topic)
    return int(log.clients.admin.describe_configs([resource])[resource].result()["retention.ms"].value)


@pytest.fixture
def timed(kafka_broker: KafkaBroker, tmp_path: Path, clock: ManualClock) -> Iterator[Mainstem]:
    """The same with a clock that stands still."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "kafka.toml").write_text(f'prefix = "c{uuid.uuid4().hex[:8]}."\n')
    with Mainstem(
        KafkaLog(f"kafka://{kafka_broker.address}", home=home, clock=clock), home=str(home)
    ) as opened:  # fmt: skip
        yield opened


def write_slowly(stem: Mainstem, clock: ManualClock, transactions: int) -> None:
    """A record a second: transactions over three partitions, and between their records others."""
    topic = stem.create_topic("timed", schema="n BIGINT, at TIMESTAMP", event_time="at", partitions=3)

    def append(partition: int, number: int, transaction: Transaction | None = None) -> None:
        clock.advance("1 second")
        rows = check_rows([{"n": number, "at": as_datetime(clock.now())}], topic.settings)
        topic.backend.append(rows, partition=partition, transaction=0 if transaction is None else transaction.id)

    for number in range(1, transactions + 1):
        transaction = stem.transaction()
        for partition in (0, 1, 2):
            append(partition, 100 * number + partition, transaction)
            for other in (0, 1, 2):
                append(other, 0)
        transaction.commit()


def test_what_is_left_out_for_a_transaction_is_not_behind_what_was_taken(
    timed: Mainstem, tmp_path: Path, clock: ManualClock
):
    """Spark's watermark is the highest time of all that was read: a partition left behind would lose its rows."""
    # Later than the broker's, whose time the ends of transactions have.
    clock.set(datetime(2036, 1, 1, tzinfo=UTC))
    write_slowly(timed, clock, 8)
    request = {"topic": "timed", "columns": ("n", "at", "record"), "delay": 0, "rows_max": 40}
    sources = AskedSources(timed, tmp_path / "cp", [request])
    batches, late, seen, watermark = [], 0, 0, as_datetime(0)
    while sources.batch():
        times = [row["at"] for row in sources.rows]
        late += sum(at < watermark for at in times)
        watermark = max([watermark, *times])
        batches.append([row["n"] for row in sources.rows if row["n"]])
        seen += len(times)
    assert (late, seen) == (0, 8 * 12)
    assert parts_of(batches) == dict.fromkeys(range(1, 9), 1)
    assert len(batches) > 1


def test_ends_of_transactions_that_are_later_than_all_records_do_not_stop_a_flow(
    timed: Mainstem, tmp_path: Path, clock: ManualClock
):
    """A broker's clock that is ahead of the writers': by it every end of a transaction is later than what follows it."""
    write_slowly(timed, clock, 4)
    sources = AskedSources(timed, tmp_path / "cp", [{"topic": "timed", "rows_max": 15}])
    batches = sources.batches()
    assert sum(map(len, batches)) == 4 * 12
    assert parts_of([[n for n in batch if n] for batch in batches]) == dict.fromkeys(range(1, 5), 1)
