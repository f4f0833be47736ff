"""The law for dedupe, process, compare_with and match through Spark: neither batches nor restarts nor failures change the result."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Mainstem
from mainstem.operators import Process, compare_with, dedupe, match, process, step, tumbling, windowed
from tests.laws import Case, law_differences, split

# Spark's workers cannot import what belongs to the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = "team STRING, score INT, at TIMESTAMP"
REST = timedelta(seconds=40)
SEED = 31


class Streaks(Process):
    """How often a team scored without a rest, in the order of the log."""

    output = "case_id INT, team STRING, scores ARRAY<INT>, ended_at TIMESTAMP"
    event_time = "ended_at"
    bounded_by = "a streak is forgotten when its team rests"

    @dataclass
    class State:
        scores: list[int] = field(default_factory=list)
        last: datetime | None = None

    def on_rows(self, key: Any, rows: Any, state: Any, timers: Any) -> Any:
        for row in rows:
            state.scores.append(row["score"])
            state.last = row["at"] if state.last is None else max(state.last, row["at"])
            timers.set_event("rest", state.last + REST)
        yield from ()

    def on_timer(self, key: Any, name: str, at: datetime, state: Any, timers: Any) -> Any:
        yield {"case_id": key[0], "team": key[1], "scores": state.scores, "ended_at": at}
        self.forget(state)


def told(rows: DataFrame, title: str, key: list[str]) -> DataFrame:
    """Results of any operator in the same columns: which key of which case, and the rest."""
    rest = [name for name in rows.columns if name not in ("case_id", "record", "pane", *key)]
    return rows.select(
        F.lit(title).alias("operator"), "case_id", F.to_json(F.struct(*key)).alias("key"),
        F.to_json(F.struct(*rest)).alias("told"), "record",
    )  # fmt: skip


def operators(rows: DataFrame) -> DataFrame:
    keys = ["case_id", "team"]
    streaks = process(rows, by=keys, using=Streaks)
    first = dedupe(rows, by=[*keys, "score"], within="2 minutes", on="at")
    minutes = windowed(rows, tumbling("1 minute"), by=keys, aggregates=F.sum("score").alias("total"), on="at")
    compared = compare_with(minutes, earlier="2 minutes")
    rise = step("low", "score < 2").then_any(step("high", F.col("score") > 2)).then(step("other", "score < low.score"))
    rises = match(rows, rise, by=keys, within="3 minutes", measures=["high.score - low.score AS up", "other.at AS fell_at"],
                  on="at")  # fmt: skip
    found = [
        told(rises.drop("match", "steps"), "match", ["team", "started_at", "up", "ended_at"]),
        told(streaks, "process", ["team", "ended_at"]),
        told(first, "dedupe", ["team", "score", "at"]),
        told(compared, "compare_with", ["team", "window"]),
    ]
    return reduce(DataFrame.unionByName, found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "steps", [pytest.param(3, id="some"), pytest.param(6, marks=pytest.mark.long, id="many")]
)  # fmt: skip
def test_the_law_holds_for_every_operator_that_keeps_state(stem: Mainstem, steps: int) -> None:
    chance = random.Random(SEED)
    cases = []
    for case in range(20):
        rows = [
            {
                "team": chance.choice("ab"),
                "score": chance.randint(0, 3),
                "at": START + timedelta(seconds=chance.randint(0, 600)),
            }
            for _ in range(14)
        ]
        rows.sort(key=lambda row: row["at"] + timedelta(seconds=chance.randint(0, 120)))
        cases.append(Case(case, split(rows, steps, chance)))
    last = {"team": "z", "score": 0, "at": START + timedelta(days=1)}

    differences = law_differences(
        stem,
        operators,
        cases,
        schema=SCHEMA,
        key=["operator", "case_id", "key"],
        event_time="at",
        watermark="20 minutes",
        # One for each partition.
        flush=[{**last, "case_id": -1}, {**last, "case_id": -6}],
        # Which row is the first is a matter of the log's order, and partitions have none among them.
        placed_by="case_id",
        restarts=1,
        seed=SEED,
    )

    assert not differences, differences[0]
