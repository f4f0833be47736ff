"""Validity windows against the naive ones, and against DuckDB."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import duckdb
from hypothesis import given, settings

from mainstem.operators.windows.validity_engine import ValidityEngine
from tests.operators.naive_validity import NaiveValidity
from tests.operators.naive_windows import END, Asked
from tests.operators.test_session_engine_properties import by_key, current
from tests.operators.test_window_engine_properties import ASKED, SEEDS, WHOLE, on_time
from tests.operators.window_scripts import BY, Batch, Run, aggregates_of, divided, run, single_rows, told, written

KEYS, ROWS = 40, 400


def ran(asked: Asked, script: list[Batch], *, twice: bool = False) -> Run:
    engine = ValidityEngine(
        BY, aggregates_of(asked.functions), asked.early, asked.late, asked.lateness, asked.results, asked.on_time
    )
    return run(
        engine, script, lambda rows: single_rows(rows, asked.functions).select(engine.input_schema.names), twice=twice
    )


@settings(max_examples=30, deadline=None)
@given(ASKED, SEEDS)
def test_panes_are_those_of_the_naive_validity(asked: Asked, seed: int) -> None:
    random = Random(seed)
    script = divided(random, written(random, keys=KEYS, rows=ROWS), random.randint(1, 8))
    naive = NaiveValidity(asked)
    expected = [naive.batch(rows, clock) for rows, clock in script]
    done = ran(asked, script, twice=True)
    for shown, wanted in zip(done.panes, expected, strict=True):
        assert by_key(shown) == by_key(wanted)
    late = sorted((row["partition"], row["offset"], row["window_start"], row["window_end"]) for row in done.late)
    assert late == sorted((*row.position, *window) for row, window in naive.too_late)
    assert done.state_rows[-1] == 0


@settings(max_examples=10, deadline=None)
@given(ASKED.filter(lambda asked: asked.results != "discard"), SEEDS)
def test_no_division_into_batches_changes_validity(asked: Asked, seed: int) -> None:
    random = Random(seed)
    log = written(random, keys=KEYS, rows=ROWS)
    one, other = (ran(asked, divided(random, log, batches)) for batches in (random.randint(1, 3), 9))
    assert sorted(map(str, one.late)) == sorted(map(str, other.late))
    assert current(one) == current(other)
    if asked.on_time == "always":
        assert on_time(one) == on_time(other)


SQL = """
    SELECT key, time, coalesce(lead(time) OVER (PARTITION BY key ORDER BY time), ?),
        sum(value), count(*), min(value), max(value)
    FROM rows GROUP BY key, time
"""


@settings(max_examples=10, deadline=None)
@given(WHOLE.filter(lambda asked: asked.results != "discard"), SEEDS)
def test_the_last_state_of_validity_is_the_answer_of_duckdb(asked: Asked, seed: int) -> None:
    random = Random(seed)
    log = [replace(row, watermark=min(row.watermark, 0)) for row in written(random, keys=KEYS, rows=ROWS)]
    done = ran(asked, divided(random, log, 6))
    with duckdb.connect() as connection:
        connection.register("rows", told(log))
        rows = connection.execute(SQL, [END]).fetchall()
    assert current(done) == {(key, (start, end)): tuple(map(int, told)) for key, start, end, *told in rows}
