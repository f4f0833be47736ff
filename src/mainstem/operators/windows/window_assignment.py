"""Which windows a row belongs to, and whether it is on time for each: in Spark's SQL, and the same over Arrow.

With the fixed kinds a row has no window, one, or several whose ends are one step apart. So a row's windows are five
numbers, and rows that share them can be pre-aggregated before they are exploded by window:

    window_start    of the first window (hopping: each further one begins a step later; cumulating: all begin there)
    window_end      the earliest end
    windows         how many
    closed, gone    for how many of them the row is late, and too late: its own watermark is at or above their end, or
                    their end and the lateness

A row without a time is too late; its window is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.engine import NEVER, NO_TIME, Int64Array
from mainstem.operators.windows.window_kinds import Calendar, Cumulating, Everything, Hopping, Tumbling

__all__ = ["FixedKind", "WindowAssignment"]

FixedKind = Tumbling | Hopping | Cumulating | Calendar | Everything

# Emitted on time when all rows have arrived.
END_OF_EVERYTHING = NEVER - 1
_DAY = 86_400_000_000
_HOUR = 3_600_000_000
_SECOND = 1_000_000
# For a bisection of 68 minutes: clock changes are at whole seconds.
_STEPS = tuple(2**power * _SECOND for power in range(11, -1, -1))
# The units of a calendar in Spark's `trunc`.
_TRUNCATED = {"week": "WEEK", "month": "MONTH", "quarter": "QUARTER", "year": "YEAR"}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}


@dataclass(frozen=True)
class WindowAssignment:
    """One kind of window, and how long after its end it may be corrected (microseconds)."""

    kind: FixedKind
    lateness: int

    @property
    def step(self) -> int:
        """The distance between the ends of a row's windows; 0 if it has at most one."""
        if isinstance(self.kind, Hopping) and self.kind.size > self.kind.slide:
            return self.kind.slide
        return self.kind.step if isinstance(self.kind, Cumulating) else 0

    @property
    def start_step(self) -> int:
        """The distance between their starts."""
        return self.step if isinstance(self.kind, Hopping) else 0

    @property
    def leaves_gaps(self) -> bool:
        """Whether there are times that belong to no window."""
        return isinstance(self.kind, Hopping) and self.kind.size < self.kind.slide

    # In SQL

    def native(self) -> dict[str, str]:
        """SQL for window_start, window_end and windows, from a row's `time`. Each may use those before it."""
        start, end, windows = self._native_first()
        windows = windows if windows == "1L" else f"IF(time IS NULL, 1L, {windows})"
        return {"window_start": start, "window_end": end, "windows": windows}

    def native_keys(self) -> tuple[str, ...]:
        """Those of the three columns that determine the others: rows that share them share their windows."""
        if isinstance(self.kind, Tumbling):
            return ("window_start",)
        if isinstance(self.kind, Hopping):
            return ("window_start", "windows") if self.kind.size % self.kind.slide else ("window_start",)
        return ("window_start", "window_end")

    def native_again(self) -> dict[str, str]:
        """SQL for the columns that follow from the others. Each may use those before it."""
        kind = self.kind
        windows = "1L"
        if isinstance(kind, Hopping):
            windows = f"IF(time IS NULL, 1L, {kind.size // kind.slide}L)"
        if isinstance(kind, Cumulating):
            windows = self.native()["windows"]
        size = kind.size if isinstance(kind, Tumbling | Hopping) else 0
        return {"window_end": f"window_start + {size}L", "windows": windows}

    def native_passed(self, which: str) -> str:
        """SQL for how many of a row's windows are `closed` or `gone`, from its `watermark` and the three columns."""
        if isinstance(self.kind, Everything):
            return "IF(time IS NULL, 1L, 0L)"
        first = f"(window_end + {self.lateness if which == 'gone' else 0}L)"
        passed = f"least((watermark - {first}) div {self.step}L + 1L, windows)" if self.step else "1L"
        return f"CASE WHEN time IS NULL THEN 1L WHEN watermark >= {first} THEN {passed} ELSE 0L END"

    def _native_first(self) -> tuple[str, str, str]:
        kind = self.kind
        if isinstance(kind, Tumbling):
            start = f"time - pmod(time - {kind.offset}L, {kind.size}L)"
            return start, f"window_start + {kind.size}L", "1L"
        if isinstance(kind, Hopping):
            rest, whole = kind.size % kind.slide, kind.size // kind.slide
            since = f"pmod(time - {kind.offset}L, {kind.slide}L)"
            # If the size is not a multiple of the slide, one more window is open just after a start.
            more = f"IF({since} < {rest}L, 1L, 0L)"
            start = f"time - {since} - ({whole - 1}L + {more}) * {kind.slide}L"
            return start, f"window_start + {kind.size}L", f"{whole}L + {more}"
        if isinstance(kind, Cumulating):
            start = f"time - pmod(time - {kind.offset}L, {kind.size}L)"
            end = f"time - pmod(time - {kind.offset}L, {kind.step}L) + {kind.step}L"
            return start, end, f"(window_start + {kind.size}L - window_end) div {kind.step}L + 1L"
        if isinstance(kind, Everything):
            end = f"IF(time IS NULL, NULL, {END_OF_EVERYTHING}L)"
            return f"- {end}", end, "1L"
        return (*_native_calendar(kind), "1L")

    # Over Arrow

    def arrow(self, times: pa.Array) -> dict[str, Int64Array]:
        """window_start, window_end and windows, from times, which may be null."""
        start, end, windows = self._arrow_first(np.asarray(times.fill_null(0)).astype(np.int64, copy=False))
        windows = np.where(np.asarray(times.is_null()), 1, windows) if times.null_count else windows
        return {"window_start": start, "window_end": end, "windows": windows}

    def arrow_passed(
        self, which: str, times: pa.Array, watermarks: pa.Array, found: Mapping[str, Int64Array]
    ) -> Int64Array:
        """How many of a row's windows are `closed` or `gone`, from its watermark and the three columns."""
        passed = self._passed(found, np.asarray(watermarks.fill_null(NO_TIME)), self.lateness if which == "gone" else 0)
        return np.where(np.asarray(times.is_null()), 1, passed)

    def _passed(self, found: Mapping[str, Int64Array], watermarks: Int64Array, lateness: int) -> Int64Array:
        end, windows = found["window_end"], found["windows"]
        if isinstance(self.kind, Everything):
            # Its end plus a lateness would overflow.
            return np.zeros(len(end), np.int64)
        reached = watermarks >= end + lateness
        beyond = np.where(reached, watermarks, end + lateness) - end - lateness
        return np.where(reached, np.minimum(beyond // self.step + 1 if self.step else 1, windows), 0)

    def _arrow_first(self, time: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        kind, one = self.kind, np.ones(len(time), np.int64)
        if isinstance(kind, Tumbling):
            start = time - (time - kind.offset) % kind.size
            return start, start + kind.size, one
        if isinstance(kind, Hopping):
            since = (time - kind.offset) % kind.slide
            windows = kind.size // kind.slide + (since < kind.size % kind.slide)
            start = time - since - (windows - 1) * kind.slide
            return start, start + kind.size, windows
        if isinstance(kind, Cumulating):
            start = time - (time - kind.offset) % kind.size
            end = time - (time - kind.offset) % kind.step + kind.step
            return start, end, (start + kind.size - end) // kind.step + 1
        if isinstance(kind, Everything):
            return -END_OF_EVERYTHING * one, END_OF_EVERYTHING * one, one
        return (*_arrow_calendar(kind, time), one)


def _native_calendar(kind: Calendar) -> tuple[str, str]:
    """By local dates, so that neither the session's time zone nor a repeated local hour matters."""
    zone = f"'{kind.time_zone}'"

    def local(at: str) -> str:
        return f"unix_micros(from_utc_timestamp(timestamp_micros({at}), {zone}))"

    def midnight(day: str) -> str:
        return f"unix_micros(to_utc_timestamp(timestamp_micros(unix_date({day}) * {_DAY}L), {zone}))"

    if kind.unit == "hour":
        # Only in terms of `time`: a lambda cannot refer to other columns of the same SELECT.
        first = f"(time - pmod({local('time')}, {_HOUR}L))"
        second = f"(time - pmod(time, {_SECOND}L))"

        def shifted(at: str) -> str:
            return f"pmod({local(at)} - {at}, {_HOUR}L) <> pmod({local('time')} - time, {_HOUR}L)"

        def change(after: str) -> str:
            steps = ", ".join(f"{step}L" for step in _STEPS)
            same = f"{local('reached + step')} - reached - step = {local(after)} - {after}"
            found = f"aggregate(array({steps}), {after}, (reached, step) -> IF({same}, reached + step, reached))"
            return f"{found} + {_SECOND}L"

        end = f"({first} + {_HOUR}L)"
        last = f"({end} - {_SECOND}L)"
        return f"IF({shifted(first)}, {change(first)}, {first})", f"IF({shifted(last)}, {change(second)}, {end})"
    shown = local("time")
    shown = f"date_from_unix_date(CAST(({shown} - pmod({shown}, {_DAY}L)) div {_DAY}L AS INT))"
    before, after = f"date_sub({shown}, 1)", f"date_add({shown}, 1)"
    date = (
        f"CASE WHEN time < {midnight(shown)} THEN {before} WHEN time >= {midnight(after)} THEN {after} ELSE {shown} END"
    )
    if kind.unit == "day":
        first, after = date, f"date_add({date}, 1)"
    else:
        first = f"trunc({date}, '{_TRUNCATED[kind.unit]}')"
        after = f"date_add({first}, 7)" if kind.unit == "week" else f"add_months({first}, {_MONTHS[kind.unit]})"
    return midnight(first), midnight(after)


def _arrow_calendar(kind: Calendar, time: Int64Array) -> tuple[Int64Array, Int64Array]:
    if kind.unit == "hour":
        return _arrow_hours(kind.time_zone, time)
    zone, local = kind.time_zone, _local(kind.time_zone, time)
    date = local - local % _DAY
    date = date + np.where(time < _midnight(zone, date), -_DAY, np.where(time >= _midnight(zone, date + _DAY), _DAY, 0))
    first = _floor(kind.unit, date)
    # This many days after the first day is always within the next unit.
    days = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}[kind.unit]
    return _midnight(zone, first), _midnight(zone, _floor(kind.unit, first + days * _DAY))


def _arrow_hours(zone: str, time: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Local hours begin at whole hours of the zone, which may be half an hour off UTC's.

    A clock change by a part of an hour ends one and begins another.
    """
    shift = _shift(zone, time)
    start = time - (time + shift) % _HOUR
    end = start + _HOUR
    begun, ends = ((_shift(zone, at) - shift) % _HOUR != 0 for at in (start, end - _SECOND))
    start[begun] = _next_change(zone, start[begun])
    end[ends] = _next_change(zone, time[ends] - time[ends] % _SECOND)
    return start, end


def _local(zone: str, time: Int64Array) -> Int64Array:
    """The local times of the zone, as if they were in UTC."""
    return np.asarray(pc.local_timestamp(pa.array(time).view(pa.timestamp("us", zone))).view(pa.int64()))


def _shift(zone: str, time: Int64Array) -> Int64Array:
    """The offset of the zone from UTC."""
    return _local(zone, time) - time


def _next_change(zone: str, after: Int64Array) -> Int64Array:
    """The next clock change after these whole seconds, by bisection within 68 minutes."""
    reached, shift = after, _shift(zone, after)
    for step in _STEPS:
        reached = np.where(_shift(zone, reached + step) == shift, reached + step, reached)
    return reached + _SECOND


def _midnight(zone: str, date: Int64Array) -> Int64Array:
    """The start of a local date. Of a repeated midnight the first counts; a skipped midnight is where it would be without the
    clock change."""
    days = pa.array(date).view(pa.timestamp("us"))
    moved = pc.assume_timezone(days, zone, ambiguous="earliest", nonexistent="latest")
    found = np.array(moved.view(pa.int64()))
    left_out = np.flatnonzero(_local(zone, found) != date)
    found[left_out] = date[left_out] - _shift(zone, found[left_out] - _SECOND)
    return found


def _floor(unit: str, date: Int64Array) -> Int64Array:
    days = pa.array(date).view(pa.timestamp("us"))
    return np.asarray(pc.floor_temporal(days, unit=unit, week_starts_monday=True).view(pa.int64()))
