"""match as an operator: any rows, any pattern, any division into batches, against naive enumeration; and what it shows."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from mainstem.clock import as_datetime, as_us
from mainstem.operators import match
from mainstem.operators.patterns.pattern import Pattern
from mainstem.testing import TestResults, TestStream
from tests.operators.generated_patterns import Given, generate
from tests.operators.naive_patterns import Naive

ORIGIN = 1_767_268_800_000_000
KEYS = 4


def in_sql(pattern: Pattern) -> Pattern:
    return pattern.with_conditions(lambda letters: f"letter IN ({', '.join(repr(letter) for letter in str(letters))})")


def script_of(rows: dict[int, list[tuple[str, int]]], random: Random) -> TestStream:
    """The rows of every key: out of order by up to the watermark's delay, in batches, some of which are killed."""
    merged = [(time, key, place, letter) for key, given in rows.items() for place, (letter, time) in enumerate(given)]
    delay = random.choice([0, 2, 5])
    # Rows of one key and time stay in their order.
    merged.sort(key=lambda row: (row[0] + Random(f"{row[0]} {row[1]}").randint(0, delay), row))
    script = TestStream(
        "key INT, letter STRING, place INT, at TIMESTAMP", event_time="at", delay=f"{delay} microseconds"
    )
    while merged:
        count = random.randint(1, 6)
        batch, merged = merged[:count], merged[count:]
        script = script.rows(
            [{"key": key, "letter": letter, "place": place, "at": as_datetime(ORIGIN + time)}
             for time, key, place, letter in batch]
        )  # fmt: skip
        if random.random() < 0.2:
            script = script.kill()
    return script.watermark("2027-01-01")


def asked_of(given: Given) -> Any:
    after: Any = given.after_match.kind
    if given.after_match.step:
        after = (after, given.after_match.step, "or no skip")
    spans = {
        name: None if span is None else timedelta(microseconds=span)
        for name, span in (("within", given.within), ("gap", given.gap))
    }
    pattern = in_sql(given.pattern)
    places = [f"last({made.name}.place) AS {made.name}_place" for made in pattern.taken]
    return lambda rows: match(
        rows, pattern, by="key", **spans, after_match=after, timeouts="show", state="unbounded", measures=places
    )


def told(results: TestResults) -> list[tuple[Any, ...]]:
    found = []
    for row in results.rows:
        steps = [(made["step"], as_us(made["time"]) - ORIGIN) for made in row["steps"]]
        lasts = {name.removesuffix("_place"): place for name, place in row.items() if name.endswith("_place")}
        placed = {name: place for name, place in lasts.items() if place is not None}
        assert row["reached"] == steps[-1][0]
        found.append((row["key"], row["outcome"], steps, as_us(row["ended_at"]) - ORIGIN, sorted(placed.items())))
    return sorted(found)


def expected(given: Given, rows: dict[int, list[tuple[str, int]]]) -> list[tuple[Any, ...]]:
    found = []
    for key, of_key in rows.items():
        naive = Naive(given.pattern, of_key, given.within, given.gap, given.after_match, 10**8)
        for made in naive.run():
            steps = [(name, of_key[row][1]) for row, name in made.path]
            ended = steps[-1][1] if made.at is None else made.at
            lasts = {name: row for row, name in made.path}
            found.append((key, "timed out" if made.timed_out else "matched", steps, ended, sorted(lasts.items())))
    return sorted(found)


def check(seed: int) -> None:
    given = generate(seed)
    rows = {key: generate(seed * 10 + key).rows[: len(given.rows)] for key in range(KEYS)}
    wanted = expected(given, rows)
    script = script_of(rows, Random(seed))
    for batches in ("scripted", "one", "single rows"):
        results = script.run(asked_of(given), batches=batches)  # type: ignore[arg-type]
        assert told(results) == wanted, f"seed {seed}, {batches}: {given}"
        assert not results.late
        assert len({row["match"] for row in results.rows}) == len(results.rows)


def test_batches_do_not_change_what_matches() -> None:
    for seed in range(2):
        check(seed)


@pytest.mark.thorough
def test_no_division_into_batches_changes_what_matches() -> None:
    for seed in range(2, 12):
        check(seed)


@pytest.mark.long
def test_no_division_of_many_scripts_changes_what_matches() -> None:
    for seed in range(12, 200):
        check(seed)
