"""Durations and sizes: what is read, what is refused, and that what is shown can be read back."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.durations import duration_us, parse_duration, parse_size, show_duration, show_size
from mainstem.errors import Invalid


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("10 minutes", timedelta(minutes=10)),
        ("1 day 2 hours", timedelta(days=1, hours=2)),
        ("2 hours 1 day", timedelta(days=1, hours=2)),
        ("500 milliseconds", timedelta(milliseconds=500)),
        ("1 microsecond", timedelta(microseconds=1)),
        ("1.5 seconds", timedelta(seconds=1.5)),
        ("0 seconds", timedelta(0)),
        ("  3   WEEKS ", timedelta(weeks=3)),
        ("10minutes", timedelta(minutes=10)),
        (timedelta(hours=1), timedelta(hours=1)),
    ],
)
def test_what_is_a_duration(written, meant):
    assert parse_duration(written) == meant


@pytest.mark.parametrize(
    ("written", "complaint", "hint"),
    [
        ("10", "has no unit", 'For example: "10 seconds".'),
        (10, "has no unit", 'For example: "10 seconds".'),
        (2.5, "has no unit", 'For example: "10 seconds".'),
        (True, "is not a duration", 'For example: "10 seconds".'),
        (None, "is not a duration", 'For example: "10 seconds".'),
        ("", "is not a duration", 'For example: "10 seconds".'),
        ("soon", "is not a duration", 'For example: "10 seconds".'),
        ("1 hour, 2 minutes", "is not a duration", 'For example: "10 seconds".'),
        ("1e3 seconds", "is not a duration", 'For example: "10 seconds".'),
        ("١٠ seconds", "is not a duration", 'For example: "10 seconds".'),
        ("-5 seconds", "is negative", 'For example: "10 seconds".'),
        ("1 day -2 hours", "is negative", 'For example: "10 seconds".'),
        (timedelta(seconds=-1), "is negative", 'For example: "10 seconds".'),
        ("1 month", "is in months", 'Give it in days: "30 days".'),
        ("2 Years", "is in years", 'Give it in days: "30 days".'),
        ("10 secnods", 'has the unknown unit "secnods"', 'Did you mean "seconds"?'),
        ("7d", 'has the unknown unit "d"', 'Write: "7 days".'),
        ("1h 30 ms", 'has the unknown unit "h"', 'Write: "1 hour 30 milliseconds".'),
        ("10 min", 'has the unknown unit "min"', 'Did you mean "minutes"?'),
        ("1 day 2 days", "names days twice", 'For example: "10 seconds".'),
        ("0.0000001 seconds", "is finer than a microsecond", 'For example: "10 seconds".'),
        ("999999999999 weeks", "is too long", 'For example: "10 seconds".'),
        ("9" * 5000 + " days", "is not a duration", 'For example: "10 seconds".'),
    ],
)
def test_what_is_not_a_duration_is_told_why_and_what_to_do(written, complaint, hint):
    with pytest.raises(Invalid) as refused:
        parse_duration(written, setting="session")

    assert refused.value.summary.startswith('session "')
    assert refused.value.summary.endswith(complaint)
    assert refused.value.detail
    assert refused.value.hint == hint


def test_in_microseconds():
    assert duration_us("1 minute 1 microsecond") == 60_000_001


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=100_000)))
def test_a_duration_that_is_shown_can_be_read_back(duration):
    assert parse_duration(show_duration(duration)) == duration


def test_how_durations_are_shown():
    assert show_duration(timedelta(0)) == "0 seconds"
    assert show_duration(timedelta(days=1, seconds=2)) == "1 day 2 seconds"
    assert show_duration(timedelta(weeks=1)) == "7 days"
    assert show_duration(timedelta(seconds=-90)) == "-(1 minute 30 seconds)"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("64 MiB", 64 * 1024**2),
        ("1 GB", 10**9),
        ("1gb", 10**9),
        ("1.5 KiB", 1536),
        ("2 kB", 2000),
        ("3 PiB", 3 * 1024**5),
        ("0 bytes", 0),
        ("1 byte", 1),
        ("7 B", 7),
    ],
)
def test_what_is_a_size(written, meant):
    assert parse_size(written) == meant


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("64", "has no unit"),
        (64, "has no unit"),
        (None, "is not a size"),
        ("", "is not a size"),
        ("64 XiB", "is not a size"),
        ("10 minutes", "is not a size"),
        ("1 GB 2 MB", "is not a size"),
        ("-1 GB", "is negative"),
        ("0.5 bytes", "is not a whole number of bytes"),
    ],
)
def test_what_is_not_a_size_is_told_why_and_what_to_do(written, complaint):
    with pytest.raises(Invalid) as refused:
        parse_size(written, setting="keep")

    assert refused.value.summary == f'keep "{written}" {complaint}'
    assert refused.value.detail.startswith("A size is a number and a unit")
    assert refused.value.hint == ('For example: "64 MiB".' if written in ("64", 64) else 'For example: "10 MiB".')


@given(st.integers(0, 2**60))
def test_a_size_that_is_shown_can_be_read_back(size):
    assert parse_size(show_size(size)) == size


@pytest.mark.parametrize("value", ["100001 days", timedelta.max, "1" + "0" * 90 + " seconds"])
def test_a_duration_that_no_clock_can_hold_is_refused(value):
    with pytest.raises(Invalid, match="is too long"):
        parse_duration(value)
