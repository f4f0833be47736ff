"""Engines of windows that are wrong in one thing each: the comparison with the naive ones finds every one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mainstem.operators.stage.engine import NEVER, NO_TIME
from mainstem.operators.windows import (
    panes,
    session_engine,
    sliding_engine,
    waiting_rows,
    window_assignment,
    window_engine,
)
from mainstem.operators.windows import session_engine as session_rounds
from mainstem.operators.windows import validity_engine as validity_rounds
from mainstem.operators.windows.cells import Cells
from mainstem.operators.windows.numbering import numbers
from mainstem.operators.windows.triggers import after_rows, each_row, every
from mainstem.operators.windows.window_rounds import Phase, WindowRounds
from tests.operators.naive_windows import Asked
from tests.operators.test_window_engine_properties import (
    check_indices,
    check_last_state,
    check_on_time_rows,
    check_panes,
    check_signed,
    check_signed_answer,
)

Mutation = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Asked, int], None]
# Not one of them took more than two.
SEEDS = 8


windows, sessions, sliding, validity = (
    partial(check_panes, name) for name in ("hopping", "sessions", "sliding", "validity")
)


def retimed(timing: Callable[[Any, Any, Any], Any]) -> Mutation:
    """Whether a row is on time is decided otherwise: by (timing, window end, clock)."""
    right = window_engine.WindowEngine._divide

    def wrong(self: Any, rows: pa.Table, clock: Any) -> tuple[pa.Table, pa.Table]:
        told = timing(numbers(rows, "timing"), numbers(rows, "window_end"), clock)
        place = rows.schema.get_field_index("timing")
        return right(self, rows.set_column(place, "timing", pa.array(told.astype(np.int8))), clock)

    return lambda patch: patch.setattr(window_engine.WindowEngine, "_divide", wrong)


def replaced(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Mutation:
    """`wrong` makes the wrong thing of the right one."""
    return lambda patch: patch.setattr(owner, name, wrong(getattr(owner, name)))


def without_deletes(right: Any) -> Any:
    def output(self: Any, keys: Any, final: Any) -> Any:
        rows, cells, own = right(self, keys, final)
        kept = np.array([change != "delete" for change in rows.column("change").to_pylist()], np.bool_)
        return rows.filter(pa.array(kept)), cells[kept], own[kept]

    return output


def timers_lost(right: Any) -> Any:
    def run(self: Any, cells: Cells, *rest: Any) -> None:
        right(self, cells, *rest)
        cells.due = np.full(cells.count, NEVER)

    return run


def panes_forgotten(right: Any) -> Any:
    def of_state(*given: Any) -> Cells:
        cells: Cells = right(*given)
        cells.panes = np.zeros_like(cells.panes)
        return cells

    return of_state


def uncounted(right: Any) -> Any:
    def show(self: Any, *rest: Any, last_only: bool = False) -> None:
        before = self.cells.panes.copy()
        right(self, *rest, last_only=last_only)
        if last_only:
            self.cells.panes = np.minimum(self.cells.panes, before + 1)

    return show


def full_days(right: Any) -> Any:
    def days(kind: Any, time: Any) -> Any:
        start, _ = right(kind, time)
        return start, start + 24 * 3_600_000_000

    return days


MUTANTS: dict[str, tuple[Mutation, Check, Asked]] = {
    "on time is decided by the batch's watermark": (
        retimed(lambda timing, end, clock: np.where(end > clock.watermark_before, 0, timing)), windows, Asked(),
    ),
    "late rows are shown with the on-time pane": (
        retimed(lambda timing, end, clock: np.where((timing == 1) & (end > clock.watermark_before), 0, timing)),
        windows, Asked(lateness=15),
    ),
    "the lateness is one too long": (
        replaced(window_engine, "later", lambda right: lambda times, by: right(times, by + 1)),
        windows, Asked(lateness=4),
    ),
    "late rows that wait are lost": (
        replaced(window_engine._Batch, "_waiting", lambda right: lambda self, *rest: right(self, *rest).slice(0, 0)),
        windows, Asked(lateness=15),
    ),
    "what is replaced is not taken back": (
        replaced(panes.Panes, "output", without_deletes), windows, Asked(early=each_row(), results="retract"),
    ),
    "an unchanged pane is shown again": (
        replaced(panes, "differ", lambda right: lambda one, other: np.ones(one.num_rows, np.bool_)),
        windows, Asked(early=each_row(), functions=("max",)),
    ),
    "a changed pane is not shown": (
        replaced(panes, "differ", lambda right: lambda one, other: np.zeros(one.num_rows, np.bool_)),
        windows, Asked(early=each_row()),
    ),
    "timers are lost": (
        replaced(Phase, "run", timers_lost), windows, Asked(early=every("7 microseconds")),
    ),
    "panes are counted anew in every batch": (
        replaced(Cells, "of_state", panes_forgotten), windows, Asked(early=after_rows(3)),
    ),
    "rows are counted in the order of their cells alone": (
        replaced(window_engine.np, "lexsort", lambda right: lambda keys: right(keys[-1:] if len(keys) == 4 else keys)),
        windows, Asked(early=after_rows(3)),
    ),
    "windows are never forgotten": (
        replaced(window_engine._Batch, "_state", lambda right: lambda self, *rest: (right(self, *rest)[0], None)),
        windows, Asked(),
    ),
    "sessions that touch are joined": (
        replaced(session_rounds.SessionRounds, "_runs", lambda right: lambda self, *rest: right(joining(self), *rest)),
        sessions, Asked(),
    ),
    "a session closes at its end, where a row still belongs to it": (
        replaced(session_engine.SessionEngine, "closes_after", lambda right: 0),
        partial(check_on_time_rows, "sessions that join"), Asked(),
    ),
    "rows join sessions before their time": (
        replaced(waiting_rows, "later", lambda right: lambda at, by: right(at, by) if by else at * 0 + NO_TIME),
        sessions, Asked(lateness=15),
    ),
    "a session that grew leaves its old row": (
        replaced(WindowRounds, "_take_back", lambda right: lambda self, *rest: None), sessions, Asked(early=each_row()),
    ),
    "a run goes on where sessions have closed": (
        replaced(session_rounds.SessionRounds, "_run_lengths", lambda right: lambda self, _: self.ends - self.next),
        sessions, Asked(lateness=4),
    ),
    "a sliding window leaves out its last moment": (
        replaced(sliding_engine, "_within", lambda right: lambda key, low, high, *of: right(key, low, high - 1, *of)),
        sliding, Asked(),
    ),
    "no row is late for a value that ended": (
        replaced(
            validity_rounds.ValidityRounds, "_next_times",
            lambda right: lambda self, windows, rows, at: np.full(len(rows), NEVER - 1),
        ),
        validity, Asked(lateness=4),
    ),
    "a part of a value ends where the next one that was loaded begins": (
        replaced(
            validity_rounds, "_ends_of_parts",
            lambda right: lambda windows, was, *rest: np.full(len(was), NEVER - 1),
        ),
        validity, Asked(lateness=40),
    ),
    "a value after one that is evicted is not loaded": (
        replaced(
            validity_rounds.ValidityRounds, "_affected",
            lambda right: lambda self, key, start, due: right(self, key, start, np.zeros_like(due)),
        ),
        validity, Asked(lateness=4),
    ),
    "a value that was divided leaves its old row": (
        replaced(WindowRounds, "_take_back", lambda right: lambda self, *rest: None),
        partial(check_signed, "validity"), Asked(early=each_row(), results="retract"),
    ),
    "sessions that were joined stay in the sum": (
        replaced(WindowRounds, "_take_back", lambda right: lambda self, *rest: None),
        partial(check_signed_answer, "sessions"), Asked(early=each_row(), results="retract"),
    ),
    "what a sliding window showed before stays in the sum": (
        replaced(panes.Panes, "output", without_deletes),
        partial(check_signed_answer, "sliding"), Asked(early=each_row(), results="retract"),
    ),
    "a sliding window shows every early pane of a batch": (
        replaced(sliding_engine, "WindowEngine", lambda right: lambda *given, **_: right(*given, beside=True)),
        sliding, Asked(early=each_row()),
    ),
    "a sliding window shows every late pane of a batch": (
        replaced(sliding_engine, "WindowEngine", lambda right: lambda *given, **_: right(*given, beside=True)),
        sliding, Asked(lateness=15),
    ),
    "early panes that are left out are not counted": (
        replaced(panes.Panes, "show", uncounted), partial(check_indices, "sliding"), Asked(early=each_row()),
    ),
    "a sliding window has no row at its end": (
        replaced(sliding_engine, "_within", lambda right: lambda key, low, high, *of: right(key, low, high - 1, *of)),
        partial(check_last_state, "sliding"), Asked(),
    ),
    "a day of a calendar has 24 hours": (
        replaced(window_assignment, "_arrow_calendar", full_days),
        partial(check_panes, "calendar"), Asked(lateness=4),
    ),
}  # fmt: skip


def joining(rounds: Any) -> Any:
    rounds.joins = True
    return rounds


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, check, asked = MUTANTS[name]
    mutate(monkeypatch)
    for seed in range(SEEDS):
        try:
            check(asked, seed)
        except (AssertionError, IndexError, KeyError):
            return
    pytest.fail(f"{SEEDS} scripts did not show that {name}")


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_what_finds_a_mutant_passes_without_it(name: str) -> None:
    _, check, asked = MUTANTS[name]
    for seed in range(2):
        check(asked, seed)
