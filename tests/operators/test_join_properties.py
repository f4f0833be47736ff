"""Joins of streams against the naive one and against DuckDB: any rows, any terms, any division into batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.operators import join
from mainstem.operators.joins.join_terms import HOW
from mainstem.testing import TestResults, TestStreams
from mainstem.testing.scripted_home import Append
from tests.operators.naive_join import Late, Naive, Shown, Terms, naive_join, written

SEEDS = st.integers(0, 2**32)
SPANS = st.sampled_from([0, 1, 4, 10])
TERMS = st.builds(Terms, st.sampled_from(HOW), SPANS, SPANS, st.sampled_from([0, 0, 3, 9]))
Share = Callable[[int], int]
DIVISIONS = ["scripted", "single rows", "one"]


def joined(script: TestStreams, terms: Terms, batches: str = "scripted") -> TestResults:
    return script.run(lambda left, right: join(left, right, **terms.asked()), batches=batches)  # type: ignore[arg-type]


def check_every_batch(terms: Terms, seed: int, batches: str = "scripted", keys: int = 3) -> None:
    """What is shown after each batch, and no change that changes nothing on the way."""
    script = written(Random(seed), keys=keys, rows=2 * keys)
    results, expected = joined(script, terms, batches), naive_join(script, terms, batches)
    shown: Counter[Shown] = Counter()
    for number, (changes, wanted) in enumerate(zip(results.batches, expected.shown, strict=True)):
        put, back = ([(row["number"], row.get("other")) for change, row in changes if change == which]
                     for which in ("insert", "delete"))  # fmt: skip
        assert not Counter(put) & Counter(back), f"batch {number} takes back what it puts out"
        assert not Counter(back) - shown, f"batch {number} takes back what was not there"
        shown = shown + Counter(put) - Counter(back)
        assert shown == wanted, f"batch {number}"
    check_late(results, expected)


def check_late(results: TestResults, expected: Naive) -> None:
    found: Counter[Late] = Counter()
    for row in results.late:
        missed = (row["missed_partition"], row["missed_offset"]) if "missed_offset" in row else None
        found[row["side"], (row["partition"], row["offset"]), missed] += 1
    assert found == expected.late


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("batches", "keys", "scripts"), [("scripted", 20, 60), ("one", 20, 60), ("single rows", 3, 40)]
)
def test_every_batch_shows_what_the_naive_join_shows(batches: str, keys: int, scripts: int, share: Share) -> None:
    """A key is a case by itself: 842 of them in every run, 2,520 in the long one."""

    @settings(max_examples=share(scripts), deadline=None)
    @given(TERMS, SEEDS)
    def check(terms: Terms, seed: int) -> None:
        check_every_batch(terms, seed, batches, keys)

    check()


@pytest.mark.thorough
def test_how_rows_are_divided_into_batches_changes_no_final_answer(share: Share) -> None:
    @settings(max_examples=share(30), deadline=None)
    @given(TERMS, SEEDS)
    def check(terms: Terms, seed: int) -> None:
        script = written(Random(seed))
        found = [joined(script, terms, batches) for batches in DIVISIONS]
        finals, late = [_final(results) for results in found], [_late(results) for results in found]
        assert finals[1:] == finals[:-1]
        assert late[1:] == late[:-1]

    check()


def _final(results: TestResults) -> Counter[str]:
    counted = Counter(str(row) for _, row in results.changes if _ == "insert")
    return counted - Counter(str(row) for change, row in results.changes if change == "delete")


def _late(results: TestResults) -> Counter[str]:
    return Counter(str(sorted(row.items())) for row in results.late)


def test_what_was_forgotten_is_forgotten_and_makes_no_difference(share: Share) -> None:
    """What is forgotten on the way is compared above; in the end nothing is kept."""

    @settings(max_examples=share(30), deadline=None)
    @given(TERMS, SEEDS)
    def check(terms: Terms, seed: int) -> None:
        script = written(Random(seed))
        for side in ("left", "right"):
            script = script.watermark(side, "2027-01-01")
        results = joined(script, terms)
        assert sum(results.state_rows.values()) == 0

    check()


ANSWERS = {
    "inner": "SELECT l.number, r.other FROM l JOIN r ON {met}",
    "left": "SELECT l.number, r.other FROM l LEFT JOIN r ON {met}",
    "right": "SELECT l.number, r.other FROM l RIGHT JOIN r ON {met}",
    "full": "SELECT l.number, r.other FROM l FULL JOIN r ON {met}",
    "semi": "SELECT l.number, NULL FROM l WHERE EXISTS (FROM r WHERE {met})",
    "anti": "SELECT l.number, NULL FROM l WHERE NOT EXISTS (FROM r WHERE {met})",
}


@pytest.mark.parametrize("how", HOW)
def test_in_the_end_it_is_what_sql_says(how: str, share: Share) -> None:
    """Of rows that are in order: whatever comes too late, SQL would count."""
    for seed in range(share(3)):
        random = Random(seed)
        script = written(random, keys=40, steps=30, rows=40)
        terms = Terms(how, random.choice([0, 4, 10]), random.choice([0, 4, 10]), 100)
        expected = naive_join(script, replace(terms, how="inner"))
        appends = [step for step in script.steps if isinstance(step, Append)]
        tables = {side: pa.concat_tables([step.rows for step in appends if step.stream == side]).to_pylist()
                  for side in ("left", "right")}  # fmt: skip
        for side in ("left", "right"):
            script = script.watermark(side, "2027-01-01")
        results = joined(script, terms)
        counted = Counter({(row["number"], row.get("other")): 0 for row in results.rows})
        for change, row in results.changes:
            counted[row["number"], row.get("other")] += 1 if change == "insert" else -1
        answer = _sql(tables, expected.took_no_part, ANSWERS[how], terms)
        assert +counted == answer, f"seed {seed}"


def _sql(tables: dict[str, list], without: set[int], question: str, terms: Terms) -> Counter[Shown]:
    left = [row for row in tables["left"] if row["number"] not in without]
    right = [row for row in tables["right"] if row["other"] not in without]
    times = f"epoch_us(r.other_at) BETWEEN epoch_us(l.at) - {terms.before} AND epoch_us(l.at) + {terms.after}"
    with duckdb.connect() as connection:
        connection.register("l", pa.Table.from_pylist(left))
        connection.register("r", pa.Table.from_pylist(right))
        asked = question.format(met=f"l.key = r.key AND {times}")
        return Counter(connection.execute(asked).fetchall())
