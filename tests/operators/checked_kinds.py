"""CheckedKind: every kind of window with its engine, its naive one and its answer in SQL, to compare them with each other.

All times are in microseconds, counted from shortly before a midnight of Berlin: so a calendar has a
window that ends among them, and the day after it is one of 23 hours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa

from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.windows.session_engine import SessionEngine
from mainstem.operators.windows.sliding_engine import SlidingEngine
from mainstem.operators.windows.validity_engine import ValidityEngine
from mainstem.operators.windows.window_assignment import FixedKind, WindowAssignment
from mainstem.operators.windows.window_engine import WindowEngine
from mainstem.operators.windows.window_kinds import (
    WindowKind,
    calendar,
    cumulating,
    everything,
    hopping,
    sessions,
    sliding,
    tumbling,
    validity,
)
from tests.operators.naive_sessions import NaiveSessions
from tests.operators.naive_sliding import NaiveSliding
from tests.operators.naive_validity import NaiveValidity
from tests.operators.naive_windows import END, Asked, NaiveWindows, Pane, Row, Window, later
from tests.operators.window_scripts import (
    BY,
    ORIGIN,
    Batch,
    Run,
    aggregates_of,
    by_cell,
    run,
    single_rows,
    told,
    windowed_rows,
)

__all__ = ["KINDS", "Answer", "CheckedKind"]

# What stands: of each key and window, its values.
Answer = dict[tuple[int, Window], tuple[Any, ...]]
BERLIN = ZoneInfo("Europe/Berlin")
SPAN = 6


class Naive(Protocol):
    too_late: list[tuple[Row, Window]]

    def batch(self, rows: list[Row], clock: BatchClock) -> list[Pane]: ...


@dataclass(frozen=True)
class CheckedKind:
    """A kind of window, and what it is checked with."""

    window: WindowKind
    engine: Callable[..., Any]
    naive: Callable[[Asked], Naive]
    # The answer for a table `rows` of key, time, gap, value and place, in DuckDB's SQL.
    sql: str
    # Where a row's time alone says its windows: which ones.
    windows: Callable[[int], list[Window]] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    # A row counts when the batch's watermark is so far beyond its own; None: at once.
    beyond: int | None = None
    # Whether a row may take windows back, so that only all windows of a key together have an order.
    moves: bool = False
    # Keys are the cases: each has rows of its own, and shares nothing with the others but the clock.
    keys: int = 60
    rows: int = 600
    # How many scripts are tried.
    scripts: int = 15

    def ran(self, asked: Asked, script: list[Batch], *, twice: bool = False) -> Run:
        """What the engine does with a script."""
        engine = self.engine(
            BY,
            aggregates_of(asked.functions),
            early=asked.early,
            late=asked.late,
            lateness=asked.lateness,
            results=asked.results,
            on_time=asked.on_time,
            **self.more,
        )

        def given(rows: list[Row]) -> pa.Table:
            if self.windows is not None:
                return windowed_rows(engine, assigned(self.window, {row.time for row in rows}).__getitem__, rows)
            return single_rows(rows, asked.functions).select(engine.input_schema.names)

        return run(engine, script, given, twice=twice)

    def ordered(self, shown: list[Pane]) -> dict[Any, list[Pane]]:
        """Panes as far as their order is said."""
        if not self.moves:
            return by_cell(shown)
        found: dict[int, list[Pane]] = {}
        for pane in shown:
            found.setdefault(pane.key, []).append(pane)
        return {key: sorted(panes, key=lambda pane: (pane.window, pane.index)) for key, panes in found.items()}

    def expected(self, naive: Naive, rows: list[Row], clock: BatchClock) -> list[Pane]:
        """What the naive engine puts out, with windows as this kind shows them."""
        return [replace(pane, window=self.shown(pane.window)) for pane in naive.batch(rows, clock)]

    def shown(self, window: Window) -> Window:
        """A sliding window's last moment belongs to it."""
        return (window[0], window[1] - 1) if self.engine is SlidingEngine else window

    def counts(self, row: Row, clock: BatchClock) -> bool:
        """Whether a row that has come counts, or waits."""
        return self.beyond is None or later(row.watermark, self.beyond) <= clock.watermark

    def answer(self, rows: list[Row], asked: Asked | None = None) -> Answer:
        """What all rows at once come to, by DuckDB; with `asked`, of those that are in time for a window alone."""
        with duckdb.connect() as connection:
            connection.register("rows", told(rows) if self.windows is None else self._pairs(rows, asked))
            found = connection.execute(self.sql).fetchall()
        return {(key, (start, min(END, end))): tuple(map(int, values)) for key, start, end, *values in found}

    def _pairs(self, rows: list[Row], asked: Asked | None) -> pa.Table:
        assert self.windows is not None
        pairs = [(row, window) for row in rows for window in self.windows(row.time)]
        if asked is not None:
            pairs = [(row, window) for row, window in pairs if row.watermark < later(window[1], asked.lateness)]
        return pa.table(
            {
                "key": pa.array([row.key for row, _ in pairs], pa.int64()),
                "value": pa.array([row.value for row, _ in pairs], pa.int64()),
                "window_start": pa.array([window[0] for _, window in pairs], pa.int64()),
                "window_end": pa.array([window[1] for _, window in pairs], pa.int64()),
            }
        )


