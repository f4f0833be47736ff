"""NaiveSessions: sessions as the text has them, one row at a time in the order of the rows' own watermarks."""

from __future__ import annotations

from dataclasses import replace

from mainstem.operators.stage.engine import BatchClock
from tests.operators.naive_windows import END, NOWHERE, Asked, NaiveCell, Pane, Row, Window, later


class NaiveSessions:
    """Each key's sessions that can still change, and the rows that wait."""

    def __init__(self, asked: Asked, touching: str = "split") -> None:
        self.asked = asked
        self.touching = touching
        # One that a row at its very end belongs to closes when the watermark is past it.
        self.beyond = 1 if touching == "join" else 0
        self.sessions: dict[int, list[NaiveCell]] = {}
        self.waiting: list[Row] = []
        self.too_late: list[tuple[Row, Window]] = []

    def batch(self, rows: list[Row], clock: BatchClock) -> list[Pane]:
        put: list[Pane] = []
        self.forgotten: set[tuple[int, Window]] = set()
        for row in rows:
            window = row.time, min(END, row.time + row.gap)
            if row.gap <= 0:
                self.too_late.append((row, NOWHERE))
            elif row.watermark >= later(window[1], self.beyond + self.asked.lateness):
                self.too_late.append((row, window))
            else:
                self.waiting.append(row)
        ready = [row for row in self.waiting if row.watermark <= clock.watermark]
        self.waiting = [row for row in self.waiting if row.watermark > clock.watermark]
        for row in sorted(ready, key=lambda row: (row.watermark, row.position)):
            put += self.advance(row.key, row.watermark)
            put += self.join(row, clock.now)
        for key in list(self.sessions):
            put += self.advance(key, clock.watermark)
            for session in self.sessions[key]:
                if session.since and session.due <= clock.now:
                    put += session.show("late" if session.out else "early", False)
        for place, pane in enumerate(put):
            if pane.cell in self.forgotten and pane.cell not in [after.cell for after in put[place + 1 :]]:
                put[place] = replace(pane, final=True)
        return put

    def advance(self, key: int, watermark: int) -> list[Pane]:
        """Close what the watermark has reached, and forget what is beyond its lateness."""
        put: list[Pane] = []
        for session in list(self.sessions.get(key, [])):
            shown: list[Pane] = []
            if not session.out and later(session.window[1], self.beyond) <= watermark:
                session.out = True
                shown += session.show("on_time", self.asked.on_time == "always")
            if later(session.window[1], self.beyond + self.asked.lateness) <= watermark:
                if session.since:
                    shown += session.show("late", False)
                self.forgotten.add((key, session.window))
                self.sessions[key].remove(session)
            put += shown
        return put

    def touches(self, one: Window, other: Window) -> bool:
        if self.touching == "join":
            return one[0] <= other[1] and other[0] <= one[1]
        return one[0] < other[1] and other[0] < one[1]

    def join(self, row: Row, now: int) -> list[Pane]:
        window = row.time, min(END, row.time + row.gap)
        sessions = self.sessions.setdefault(row.key, [])
        joined = [session for session in sessions if self.touches(session.window, window)]
        whole = min([window[0], *(s.window[0] for s in joined)]), max([window[1], *(s.window[1] for s in joined)])
        put: list[Pane] = []
        if len(joined) == 1 and joined[0].window == whole:
            [session] = joined
        else:
            session = NaiveCell(row.key, whole, self.asked)
            for old in joined:
                sessions.remove(old)
                session.rows += old.rows
                session.since += old.since
                session.due = min(session.due, old.due)
                if old.shown and self.asked.results != "discard":
                    put.append(replace(old.shown, change="delete"))
            sessions.append(session)
        session.out = later(whole[1], self.beyond) <= row.watermark
        trigger = self.asked.late_trigger if session.out else self.asked.early
        session.take(row, trigger, now)
        if session.full(trigger):
            put += session.show("late" if session.out else "early", False)
        return put
