"""Upkeep's own time: never faster than the boot clock, and not stuck for ever either."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.clock import ManualClock, as_datetime
from mainstem.log.embedded.upkeep import manifest as upkeep_clock
from mainstem.log.embedded.upkeep.manifest import ClockReading, UpkeepNow, first_reading, upkeep_now

DAY = timedelta(days=1)
WEEK = timedelta(days=7)
MICROSECOND = timedelta(microseconds=1)


class Passes:
    """One pass after the other, each with what the one before has written down."""

    def __init__(self, clock: ManualClock, believe_after: timedelta = WEEK) -> None:
        self.clock = clock
        self.reading: ClockReading = first_reading(clock)
        self.written = 0
        self.moved = 0
        self._believe_after = believe_after

    def now(self) -> UpkeepNow:
        moment = upkeep_now(self.reading, self.clock, believe_after=self._believe_after)
        self.written += moment.reading is not self.reading
        self.reading = moment.reading
        self.moved += moment.moved
        return moment

    def jump(self, by: timedelta) -> None:
        self.clock.set(as_datetime(self.clock.now()) + by)


@pytest.fixture
def passes(clock: ManualClock) -> Passes:
    return Passes(clock)


def test_while_nothing_happens_it_is_the_time_of_day_and_nothing_is_written(passes: Passes, clock: ManualClock) -> None:
    for _ in range(10):
        clock.advance("30 seconds")
        assert passes.now()[:2] == (clock.now(), None)
    assert passes.written == 0


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(days=3652)])
def test_a_jump_ahead_is_told_and_not_followed(passes: Passes, clock: ManualClock, by: timedelta) -> None:
    clock.advance("1 minute")
    before = clock.now()
    passes.jump(by)
    clock.advance("1 minute")
    moment = passes.now()
    assert (moment.now, moment.jump) == (before + 60_000_000, by)
    clock.advance("1 minute")
    assert passes.now()[:2] == (before + 120_000_000, by)
    assert passes.written == 1
    passes.jump(-by)
    assert passes.now()[:2] == (clock.now(), None)


def test_a_time_that_stays_ahead_is_believed_when_all_before_it_is_as_old(passes: Passes, clock: ManualClock) -> None:
    passes.jump(timedelta(days=3652))
    passes.now()
    clock.advance("6 days")
    assert passes.now().jump == timedelta(days=3652)
    clock.advance("1 day")
    moment = passes.now()
    assert (moment.now, moment.jump, moment.moved * MICROSECOND) == (clock.now(), None, timedelta(days=3652))
    clock.advance("1 minute")
    assert passes.now()[:2] == (clock.now(), None)


def test_a_second_jump_begins_the_wait_anew(passes: Passes, clock: ManualClock) -> None:
    passes.jump(DAY)
    passes.now()
    clock.advance("6 days")
    passes.jump(DAY)
    passes.now()
    clock.advance("6 days")
    assert passes.now().jump == 2 * DAY
    clock.advance("1 day")
    assert passes.now()[:2] == (clock.now(), None)


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(days=3652)])
def test_a_jump_back_is_followed_since_records_are_stamped_by_it(
    passes: Passes, clock: ManualClock, by: timedelta
) -> None:
    passes.jump(-by)
    moment = passes.now()
    assert (moment.now, moment.jump, moment.moved * MICROSECOND) == (clock.now(), -by, -by)
    clock.advance("1 minute")
    assert passes.now()[:2] == (clock.now(), None)
    assert passes.written == 1


def test_a_frozen_clock_stands_still(passes: Passes, clock: ManualClock) -> None:
    frozen = as_datetime(clock.now())
    for _ in range(5):
        clock.advance("1 hour")
        clock.set(frozen)
        assert passes.now().now == clock.now()


def test_small_corrections_are_no_jumps(passes: Passes, clock: ManualClock) -> None:
    for _ in range(3):
        passes.jump(timedelta(milliseconds=300))
        assert passes.now().jump is None
    assert passes.written == 0


def restart(clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, off: timedelta, boot: str) -> ManualClock:
    """The machine, switched on again; its boot clock begins anew."""
    monkeypatch.setattr(upkeep_clock, "boot_id", lambda: boot)
    after = ManualClock(as_datetime(clock.now()) + off)
    after._boot = 5_000_000
    return after


def test_over_a_restart_the_time_of_day_is_believed_after_an_hour(
    passes: Passes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance("1 day")
    passes.now()
    before = passes.reading.now
    clock = passes.clock = restart(clock, monkeypatch, off=timedelta(days=10), boot="another")
    # All that is certain: it runs for five seconds.
    assert passes.now().now == before + 5_000_000
    clock.advance("59 minutes")
    assert passes.now().now < clock.now()
    clock.advance("1 minute")
    assert passes.now()[:2] == (clock.now(), None)


def test_daily_restarts_do_not_hold_it_back_for_ever(
    passes: Passes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(30):
        clock = passes.clock = restart(clock, monkeypatch, off=timedelta(hours=16), boot=f"boot-{day}")
        # A time server sets it right after a minute.
        passes.jump(timedelta(minutes=-5))
        clock.advance("1 minute")
        passes.now()
        passes.jump(timedelta(minutes=5))
        for _ in range(8):
            clock.advance("1 hour")
            passes.now()
        assert passes.now().now == clock.now()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(0, 10 * 86400)),
        st.tuples(st.just("jump"), st.sampled_from([3600, -3600, 315360000, -315360000, 1, 30, -86400])),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_what_it_says_has_passed_never_took_less_by_the_boot_clock(steps: list[tuple[str, int]]) -> None:
    """Moments that are noted now and moved along as told are never thought to be older than they are."""
    clock = ManualClock()
    passes = Passes(clock, believe_after=DAY)
    noted: list[tuple[int, int, int]] = []
    for kind, seconds in steps:
        if kind == "advance":
            clock.advance(timedelta(seconds=seconds))
        else:
            passes.jump(timedelta(seconds=seconds))
        now = passes.now().now
        for at, moved, boot in noted:
            assert now - (at + passes.moved - moved) <= clock.boot() - boot
        noted.append((now, passes.moved, clock.boot()))


@given(steps=STEPS)
def test_in_the_end_it_is_the_time_of_day_again(steps: list[tuple[str, int]]) -> None:
    clock = ManualClock()
    passes = Passes(clock, believe_after=DAY)
    for kind, seconds in steps:
        if kind == "advance":
            clock.advance(timedelta(seconds=seconds))
        else:
            passes.jump(timedelta(seconds=seconds))
        passes.now()
    passes.now()
    clock.advance(DAY)
    assert abs(passes.now().now - clock.now()) <= upkeep_clock.TOLERANCE
