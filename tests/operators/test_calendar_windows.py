"""Calendars of all time zones: each instant is in one window, and where one ends the next begins."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from zoneinfo import ZoneInfo, available_timezones

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mainstem.operators.windows.window_assignment import WindowAssignment
from mainstem.operators.windows.window_kinds import calendar

SECOND = 1_000_000
MINUTE = 60 * SECOND
UNITS = ("hour", "day", "week", "month", "quarter", "year")
# Where clocks were moved by a part of an hour, at a whole hour (Lord Howe) or within one (Caracas), by odd seconds, by a day,
# back across midnight, or over a midnight from half an hour before it (Toronto).
ODD = (
    "Australia/Lord_Howe", "America/St_Johns", "Antarctica/Casey", "Pacific/Apia", "America/Toronto", "Africa/Monrovia",
    "America/Havana", "America/Caracas", "Asia/Kathmandu", "Europe/Amsterdam", "Pacific/Kwajalein",
)  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(year: int, month: int, day: int, hour: int, minute: int) -> int:
    return (datetime(year, month, day, hour, minute, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@cache
def zones() -> list[str]:
    """All that Python and Arrow know; they may have different versions of the database."""
    found = []
    for zone in sorted(available_timezones()):
        with suppress(pa.ArrowInvalid):
            shifts(zone, np.zeros(1, np.int64))
            found.append(zone)
    assert len(found) > 400
    return found


def shifts(zone: str, times: np.ndarray) -> np.ndarray:
    local = pc.local_timestamp(pa.array(times).view(pa.timestamp("us", zone)))
    return np.asarray(local.view(pa.int64())) - times


def changes(zone: str) -> np.ndarray:
    """When clocks were moved, from 1880 to 2036."""
    grid = np.arange(instant(1880, 1, 1, 0, 0), instant(2037, 1, 1, 0, 0), 3 * 1440 * MINUTE, np.int64)
    shift = shifts(zone, grid)
    at = np.flatnonzero(shift[1:] != shift[:-1])
    low, high, before = grid[at], grid[at + 1], shift[at]
    while len(at) and (high - low).max() > SECOND:
        middle = (low + high) // 2 // SECOND * SECOND
        same = shifts(zone, middle) == before
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return high


def near(moved: np.ndarray) -> np.ndarray:
    minutes = np.array([-1500, -90, -60, -45, -30, -1, 0, 1, 15, 30, 45, 60, 90, 1500])
    moments = (moved[:, None] + minutes * MINUTE).ravel()
    return np.r_[moments, moments - 1]


def around(zone: str) -> np.ndarray:
    """Instants around the changes of a zone."""
    return np.unique(np.r_[near(changes(zone)), instant(2026, 11, 17, 12, 30)])


def windows(unit: str, zone: str, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = WindowAssignment(calendar(unit, time_zone=zone), 0).arrow(pa.array(times))
    return found["window_start"], found["window_end"]


def check_calendar(unit: str, zone: str) -> None:
    times = around(zone)
    start, end = windows(unit, zone, times)
    assert ((start <= times) & (times < end)).all(), (unit, zone)
    for inside in (start, end - 1):
        assert (np.stack(windows(unit, zone, inside)) == [start, end]).all(), (unit, zone)
    assert (windows(unit, zone, start - 1)[1] == start).all(), (unit, zone)
    assert (windows(unit, zone, end)[0] == end).all(), (unit, zone)


def test_an_hour_ends_where_clocks_are_moved_by_half_of_one() -> None:
    # At 02:00 it becomes 02:30, half a year later at 02:00 half past one.
    spring, autumn = instant(2025, 10, 4, 15, 30), instant(2026, 4, 4, 15, 0)
    for moved, offsets in ((spring, [-60, 0, 30, 90]), (autumn, [-60, 0, 30, 90])):
        expected = [moved + minutes * MINUTE for minutes in offsets]
        start, end = windows("hour", "Australia/Lord_Howe", np.array(expected[:-1]))
        assert start.tolist() == expected[:-1]
        assert end.tolist() == expected[1:]


def test_a_day_that_began_goes_on_when_clocks_are_moved_back_to_the_day_before() -> None:
    # In Newfoundland at 00:01 it became 23:01.
    moved = instant(2010, 11, 7, 2, 31)
    start, _ = windows("day", "America/St_Johns", np.array([moved - 2 * MINUTE, moved - 1, moved, moved + 59 * MINUTE]))
    assert (start == [instant(2010, 11, 6, 2, 30), *[moved - MINUTE] * 3]).all()


@pytest.mark.parametrize("unit", UNITS)
def test_each_instant_is_in_one_window_and_windows_touch(unit: str) -> None:
    for zone in (*ODD, *Random(unit).sample(zones(), 12)):
        check_calendar(unit, zone)


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS)
def test_each_instant_of_every_zone_is_in_one_window(unit: str) -> None:
    for zone in zones():
        check_calendar(unit, zone)


# The SQL for Spark, in DuckDB with Spark's functions


def local_of(at: int, zone: str) -> int:
    moment = (EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone))
    return (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def instant_of(local: int, zone: str) -> int:
    """As in Java: the earlier of two, and what is left out by the clock before."""
    moment = (EPOCH + timedelta(microseconds=local)).replace(tzinfo=ZoneInfo(zone))
    return (moment.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


# When clocks were moved in Lord Howe, Caracas, Newfoundland, Samoa and Toronto.
MOVED = [
    instant(2025, 10, 4, 15, 30),
    instant(2016, 5, 1, 7, 0),
    instant(2010, 11, 7, 2, 31),
    instant(2011, 12, 30, 10, 0),
    instant(1919, 3, 31, 4, 30),
]
# Timestamps are numbers here.
MACROS = """
    CREATE MACRO unix_micros(moment) AS moment;
    CREATE MACRO timestamp_micros(moment) AS moment;
    CREATE MACRO pmod(a, b) AS ((a % b) + b) % b;
    CREATE MACRO unix_date(date) AS CAST(date - DATE '1970-01-01' AS BIGINT);
    CREATE MACRO date_from_unix_date(days) AS DATE '1970-01-01' + CAST(days AS INTEGER);
    CREATE MACRO date_add(date, days) AS date + CAST(days AS INTEGER);
    CREATE MACRO date_sub(date, days) AS date - CAST(days AS INTEGER);
    CREATE MACRO add_months(date, months) AS CAST(date + to_months(CAST(months AS INTEGER)) AS DATE);
    CREATE MACRO trunc(date, unit) AS CAST(date_trunc(unit, date) AS DATE);
