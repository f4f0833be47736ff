"""Catching up in many batches: no batch goes ahead in one partition so far that rows of another become late."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mainstem.log import flow_cut as batch_cut
from mainstem.log.flow_cut import FirstAfter, aligned_cut
from mainstem.log.steps import Steps
from mainstem.spark.sources.spark_topic import SparkTopic
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
from mainstem.stem import Mainstem

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DELAY = timedelta(seconds=30)


def whole(partition: int, first: int, end: int, time: int) -> int:
    """As if no row of a step could be taken alone."""
    return first


def test_a_batch_is_the_beginning_of_one_line_of_all_steps():
    even = Steps.of([(10, 10, 100), (20, 10, 300), (30, 10, 500)])
    odd = Steps.of([(5, 5, 200), (10, 5, 400)])
    assert aligned_cut({0: 0, 1: 0}, {0: even, 1: odd}, 15, whole) == {0: 10, 1: 5}
    assert aligned_cut({0: 0, 1: 0}, {0: even, 1: odd}, 29, whole) == {0: 20, 1: 5}
    assert aligned_cut({0: 0, 1: 0}, {0: even, 1: odd}, 30, whole) == {0: 20, 1: 10}
    assert aligned_cut({0: 0, 1: 0}, {0: even, 1: odd}, 1000, whole) == {0: 30, 1: 10}


def test_a_batch_takes_a_step_however_large_it_is():
    assert aligned_cut({0: 0}, {0: Steps.of([(1000, 1000, 5)])}, 10, whole) == {0: 1000}
    assert aligned_cut({0: 7, 1: 3}, {}, 10, whole) == {0: 7, 1: 3}


def test_a_partition_that_goes_back_in_time_stays_where_it_was():
    back = Steps.of([(10, 10, 500), (20, 10, 100), (30, 10, 600)])
    other = Steps.of([(10, 10, 300), (20, 10, 400)])
    assert aligned_cut({0: 0, 1: 0}, {0: back, 1: other}, 20, whole) == {0: 0, 1: 20}
    assert aligned_cut({0: 0, 1: 0}, {0: back, 1: other}, 40, whole) == {0: 20, 1: 20}


def filled(stem: Mainstem, chance: random.Random, number: int) -> SparkTopic:
    """Partitions of very different size and pace, sealed or not, appended in large pieces and in small ones."""
    topic = stem.create_topic(f"t{number}", schema="n BIGINT, at TIMESTAMP", event_time="at", partitions=4)
    for partition in range(4):
        count = chance.choice([0, 3, 200, 6000])
        begins, lasts = chance.randint(0, 3600), chance.choice([10, 3600, 86_400])
        times = sorted(begins + lasts * chance.random() for _ in range(count))
        # Out of order, but by less than the delay.
        rows = [{"n": n, "at": NOON + timedelta(seconds=at - 25 * chance.random())} for n, at in enumerate(times)]
        size = chance.choice([1, 50, 5000]) if count < 1000 else chance.choice([700, 6000])
        for first in range(0, count, size):
            topic.append(rows[first : first + size], partition=partition)
            if chance.random() < 0.2:
                topic.seal()
    return topic


def late_rows(topic: SparkTopic, stem: Mainstem, rows_max: int) -> tuple[int, int]:
    """How many rows Spark's watermark would find late over all batches of a catch-up, and how many batches that were."""
    request = TopicRequest(home=stem.home, topic=topic.name, columns=("n", "at", "record"), rows_max=rows_max)
    reader = TopicStreamReader(request, topic.shown_schema())
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    watermark = datetime.min.replace(tzinfo=UTC)
    late = batches = seen = 0
    while (end := reader.latestOffset(at, ReadAllAvailable())) != at:
        rows = [
            row
            for part in reader.partitions(at, end)
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]  # fmt: skip
        late += sum(row["at"] < watermark for row in rows)
        watermark = max([watermark, *(row["at"] - DELAY for row in rows)])
        batches, seen, at = batches + 1, seen + len(rows), end
    assert seen == topic.to_arrow().num_rows
    return late, batches


@pytest.mark.parametrize("seed", range(8))
def test_catching_up_in_many_batches_makes_no_row_late(stem: Mainstem, seed: int):
    chance = random.Random(seed)
    topic = filled(stem, chance, seed)
    for rows_max in (50, 700, 4000):
        assert late_rows(topic, stem, rows_max)[0] == 0, rows_max


def by_equal_rows(
    starts: Mapping[int, int], steps: Mapping[int, Steps], rows_max: int, first_after: FirstAfter
) -> dict[int, int]:
    return {number: at + rows_max // len(starts) + 1 for number, at in starts.items()}


def by_whole_steps(
    starts: Mapping[int, int], steps: Mapping[int, Steps], rows_max: int, first_after: FirstAfter
) -> dict[int, int]:
    return aligned_cut(starts, steps, rows_max, whole)


@pytest.mark.parametrize("mutant", [by_equal_rows, by_whole_steps])
def test_the_law_would_notice_another_cut(stem: Mainstem, monkeypatch: pytest.MonkeyPatch, mutant: Any):
    monkeypatch.setattr(batch_cut, "aligned_cut", mutant)
    topics = [filled(stem, random.Random(seed), seed) for seed in range(4)]
    assert sum(late_rows(topic, stem, 700)[0] for topic in topics) > 0
