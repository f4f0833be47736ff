"""State in runs against state in memory: the same rows found and due, whatever was put, let go and merged before."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.errors import Corrupt
from mainstem.operators.stage import state_runs
from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, BatchClock, Step
from mainstem.operators.stage.state_run_file import RunEntry, open_run
from mainstem.operators.stage.state_runs import MemoryState, StateRuns, next_due

SCHEMA = pa.schema([*STATE_COLUMNS, ("text", pa.string()), ("number", pa.int64())])

BYTES_MAX = state_runs.MERGED_BYTES_MAX

# One batch: rows put as (group, item, event due, processing due, value), rows let go, and how far the clocks move.
put = st.tuples(
    st.integers(-4, 4), st.integers(0, 3), st.one_of(st.integers(0, 60), st.just(NEVER)),
    st.one_of(st.integers(0, 60), st.just(NEVER)), st.integers(0, 99),
)  # fmt: skip
batches = st.lists(
    st.tuples(st.lists(put, max_size=6), st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 3)), max_size=3),
              st.integers(0, 9), st.integers(0, 9)), max_size=30,
)  # fmt: skip


def step_of(rows: list[tuple[int, ...]], gone: list[tuple[int, int]], also: pa.Table) -> Step:
    """What is due must be put again or let go: here it is let go, unless it is put."""
    put = {(row[0], row[1]): row for row in rows}
    due = zip(also.column("group").to_pylist(), also.column("item").to_pylist(), strict=True)
    left = sorted(({*gone, *due}) - put.keys())
    values = [dict(zip(SCHEMA.names, (*row[:4], f"text {row[4]}", row[4]), strict=True)) for row in put.values()]
    ids = [{"group": group, "item": item} for group, item in left]
    return Step(
        SCHEMA.empty_table(),
        pa.Table.from_pylist(values, SCHEMA),
        pa.Table.from_pylist(ids, pa.schema(STATE_COLUMNS[:2])),
    )


def differences(steps: list[tuple], folder: str) -> list[str]:
    """Where the two disagree, over all batches."""
    memory, entries, live = MemoryState(SCHEMA), [], 0
    clock = BatchClock()
    found = []
    for number, (rows, gone, later, passed) in enumerate(steps):
        watermark, now = max(0, clock.watermark) + later, max(0, clock.now) + passed
        clock = BatchClock(watermark, now, clock.watermark, clock.now)
        runs = StateRuns(folder, entries, SCHEMA, live)
        groups = np.arange(-5, 3)
        if runs.find(groups).to_pylist() != memory.find(groups).to_pylist():
            found.append(f"batch {number}: found {runs.find(groups)} instead of {memory.find(groups)}")
        wanted = np.repeat(groups, 2), np.tile([1, number % 4], len(groups))
        if runs.find_items(*wanted).to_pylist() != memory.find_items(*wanted).to_pylist():
            found.append(f"batch {number}: found {runs.find_items(*wanted)} instead of {memory.find_items(*wanted)}")
        due = runs.due(clock)
        if due.to_pylist() != memory.due(clock).to_pylist():
            found.append(f"batch {number}: due {due} instead of {memory.due(clock)}")
        # Rows that are put with a time that passed already wake in the next batch.
        step = step_of(rows, gone, due)
        entries, live = runs.after(step, number), 0
        live = runs.live
        memory.apply(step)
        if live != memory.rows.num_rows:
            found.append(f"batch {number}: {live} rows instead of {memory.rows.num_rows}")
        waits = (memory.rows.column("event_due").to_pylist(), memory.rows.column("processing_due").to_pylist())
        told = next_due(folder, entries, clock)
        found += [
            f"batch {number}: wakes at {at}, too late"
            for at, all_ in zip(told, waits, strict=True)
            if all_ and at > min(all_)
        ]
        assert len(entries) <= max(
            3 * state_runs.RUNS_MERGED, len(steps) if state_runs.MERGED_BYTES_MAX < BYTES_MAX else 0
        )
    return found


@pytest.mark.thorough
@given(steps=batches)
@settings(max_examples=150)
def test_runs_give_what_memory_gives(steps: list[tuple]) -> None:
    with TemporaryDirectory() as folder:
        assert differences(steps, folder) == []


@pytest.mark.thorough
@pytest.mark.parametrize("bytes_max", [0, 8000, 20_000])
def test_runs_that_are_too_large_to_be_merged_give_the_same(
    bytes_max: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(state_runs, "MERGED_BYTES_MAX", bytes_max)
    monkeypatch.setattr(state_runs, "DEAD_ROWS_MIN", 10)
    steps = [
        (
            [(number % 9 - 4, number % 4, number + 40, NEVER, number)],
            [(number % 5, number % 3)] if number % 3 else [],
            1,
            1,
        )
        for number in range(120)
    ]
    assert differences(steps, str(tmp_path)) == []


@pytest.mark.parametrize("mutant", ["oldest wins", "what is gone comes back", "only what is new wakes"])
def test_the_comparison_catches_broken_runs(mutant: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    newest_of = state_runs._newest_of
    if mutant == "oldest wins":

        def first(runs, found):  # type: ignore[no-untyped-def]
            places, rows, gone = newest_of(runs[::-1], found[::-1])
            return len(runs) - 1 - places, rows, gone

        monkeypatch.setattr(state_runs, "_newest_of", first)
    elif mutant == "what is gone comes back":

        def kept(runs, found):  # type: ignore[no-untyped-def]
            places, rows, gone = newest_of(runs, found)
            return places, rows, np.zeros_like(gone)

        monkeypatch.setattr(state_runs, "_newest_of", kept)
    else:
        rows_due = state_runs.RunFile.rows_due
        monkeypatch.setattr(
            state_runs.RunFile, "rows_due", lambda run, kind, after, up_to: rows_due(run, kind, up_to - 1, up_to)
        )
    steps = [
        ([(1, 0, 5 + number, NEVER, number), (2, number % 3, 50, 3, number)], [(2, (number + 1) % 3)], 2, 2)
        for number in range(12)
    ]
    assert differences(steps, str(tmp_path))


def test_state_that_is_no_longer_needed_takes_no_file(tmp_path: Path) -> None:
    runs = StateRuns(str(tmp_path), [], SCHEMA)
    entries = runs.after(step_of([(1, 1, 5, NEVER, 1)], [], SCHEMA.empty_table()), 0)
    runs = StateRuns(str(tmp_path), entries, SCHEMA, runs.live)
    assert runs.after(step_of([], [(1, 1)], SCHEMA.empty_table()), 1) == []


def test_a_column_that_an_engine_got_since_is_null_in_older_runs(tmp_path: Path) -> None:
    wider = pa.schema([*SCHEMA, ("added", pa.int32())])
    entries: list[RunEntry] = []
    for number in range(4):
        state = StateRuns(str(tmp_path), entries, SCHEMA, number)
        entries = state.after(step_of([(number, 0, NEVER, NEVER, 7)], [], SCHEMA.empty_table()), number)
    expected: list[int | None] = [None] * 4
    for number in range(4, 4 + 2 * state_runs.RUNS_MERGED):
        state = StateRuns(str(tmp_path), entries, wider, number)
        assert state.find(np.arange(30)).column("added").to_pylist() == expected
        assert state.find(np.arange(30)).column("number").to_pylist() == [7] * number
        row = step_of([(number, 0, NEVER, NEVER, 7)], [], SCHEMA.empty_table()).put
        assert row is not None
        added = row.append_column("added", pa.array([number], pa.int32()))
        entries = state.after(Step(wider.empty_table(), added), number)
        expected.append(number)
    # They were merged, old ones with new ones.
    assert len(entries) < state_runs.RUNS_MERGED + 3


def test_a_run_that_was_damaged_is_refused(tmp_path: Path) -> None:
    runs = StateRuns(str(tmp_path), [], SCHEMA)
    [entry] = runs.after(step_of([(1, 1, 5, NEVER, 1)], [], SCHEMA.empty_table()), 0)
    path = tmp_path / entry.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Corrupt, match="state of a flow is damaged"):
        open_run(str(tmp_path), RunEntry(**entry.to_json()))
    os.remove(path)
    with pytest.raises(Corrupt, match="state of a flow is damaged"):
        open_run(str(tmp_path), entry)
