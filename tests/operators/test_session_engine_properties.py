"""Sessions against the naive ones, and against DuckDB: any rows, gaps, triggers, any division into batches."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.operators.windows.session_engine import SessionEngine
from tests.operators.naive_sessions import NaiveSessions
from tests.operators.naive_windows import END, Asked, Pane, Window
from tests.operators.test_window_engine_properties import ASKED, KEYS, ROWS, SEEDS, WHOLE, on_time
from tests.operators.window_scripts import BY, Batch, Run, aggregates_of, divided, run, single_rows, told, written

TOUCHING = st.sampled_from(["split", "join"])


def ran(asked: Asked, touching: str, script: list[Batch], *, twice: bool = False) -> Run:
    engine = SessionEngine(
        BY,
        aggregates_of(asked.functions),
        touching,
        asked.early,
        asked.late,
        asked.lateness,
        asked.results,
        asked.on_time,
    )
    return run(
        engine, script, lambda rows: single_rows(rows, asked.functions).select(engine.input_schema.names), twice=twice
    )


def by_key(shown: list[Pane]) -> dict[int, list[Pane]]:
    """The panes of each key; what one moment takes back, in the order of the windows."""
    found: dict[int, list[Pane]] = {}
    for pane in shown:
        found.setdefault(pane.key, []).append(pane)
    return {key: sorted(panes, key=lambda pane: (pane.window, pane.index)) for key, panes in found.items()}


@settings(max_examples=60, deadline=None)
@given(ASKED, TOUCHING, SEEDS)
def test_panes_are_those_of_the_naive_sessions(asked: Asked, touching: str, seed: int) -> None:
    random = Random(seed)
    script = divided(random, written(random, keys=KEYS, rows=ROWS), random.randint(1, 8))
    naive = NaiveSessions(asked, touching)
    expected = [naive.batch(rows, clock) for rows, clock in script]
    done = ran(asked, touching, script, twice=True)
    for shown, wanted in zip(done.panes, expected, strict=True):
        assert by_key(shown) == by_key(wanted)
    late = sorted((row["partition"], row["offset"]) for row in done.late)
    assert late == sorted(row.position for row, _ in naive.too_late)
    assert done.state_rows[-1] == 0


def current(done: Run) -> dict[tuple[int, Window], tuple[object, ...]]:
    """What stands when everything has come."""
    found: dict[tuple[int, Window], tuple[object, ...]] = {}
    for shown in done.panes:
        for pane in shown:
            if pane.change == "delete":
                assert found.pop(pane.cell) == pane.values
            else:
                found[pane.cell] = pane.values
    return found


@settings(max_examples=20, deadline=None)
@given(ASKED, TOUCHING, SEEDS)
def test_no_division_into_batches_changes_sessions(asked: Asked, touching: str, seed: int) -> None:
    random = Random(seed)
    log = written(random, keys=KEYS, rows=ROWS)
    one, other = (ran(asked, touching, divided(random, log, batches)) for batches in (random.randint(1, 3), 9))
    assert sorted(map(str, one.late)) == sorted(map(str, other.late))
    if asked.results != "discard":
        assert current(one) == current(other)
        if asked.on_time == "always":
            assert on_time(one) == on_time(other)


# Rows that nothing closes before they have come: then sessions are what gaps make them.
SQL = """
    WITH marked AS (
        SELECT *, max(time + gap) OVER before AS reached FROM rows
        WINDOW before AS (PARTITION BY key ORDER BY time, place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), numbered AS (
        SELECT *, count(*) FILTER (reached IS NULL OR {apart}) OVER (PARTITION BY key ORDER BY time, place) AS session
        FROM marked
    )
    SELECT key, min(time), max(time + gap), sum(value), count(*), min(value), max(value)
    FROM numbered GROUP BY key, session
"""


@settings(max_examples=20, deadline=None)
@given(WHOLE.filter(lambda asked: asked.results != "discard"), TOUCHING, SEEDS)
def test_the_last_state_of_sessions_is_the_answer_of_duckdb(asked: Asked, touching: str, seed: int) -> None:
    random = Random(seed)
    log = [replace(row, watermark=min(row.watermark, 0)) for row in written(random, keys=KEYS, rows=ROWS)]
    done = ran(asked, touching, divided(random, log, 6))
    with duckdb.connect() as connection:
        connection.register("rows", told(log))
        apart = "time > reached" if touching == "join" else "time >= reached"
        rows = connection.execute(SQL.format(apart=apart)).fetchall()
    assert current(done) == {(key, (start, min(END, end))): tuple(map(int, told)) for key, start, end, *told in rows}
