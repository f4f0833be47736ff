"""Sliding windows against the naive ones, and against every set of rows that lies within the span."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings

from mainstem.operators.windows.sliding_engine import SlidingEngine
from tests.operators.naive_sliding import NaiveSliding
from tests.operators.naive_windows import Asked, values
from tests.operators.test_window_engine_properties import ASKED, SEEDS, last_shown, on_time
from tests.operators.window_scripts import BY, Batch, Run, aggregates_of, by_cell, divided, run, single_rows, written

SPAN = 6
KEYS, ROWS = 40, 200


def ran(asked: Asked, script: list[Batch], *, twice: bool = False) -> Run:
    engine = SlidingEngine(
        BY, aggregates_of(asked.functions), SPAN, asked.early, asked.late, asked.lateness, asked.results, asked.on_time
    )
    return run(
        engine, script, lambda rows: single_rows(rows, asked.functions).select(engine.input_schema.names), twice=twice
    )


@settings(max_examples=30, deadline=None)
@given(ASKED, SEEDS)
def test_panes_are_those_of_the_naive_sliding_windows(asked: Asked, seed: int) -> None:
    random = Random(seed)
    script = divided(random, written(random, keys=KEYS, rows=ROWS), random.randint(1, 6))
    naive = NaiveSliding(asked, SPAN)
    expected = [naive.batch(rows, clock) for rows, clock in script]
    done = ran(asked, script, twice=True)
    for shown, wanted in zip(done.panes, expected, strict=True):
        inclusive = [replace(pane, window=(pane.window[0], pane.window[1] - 1)) for pane in wanted]
        assert by_cell(shown) == by_cell(inclusive)
    late = sorted((row["partition"], row["offset"], row["window_start"], row["window_end"]) for row in done.late)
    assert late == sorted((*row.position, *window) for row, window in naive.too_late)
    assert done.state_rows[-1] == 0


@settings(max_examples=12, deadline=None)
@given(ASKED.filter(lambda asked: asked.results != "discard"), SEEDS)
def test_no_division_into_batches_changes_sliding_windows(asked: Asked, seed: int) -> None:
    random = Random(seed)
    log = written(random, keys=KEYS, rows=ROWS)
    one, other = (ran(asked, divided(random, log, batches)) for batches in (random.randint(1, 3), 9))
    assert sorted(map(str, one.late)) == sorted(map(str, other.late))
    assert last_shown(one) == last_shown(other)
    if asked.on_time == "always":
        assert on_time(one) == on_time(other)


@settings(max_examples=12, deadline=None)
@given(SEEDS)
def test_there_is_a_window_for_each_set_of_rows_within_the_span(seed: int) -> None:
    random = Random(seed)
    log = [replace(row, watermark=min(row.watermark, 0)) for row in written(random, keys=KEYS, rows=ROWS)]
    done = ran(Asked(), divided(random, log, 4))
    sets = {
        (row.key, frozenset(other for other in log if other.key == row.key and start <= other.time <= start + SPAN))
        for row in log
        for start in range(row.time - SPAN, row.time + 1)
    }
    shown = [(key, told) for (key, _), told in last_shown(done).items()]
    assert sorted((key, values(rows)) for key, rows in sets) == sorted(shown)
