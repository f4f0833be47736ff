"""A batch of a flow has all of a transaction or nothing of it, over all partitions of all its sources."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mainstem
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.rows.rows import CheckedRows, check_rows
from mainstem.log.topic import Topic
from mainstem.log.transaction import Transaction
from mainstem.stem import Mainstem
from tests.spark.sources.asked_sources import AskedSources

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def write(topic: Topic, transaction: Transaction | None, partition: int, *numbers: int) -> None:
    """Append rows to one partition. The hundreds of `n` say of which transaction it is."""
    rows = check_rows([{"n": number} for number in numbers], topic.settings)
    topic.backend.append(rows, partition=partition, transaction=0 if transaction is None else transaction.id)


def parts_of(batches: list[list[int]]) -> Counter[int]:
    """In how many batches each transaction is."""
    return Counter(number for batch in batches for number in {n // 100 for n in batch})


class MarkFailed(Exception):
    pass


def commit_half(stem: Mainstem, monkeypatch: pytest.MonkeyPatch, transaction: Transaction, missing: int) -> None:
    """Commit, and stop before the marker is written in one partition: what a reader may meet at any time."""
    log: Any = stem.log
    mark = log.transactions._mark

    def failing(participant: tuple[Any, ...], *decision: Any) -> None:
        if participant[2] == missing:
            raise MarkFailed
        mark(participant, *decision)

    with monkeypatch.context() as patch:
        patch.setattr(log.transactions, "_mark", failing)
        with pytest.raises(MarkFailed):
            transaction.commit()


@pytest.fixture
def stem(tmp_path: Path) -> Iterator[Mainstem]:
    """A home without Spark: its sources are asked by the tests."""
    with mainstem.open(tmp_path / "home", upkeep="manual") as opened:
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


def test_a_transaction_whose_markers_do_not_all_stand_is_left_out(
    stem: Mainstem, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}])
    transaction = stem.transaction()
    write(topic, transaction, 0, 100)
    write(topic, transaction, 1, 101)
    write(topic, None, 0, 200)
    write(topic, None, 2, 201)
    commit_half(stem, monkeypatch, transaction, missing=1)
    backend = topic.backend
    # What lies behind it in the same partition waits for it, the others go on.
    assert (backend.latest(0), backend.latest(1)) == (3, 0)
    assert sources.batch() == [201]
    stem.log.open_topic("t").settle()
    assert sources.batch() == [100, 101, 200]


@pytest.mark.parametrize("sealed", [False, True])
def test_sources_of_one_flow_agree(stem: Mainstem, topic: Topic, tmp_path: Path, *, sealed: bool):
    other = stem.create_topic("u", schema="n BIGINT", partitions=3)
    chance = random.Random(5)
    for number in range(30):
        with stem.transaction() as transaction:
            for place in range(3):
                write(chance.choice([topic, other]), transaction, chance.randrange(3), 100 * number + place)
        if sealed and number % 7 == 0:
            topic.seal()
        if sealed and number == 20:
            other.seal()
    requests = [{"topic": "t", "rows_max": 7}, {"topic": "u", "rows_max": 5}, {"topic": "t", "rows_max": 9}]
    sources = AskedSources(stem, tmp_path / "cp", requests)
    found = []
    for _ in range(80):
        if chance.random() < 0.2:
            sources.restart()
        order = [0, 1, 2]
        found += [rows] if (rows := sources.batch(order)) else []
    assert len(found) > 2
    assert parts_of(found) == dict.fromkeys(range(30), 1)
    assert sorted(n for batch in found for n in batch) == sorted(
        [*topic.to_arrow()["n"].to_pylist() * 2, *other.to_arrow()["n"].to_pylist()]
    )


def test_any_source_may_be_asked_first(stem: Mainstem, topic: Topic, tmp_path: Path):
    other = stem.create_topic("u", schema="n BIGINT", partitions=1)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "start": "latest"}, {"topic": "u"}])
    assert sources.batch([1, 0]) == []
    with stem.transaction() as transaction:
        write(topic, transaction, 0, 100)
        write(other, transaction, 0, 101)
    assert sources.batch([1, 0]) == [100, 101]
    sources.restart()
    with stem.transaction() as transaction:
        write(topic, transaction, 0, 200)
        write(other, transaction, 0, 201)
    # After a restart each source says where it stands; then one of them plans.
    assert sources.batch([0, 1]) == []
    assert sources.batch([0, 1]) == [200, 201]


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


def test_a_flow_waits_for_an_open_transaction_and_says_for_which(stem: Mainstem, topic: Topic, tmp_path: Path):
    other = stem.create_topic("u", schema="n BIGINT")
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}])
    elsewhere = AskedSources(stem, tmp_path / "other", [{"topic": "u"}])
    stalled = stem.transaction()
    write(topic, stalled, 0, 100)
    with stem.transaction() as transaction:
        write(topic, transaction, 0, 200)
        write(topic, transaction, 1, 201)
        write(other, transaction, 0, 202)
    assert sources.batches() == []
    [holder] = sources.note.waits
    assert holder == (stalled.id, "t", 0, os.getpid())
    # Other topics, and partitions in which nothing depends on it, go on.
    assert elsewhere.batches() == [[202]]
    write(topic, None, 3, 300)
    assert sources.batches() == [[300]]
    stalled.abort()
    assert sources.batches() == [[200, 201]]
    assert sources.note.waits == ()


def entangle(stem: Mainstem, topic: Topic, count: int) -> None:
    """Transactions each of which begins before the last one has ended: there is no place between them."""
    before = None
    for number in range(count):
        transaction = stem.transaction()
        write(topic, transaction, 0, 100 * number)
        if before is not None:
            write(topic, before, 0, 100 * (number - 1) + 1)
            before.commit()
        before = transaction
    assert before is not None
    before.commit()


def test_overlapping_transactions_are_one_batch_beyond_its_limits(stem: Mainstem, topic: Topic, tmp_path: Path):
    entangle(stem, topic, 20)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "rows_max": 5}])
    assert [len(batch) for batch in sources.batches()] == [39]
    assert sources.note.torn == 0


def test_transactions_that_overlap_without_end_do_not_stop_a_flow(stem: Mainstem, topic: Topic, tmp_path: Path):
    entangle(stem, topic, 40)
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "rows_max": 10, "bytes_max": 5_000}])
    batches = sources.batches()
    assert sum(map(len, batches)) == 79
    assert len(batches) > 3
    # What was cut is said.
    assert sources.note.torn == sum(count > 1 for count in parts_of(batches).values()) > 0
    assert sources.note.last_torn


def test_a_topic_without_transactions_is_not_looked_at_for_them(
    stem: Mainstem, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(30):
        write(topic, None, number % 4, number)
    topic.seal()
    write(topic, None, 0, 30)
    backend = topic.backend
    assert isinstance(backend, EmbeddedTopic)
    for reader in backend.store.readers:
        monkeypatch.setattr(reader, "_with_state", None)
        monkeypatch.setattr(reader, "_spans_in", None)
    assert all(not len(backend.transaction_spans(number, 0, 99, (0, 99)).numbers) for number in range(4))
    batches = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "rows_max": 7}]).batches()
    assert sum(map(len, batches)) == 31


@pytest.mark.parametrize("seed", range(3))
def test_no_row_becomes_late_and_no_transaction_is_cut(stem: Mainstem, tmp_path: Path, seed: int):
    """Spark's watermark is the highest time of all that was read: a partition left behind would lose its rows."""
    chance = random.Random(seed)
    topic = stem.create_topic("timed", schema="n BIGINT, at TIMESTAMP", event_time="at", partitions=3)
    clock = [0.0, 0.0, 0.0]

    def rows(partition: int, numbers: list[int]) -> CheckedRows:
        clock[partition] += 60 * chance.random()
        return check_rows([{"n": n, "at": NOON + timedelta(seconds=clock[partition])} for n in numbers], topic.settings)

    open_ones: list[Transaction] = []
    for number in range(1, 40):
        transaction = stem.transaction()
        for place in range(2):
            partition = chance.randrange(3)
            topic.backend.append(
                rows(partition, [100 * number + place]), partition=partition, transaction=transaction.id
            )
            topic.backend.append(rows(partition, [0, 0]), partition=partition)
        open_ones.append(transaction)
        while len(open_ones) > 2 or (number == 39 and open_ones):
            open_ones.pop(chance.randrange(len(open_ones))).commit()
        if number % 15 == 0:
            topic.seal()
    request = {"topic": "timed", "columns": ("n", "at", "record"), "delay": 0, "rows_max": 12}
    sources = AskedSources(stem, tmp_path / "cp", [request])
    late = seen = 0
    watermark = NOON
    batches = []
    while sources.batch():
        times = [row["at"] for row in sources.rows]
        # Within a partition times are in order, so nothing is late by itself.
        late += sum(at < watermark for at in times)
        watermark = max([watermark, *times])
        batches.append([row["n"] for row in sources.rows if row["n"]])
        seen += len(times)
    assert late == 0
    assert parts_of(batches) == dict.fromkeys(range(1, 40), 1)
    assert seen == topic.to_arrow().num_rows
    assert sources.note.torn == 0
    assert len(batches) > 1


