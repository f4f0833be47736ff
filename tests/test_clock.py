"""Clocks: the machine's, and one that a test moves."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.clock import Clock, ManualClock, SystemClock, as_datetime, as_us
from mainstem.errors import Invalid


def readings(clock: Clock) -> tuple[int, int, int]:
    return clock.now(), clock.boot(), clock.monotonic()


def test_time_stands_still_until_it_is_moved(clock):
    assert readings(clock) == readings(clock)


def test_time_passes_on_all_three_clocks(clock):
    before = readings(clock)
    clock.advance("1.5 seconds")
    clock.advance(timedelta(milliseconds=500))

    assert [after - earlier for earlier, after in zip(before, readings(clock), strict=True)] == [2_000_000] * 3


def test_setting_the_time_of_day_leaves_the_other_clocks_alone(clock):
    _, *others = readings(clock)
    clock.set(datetime(2016, 1, 1, tzinfo=UTC))

    assert as_datetime(clock.now()) == datetime(2016, 1, 1, tzinfo=UTC)
    assert readings(clock)[1:] == tuple(others)


def test_time_does_not_pass_backwards(clock):
    with pytest.raises(Invalid, match="is negative"):
        clock.advance("-1 second")


def test_the_three_clocks_are_never_mistaken_for_each_other():
    assert len(set(readings(ManualClock()))) == 3


def test_the_machine_s_clocks_do_not_go_back():
    clock = SystemClock()
    first, second = readings(clock), readings(clock)

    assert first[1:] <= second[1:]
    assert clock.now() > as_us(datetime(2020, 1, 1, tzinfo=UTC))


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_survives_the_way_to_microseconds_and_back(moment):
    assert as_datetime(as_us(moment)) == moment


@given(st.integers(-(2**55), 2**55))
def test_microseconds_survive_the_way_to_a_moment_and_back(us):
    assert as_us(as_datetime(us)) == us


def test_a_moment_is_the_same_in_every_zone():
    assert as_us(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == as_us(
        datetime(2026, 1, 1, tzinfo=UTC)
    )


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(Invalid, match='time "2026-01-01 00:00:00" has no time zone') as refused:
        as_us(datetime(2026, 1, 1))  # noqa: DTZ001
    assert "astimezone(UTC)" in refused.value.hint
