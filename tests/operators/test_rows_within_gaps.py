"""Rows of sessions that are put together before the engine sees them give what single rows give, batch by batch.

`WindowRows` does that natively; here it is done in the plainest way, over many scripts.
"""

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from mainstem.operators.windows.numbering import number_rows, numbers
from mainstem.operators.windows.session_engine import SessionEngine
from tests.operators.naive_windows import FUNCTIONS, Row
from tests.operators.window_scripts import AGGREGATES, BY, Run, divided, run, single_rows, written

# So many scripts find what would be wrong.
ENOUGH = 40


def within_gaps(rows: list[Row], *, strictly: bool = True) -> pa.Table:
    """Rows of one key and place that are ahead of their own watermarks and lie in one gap's length, as one row."""
    table = single_rows(rows)
    time, own, gap = (numbers(table, name) for name in ("time", "watermark", "gap"))
    ahead = (time > own if strictly else time > own - gap) & (gap > 0)
    within = np.where(ahead, time - time % np.maximum(1, gap), 0)
    alone = np.where(ahead, -1, np.arange(len(time)))
    ids, firsts = number_rows(numbers(table, "by_0"), gap, within, alone, numbers(table, "partition"))
    count = len(firsts)
    first, last, watermark, offset = time[firsts], time[firsts], own[firsts], numbers(table, "offset")[firsts]
    np.minimum.at(first, ids, time)
    np.maximum.at(last, ids, time)
    np.minimum.at(watermark, ids, own)
    np.minimum.at(offset, ids, numbers(table, "offset"))
    merged = AGGREGATES.merge(table.select(AGGREGATES.partial_schema.names), ids, count) if count else table
    made = {"time": first, "gap": last - first + gap[firsts], "watermark": watermark, "offset": offset}
    given = table.take(pa.array(firsts))
    for name in given.column_names:
        column = pa.array(made[name]) if name in made else merged.column(name) if name in merged.column_names else None
        if column is not None and name not in ("group", "check", "by_0", "topic", "partition"):
            given = given.set_column(given.schema.get_field_index(name), name, column)
    return given


def shown(done: Run) -> list[list[str]]:
    return [sorted(map(str, panes)) for panes in done.panes]


def differences(seeds: int, **how: bool) -> tuple[int, int]:
    """In how many scripts the two differ, and how many rows came together."""
    different, saved = 0, 0
    for seed in range(seeds):
        random = Random(seed)
        engine = SessionEngine(
            BY,
            AGGREGATES,
            lateness=random.choice([0, 0, 4, 20]),
            results=random.choice(["discard", "accumulate", "retract"]),
            touching=random.choice(["split", "join"]),
        )
        script = divided(random, written(random, keys=4, rows=300), random.randint(1, 6))
        names = engine.input_schema.names
        one_by_one = run(engine, script, lambda rows, names=names: single_rows(rows).select(names))
        together = run(engine, script, lambda rows, names=names: within_gaps(rows, **how).select(names))
        same = shown(one_by_one) == shown(together) and sorted(map(str, one_by_one.late)) == sorted(
            map(str, together.late)
        )
        different += not same
        saved += sum(len(rows) - within_gaps(rows).num_rows for rows, _ in script)
    return different, saved


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [ENOUGH, pytest.param(150, marks=pytest.mark.long)])
def test_rows_that_are_put_together_give_what_single_rows_give(seeds: int):
    assert len(FUNCTIONS) > 1
    different, saved = differences(seeds)
    # Rows do come together: 1,000 of them in 150 scripts.
    assert (different, saved > seeds * 1000 / 150) == (0, True)


@pytest.mark.thorough
@pytest.mark.parametrize("how", [{"strictly": False}], ids=["also rows that are behind their own watermark"])
def test_what_would_be_wrong_is_found(how: dict[str, bool]):
    assert differences(ENOUGH, **how)[0] > 0
