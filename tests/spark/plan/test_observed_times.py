"""What a flow has seen of the event times of a topic whose log does not tell them."""

from pathlib import Path

import pytest

from mainstem.log.topic_settings import TopicSettings
from mainstem.log.watermark import NO_TIME
from mainstem.spark.plan.observed_times import (
    ObservedTimes,
    as_offset,
    is_silent,
    lanes_watermark,
    lowest_beside,
    times_in,
)

MINUTE = 60_000_000
TOPIC = TopicSettings.of("orders", schema="at TIMESTAMP", event_time="at", partitions=2, idle_after="1 minute")


def test_what_was_read_before_an_offset_is_known_at_it(tmp_path: Path) -> None:
    times = ObservedTimes(str(tmp_path / "observed"))
    assert times.until({0: 5}, {}) == {}

    times.note(0, 0, 5, 100, 1000)
    times.note(1, 0, 7, 300, 1100)
    # A task that ran twice, and one of a batch that is not in the offset.
    times.note(0, 0, 5, 100, 1000)
    times.note(0, 5, 9, 900, 1200)

    assert times.until({0: 5, 1: 7}, {}) == {0: (100, 1000), 1: (300, 1100)}
    assert times.until({0: 9, 1: 7}, {1: (400, 900)}) == {0: (900, 1200), 1: (400, 1100)}


def test_what_an_offset_knows_of_is_forgotten(tmp_path: Path) -> None:
    times = ObservedTimes(str(tmp_path))
    times.note(0, 0, 5, 100, 1000)
    times.note(0, 5, 9, 900, 1200)

    times.forget({0: 5})

    assert [path.name for path in tmp_path.iterdir()] == ["0-5-9.json"]


def test_times_go_into_an_offset_and_back() -> None:
    known = {1: (5, 6), 0: (NO_TIME, 4)}
    assert times_in({"times": as_offset(known)}) == known
    assert times_in({}) == {}


@pytest.mark.parametrize(
    ("times", "watermark"),
    [
        ({}, NO_TIME),
        ({0: (500, 10)}, 490),
        ({0: (500, 10), 1: (200, 10)}, 190),
        # The other one had appends for more than a minute since.
        ({0: (500, 2 * MINUTE), 1: (200, 0)}, 490),
        ({0: (500, MINUTE), 1: (200, 0)}, 190),
        # It was written to, and no record had an event time.
        ({0: (500, 10), 1: (NO_TIME, 10)}, NO_TIME),
    ],
    ids=["nothing", "one partition", "the lowest", "idle", "not yet idle", "without times"],
)
def test_the_watermark_is_the_lowest_of_partitions_that_are_not_idle(times: dict, watermark: int) -> None:
    lanes = {("orders", number): pair for number, pair in times.items()}
    assert lanes_watermark(lanes, {"orders": TOPIC}, 10) == watermark


def test_a_silent_input_goes_by_those_beside_it() -> None:
    idle = {"after": MINUTE, "beside": [["orders", 0], ["clicks.eu", 0]]}
    times = {0: (5, 0), 1: (5, MINUTE)}
    assert [is_silent(times.values(), at, idle) for at in (MINUTE, 2 * MINUTE, 2 * MINUTE + 1)] == [False, False, True]
    # Nothing is known of an input without records.
    assert not is_silent([], 9 * MINUTE, idle)
    reached = [({"topic": "users"}, 1), ({"topic": "orders"}, 30), ({"topics": {"clicks.eu": {}, "clicks.us": {}}}, 20)]
    assert lowest_beside(reached, idle) == 20
    assert lowest_beside([({"topic": "orders"}, None)], idle) == NO_TIME
    assert lowest_beside([({"topic": "users"}, 1)], idle) == NO_TIME