"""


def in_duckdb(sql: str) -> str:
    """Spark's SQL with DuckDB's literals and operators; a fold with its beginning as the first of the list."""
    sql = re.sub(r"(\d)L\b", r"\1::BIGINT", sql).replace(" div ", " // ").replace("array(", "list_value(")
    fold = r"aggregate\((list_value\([^)]*\)), (.*?), \(reached, step\) -> "
    return re.sub(fold, r"list_reduce(list_prepend(\2, \1), lambda reached, step: ", sql)


def test_the_sql_for_spark_gives_the_same_windows() -> None:
    chance = Random(5)
    with duckdb.connect() as connection:
        for name, function in (("from_utc_timestamp", local_of), ("to_utc_timestamp", instant_of)):
            connection.create_function(name, function, ["BIGINT", "VARCHAR"], "BIGINT")
        connection.execute(MACROS)
        for zone in (*ODD, "UTC", "Europe/Berlin"):
            some = around(zone)
            times = np.unique(np.r_[near(np.array(MOVED)), chance.sample(some.tolist(), min(len(some), 20))])
            connection.register("rows", pa.table({"time": times}))
            for unit in UNITS:
                native = WindowAssignment(calendar(unit, time_zone=zone), 0).native()
                sql = ", ".join(in_duckdb(native[name]) for name in ("window_start", "window_end"))
                found = connection.execute(f"SELECT {sql} FROM rows ORDER BY time").fetchall()
                start, end = windows(unit, zone, times)
                assert found == list(zip(start.tolist(), end.tolist(), strict=True)), (unit, zone)
