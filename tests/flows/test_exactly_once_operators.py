"""S9, S10: Spark's own operators in flows keep the law, over rows that come twice, out of order and in any split."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Mainstem
from tests.laws import Case, law_differences, split

pytestmark = pytest.mark.usefixtures("one_bucket")

SEED = 4_910
SCHEMA = "id INT, name STRING, side STRING, amount BIGINT, at TIMESTAMP"
START = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = 5
# Everything happens within an hour, and the watermark waits for two: no row is late.
WATERMARK = "2 hours"
FLUSH = [{"id": -1, "name": "-", "side": "-", "amount": 0, "at": START + timedelta(days=days)} for days in (1, 2)]


def generated(case: int, rows_max: int = 12) -> Case:
    """Rows of one case, in no order of time, in a split of its own."""
    chance = random.Random(SEED * 1_000_003 + case)
    rows = [
        {
            "id": number,
            "name": chance.choice("abc"),
            "side": chance.choice(["left", "right"]),
            "amount": chance.randint(-5, 5),
            "at": START + timedelta(seconds=chance.randint(0, 3600)),
        }
        for number in range(chance.randint(0, rows_max))
    ]
    return Case(case, split(rows, STEPS, chance))


def with_duplicates(case: int) -> Case:
    """Every tenth row or so once more, and all of them shuffled."""
    chance = random.Random(SEED * 7 + case)
    rows = generated(case, 20).rows
    rows += [row for row in rows if chance.random() < 0.1]
    chance.shuffle(rows)
    return Case(case, split(rows, STEPS, chance))


def windows(rows: DataFrame) -> DataFrame:
    counted = rows.groupBy("case_id", F.window("at", "10 minutes", "5 minutes"), "name")
    return counted.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("case_id", "name").agg(F.sum("amount").alias("amount"), F.max("at").alias("last"))


def sessions(rows: DataFrame) -> DataFrame:
    return rows.groupBy("case_id", F.session_window("at", "4 minutes"), "name").agg(F.sum("amount").alias("amount"))


def joined(rows: DataFrame) -> DataFrame:
    left = rows.where("side = 'left'").select("case_id", "name", F.col("id").alias("left"))
    right = rows.where("side = 'right'").select("case_id", "name", F.col("id").alias("right"))
    return left.join(right, ["case_id", "name"])


def unique(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["case_id", "id"]).select("case_id", "id", "name", "amount", "at")


OPERATORS: dict[str, tuple[Callable[[DataFrame], DataFrame], list[str]]] = {
    "windows": (windows, ["case_id", "window", "name"]),
    "totals": (totals, ["case_id", "name"]),
    "sessions": (sessions, []),
    "join": (joined, []),
}
CASES = 130
# How often a stream is stopped, and how often it fails.
RESTARTS = pytest.mark.parametrize("restarts", [1, pytest.param(2, marks=pytest.mark.long)])


@pytest.mark.thorough
@RESTARTS
@pytest.mark.parametrize("name", OPERATORS)
def test_a_stream_gives_what_all_rows_at_once_give(
    stem: Mainstem, name: str, restarts: int, fault_report: Callable[..., None]
) -> None:
    operator, key = OPERATORS[name]
    cases = [generated(number) for number in range(CASES)]
    violations = law_differences(
        stem, operator, cases, schema=SCHEMA, key=key, event_time="at", watermark=WATERMARK, flush=FLUSH, seed=SEED,
        restarts=restarts,
    )  # fmt: skip
    rows = sum(len(case.rows) for case in cases)
    fault_report(f"S10 {name}", points=CASES, compared=rows, violations=violations, seed=SEED)


@pytest.mark.thorough
@RESTARTS
def test_rows_that_come_twice_and_in_any_order_count_once(
    stem: Mainstem, restarts: int, fault_report: Callable[..., None]
) -> None:
    cases = [with_duplicates(number) for number in range(1_000)]

    def expected(rows: list[dict]) -> list[dict]:
        first = {row["id"]: row for row in reversed(rows)}
        return [{name: row[name] for name in ("id", "name", "amount", "at")} for row in first.values()]

    violations = law_differences(
        stem, unique, cases, schema=SCHEMA, expected=expected, event_time="at", seed=SEED, restarts=restarts
    )
    fault_report("S9", points=len(cases), compared=sum(len(c.rows) for c in cases), violations=violations, seed=SEED)


def test_the_law_catches_what_depends_on_the_split(stem: Mainstem) -> None:
    """Where every row given counts, and not the last one for each key, totals in between are seen in the result."""
    cases = [generated(number) for number in range(20)]
    assert law_differences(stem, totals, cases, schema=SCHEMA, event_time="at", seed=SEED, restarts=1)
