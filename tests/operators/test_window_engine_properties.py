"""Fixed windows against the naive ones, and against DuckDB: any rows, any triggers, any division into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.operators.windows.triggers import after_rows, each_row, every, first_of
from mainstem.operators.windows.window_engine import WindowEngine
from tests.operators.naive_windows import END, FUNCTIONS, Asked, NaiveWindows, Pane, Row, Window
from tests.operators.window_scripts import BY, Batch, Run, aggregates_of, by_cell, divided, run, windowed_rows, written

SEEDS = st.integers(0, 2**32)
TICK = "microseconds"
TRIGGERS = [
    None,
    each_row(),
    after_rows(3),
    every(f"7 {TICK}"),
    every(f"5 {TICK}", since="first row"),
    first_of(every(f"6 {TICK}"), after_rows(2)),
]
ASKED = st.builds(
    Asked,
    early=st.sampled_from(TRIGGERS),
    late=st.sampled_from(TRIGGERS),
    lateness=st.sampled_from([0, 4, 15]),
    results=st.sampled_from(["discard", "accumulate", "retract"]),
    on_time=st.sampled_from(["always", "always", "if changed"]),
    # The largest value often stays as it is when a row comes.
    functions=st.sampled_from([FUNCTIONS, ("max",)]),
)
WHOLE = ASKED.map(lambda asked: replace(asked, functions=FUNCTIONS))
# Keys are the cases: each has rows of its own, and shares nothing with the others but the clock.
KEYS, ROWS = 60, 600


def hopping(size: int, slide: int) -> Callable[[int], list[Window]]:
    def windows(time: int) -> list[Window]:
        last = time // slide * slide
        starts = range(last, time - size, -slide)
        return [(start, start + size) for start in starts]

    return windows


def cumulating(step: int, size: int) -> Callable[[int], list[Window]]:
    def windows(time: int) -> list[Window]:
        start = time // size * size
        return [(start, end) for end in range(start + step, start + size + 1, step) if end > time]

    return windows


def everything(time: int) -> list[Window]:
    return [(0, END)]


KINDS = {
    "tumbling": hopping(10, 10),
    "hopping": hopping(10, 5),
    "with gaps": hopping(4, 7),
    "cumulating": cumulating(3, 9),
    "everything": everything,
}
KIND = st.sampled_from(sorted(KINDS))


def engine_of(asked: Asked) -> WindowEngine:
    return WindowEngine(
        BY, aggregates_of(asked.functions), asked.early, asked.late, asked.lateness, asked.results, asked.on_time
    )


def ran(asked: Asked, kind: str, script: list[Batch], *, twice: bool = False) -> Run:
    engine = engine_of(asked)
    return run(engine, script, lambda rows: windowed_rows(engine, KINDS[kind], rows), twice=twice)


def last_shown(done: Run) -> dict[tuple[int, Window], tuple[object, ...]]:
    return {pane.cell: pane.values for shown in done.panes for pane in shown if pane.change != "delete"}


def on_time(done: Run) -> list[tuple[object, ...]]:
    panes = [pane for shown in done.panes for pane in shown if pane.change != "delete"]
    return sorted((pane.cell, pane.values) for pane in panes if pane.timing == "on_time")


@settings(max_examples=75, deadline=None)
@given(ASKED, KIND, SEEDS)
def test_panes_are_those_of_the_naive_windows(asked: Asked, kind: str, seed: int) -> None:
    random = Random(seed)
    script = divided(random, written(random, keys=KEYS, rows=ROWS), random.randint(1, 8))
    naive = NaiveWindows(asked, KINDS[kind])
    expected = [naive.batch(rows, clock) for rows, clock in script]
    done = ran(asked, kind, script, twice=True)
    for shown, wanted in zip(done.panes, expected, strict=True):
        assert by_cell(shown) == by_cell(wanted)
    late = sorted((row["partition"], row["offset"], row["window_start"]) for row in done.late)
    assert late == sorted((row.partition, row.offset, window[0]) for row, window in naive.too_late)
    assert done.state_rows[-1] == 0


@settings(max_examples=20, deadline=None)
@given(ASKED, KIND, SEEDS)
def test_no_division_into_batches_changes_what_is_on_time_final_or_too_late(asked: Asked, kind: str, seed: int) -> None:
    random = Random(seed)
    log = written(random, keys=KEYS, rows=ROWS)
    one, other = (ran(asked, kind, divided(random, log, batches)) for batches in (random.randint(1, 3), 9))
    assert sorted(map(str, one.late)) == sorted(map(str, other.late))
    if asked.results != "discard":
        assert last_shown(one) == last_shown(other)
        if asked.on_time == "always":
            assert on_time(one) == on_time(other)
    elif asked.early is None:
        assert on_time(one) == on_time(other)


SQL = """
    SELECT key, window_start, window_end, sum(value), count(*), min(value), max(value)
    FROM counted GROUP BY ALL
"""


@settings(max_examples=20, deadline=None)
@given(WHOLE.filter(lambda asked: asked.results != "discard"), KIND, SEEDS)
def test_the_last_state_of_every_window_is_the_answer_of_duckdb(asked: Asked, kind: str, seed: int) -> None:
    random = Random(seed)
    log = written(random, keys=KEYS, rows=ROWS)
    done = ran(asked, kind, divided(random, log, 6))
    pairs = [(row, window) for row in log for window in KINDS[kind](row.time)]
    in_time = [(row, window) for row, window in pairs if row.watermark < min(END, window[1] + asked.lateness)]
    assert last_shown(done) == answered(in_time)


def answered(pairs: list[tuple[Row, Window]]) -> dict[tuple[int, Window], tuple[object, ...]]:
    counted = pa.table(
        {
            "key": [row.key for row, _ in pairs],
            "value": [row.value for row, _ in pairs],
            "window_start": [window[0] for _, window in pairs],
            "window_end": [window[1] for _, window in pairs],
        }
    )
    with duckdb.connect() as connection:
        connection.register("counted", counted)
        rows = connection.execute(SQL).fetchall()
    return {(key, (start, end)): tuple(map(int, told)) for key, start, end, *told in rows}


@settings(max_examples=20, deadline=None)
@given(WHOLE.filter(lambda asked: asked.results == "retract"), KIND, SEEDS)
def test_with_retractions_the_signed_sum_is_the_current_answer(asked: Asked, kind: str, seed: int) -> None:
    random = Random(seed)
    script = divided(random, written(random, keys=KEYS, rows=ROWS), 6)
    done = ran(asked, kind, script)
    current: dict[tuple[int, Window], Pane] = {}
    signed: dict[tuple[int, Window], list[int]] = {}
    for shown in done.panes:
        for pane in shown:
            sign = -1 if pane.change == "delete" else 1
            total = signed.setdefault(pane.cell, [0, 0])
            total[0] += sign * pane.values[0]
            total[1] += sign * pane.values[1]
            if sign > 0:
                current[pane.cell] = pane
        assert signed == {cell: [pane.values[0], pane.values[1]] for cell, pane in current.items()}
