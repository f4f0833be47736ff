"""An input that is silent for long: what its rows say of time against a naive rule, and that the others go on without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from mainstem.clock import ManualClock, as_datetime, as_us
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.opened_log import opened_log
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD
from mainstem.spark.sources import idle_input
from mainstem.spark.sources.batch_clock import clocks_of, set_now, watermark_of
from mainstem.spark.sources.idle_input import IdleInput
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader
from mainstem.stem import Mainstem

START = datetime(2026, 1, 1, tzinfo=UTC)
AFTER = 60_000_000
DELAY = 10_000_000
SCHEMA = pa.schema([("n", pa.int64()), ("record", WATERMARKED_RECORD)])
# Several topics, as one input.
USERS = "users*"


class Row(NamedTuple):
    n: int
    appended: int
    watermark: int


class Input:
    """One input of a flow, read as Spark reads it."""

    def __init__(self, home: str, topic: str, idle: Any = None, rows_max: int = 500_000) -> None:
        request = TopicRequest(home=home, topic=topic, columns=("n", "record"), delay=DELAY, clock=f"{home}/clock",
                               idle=idle, rows_max=rows_max, wait_ms=0)  # fmt: skip
        self._reader = TopicStreamReader(replace(request, pattern="*" in topic), SCHEMA)
        self.offset = self._reader.initialOffset()

    def batch(self) -> list[Row]:
        """The rows of the next batch."""
        end = self._reader.latestOffset(self.offset, self._reader.getDefaultReadLimit())
        parts = self._reader.partitions(self.offset, end)
        self.offset = end
        rows = [row for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]
        return [Row(row["n"], *(_us(row["record"][name]) for name in ("appended_at", "watermark"))) for row in rows]

    def close(self) -> None:
        self._reader.stop()


def _us(at: datetime | None) -> int:
    return NO_TIME if at is None else as_us(at)


def beside(*topics: str) -> dict[str, Any]:
    return {"after": AFTER, "beside": [[topic, DELAY] for topic in topics]}


class Shop:
    """Orders and users on a clock that the test moves."""

    def __init__(self, partitions: int = 2) -> None:
        self.home = mkdtemp()
        self.clock = ManualClock(START)
        self.stem = Mainstem(EmbeddedLog(self.home, clock=self.clock, upkeep="manual"))
        for topic in ("orders", "users", "users.eu"):
            self.stem.create_topic(topic, schema="n BIGINT, at TIMESTAMP", event_time="at", partitions=partitions)
        self._next = 0
        self.passes(0)

    def passes(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        set_now(f"{self.home}/clock", self.clock.now())

    def append(self, topic: str, *behind: int, partition: int = 0) -> None:
        """Rows that happened so many seconds before they are appended."""
        rows = []
        for seconds in behind:
            self._next += 1
            rows.append({"n": self._next, "at": as_datetime(self.clock.now() - seconds * 1_000_000)})
        self.stem.topic(topic).append(rows, partition=partition)

    def all(self, *topics: str) -> list[Row]:
        """The rows as the log has them, in the order of time."""
        rows = [
            Row(row["n"], _us(row["record"]["appended_at"]), _us(row["record"]["watermark"]))
            for backend in map(self.stem.log.open_topic, topics)
            for number in range(backend.settings.partitions)
            for batch in backend.moment().read(number, 0, backend.latest(number), ["n"], DELAY)
            for row in batch.to_pylist()
        ]
        return sorted(rows, key=lambda row: row.appended)


@contextmanager
def shop(partitions: int = 2) -> Iterator[Shop]:
    made = Shop(partitions)
    try:
        yield made
    finally:
        made.stem.close()
        opened_log.cache_clear()


def naive_watermarks(table: list[Row], stream: list[Row]) -> dict[int, int]:
    """Of each row of the table its own watermark, or what was recorded in the stream before the last gap ended."""
    found = {}
    for row in table:
        ends = []
        for other in table:
            before = [at.appended for at in table if at.appended < other.appended]
            if other.appended <= row.appended and before and other.appended - max(before) > AFTER:
                ends.append(other.appended)
        recorded = [at.watermark for at in stream if ends and at.appended < max(ends)]
        found[row.n] = max([row.watermark, *recorded])
    return found


def check(seed: int, source: str = "users") -> None:
    """A random story, read batch by batch while it happens and once more when it is over."""
    random = Random(seed)
    tables = ["users"] if source == "users" else ["users", "users.eu"]
    with shop() as story:
        orders, users = Input(story.home, "orders"), Input(story.home, source, beside("orders"), random.choice([2, 9]))
        seen: dict[int, int] = {}
        clock = NO_TIME
        # The first record of one of several topics has what the others have reached, which depends on the batches.
        for topic in tables:
            story.append(topic, 0)
        for _ in range(40):
            story.passes(random.choice([0, 1, 10, 30, 61, 90]))
            for topic in random.choice([["orders"], ["orders"], ["users"], ["orders", "users"], []]):
                behind = [random.choice([0, 1, 5, 40, 200]) for _ in range(random.randint(1, 4))]
                named = random.choice(tables) if topic == "users" else topic
                story.append(named, *behind, partition=random.randrange(2))
            # What is beside it goes on, so nothing is released by the clock alone.
            story.append("orders", 0, partition=random.randrange(2))
            if random.random() < 0.6:
                for given in (orders, users):
                    for row in given.batch():
                        assert row.watermark >= clock, (
                            f"row {row.n} of {['orders', 'users'][given is users]} comes below the watermark of an earlier batch"
                        )
                        seen |= {row.n: row.watermark} if given is users else {}
                clock = clocks_of([orders.offset, users.offset]).watermark
        while found := users.batch():
            seen |= {row.n: row.watermark for row in found}
        expected = naive_watermarks(story.all(*tables), story.all("orders"))
        assert seen == expected
        again = Input(story.home, source, beside("orders"))
        assert {row.n: row.watermark for row in again.batch()} == expected, "read at once"
        for reader in (orders, users, again):
            reader.close()


@pytest.mark.parametrize("source", ["users", USERS])
@pytest.mark.parametrize("seed", range(4))
def test_rows_after_a_gap_have_the_naive_watermark_however_they_are_read(seed: int, source: str) -> None:
    check(seed, source)


@pytest.mark.long
@pytest.mark.parametrize("source", ["users", USERS])
def test_rows_after_a_gap_in_many_stories(source: str) -> None:
    for seed in range(6, 60):
        check(seed, source)


def gaps_are_those_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdleInput, "_last_before", lambda self, at: NO_TIME)


def only_what_is_read_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(idle_input, "_append_times", lambda *_: np.array([], np.int64))


def rows_are_not_raised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mainstem.spark.sources.source_time.raise_watermarks", lambda batch, floors: batch)


def what_came_later_counts(patch: pytest.MonkeyPatch) -> None:
    right = IdleInput._last
    patch.setattr(IdleInput, "_last", lambda self, topic, delay=0, at=None: right(self, topic, delay))


@pytest.mark.parametrize("source", ["users", USERS])
@pytest.mark.parametrize(
    "mutate", [gaps_are_those_of_a_batch, only_what_is_read_counts, rows_are_not_raised, what_came_later_counts]
)
def test_a_wrong_rule_is_found(mutate: Any, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in range(6):
        try:
            check(seed, source)
        except AssertionError:
            return
    pytest.fail(f"{mutate.__name__} was not found")


def watermark(*inputs: Input) -> int:
    for given in inputs:
        given.batch()
    return clocks_of([given.offset for given in inputs]).watermark


@pytest.mark.parametrize("source", ["users", USERS])
def test_a_table_that_is_written_once_holds_the_stream_back_until_it_is_idle(source: str) -> None:
    with shop(1) as story:
        orders, users = Input(story.home, "orders"), Input(story.home, source, beside("orders"))
        story.append("users", 86400)
        story.passes(1)
        story.append("orders", 0)
        loaded = as_us(START) - 86400 * 1_000_000 - DELAY
        assert watermark(orders, users) == loaded
        story.passes(60)
        story.append("orders", 0)
        story.passes(1)
        # A note of something that waits, as the stages leave it: else nothing would come of a silent source.
        (Path(story.home) / "clock" / "due.json").write_text('{"event": 0, "processing": 9e18}')
        first = as_us(START) + 1_000_000 - DELAY
        assert watermark(orders, users) == first
        # At the quiet end the clock releases what nothing is recorded of yet.
        story.passes(59)
        assert watermark(orders, users) == first
        story.passes(1)
        # Whoever waits until the flow is idle finds the same from outside.
        offsets = [orders.offset, users.offset]
        reached = watermark_of(story.stem.log, offsets, story.home, story.clock.now())
        assert watermark(orders, users) == reached == as_us(START) + 61_000_000 - DELAY
        # What comes then is late for it.
        story.append("users", 100)
        assert [row.watermark for row in users.batch()] == [as_us(START) + 61_000_000 - DELAY]
        orders.close()
        users.close()


def test_an_input_without_records_or_without_idle_after_holds_back() -> None:
    with shop(1) as story:
        empty = [Input(story.home, "users", idle) for idle in (beside("orders"), None)]
        for _ in range(3):
            story.append("orders", 0)
            story.passes(120)
        assert [watermark(given) for given in empty] == [NO_TIME, NO_TIME]
        story.append("users", 500)
        story.append("orders", 0)
        (Path(story.home) / "clock" / "due.json").write_text('{"event": 0, "processing": 9e18}')
        for _ in range(2):
            reached = [watermark(given) for given in empty]
            story.passes(120)
            story.append("orders", 0)
        assert reached[0] > reached[1]
        for given in empty:
            given.close()


def test_the_last_record_is_found_behind_markers_and_compacted_ones() -> None:
    with shop(1) as story:
        backend = story.stem.log.open_topic("users")
        assert idle_input.last_record(backend, 0, backend.latest(0), DELAY) == (NO_TIME, NO_TIME)
        story.append("users", 5)
        first = story.clock.now()
        story.passes(1)
        with story.stem.producer("p").transaction() as own:
            own.append("users", [{"n": 0, "at": as_datetime(story.clock.now())}] * 3)
        appended, known = idle_input.last_record(backend, 0, backend.latest(0), DELAY)
        assert (appended, known) == (story.clock.now(), first - 5_000_000 - DELAY)
        assert idle_input.last_record(backend, 0, 1, DELAY) == (first, NO_TIME)
