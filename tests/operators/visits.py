"""A user's own operator as the tests of `process` use it: visits of users, closed five minutes after their last row."""

import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark import cloudpickle

from mainstem.operators.processes.process_class import Process

# Spark's workers cannot import what belongs to the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

GAP = timedelta(minutes=5)
START = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAGES = "user STRING, page STRING, at TIMESTAMP"


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


def page(user: str, name: str, minute: float) -> dict[str, object]:
    return {"user": user, "page": name, "at": at(minute)}


class Visits(Process):
    output = "user STRING, pages ARRAY<STRING>, closed_at TIMESTAMP"
    event_time = "closed_at"
    bounded_by = "a visit is forgotten five minutes after its last page"

    @dataclass
    class State:
        pages: list[str] = field(default_factory=list)
        last: datetime | None = None

    def on_rows(self, key, rows, state, timers):
        for row in rows:
            if row["page"] == "/logout":
                timers.cancel("close")
                yield self.closed(key, state, row["at"])
                continue
            state.pages.append(row["page"])
            state.last = row["at"] if state.last is None else max(state.last, row["at"])
            timers.set_event("close", state.last + GAP)

    def on_timer(self, key, name, at, state, timers):
        yield self.closed(key, state, at)

    def closed(self, key, state, at):
        row = {"user": key, "pages": state.pages, "closed_at": at}
        self.forget(state)
        return row
