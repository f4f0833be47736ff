"""Engines of windows: what no generated script asks for."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mainstem.operators.stage.engine import NO_TIME, BatchClock
from mainstem.operators.stage.state_runs import MemoryState
from mainstem.operators.windows.numbering import running_max
from mainstem.operators.windows.session_engine import SessionEngine
from mainstem.operators.windows.sliding_engine import SlidingEngine
from mainstem.operators.windows.triggers import each_row, every
from mainstem.operators.windows.validity_engine import ValidityEngine
from mainstem.operators.windows.window_engine import WindowEngine
from mainstem.operators.windows.window_rounds import running
from tests.operators.naive_windows import Row
from tests.operators.window_scripts import AGGREGATES, BY, panes, single_rows, windowed_rows

ENGINES = [
    WindowEngine(BY, AGGREGATES, early=every("1 second"), lateness=5, results="retract"),
    SessionEngine(BY, AGGREGATES, lateness=5),
    SlidingEngine(BY, AGGREGATES, span=10),
    ValidityEngine(BY, AGGREGATES),
]


def tens(time: int) -> list[tuple[int, int]]:
    return [(time // 10 * 10, time // 10 * 10 + 10)]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
class TestEveryEngine:
    """What holds for all of them."""

    def test_it_can_be_sent_to_a_worker(self, engine: Any) -> None:
        assert pickle.loads(pickle.dumps(engine)) == engine
        assert json.loads(json.dumps(engine.describe())) == engine.describe()

    def test_nothing_comes_of_nothing(self, engine: Any) -> None:
        rows = engine.input_schema.empty_table()
        step = engine.step(MemoryState(engine.state_schema), rows, BatchClock(100, 100, 50, 50))
        assert step.output.schema == engine.output_schema
        assert (step.output.num_rows, step.put, step.gone, step.late) == (0, None, None, None)

    def test_a_row_without_a_time_is_told_and_counts_nowhere(self, engine: Any) -> None:
        row = single_rows([Row(1, 3, NO_TIME, 7, 0, 0, 5)])
        row = row.set_column(row.schema.get_field_index("time"), "time", pa.nulls(1, pa.int64()))
        for name, value in {"window_start": None, "window_end": None, "timing": 2, "rows": 1}.items():
            row = row.append_column(name, pa.array([value], pa.int64()))
        step = engine.step(MemoryState(engine.state_schema), row.select(engine.input_schema.names), BatchClock(100))
        [late] = step.late.to_pylist()
        assert (late["reason"], late["window_end"], late["o0"]) == ("no event time", None, 7)
        assert (step.output.num_rows, step.put, step.counts["too_late"]) == (0, None, 1)


def test_a_row_that_lost_a_race_is_late_and_not_on_time_again() -> None:
    engine = WindowEngine(BY, AGGREGATES, lateness=5)
    state = MemoryState(engine.state_schema)
    for row, clock in [
        (Row(1, 3, 0, 7, 0, 0), BatchClock(12)),
        # It says that it came before the watermark reached 1, and the window was shown at 12.
        (Row(1, 4, 1, 1, 0, 1), BatchClock(13, watermark_before=12)),
    ]:
        step = engine.step(state, windowed_rows(engine, tens, [row]), clock)
        state.apply(step)
    [pane] = panes(step.output)
    assert (pane.values[0], pane.timing, pane.index, pane.change) == (8, "late", 1, "update")


def test_a_row_that_lost_a_race_by_far_is_too_late() -> None:
    engine = WindowEngine(BY, AGGREGATES, lateness=5)
    rows = windowed_rows(engine, tens, [Row(1, 4, 1, 1, 0, 1)])
    step = engine.step(MemoryState(engine.state_schema), rows, BatchClock(16, watermark_before=15))
    assert (step.output.num_rows, step.late.num_rows) == (0, 1)  # type: ignore[union-attr]


def test_what_a_late_row_says() -> None:
    engine = WindowEngine(BY, AGGREGATES)
    rows = windowed_rows(engine, tens, [Row(1, 4, 17, 6, 2, 9)])
    step = engine.step(MemoryState(engine.state_schema), rows, BatchClock(20))
    [late] = step.late.to_pylist()  # type: ignore[union-attr]
    assert late == {
        "by_0": 1,
        "window_start": 0,
        "window_end": 10,
        "time": 4,
        "watermark": 17,
        "behind_us": 13,
        "topic": 0,
        "partition": 2,
        "offset": 9,
        "rows": 1,
        "o0": 6,
        "o1": 1,
        "o2": 6,
        "o3": 6,
        "reason": "too late",
    }


def test_a_late_row_joins_two_closed_sessions() -> None:
    engine = SessionEngine(BY, AGGREGATES, lateness=100, results="retract")
    state = MemoryState(engine.state_schema)
    shown = []
    for rows, clock in [
        ([Row(1, 0, 0, 1, 0, 0, 5), Row(1, 8, 0, 2, 0, 1, 5)], BatchClock(20)),
        ([Row(1, 4, 20, 4, 0, 2, 5)], BatchClock(20, watermark_before=20)),
    ]:
        step = engine.step(state, single_rows(rows).select(engine.input_schema.names), clock)
        state.apply(step)
        shown.append([(p.window, p.values[0], p.timing, p.index, p.change) for p in panes(step.output)])
    first, second = shown
    assert first == [((0, 5), 1, "on_time", 0, "insert"), ((8, 13), 2, "on_time", 0, "insert")]
    assert sorted(second[:2]) == [((0, 5), 1, "on_time", 0, "delete"), ((8, 13), 2, "on_time", 0, "delete")]
    assert second[2:] == [((0, 13), 7, "late", 0, "insert")]


def test_a_late_value_changes_only_the_one_that_it_divides() -> None:
    engine = ValidityEngine(BY, AGGREGATES, lateness=10_000, results="retract")
    state = MemoryState(engine.state_schema)
    values = [Row(1, 10 * place, 0, place, 0, place) for place in range(100)]
    for rows, clock in [
        (values, BatchClock(1_000)),
        ([Row(1, 505, 1_000, 7, 0, 100)], BatchClock(1_001, watermark_before=1_000)),
    ]:
        step = engine.step(state, single_rows(rows).select(engine.input_schema.names), clock)
        state.apply(step)
    assert [(pane.window, pane.change) for pane in panes(step.output)] == [
        ((500, 510), "delete"), ((500, 505), "insert"), ((505, 510), "insert")
    ]  # fmt: skip
    assert step.put is not None
    assert sorted(step.put["window_start"].to_pylist()) == [500, 505]
    assert state.rows.num_rows == 101


@pytest.mark.parametrize("gap", [None, 0, -5])
def test_a_row_without_a_gap_is_told_and_belongs_to_no_session(gap: int | None) -> None:
    engine = SessionEngine(BY, AGGREGATES)
    rows = single_rows([Row(1, 3, NO_TIME, 7, 0, 0), Row(1, 3, NO_TIME, 2, 0, 1)])
    rows = rows.set_column(rows.schema.get_field_index("gap"), "gap", pa.array([gap, 4], pa.int64()))
    state = MemoryState(engine.state_schema)
    step = engine.step(state, rows.select(engine.input_schema.names), BatchClock(100))
    [late] = step.late.to_pylist()  # type: ignore[union-attr]
    assert (late["reason"], late["time"], late["window_end"], late["o0"]) == ("no gap", 3, None, 7)
    assert [(pane.window, pane.values[0]) for pane in panes(step.output)] == [((3, 7), 2)]
    assert step.counts["too_late"] == 1


def test_one_cell_with_many_rows_is_shown_after_each() -> None:
    count = 3_000
    engine = WindowEngine(BY, AGGREGATES, early=each_row())
    rows = [Row(1, 3, NO_TIME, 1, 0, offset) for offset in range(count)]
    step = engine.step(MemoryState(engine.state_schema), windowed_rows(engine, tens, rows), BatchClock())
    assert [pane.values[0] for pane in panes(step.output)] == list(range(1, count + 1))


def test_what_runs_on_is_the_same_as_one_after_the_other() -> None:
    values = pa.table({f"i{number}_0": np.arange(20) for number in range(4)})
    found = running(AGGREGATES, AGGREGATES.of_rows(values), np.r_[np.arange(13), np.arange(7)])
    sums = AGGREGATES.finish(found).column("o0").to_pylist()
    assert sums == [*np.cumsum(np.arange(13)), *np.cumsum(np.arange(13, 20))]


def test_the_highest_so_far_of_times_that_fill_all_bits() -> None:
    ids, values = np.array([0, 0, 1, 1]), np.array([2**63 - 2, 5, -(2**62), 7])
    assert running_max(ids, values).tolist() == [2**63 - 2, 2**63 - 2, -(2**62), 7]
