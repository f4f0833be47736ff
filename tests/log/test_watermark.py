"""The watermark at a record against a naive one, over partitions, idleness, far-ahead times and statements."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.clock import ManualClock, as_datetime, as_us
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.watermark import NO_TIME
from mainstem.stem import Mainstem

START = datetime(2026, 1, 1, tzinfo=UTC)
DELAY = timedelta(minutes=2)
IDLE_AFTER = timedelta(minutes=1)
AHEAD_MAX = timedelta(hours=1)

# One append: to which partition, its event time and the time that passes before it, both in seconds.
steps = st.lists(st.tuples(st.integers(0, 2), st.integers(-600, 8000), st.integers(0, 90)), max_size=25)


def naive(appends: list[tuple[int, int, int]]) -> dict[tuple[int, int], datetime | None]:
    """Each record's watermark by partition and offset, from the whole list of what was appended before it."""
    shown: dict[tuple[int, int], datetime | None] = {}
    highest: dict[int, datetime] = {}
    last: dict[int, datetime] = {}
    lowest: dict[int, datetime] = {}
    counts = [0, 0, 0]
    now = START
    for partition, event, passed in appends:
        now += timedelta(seconds=passed)
        alive = [highest[other] for other in highest if other == partition or now - last[other] <= IDLE_AFTER]
        known = [*lowest.values(), *([min(alive)] if partition in highest else [])]
        if known:
            lowest[partition] = max(known)
        shown[partition, counts[partition]] = max(known) - DELAY if known else None
        counts[partition] += 1
        at = START + timedelta(seconds=event)
        if at <= now + AHEAD_MAX:
            highest[partition] = max(highest.get(partition, at), at)
        last[partition] = now
    return shown


@pytest.mark.thorough
@given(appends=steps)
@settings(max_examples=60, deadline=None)
def test_the_watermark_is_the_naive_one_before_and_after_sealing(appends: list[tuple[int, int, int]]) -> None:
    clock = ManualClock(START)
    with Mainstem(EmbeddedLog(mkdtemp(), clock=clock)) as stem:
        topic = stem.create_topic("scores", schema="at TIMESTAMP", event_time="at", partitions=3, idle_after=IDLE_AFTER)
        for partition, event, passed in appends:
            clock.advance(timedelta(seconds=passed))
            topic.append([{"at": START + timedelta(seconds=event)}], partition=partition)
        expected = naive(appends)

        assert shown(stem) == expected
        topic.seal()
        assert shown(stem) == expected


@given(appends=steps, chance=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_no_record_that_comes_has_a_watermark_below_what_is_said_to_come(
    appends: list[tuple[int, int, int]], chance: Random
) -> None:
    clock = ManualClock(START)
    said: list[tuple[dict[int, int], datetime]] = []
    with Mainstem(EmbeddedLog(mkdtemp(), clock=clock)) as stem:
        topic = stem.create_topic("scores", schema="at TIMESTAMP", event_time="at", partitions=3, idle_after=IDLE_AFTER)
        for partition, event, passed in appends:
            clock.advance(timedelta(seconds=passed))
            topic.append([{"at": START + timedelta(seconds=event)}], partition=partition)
            ends = {number: topic.backend.latest(number) for number in range(3)}
            for positions in (ends, {number: chance.randint(0, end) for number, end in ends.items()}):
                at = topic.backend.watermark_from(positions, DELAY // timedelta(microseconds=1))
                if at != NO_TIME:
                    said.append((positions, as_datetime(at)))
        found = shown(stem)

    for positions, at in said:
        later = [mark for (number, offset), mark in found.items() if offset >= positions[number]]
        assert all(mark is not None and mark >= at for mark in later), (positions, at)


def test_what_is_all_read_is_known_up_to_its_last_record(tmp_path: Path) -> None:
    with Mainstem(EmbeddedLog(tmp_path / "home", clock=ManualClock(START))) as stem:
        topic = stem.create_topic("scores", schema="at TIMESTAMP", event_time="at", partitions=2)
        minute = 60_000_000
        topic.append([{"at": START + timedelta(minutes=9)}], partition=0)
        # A partition that was never written to may begin with anything.
        assert topic.backend.watermark_from({0: 1}, minute) == NO_TIME
        topic.append([{"at": START + timedelta(minutes=5)}], partition=1)
        assert topic.backend.watermark_from({0: 1, 1: 1}, minute) == as_us(START) + 4 * minute
        assert topic.backend.watermark_holders({0: 1, 1: 1}, minute) == {
            0: as_us(START) + 8 * minute,
            1: as_us(START) + 4 * minute,
        }


def shown(stem: Mainstem) -> dict[tuple[int, int], datetime | None]:
    records = stem.topic("scores").to_arrow(watermark=DELAY).column("record").to_pylist()
    return {(record["partition"], record["offset"]): record["watermark"] for record in records}


def test_a_statement_moves_the_watermark_without_a_delay(tmp_path: Path) -> None:
    with Mainstem(EmbeddedLog(tmp_path / "home", clock=ManualClock(START))) as stem:
        topic = stem.create_topic("scores", schema="at TIMESTAMP", event_time="at", partitions=2)
        slow, fast = stem.producer("slow"), stem.producer("fast")
        fast.declare_watermark(topic, START + timedelta(minutes=9))
        slow.declare_watermark(topic, START + timedelta(minutes=4))
        topic.append([{"at": START}], partition=1)

        # The first statement stood alone for a moment, and what was declared is never taken back.
        assert list(shown(stem).values()) == [START + timedelta(minutes=9)]


def test_the_lowest_statement_of_living_producers_counts(tmp_path: Path) -> None:
    with Mainstem(EmbeddedLog(tmp_path / "home", clock=ManualClock(START))) as stem:
        topic = stem.create_topic("scores", schema="at TIMESTAMP", event_time="at", partitions=2)
        slow, fast = stem.producer("slow"), stem.producer("fast")
        slow.declare_watermark(topic, START + timedelta(minutes=4))
        fast.declare_watermark("scores", START + timedelta(minutes=9))
        topic.append([{"at": START}], partition=0)

        assert list(shown(stem).values()) == [START + timedelta(minutes=4)]
