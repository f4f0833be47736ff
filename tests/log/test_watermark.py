"""The watermark at a record against a naive one, over partitions, idleness, far-ahead times and statements."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.clock import ManualClock
from mainstem.log.embedded.embedded_log import EmbeddedLog
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
        at = START + timedelta(seconds=event)
        if at <= now + AHEAD_MAX:
            highest[partition] = max(highest.get(partition, at), at)
        last[partition] = now
        if partition in highest:
            alive = [highest[other] for other in highest if other == partition or now - last[other] <= IDLE_AFTER]
            lowest[partition] = max(lowest.get(partition, min(alive)), min(alive))
        shown[partition, counts[partition]] = lowest[partition] - DELAY if partition in lowest else None
        counts[partition] += 1
    return shown


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


def shown(stem: Mainstem) -> dict[tuple[int, int], datetime | None]:
    records = stem.topic("scores").to_arrow(watermark=DELAY).column("record").to_pylist()
    return {(record["partition"], record["offset"]): record["watermark"] for record in records}


def test_a_statement_moves_the_watermark_without_a_delay(tmp_path: Path) -> None:
    with Mainstem(EmbeddedLog(tmp_path / "home", clock=ManualClock(START))) as stem:
        topic = stem.create_topic("scores", schema="at TIMESTAMP", event_time="at", partitions=2)
        slow, fast = stem.producer("slow"), stem.producer("fast")
        fast.state_watermark(topic, START + timedelta(minutes=9))
        slow.state_watermark(topic, START + timedelta(minutes=4))
        topic.append([{"at": START}], partition=1)

        # The first statement stood alone for a moment, and what was stated is never taken back.
        assert list(shown(stem).values()) == [START + timedelta(minutes=9)]


def test_the_lowest_statement_of_living_producers_counts(tmp_path: Path) -> None:
    with Mainstem(EmbeddedLog(tmp_path / "home", clock=ManualClock(START))) as stem:
        topic = stem.create_topic("scores", schema="at TIMESTAMP", event_time="at", partitions=2)
        slow, fast = stem.producer("slow"), stem.producer("fast")
        slow.state_watermark(topic, START + timedelta(minutes=4))
        fast.state_watermark("scores", START + timedelta(minutes=9))
        topic.append([{"at": START}], partition=0)

        assert list(shown(stem).values()) == [START + timedelta(minutes=4)]
