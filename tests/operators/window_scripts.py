"""Scripts of rows in batches for the engines of windows: made at random from a seed, and run against an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.operators.aggregates.accumulators import AggregateCall
from mainstem.operators.aggregates.aggregates import Aggregates
from mainstem.operators.stage.engine import NO_TIME, BatchClock, Engine, Step
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.state_runs import MemoryState
from mainstem.operators.windows.numbering import number_rows, numbers
from mainstem.operators.windows.window_engine import WindowEngine
from tests.operators.naive_windows import END, FUNCTIONS, Pane, Row, Window, later

# Times of scripts are counted from here: forty microseconds before a midnight of Berlin.
ORIGIN = int(datetime(2026, 3, 28, 23, tzinfo=UTC).timestamp()) * 1_000_000 - 40
BY = pa.schema([("by_0", pa.int64())])
NUMBER = pa.int64()


@cache
def aggregates_of(functions: tuple[str, ...]) -> Aggregates:
    calls = [AggregateCall(name, () if name == "count" else (NUMBER,), NUMBER, name) for name in functions]
    return Aggregates(tuple(calls))


AGGREGATES = aggregates_of(FUNCTIONS)

Batch = tuple[list[Row], BatchClock]


def written(random: Random, *, keys: int, rows: int, late: int = 15) -> list[Row]:
    """Rows as a log might have them: times out of order, each with the watermark that was known before it."""
    log: list[Row] = []
    ends = [0, 0, 0]
    reached, known = ORIGIN, NO_TIME
    # How fast time passes: from many rows in a window to many windows without a row.
    mode = random.choice([1.0, 0.3, 0.1])
    for _ in range(rows):
        reached += random.choice([0, 0, 0, 1, 2, 6]) if random.random() < mode else 0
        if random.random() < 0.7 and log:
            known = max(known, reached - random.randint(0, 8))
        # Another process may have looked a moment before.
        own = known if known == NO_TIME or random.random() < 0.7 else known - random.randint(0, 4)
        time = max(ORIGIN, reached - random.choice([0, 0, 1, 3, random.randint(0, late)]))
        partition = random.randrange(3)
        # Now and then one has no gap of its own.
        gap = random.choice([3, 3, 3, 3, 3, 1, 1, 5, 5, random.choice([0, -2, 3])])
        log.append(Row(random.randrange(keys), time, own, random.randint(-3, 3), partition, ends[partition], gap))
        ends[partition] += 1
    return log


def divided(random: Random, log: list[Row], batches: int) -> list[Batch]:
    """The rows in batches, each partition in its order, with clocks that promise no more than is true; then the end."""
    cut: list[list[Row]] = [[] for _ in range(batches)]
    for partition in range(3):
        of_it = [row for row in log if row.partition == partition]
        places = sorted(random.randrange(batches) for _ in of_it)
        for row, place in zip(of_it, places, strict=True):
            cut[place].append(row)
    script: list[Batch] = []
    clock = BatchClock()
    for number, rows in enumerate([*cut, []]):
        rest = [row.watermark for batch in cut[number + 1 :] for row in batch]
        known = min(rest, default=max((row.watermark for row in log), default=ORIGIN) + random.randint(0, 9))
        watermark = max(clock.watermark, known if random.random() < 0.8 else clock.watermark)
        now = max(0, clock.now) + random.randint(0, 9)
        clock = BatchClock(END if number == batches else watermark, now, clock.watermark, clock.now)
        script.append((rows, clock))
    return script


def mingled(rows: list[Row]) -> list[Row]:
    """In some other order, always the same: an engine orders by position itself."""
    return sorted(rows, key=lambda row: (row.offset * 7 % 5, row.partition, row.offset))


def single_rows(rows: list[Row], functions: tuple[str, ...] = FUNCTIONS) -> pa.Table:
    """What an engine takes that sees single rows."""
    rows = mingled(rows)
    names = ("key", "time", "watermark", "value", "partition", "offset", "gap")
    columns = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in names}
    inputs = pa.table({f"i{number}_0": columns["value"] for number in range(len(functions))})
    partials = aggregates_of(functions).of_rows(inputs)
    key = columns["key"]
    table = {
        "group": mix(key),
        "check": mix(key, key),
        "by_0": key,
        "time": columns["time"],
        "watermark": columns["watermark"],
        "gap": columns["gap"],
        "topic": np.zeros(len(rows), np.int32),
        "partition": columns["partition"].astype(np.int32),
        "offset": columns["offset"],
    }
    given = pa.table(table)
    for name in partials.column_names:
        given = given.append_column(name, partials.column(name))
    return given


def windowed_rows(engine: WindowEngine, windows: Callable[[int], list[Window]], rows: list[Row]) -> pa.Table:
    """What the engine of fixed windows takes: a row for each row and window, pre-aggregated where that is allowed."""
    aggregates = engine.aggregates
    single = single_rows(rows, tuple(call.function for call in aggregates.calls))  # type: ignore[attr-defined]
    rows = mingled(rows)
    pairs = [(place, window) for place, row in enumerate(rows) for window in windows(row.time)]
    table = single.take(pa.array([place for place, _ in pairs], pa.int64()))
    end = np.array([window[1] for _, window in pairs], np.int64)
    own = numbers(table, "watermark")
    over = np.array([later(int(at), engine.lateness) for at in end], np.int64)
    timing = np.where(own < end, 0, np.where(own < over, 1, 2))
    columns = {
        "window_start": np.array([window[0] for _, window in pairs], np.int64),
        "window_end": end,
        "timing": timing.astype(np.int8),
        "rows": np.ones(len(pairs), np.int64),
    }
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column))
    table = table.select(engine.input_schema.names)
    # A trigger that counts rows needs them one by one.
    if (
        any(trigger is not None and trigger.rows is not None for trigger in (engine.early, engine.late_trigger))
        or not pairs
    ):
        return table
    together, too_late = table.filter(pa.array(timing < 2)), table.filter(pa.array(timing == 2))
    keys = [numbers(together, name) for name in ("by_0", "window_start", "window_end", "timing")]
    ids, firsts = number_rows(*keys)
    merged = aggregates.merge(together.select(aggregates.partial_schema.names), ids, len(firsts))
    first = together.take(pa.array(firsts))
    for name in merged.column_names:
        first = first.set_column(first.schema.get_field_index(name), name, merged.column(name))
    count = pa.array(np.bincount(ids, minlength=len(firsts)).astype(np.int64))
    first = first.set_column(first.schema.get_field_index("rows"), "rows", count)
    for name in ("time", "watermark", "topic", "partition", "offset"):
        at = first.schema.get_field_index(name)
        first = first.set_column(at, name, pa.nulls(first.num_rows, first.schema.field(at).type))
    return pa.concat_tables([first, too_late])


@dataclass
class Run:
    """What an engine did with a script, batch by batch."""

    panes: list[list[Pane]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    state_rows: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def run(engine: Engine, script: list[Batch], given: Callable[[list[Row]], pa.Table], *, twice: bool = False) -> Run:
    """Run a script; `twice` does each step once more from the same state, as after a crash, and wants the same."""
    state, done = MemoryState(engine.state_schema), Run()
    for rows, clock in script:
        step = engine.step(state, given(rows), clock)
        if twice:
            assert same(step, engine.step(state, given(rows), clock))
        state.apply(step)
        done.steps.append(step)
        done.panes.append(panes(step.output))
        done.late += step.late.to_pylist() if step.late is not None else []
        done.state_rows.append(state.rows.num_rows)
        # What was due is done, and what is over is forgotten.
        assert (numbers(state.rows, "event_due") > clock.watermark).all()
        assert (numbers(state.rows, "processing_due") > clock.now).all()
        assert step.output.schema.equals(engine.output_schema)
        assert state.rows.schema.equals(engine.state_schema)
    return done


def same(one: Step, other: Step) -> bool:
    parts = [(getattr(one, name), getattr(other, name)) for name in ("output", "put", "gone", "late")]
    return one.counts == other.counts and all(a is b is None or a.equals(b) for a, b in parts)


def panes(output: pa.Table) -> list[Pane]:
    return [
        Pane(
            row["by_0"],
            (row["window_start"], row["window_end"]),
            tuple(value for name, value in row.items() if name.startswith("o")),
            row["pane"]["index"],
            row["pane"]["timing"],
            row["pane"]["final"],
            row["change"],
        )
        for row in output.to_pylist()
    ]


def by_cell(shown: list[Pane]) -> dict[tuple[int, Window], list[Pane]]:
    """The panes of each cell, in their order."""
    found: dict[tuple[int, Window], list[Pane]] = {}
    for pane in shown:
        found.setdefault(pane.cell, []).append(pane)
    return found


def told(log: list[Row]) -> pa.Table:
    """The rows as a table to be asked in SQL."""
    names = ("key", "time", "gap", "value")
    columns = {name: [getattr(row, name) for row in log] for name in names}
    return pa.table({**columns, "place": list(range(len(log)))})
