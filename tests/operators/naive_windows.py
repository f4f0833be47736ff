"""NaiveWindows: windows as the text has them, row by row in lists, and recomputed whenever something is shown.

Slow and plain on purpose: the engines are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from mainstem.operators.stage.engine import NEVER, BatchClock
from mainstem.operators.windows.triggers import Trigger, each_row

Window = tuple[int, int]
END = NEVER - 1
# Of a row that belongs to no window.
NOWHERE: Any = (None, None)
FUNCTIONS = ("sum", "count", "min", "max")


@dataclass(frozen=True)
class Row:
    """A row: its key, event time, own watermark, value, and where it stands."""

    key: int
    time: int
    watermark: int
    value: int
    partition: int
    offset: int
    gap: int = 0

    @property
    def position(self) -> tuple[int, int]:
        return self.partition, self.offset


@dataclass(frozen=True)
class Asked:
    """What is asked of windows."""

    early: Trigger | None = None
    late: Trigger | None = None
    lateness: int = 0
    results: str = "accumulate"
    on_time: str = "always"
    functions: tuple[str, ...] = FUNCTIONS

    @property
    def late_trigger(self) -> Trigger:
        return self.late or each_row()


@dataclass(frozen=True)
class Pane:
    """One row that was put out."""

    key: int
    window: Window
    values: tuple[Any, ...]
    index: int
    timing: str
    final: bool
    change: str

    @property
    def cell(self) -> tuple[int, Window]:
        return self.key, self.window


def values(rows: Iterable[Row], functions: tuple[str, ...] = FUNCTIONS) -> tuple[Any, ...]:
    """What the functions give."""
    found = [row.value for row in rows]
    given = {"sum": sum(found), "count": len(found), "min": min(found, default=None), "max": max(found, default=None)}
    return tuple(given[function] for function in functions)


def later(end: int, by: int) -> int:
    return min(END, end + by)


@dataclass
class NaiveCell:
    """A key and a window."""

    key: int
    window: Window
    asked: Asked
    rows: list[Row] = field(default_factory=list)
    since: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    due: int = NEVER
    panes: int = 0
    shown: Pane | None = None
    out: bool = False
    # What was shown of its rows was taken back, since they are in another window now.
    again: bool = False

    def take(self, row: Row, trigger: Trigger | None, now: int) -> None:
        if not (self.since or self.again) and trigger is not None:
            self.due = trigger.due(now)
        self.rows.append(row)
        self.since.append(row)

    def full(self, trigger: Trigger | None) -> bool:
        return trigger is not None and trigger.rows is not None and len(self.since) >= trigger.rows

    def show(self, timing: str, forced: bool) -> list[Pane]:
        asked = self.asked
        told = values(self.since if asked.results == "discard" else self.rows, asked.functions)
        new = bool(self.since) if asked.results == "discard" else self.shown is None or self.shown.values != told
        self.since, self.due, self.again = [], NEVER, False
        if not (forced or new):
            return []
        change = "update" if asked.results == "accumulate" and self.panes else "insert"
        pane = Pane(self.key, self.window, told, self.panes, timing, False, change)
        taken_back = [replace(self.shown, change="delete")] if self.shown and asked.results == "retract" else []
        self.panes += 1
        self.shown = pane
        return [*taken_back, pane]

    def counted(self, rows: list[Row], timing: str, clock: BatchClock) -> list[Pane]:
        """What a trigger that counts rows shows of them, "early" or "late"."""
        trigger = self.asked.early if timing == "early" else self.asked.late_trigger
        put: list[Pane] = []
        for row in rows:
            self.take(row, trigger, clock.now)
            if self.full(trigger):
                put += self.show(timing, False)
        return put

    def batch(self, on_time: list[Row], late: list[Row], clock: BatchClock) -> list[Pane]:
        """What happens to this cell in a batch, in the order of the text."""
        asked, put = self.asked, self.counted(on_time, "early", clock)
        over = clock.watermark >= self.window[1]
        if not over and self.since and self.due <= clock.now:
            put += self.show("early", False)
        if over and not self.out:
            self.out = True
            if self.rows:
                put += self.show("on_time", asked.on_time == "always")
        self.waiting += late
        if over:
            put += self.counted(sorted(self.waiting, key=lambda row: row.position), "late", clock)
            self.waiting = []
            if self.since and (self.due <= clock.now or self.expired(clock)):
                put += self.show("late", False)
        if put and self.expired(clock):
            put[-1] = replace(put[-1], final=True)
        return put

    def expired(self, clock: BatchClock) -> bool:
        return clock.watermark >= later(self.window[1], self.asked.lateness)


class NaiveWindows:
    """Windows that a row's time alone decides."""

    def __init__(self, asked: Asked, windows: Callable[[int], list[Window]]) -> None:
        self.asked = asked
        self.windows = windows
        self.cells: dict[tuple[int, Window], NaiveCell] = {}
        self.too_late: list[tuple[Row, Window]] = []

    def batch(self, rows: list[Row], clock: BatchClock) -> list[Pane]:
        on_time: dict[tuple[int, Window], list[Row]] = {}
        late: dict[tuple[int, Window], list[Row]] = {}
        for row in sorted(rows, key=lambda row: row.position):
            for window in self.windows(row.time):
                cell = row.key, window
                if row.watermark < window[1]:
                    on_time.setdefault(cell, []).append(row)
                elif row.watermark < later(window[1], self.asked.lateness):
                    late.setdefault(cell, []).append(row)
                else:
                    self.too_late.append((row, window))
        for key, window in [*on_time, *late]:
            self.cells.setdefault((key, window), NaiveCell(key, window, self.asked))
        put: list[Pane] = []
        for at, cell in list(self.cells.items()):
            put += cell.batch(on_time.get(at, []), late.get(at, []), clock)
            if cell.expired(clock):
                del self.cells[at]
        return put
