"""NaiveSliding: all windows of all rows so far, made anew in every batch; what is new in them is taken."""

from __future__ import annotations

from dataclasses import replace

from mainstem.operators.stage.engine import BatchClock
from tests.operators.naive_windows import Asked, NaiveCell, Pane, Row, Window, later, values


class NaiveSlidingCell(NaiveCell):
    """Of the early panes that the rows of a batch give, and of the late ones, the last is shown; the others are only counted."""

    def counted(self, rows: list[Row], timing: str, clock: BatchClock) -> list[Pane]:
        asked, before, new = self.asked, self.shown, [*self.since, *rows]
        put = super().counted(rows, timing, clock)
        if not put:
            return []
        last = replace(put[-1], change="update" if before and asked.results == "accumulate" else "insert")
        if asked.results == "discard":
            last = replace(last, values=values(new[: len(new) - len(self.since)], asked.functions))
        self.shown = last
        return [*([replace(before, change="delete")] if before and asked.results == "retract" else []), last]


class NaiveSliding:
    """Every row that came, and every pair of row and window that was counted."""

    def __init__(self, asked: Asked, span: int) -> None:
        self.asked = asked
        self.span = span
        self.rows: list[Row] = []
        self.waiting: list[Row] = []
        self.counted: set[tuple[Row, Window]] = set()
        self.cells: dict[tuple[int, Window], NaiveCell] = {}
        self.too_late: list[tuple[Row, Window]] = []

    def batch(self, rows: list[Row], clock: BatchClock) -> list[Pane]:
        for row in rows:
            if row.watermark >= later(row.time + 1, self.asked.lateness):
                self.too_late.append((row, (row.time - self.span, row.time)))
        self.waiting += rows
        self.rows += [row for row in self.waiting if row.watermark <= clock.watermark]
        self.waiting = [row for row in self.waiting if row.watermark > clock.watermark]
        on_time: dict[tuple[int, Window], list[Row]] = {}
        late: dict[tuple[int, Window], list[Row]] = {}
        for row, window, decided in sorted(self.pairs(), key=lambda pair: pair[0].position):
            if (row, window) in self.counted:
                continue
            self.counted.add((row, window))
            cell = row.key, window
            if decided < window[1]:
                on_time.setdefault(cell, []).append(row)
            elif decided < later(window[1], self.asked.lateness):
                late.setdefault(cell, []).append(row)
        put: list[Pane] = []
        for cell in [*on_time, *late]:
            self.cells.setdefault(cell, NaiveSlidingCell(*cell, self.asked))
        for at, naive in list(self.cells.items()):
            put += naive.batch(on_time.get(at, []), late.get(at, []), clock)
            if naive.expired(clock):
                del self.cells[at]
        return put

    def pairs(self) -> list[tuple[Row, Window, int]]:
        """Row, window (its end excluded), and the own watermark by which the pair counts."""
        found = []
        for key in {row.key for row in self.rows}:
            rows = [row for row in self.rows if row.key == key]
            made: dict[Window, int] = {}
            for row in rows:
                for start in (row.time - self.span, row.time + 1):
                    window = start, start + self.span + 1
                    made[window] = min(made.get(window, row.watermark), row.watermark)
            found += [
                (row, window, max(row.watermark, first))
                for window, first in made.items()
                for row in rows
                if window[0] <= row.time < window[1]
            ]
        return found