def assigned(window: FixedKind, times: set[int]) -> dict[int, list[Window]]:
    """The windows of some times, as the product assigns them."""
    assignment = WindowAssignment(window, 0)
    given = pa.array(sorted(times), pa.int64())
    found = assignment.arrow(given)
    firsts = zip(*(found[name].tolist() for name in ("window_start", "window_end", "windows")), strict=True)
    return {
        time: [(start + at * assignment.start_step, end + at * assignment.step) for at in range(count)]
        for time, (start, end, count) in zip(given.to_pylist(), firsts, strict=True)
    }


# Windows as the text has them


def hops(size: int, slide: int) -> Callable[[int], list[Window]]:
    def windows(time: int) -> list[Window]:
        starts = range(time // slide * slide, time - size, -slide)
        return [(start, start + size) for start in starts]

    return windows


def steps(step: int, size: int) -> Callable[[int], list[Window]]:
    def windows(time: int) -> list[Window]:
        start = time // size * size
        return [(start, end) for end in range(start + step, start + size + 1, step) if end > time]

    return windows


@cache
def days(time: int) -> list[Window]:
    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)).astimezone(BERLIN).date()
    ends = [datetime(on.year, on.month, on.day, tzinfo=BERLIN) for on in (day, day + timedelta(days=1))]
    return [(int(ends[0].timestamp()) * 1_000_000, int(ends[1].timestamp()) * 1_000_000)]


# Answers of DuckDB

GROUPED = """
    SELECT key, window_start, window_end, sum(value), count(*), min(value), max(value) FROM rows GROUP BY ALL
"""
# A session goes on until no span of a row before has reached the next one.
SESSIONS = """
    WITH marked AS (
        SELECT *, max(time + gap) OVER before AS reached FROM rows WHERE gap > 0
        WINDOW before AS (PARTITION BY key ORDER BY time, place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), numbered AS (
        SELECT *, count(*) FILTER (reached IS NULL OR {apart}) OVER (PARTITION BY key ORDER BY time, place) AS session
        FROM marked
    )
    SELECT key, min(time), max(time + gap), sum(value), count(*), min(value), max(value)
    FROM numbered GROUP BY key, session
"""
# Every place at which a window can stand; those that hold the same rows are one, named by the first.
SLIDING = f"""
    WITH places AS (
        SELECT unnest(range((SELECT min(time) FROM rows) - {SPAN}, (SELECT max(time) FROM rows) + 1)) AS start
    ), held AS (
        SELECT key, start, list(place ORDER BY place) AS set, sum(value) AS total, count(*) AS count,
            min(value) AS least, max(value) AS most
        FROM places JOIN rows ON time BETWEEN start AND start + {SPAN} GROUP BY key, start
    )
    SELECT key, min(start), min(start) + {SPAN}, any_value(total), any_value(count), any_value(least), any_value(most)
    FROM held GROUP BY key, set
"""
VALIDITY = f"""
    SELECT key, time, coalesce(lead(time) OVER (PARTITION BY key ORDER BY time), {END}),
        sum(value), count(*), min(value), max(value)
    FROM rows GROUP BY key, time
"""


def fixed(window: WindowKind, windows: Callable[[int], list[Window]]) -> CheckedKind:
    return CheckedKind(window, WindowEngine, lambda asked: NaiveWindows(asked, windows), GROUPED, windows)


def rows_followed(touching: str, apart: str) -> CheckedKind:
    return CheckedKind(
        # In scripts each row has a gap of its own.
        sessions("3 microseconds", touching=touching),
        SessionEngine,
        lambda asked: NaiveSessions(asked, touching),
        SESSIONS.format(apart=apart),
        more={"touching": touching},
        beyond=0,
        moves=True,
        scripts=30,
    )


KINDS: dict[str, CheckedKind] = {
    "tumbling": fixed(tumbling("10 microseconds"), hops(10, 10)),
    "hopping": fixed(hopping("10 microseconds", slide="5 microseconds"), hops(10, 5)),
    "with gaps": fixed(hopping("4 microseconds", slide="7 microseconds"), hops(4, 7)),
    "cumulating": fixed(cumulating("9 microseconds", step="3 microseconds"), steps(3, 9)),
    "calendar": fixed(calendar("day", time_zone="Europe/Berlin"), days),
    "everything": fixed(everything(), lambda time: [(-END, END)]),
    "sessions": rows_followed("split", "time >= reached"),
    "sessions that join": rows_followed("join", "time > reached"),
    "sliding": CheckedKind(
        sliding(f"{SPAN} microseconds"), SlidingEngine, lambda asked: NaiveSliding(asked, SPAN), SLIDING,
        more={"span": SPAN}, beyond=0, keys=40, rows=200, scripts=30,
    ),
    "validity": CheckedKind(
        validity(), ValidityEngine, NaiveValidity, VALIDITY, beyond=1, moves=True, keys=40, rows=400, scripts=30,
    ),
}  # fmt: skip

assert days(ORIGIN)[0][1] < ORIGIN + 100 < days(ORIGIN + 99)[0][1]
