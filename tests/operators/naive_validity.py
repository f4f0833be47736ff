"""NaiveValidity: the windows of each key side by side, divided one row at a time in the order of own watermarks."""

from __future__ import annotations

from dataclasses import replace

from mainstem.operators.stage.engine import BatchClock
from tests.operators.naive_windows import END, Asked, NaiveCell, Pane, Row, Window, later


class NaiveValidity:
    """Each key's windows that can still change, and the rows that wait."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.windows: dict[int, list[NaiveCell]] = {}
        self.waiting: list[Row] = []
        self.too_late: list[tuple[Row, Window]] = []

    def batch(self, rows: list[Row], clock: BatchClock) -> list[Pane]:
        put: list[Pane] = []
        self.forgotten: set[tuple[int, Window]] = set()
        self.waiting += rows
        ready = [row for row in self.waiting if row.watermark < clock.watermark]
        self.waiting = [row for row in self.waiting if row.watermark >= clock.watermark]
        for row in sorted(ready, key=lambda row: (row.watermark, row.time, row.position)):
            put += self.advance(row.key, row.watermark)
            put += self.divide(row, clock.now)
        for key in list(self.windows):
            put += self.advance(key, clock.watermark)
            for window in self.windows[key]:
                if (window.since or window.again) and window.due <= clock.now:
                    put += window.show("late" if window.out else "early", False)
        for place, pane in enumerate(put):
            if pane.cell in self.forgotten and pane.cell not in [after.cell for after in put[place + 1 :]]:
                put[place] = replace(pane, final=True)
        return put

    def advance(self, key: int, watermark: int) -> list[Pane]:
        put: list[Pane] = []
        for window in list(self.windows.get(key, [])):
            if not window.out and window.window[1] <= watermark:
                window.out = True
                put += window.show("on_time", self.asked.on_time == "always")
            if later(window.window[1], self.asked.lateness) <= watermark:
                if window.since or window.again:
                    put += window.show("late", False)
                self.forgotten.add((key, window.window))
                self.windows[key].remove(window)
        return put

    def divide(self, row: Row, now: int) -> list[Pane]:
        windows = self.windows.setdefault(row.key, [])
        end = min([window.window[0] for window in windows if window.window[0] > row.time], default=END)
        if row.watermark >= later(end, self.asked.lateness):
            self.too_late.append((row, (row.time, end)))
            return []
        put: list[Pane] = []
        late = row.watermark >= end
        trigger = self.asked.late_trigger if late else self.asked.early
        touched = []
        for old in list(windows):
            start, stop = old.window
            if start < row.time < stop:
                windows.remove(old)
                cut = NaiveCell(row.key, (start, row.time), self.asked, old.rows, old.since, due=old.due, out=old.out)
                cut.again = old.again
                if old.shown and self.asked.results != "discard":
                    put.append(replace(old.shown, change="delete"))
                    # It counts as one row that is to be shown.
                    cut.again = cut.again or not cut.since
                if (cut.since or cut.again) and trigger is not None:
                    cut.due = min(cut.due, trigger.due(now))
                windows.append(cut)
                touched.append(cut)
        mine = [window for window in windows if window.window[0] == row.time]
        if not mine:
            mine = [NaiveCell(row.key, (row.time, end), self.asked, out=late)]
            windows += mine
        mine[0].take(row, trigger, now)
        for window in [*touched, *mine]:
            waiting = len(window.since) + window.again
            if trigger is not None and trigger.rows is not None and waiting >= trigger.rows:
                put += window.show("late" if window.out else "early", False)
        return put
