"""The windows of `windowed`, each with the records of its rows. Times are in microseconds.

Which rows a window has depends on their times and on their own watermarks alone, which the log recorded: a row is in a window
unless its watermark had passed the window's end, and the lateness, when it was appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mainstem.flows.why.traced_rows import Inexact, MadeOf, TracedRows, microseconds, record_column
from mainstem.log.watermark import NO_TIME
from mainstem.operators.stage.engine import NEVER
from mainstem.operators.windows.window_assignment import WindowAssignment
from mainstem.operators.windows.window_kinds import Calendar, Cumulating, Everything, Hopping, Tumbling

__all__ = ["WindowRow", "window_rows", "windowed_step"]

FIXED = {kind.__name__.lower(): kind for kind in (Tumbling, Hopping, Cumulating, Calendar, Everything)}
# The end of a window that nothing has ended yet.
END = NEVER - 1


class WindowRow(NamedTuple):
    """A row: its time, and its own watermark."""

    time: int
    own: int
    # Topic, partition and offset.
    place: tuple[Any, ...]
    gap: int
    made_of: MadeOf


@dataclass
class _Window:
    start: int
    end: int
    rows: list[WindowRow] = field(default_factory=list)
    # What the window needs to be there although it is none of its rows.
    bounds: list[WindowRow] = field(default_factory=list)

    @property
    def made_of(self) -> MadeOf:
        return tuple(sorted({number for row in [*self.rows, *self.bounds] for number in row.made_of}))


def windowed_step(
    how: Mapping[str, Any],
    given: TracedRows,
    timing: str | None = None,
    watermark: int | None = None,
    *,
    emitted_by: int | None = None,
) -> TracedRows:
    """The windows of rows, one row for each; its aggregates are not known. `timing`: that of the pane that was shown, and
    `watermark`: of its batch, if known. `emitted_by`: the watermark by which a window was emitted, if not all were."""
    keys = given.timed("windowed").keys(how["by"], "windows are by")
    rows = [row if row is not None and _is_taken(how, row, watermark) else None for row in window_rows(given)]
    of_key: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(keys):
        if rows[place] is not None:
            of_key.setdefault(key, []).append(place)
    firsts: list[int] = []
    windows: list[_Window] = []
    for places in of_key.values():
        for window in _windows(how, [row for at in places if (row := rows[at]) is not None]):
            shown = _shown(how, window, timing)
            if shown.rows and (emitted_by is None or _closing(how, window) <= emitted_by):
                firsts.append(places[0])
                windows.append(shown)
    chosen = pa.array(firsts, pa.int64())
    columns: dict[str, Any] = {name: given.table.column(name).take(chosen) for name in how["by"]}
    columns["window_start"] = pa.array([it.start for it in windows], pa.int64())
    # Both ends of a sliding window are included.
    last = 1 if how["window"]["kind"] == "sliding" else 0
    columns["window_end"] = pa.array([it.end - last for it in windows], pa.int64())
    # An on-time pane is as late as the last moment of its window.
    columns["record"] = record_column([NO_TIME if it.end >= END else it.end - 1 for it in windows])
    many = how["early"] is not None or bool(how["lateness"])
    return TracedRows(pa.table(columns), [window.made_of for window in windows], repeated=many)


def _closing(how: Mapping[str, Any], window: _Window) -> int:
    """The watermark that closes a window."""
    return _later(window.end, 1 if how["window"].get("touching") == "join" else 0)


def _is_taken(how: Mapping[str, Any], row: WindowRow, watermark: int | None) -> bool:
    """Whether a row was taken yet: windows that depend on other rows take them in the order of their own watermarks, each when the
    watermark of the batch has reached it."""
    kind = how["window"]["kind"]
    if watermark is None or row.own == NO_TIME or kind in FIXED:
        return True
    return row.own < watermark if kind == "validity" else row.own <= watermark


def window_rows(given: TracedRows) -> list[WindowRow | None]:
    """The rows; None for one without a time, which is in no window."""
    table = given.table
    times, owns = microseconds(table, ["time"]), microseconds(table, ["watermark"])
    places = list(
        zip(*(given.values(name) for name in ("partition", "offset") if name in table.column_names), strict=True)
    )
    places = places or [(at,) for at in range(given.count)]
    gaps = microseconds(table, ["gap"]) if "gap" in table.column_names else [0] * given.count
    return [
        None if time is None else WindowRow(time, NO_TIME if own is None else own, place, gap or 0, made_of)
        for time, own, place, gap, made_of in zip(times, owns, places, gaps, given.made_of, strict=True)
    ]


def _windows(how: Mapping[str, Any], rows: Sequence[WindowRow]) -> Iterable[_Window]:
    """The windows of one key."""
    asked, lateness = dict(how["window"]), how["lateness"]
    kind = asked.pop("kind")
    if kind in FIXED:
        return _fixed(WindowAssignment(FIXED[kind](**asked), lateness), rows)
    if kind == "sliding":
        return _sliding(rows, asked["span"], lateness)
    if kind == "sessions":
        return _sessions(rows, asked["gap"], asked["touching"], lateness)
    return _validity(rows, lateness)


def _shown(how: Mapping[str, Any], window: _Window, timing: str | None) -> _Window:
    """The rows of the pane that was shown: late rows wait for the on-time pane, and are in none before."""
    late = [row for row in window.rows if row.own >= window.end]
    if timing in ("early", "on_time"):
        early = how["early"]
        if timing == "early" and early is not None and (early["rows"] or 1) > 1:
            raise Inexact(f"an early pane has the rows up to the last {early['rows']}")
        if how["window"]["kind"] in FIXED:
            return _Window(
                window.start, window.end, [row for row in window.rows if row.own < window.end], window.bounds
            )
        return window
    waits = late and how["late"] is not None and how["late"]["rows"] != 1
    if waits and (timing is None or (how["late"]["rows"] or 1) > 1):
        raise Inexact("late rows wait for a trigger, and it is not known for which of them it fired")
    return window


def _fixed(assignment: WindowAssignment, rows: Sequence[WindowRow]) -> list[_Window]:
    times = pa.array([row.time for row in rows], pa.int64())
    found = assignment.arrow(times)
    owns = pa.array(np.array([row.own for row in rows], np.int64))
    gone = assignment.arrow_passed("gone", times, owns, found)
    windows: dict[tuple[int, int], _Window] = {}
    spans = zip(rows, found["window_start"], found["window_end"], found["windows"], gone, strict=True)
    for row, start, end, count, passed in spans:
        # The earliest windows are those for which it is too late.
        for number in range(int(passed), int(count)):
            bounds = int(start) + number * assignment.start_step, int(end) + number * assignment.step
            windows.setdefault(bounds, _Window(*bounds)).rows.append(row)
    return list(windows.values())


def _later(time: int, span: int) -> int:
    return min(time + span, NEVER)


def _sliding(rows: Sequence[WindowRow], span: int, lateness: int) -> list[_Window]:
    """One window for each distinct set of rows within the span: rows make windows that end with them, or begin after them."""
    makers: dict[tuple[int, int], list[WindowRow]] = {}
    for row in rows:
        for start in (row.time - span, row.time + 1):
            makers.setdefault((start, start + span + 1), []).append(row)
    found = []
    for (start, end), made_by in makers.items():
        first = min(made_by, key=lambda row: (row.own, row.place))
        taken = [
            row for row in rows if start <= row.time < end and max(row.own, first.own) < _later(end, lateness)
        ]  # fmt: skip
        if taken:
            found.append(_Window(start, end, taken, [] if any(row in taken for row in made_by) else [first]))
    return found


def _sessions(rows: Sequence[WindowRow], gap: int | None, touching: str, lateness: int) -> list[_Window]:
    """One row at a time, in the order of their own watermarks."""
    beyond = 1 if touching == "join" else 0
    open_sessions: list[_Window] = []
    over: list[_Window] = []

    def forget(watermark: int) -> None:
        for session in list(open_sessions):
            if _later(session.end, beyond + lateness) <= watermark:
                open_sessions.remove(session)
                over.append(session)

    for row in sorted(rows, key=lambda row: (row.own, row.place)):
        length = row.gap or gap or 0
        start, end = row.time, min(END, row.time + length)
        if length <= 0 or row.own >= _later(end, beyond + lateness):
            continue
        forget(row.own)
        joined = [it for it in open_sessions if it.start < end + beyond and start < it.end + beyond]
        for old in joined:
            open_sessions.remove(old)
        whole = _Window(min([start, *(it.start for it in joined)]), max([end, *(it.end for it in joined)]))
        whole.rows = [*(other for it in joined for other in it.rows), row]
        open_sessions.append(whole)
    return [*over, *open_sessions]


def _validity(rows: Sequence[WindowRow], lateness: int) -> list[_Window]:
    """From each row's time to the next one's; one row at a time, in the order of their own watermarks."""
    windows: list[_Window] = []
    over: list[_Window] = []
    for row in sorted(rows, key=lambda row: (row.own, row.time, row.place)):
        for window in list(windows):
            if _later(window.end, lateness) <= row.own:
                windows.remove(window)
                over.append(window)
        following = min((it for it in windows if it.start > row.time), key=lambda it: it.start, default=None)
        end = END if following is None else following.start
        if row.own >= _later(end, lateness):
            continue
        for window in windows:
            if window.start < row.time < window.end:
                window.end, window.bounds = row.time, [row]
        mine = next((it for it in windows if it.start == row.time), None)
        if mine is None:
            mine = _Window(row.time, end, bounds=[] if following is None else following.rows[:1])
            windows.append(mine)
        mine.rows.append(row)
    return [*over, *windows]
