"""Whatever happens to a view with history, as of every batch it is what it was then, or says that it cannot tell."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mainstem.batch import Batch, FlowRun
from mainstem.clock import ManualClock, as_datetime, as_us
from mainstem.errors import FellOff
from mainstem.views.view import View
from tests.contracts.view_page_contract import read_pages
from tests.contracts.view_rows import SCHEMA, recorded

# A row for each store that is named; None: it is deleted.
ROWS = st.dictionaries(st.sampled_from("abcde"), st.none() | st.integers(0, 2), max_size=4)
MINUTES = st.sampled_from([0, 1, 7, 25])
STEPS = st.lists(
    st.tuples(st.sampled_from(["batch"] * 6 + ["flip", "restart", "replay", "drop other"]), ROWS, MINUTES), max_size=14
)
HISTORY_MINUTES = 30


@dataclass
class PastModel:
    """The view, and a copy of it after each batch and flip."""

    view: View
    clock: ManualClock
    # The rows, the time, and the token of what was in, if this was a batch.
    copies: list[tuple[dict[str, int], datetime, str | None]] = field(default_factory=list)
    versions: dict[int, dict[str, int]] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)
    writers: dict[int, Any] = field(default_factory=dict)
    live: int = 1
    epoch: int = 0
    end: int = 0

    def restart(self) -> None:
        self.epoch += 1
        for number in self.versions or {1: {}}:
            self._begin(number)

    def _begin(self, number: int) -> None:
        self.versions.setdefault(number, {})
        self.batches.setdefault(number, 0)
        self.writers[number] = self.view.writer(FlowRun("f", self.epoch, number), SCHEMA)

    def batch(self, rows: dict[str, int | None]) -> None:
        self.end += 1
        given = [
            (store, amount, 0, offset, "delete" if amount is None else "insert")
            for offset, (store, amount) in enumerate(rows.items())
        ]
        # All versions are written on, as while one is rebuilt; only one of them is shown.
        for number, writer in self.writers.items():
            writer.apply(recorded(*given), Batch(self.batches[number], writer.run, {"orders": {0: self.end}}))
            self.batches[number] += 1
            merged = {**self.versions[number], **rows}
            self.versions[number] = {store: amount for store, amount in merged.items() if amount is not None}
        self._copy(f"orders@0:{self.end}")

    def replay(self) -> None:
        writer = self.writers[self.live]
        writer.apply(recorded(("a", 99, 0, 0, "insert")), Batch(self.batches[self.live] - 1, writer.run))

    def flip(self) -> None:
        other = max(self.versions) + 1 if len(self.versions) == 1 else next(n for n in self.versions if n != self.live)
        if other not in self.versions:
            self._begin(other)
        self.view.use(other)
        self.live = other
        self._copy(None)

    def drop_other(self) -> None:
        for number in [number for number in self.versions if number != self.live]:
            self.view.drop_version(number)
            self.writers.pop(number).close()
            del self.versions[number], self.batches[number]

    def _copy(self, token: str | None) -> None:
        self.copies.append((dict(self.versions[self.live]), as_datetime(self.clock.now()), token))

    def check(self) -> None:
        since = self.view.describe().history_since
        assert since is not None
        assert read_pages(self.view, 2, since) == self.view.to_arrow(as_of=since)
        now = self.clock.now()
        # Of several at one time the last one counts.
        latest = {at: rows for rows, at, _ in self.copies}
        told = 0
        for rows, at, token in self.copies:
            if at >= since:
                assert self._was(at) == latest[at]
                told += 1
            if token is not None:
                kept = now - as_us(at) <= HISTORY_MINUTES * 60_000_000
                with nullcontext() if kept else suppress(FellOff):
                    assert self._was(token) == rows
        # The last one is always known.
        assert told or not self.copies

    def _was(self, as_of: Any) -> dict[str, int]:
        table: pa.Table = self.view.to_arrow(as_of=as_of)
        found = dict(zip(*table.to_pydict().values(), strict=True))
        for store in "ae":
            row = self.view.get(store, as_of=as_of)
            assert (None if row is None else row["amount"]) == found.get(store)
        return found


def check_past(open_view: Callable[..., View], steps: list[tuple[str, dict[str, int | None], int]]) -> None:
    """Each step, and after it everything that was."""
    clock = ManualClock()
    view = open_view(key="store", clock=clock, history=f"{HISTORY_MINUTES} minutes", changes_age="1 minute")
    model = PastModel(view, clock)
    model.restart()
    for step, rows, minutes in steps:
        clock.advance(f"{minutes} minutes")
        match step:
            case "batch":
                model.batch(rows)
            case "drop other":
                model.drop_other()
            case _:
                getattr(model, step)()
        model.check()


@given(STEPS)
def test_as_of_every_batch_it_is_what_it_was(steps: list[tuple[str, dict[str, int | None], int]]) -> None:
    with TemporaryDirectory() as folder:
        check_past(lambda **settings: View(folder, "revenue", **settings), steps)
