"""MatchEngine against naive enumeration: many keys, any division into batches, a restart after each."""

from __future__ import annotations

import pickle
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mainstem.clock import as_us
from mainstem.operators.patterns.automaton import Automaton
from mainstem.operators.patterns.expression import read_expression
from mainstem.operators.patterns.match_engine import MatchEngine, condition_column
from mainstem.operators.patterns.matcher import CANDIDATES_MAX
from mainstem.operators.stage.engine import NEVER, NO_TIME, BatchClock
from mainstem.operators.stage.state_runs import MemoryState
from tests.operators.generated_patterns import Given, generate
from tests.operators.naive_patterns import Naive

KEYS = 5
PLACE = pa.field("place", pa.int32())
Told = tuple[int, str, tuple[tuple[str, int], ...], int, int | None]


def engine_of(given: Given, conditions: list[str]) -> MatchEngine:
    numbered = {letters: str(number) for number, letters in enumerate(conditions)}
    names = [made.name for made in given.pattern.taken]
    measures = (("last", read_expression(f"last({names[0]}.place)", names, pa.schema([PLACE]))),)
    return MatchEngine(
        (pa.field("by_0", pa.int64()),),
        given.pattern.with_conditions(lambda letters: numbered[str(letters)]),
        (PLACE,),
        (),
        (),
        measures,
        given.within,
        given.gap,
        given.after_match,
        True,
        CANDIDATES_MAX,
    )


def table_of(rows: list[tuple[int, int, str, int, int]], conditions: list[str]) -> pa.Table:
    """Rows (key, place, letter, time, offset) as the engine takes them."""
    keys, places, letters, times, offsets = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    columns = {condition_column(number): [letter in of for letter in letters] for number, of in enumerate(conditions)}
    fields = [*(pa.field(name, pa.bool_()) for name in columns), PLACE]
    arrays = [*(pa.array(values, pa.bool_()) for values in columns.values()), pa.array(places, pa.int32())]
    count = len(rows)
    row = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.table(
        {
            "group": pa.array(keys, pa.int64()),
            "check": pa.array(keys, pa.int64()),
            "by_0": pa.array(keys, pa.int64()),
            "partition": pa.array(np.zeros(count, np.int32)),
            "offset": pa.array(offsets, pa.int64()),
            "tie": pa.array(np.zeros(count, np.int64)),
            "time": pa.array(times, pa.int64()),
            "watermark": pa.array(np.full(count, NO_TIME)),
            "row": row,
        }
    )


def run(given: Given, rows: dict[int, list[tuple[str, int]]], random: Random, batches: int) -> list[Told]:
    conditions = [str(letters) for letters in Automaton(given.pattern).conditions]
    engine = engine_of(given, conditions)
    log = [(key, place, letter, time) for key, of in rows.items() for place, (letter, time) in enumerate(of)]
    # Rows of one time stay in their order; others may come up to three later.
    log.sort(key=lambda row: (row[3] + Random(f"{row[0]} {row[3]}").randint(0, 3), row[0], row[1]))
    placed = [(*row, offset) for offset, row in enumerate(log)]
    ends = sorted(random.randint(0, len(placed)) for _ in range(batches - 1))
    state = MemoryState(engine.state_schema)
    found: list[Told] = []
    before = NO_TIME
    for begin, end in zip([0, *ends], [*ends, len(placed)], strict=True):
        later = [row[3] for row in placed[end:]]
        watermark = min(later) if later else NEVER - 1
        clock = BatchClock(max(watermark, before), 0, before, 0)
        engine = pickle.loads(pickle.dumps(engine))
        done = engine.step(state, table_of(placed[begin:end], conditions), clock)
        state.apply(done)
        assert done.late is None or not done.late.num_rows
        assert done.own is not None
        assert all(before <= own < clock.watermark for own in done.own.tolist())
        found += [tell(row) for row in done.output.to_pylist()]
        before = clock.watermark
    bounded = given.within is not None or given.gap is not None
    assert not (bounded and state.rows.num_rows)
    return sorted(found, key=str)


def tell(row: dict[str, Any]) -> Told:
    steps = tuple((made["step"], as_us(made["time"])) for made in row["steps"])
    return row["by_0"], row["outcome"], steps, as_us(row["ended_at"]), row["m_0"]


def naive(given: Given, rows: dict[int, list[tuple[str, int]]]) -> list[Told]:
    found: list[Told] = []
    first = given.pattern.taken[0].name
    for key, of in rows.items():
        for made in Naive(given.pattern, of, given.within, given.gap, given.after_match, 10**8).run():
            steps = tuple((name, of[row][1]) for row, name in made.path)
            last = max((row for row, name in made.path if name == first), default=None)
            ended = steps[-1][1] if made.at is None else made.at
            found.append((key, "timed out" if made.timed_out else "matched", steps, ended, last))
    return sorted(found, key=str)


def check(seed: int) -> None:
    given, random = generate(seed), Random(seed)
    rows = {key: generate(seed * KEYS + key).rows[: len(given.rows)] for key in range(KEYS)}
    expected = naive(given, rows)
    for batches in (1, 3, 12):
        assert run(given, rows, random, batches) == expected, f"seed {seed}, {batches} batches: {given}"


def test_no_division_into_batches_changes_what_the_engine_finds() -> None:
    for seed in range(20):
        check(seed)


@pytest.mark.thorough
def test_the_engine_finds_in_any_batches_what_enumeration_finds() -> None:
    for seed in range(20, 100):
        check(seed)


@pytest.mark.long
def test_the_engine_finds_in_many_batches_what_enumeration_finds() -> None:
    for seed in range(100, 3_000):
        check(seed)
