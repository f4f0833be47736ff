"""What a log promises that keeps watermarks: each record carries what was known of time when it was appended."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from mainstem.clock import as_datetime
from mainstem.errors import Fenced, Invalid
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import dicts

MINUTE = timedelta(minutes=1)


class WatermarkContract:
    """A watermark is a fact of the log: the same in every run, for every reader, however the rows are cut."""

    @pytest.fixture
    def noon(self, clock: Any) -> datetime:
        """A moment some time ago, from which the event times of a test are counted."""
        return as_datetime(clock.now()) - timedelta(days=1)

    @pytest.fixture
    def timed(self, stem: Mainstem) -> Topic:
        return stem.create_topic(
            "timed", schema="n bigint, placed_at timestamp", event_time="placed_at", partitions=2, idle_after="1 minute"
        )

    @promise(Promise.WATERMARKS)
    def test_it_is_the_highest_event_time_before_less_the_delay_asked_for(self, timed: Topic, noon: datetime) -> None:
        for number, minutes in enumerate((0, 10, 5, 11)):
            _append(timed, number, noon + minutes * MINUTE)
        assert _watermarks(timed, "0 seconds", noon) == [None, 0, 10, 10]
        assert _watermarks(timed, "2 minutes", noon) == [None, -2, 8, 8]
        # A record is late if its event time is below it: the third one is, unless one waits for five minutes.
        assert _watermarks(timed, "5 minutes", noon)[2] == 5

    @promise(Promise.WATERMARKS)
    def test_it_is_there_only_for_who_asks(self, timed: Topic, noon: datetime) -> None:
        _append(timed, 1, noon)
        _append(timed, 2, noon)
        assert "watermark" not in dicts(timed.to_arrow())[1]["record"]
        assert dicts(timed.to_arrow(watermark="0 seconds"))[1]["record"]["watermark"] == noon

    @promise(Promise.WATERMARKS)
    def test_the_rows_of_one_append_do_not_make_each_other_late(self, timed: Topic, noon: datetime) -> None:
        for _ in range(2):
            for partition in (0, 1):
                rows = [{"n": n, "placed_at": noon + n * MINUTE} for n in (50, 10, 30)]
                timed.append(rows, partition=partition)
        assert _watermarks(timed, "0 seconds", noon) == [None, None, None, 50, 50, 50] * 2

    @promise(Promise.WATERMARKS)
    def test_the_slowest_partition_holds_it_unless_it_is_idle_or_was_never_written(
        self, timed: Topic, noon: datetime, clock: Any
    ) -> None:
        _append(timed, 0, noon, partition=1)
        _append(timed, 1, noon + 30 * MINUTE, partition=0)
        _append(timed, 2, noon + 10 * MINUTE, partition=1)
        _append(timed, 3, noon + 31 * MINUTE, partition=0)
        clock.advance("2 hours")
        _append(timed, 4, noon + 40 * MINUTE, partition=0)
        found = {row["n"]: row["record"]["watermark"] for row in dicts(timed.to_arrow(watermark="0 seconds"))}
        assert (found.pop(0), found.pop(1)) == (None, None)
        assert {n: (at - noon) // MINUTE for n, at in found.items()} == {2: 0, 3: 10, 4: 31}

    @promise(Promise.WATERMARKS)
    def test_a_partition_that_was_idle_does_not_take_it_back(self, timed: Topic, noon: datetime, clock: Any) -> None:
        _append(timed, 0, noon, partition=1)
        for number in (1, 2):
            clock.advance("2 hours")
            _append(timed, number, noon + 30 * MINUTE, partition=0)
        _append(timed, 3, noon + MINUTE, partition=1)
        found = {row["n"]: row["record"]["watermark"] for row in dicts(timed.to_arrow(watermark="0 seconds"))}
        assert found[3] == noon + 30 * MINUTE

    @promise(Promise.WATERMARKS)
    def test_an_event_time_too_far_ahead_does_not_move_it(self, timed: Topic, noon: datetime) -> None:
        _append(timed, 0, noon)
        _append(timed, 1, noon + timedelta(days=3650))
        _append(timed, 2, noon + MINUTE)
        assert _watermarks(timed, "0 seconds", noon) == [None, 0, 0]

    @promise(Promise.WATERMARKS)
    def test_a_producer_states_that_nothing_earlier_will_come(
        self, stem: Mainstem, timed: Topic, noon: datetime
    ) -> None:
        producer = stem.producer("checkout")
        _append(timed, 0, noon)
        producer.declare_watermark(timed, noon + 20 * MINUTE)
        _append(timed, 1, noon + MINUTE)
        producer.declare_watermark("timed", noon + 10 * MINUTE)
        _append(timed, 2, noon + 25 * MINUTE)
        # What is declared needs no delay, and never goes back.
        assert _watermarks(timed, "10 minutes", noon) == [None, 20, 20]

    @promise(Promise.WATERMARKS)
    def test_of_several_producers_the_one_that_is_least_far_counts(
        self, stem: Mainstem, timed: Topic, noon: datetime
    ) -> None:
        one, two = stem.producer("one"), stem.producer("two")
        one.declare_watermark(timed, noon + 10 * MINUTE)
        two.declare_watermark(timed, noon + 5 * MINUTE)
        _append(timed, 0, noon)
        two.declare_watermark(timed, noon + 20 * MINUTE)
        _append(timed, 1, noon)
        found = _watermarks(timed, "1 hour", noon)
        assert found[1] == 10
        # The first statement may have counted alone, before there was a second.
        assert found[0] in (5, 10)

    @promise(Promise.WATERMARKS)
    def test_a_statement_needs_a_zone_and_the_newest_run(self, stem: Mainstem, other: Mainstem, timed: Topic) -> None:
        producer = stem.producer("checkout")
        with pytest.raises(Invalid, match="zone"):
            producer.declare_watermark(timed, datetime(2026, 1, 1, 13))  # noqa: DTZ001 - refused for that
        other.producer("checkout")
        with pytest.raises(Fenced, match="newer run"):
            producer.declare_watermark(timed, as_datetime(0))

    @promise(Promise.WATERMARKS)
    def test_it_is_the_same_for_every_reader_and_after_sealing(
        self, timed: Topic, other: Mainstem, noon: datetime
    ) -> None:
        for number in range(20):
            _append(timed, number, noon + (number * 7 % 13) * MINUTE, partition=number % 2)
        expected = dicts(timed.to_arrow(watermark="1 minute"))
        elsewhere = other.topic("timed")
        for _ in range(2):
            assert dicts(elsewhere.to_arrow(watermark="1 minute")) == expected
            in_pieces = [
                row
                for partition in range(2)
                for offset in range(10)
                for row in dicts(
                    elsewhere.batches(start={partition: offset}, stop={partition: offset + 1}, watermark="1 minute")
                )
            ]
            assert in_pieces == expected
            timed.seal()


def _append(topic: Topic, number: int, placed_at: datetime, partition: int = 0) -> None:
    topic.append([{"n": number, "placed_at": placed_at}], partition=partition)


def _watermarks(topic: Topic, delay: str, noon: datetime) -> list[int | None]:
    """The watermark of each record, in minutes."""
    found = [row["record"]["watermark"] for row in dicts(topic.to_arrow(watermark=delay))]
    return [None if at is None else (at - noon) // MINUTE for at in found]