def test_a_topic_that_is_joined_with_itself_is_cut_alike(stem: Mainstem, topic: Topic, tmp_path: Path):
    """One stream of a program that is read twice is two sources with one number."""
    for number in range(9):
        with stem.transaction() as transaction:
            for partition in range(3):
                write(topic, transaction, partition, 100 * number + partition)
    request = {"topic": "t", "rows_max": 4, "leaf": 0}
    sources = AskedSources(stem, tmp_path / "cp", [request, request])
    found = sources.batches()
    assert parts_of(found) == dict.fromkeys(range(9), 1)
    assert all(count == 2 for batch in found for count in Counter(batch).values())


def test_a_new_run_begins_without_the_note_of_the_last_one(stem: Mainstem, topic: Topic, tmp_path: Path):
    sources = AskedSources(stem, tmp_path / "cp", [{"topic": "t"}])
    stalled = stem.transaction()
    write(topic, stalled, 0, 100)
    with stem.transaction() as transaction:
        write(topic, transaction, 0, 200)
        write(topic, transaction, 1, 201)
    assert sources.batches() == []
    assert sources.note.waits
    sources.restart()
    assert not sources.note.waits
    stalled.commit()
    assert sources.batches() == [[100, 200, 201]]


def test_sealed_history_comes_in_batches_of_a_useful_size(stem: Mainstem, topic: Topic, tmp_path: Path):
    """Sealed files are cut in pieces of many rows: limits by few rows are then far apart in the partitions."""
    for number in range(40):
        with stem.transaction() as transaction:
            for partition in range(4):
                write(topic, transaction, partition, *(100 * number + place for place in range(3)))
    topic.seal()
    batches = AskedSources(stem, tmp_path / "cp", [{"topic": "t", "rows_max": 50}]).batches()
    assert parts_of(batches) == dict.fromkeys(range(40), 1)
    assert len(batches) < 5
