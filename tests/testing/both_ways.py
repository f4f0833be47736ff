"""Generated scripts of two streams, and the operators that they are run through: without Spark, and as flows on Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from random import Random
from typing import Any

from mainstem.operators import enrich, join, latest, table
from mainstem.testing import TestResults, TestStream, TestStreams
from tests.operators.visits import at

LEVELS = [0.0, -0.0, float("nan"), 1.5, None]
Operator = Callable[..., Any]


# Of two streams: n INT, level DOUBLE, at TIMESTAMP; v INT, level DOUBLE, since TIMESTAMP.
TWO: dict[str, Operator] = {
    "pairs": lambda rows, versions: join(rows, versions, on="level", within="3 minutes"),
    "full": lambda rows, versions: join(rows, versions, on="level", within="2 minutes", how="full", lateness="1 minute"),
    "anti": lambda rows, versions: join(rows, versions, on="level", within="2 minutes", how="anti"),
    "enriched": lambda rows, versions: enrich(rows, table(versions, key="level"), on="level", lateness="5 minutes"),
    "corrected": lambda rows, versions: enrich(rows, table(versions, key="level"), on="level", lateness="5 minutes",
                                               corrections="re-emit", how="inner"),
    "latest": lambda rows, versions: enrich(rows, table(versions, key="level"), on="level", at=latest()),
}  # fmt: skip


def _row(random: Random, minute: int, number: str, time: str) -> dict[str, Any]:
    behind = random.choice([0, 0, 0.5, 1, 2, 6, 20])
    when = None if random.random() < 0.05 else at(minute - behind)
    return {number: random.randint(0, 6), "level": random.choice(LEVELS), time: when}


def two_streams(random: Random, steps: int) -> TestStreams:
    script = TestStreams(
        rows=TestStream("n INT, level DOUBLE, at TIMESTAMP", event_time="at", delay="1 minute"),
        versions=TestStream("v INT, level DOUBLE, since TIMESTAMP", event_time="since", delay="0 seconds",
                            idle_after="2 minutes"),
    )  # fmt: skip
    for minute in range(steps):
        script = script.now(at(minute))
        if minute % 6 < 2 or random.random() < 0.1:
            given = [_row(random, minute, "v", "since") for _ in range(random.randint(1, 3))]
            script = (script.delete if random.random() < 0.2 else script.rows)("versions", given)
        script = script.rows("rows", [_row(random, minute, "n", "at") for _ in range(random.randint(1, 4))])
        script = script.kill() if random.random() < 0.15 else script
    return script.now(at(steps + 60))


def together(operators: Mapping[str, Operator], *streams: Any) -> Any:
    """All of them as one flow: the rows of each in a column of its own."""
    from pyspark.sql import functions as F

    parts = []
    for name, operator in operators.items():
        given = operator(*streams)
        row = F.struct(*[F.col(column) for column in given.columns if column != "record"])
        record = F.col("record").withField("watermark", F.lit(None).cast("timestamp"))
        parts.append(given.select(row.alias(name), record.alias("record")))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def told(results: TestResults) -> list[list[str]]:
    """Of each step what came and what was taken back, in any order."""
    return [sorted(str(_plain(change)) for change in step) for step in results.batches]


def told_of(results: TestResults, name: str) -> list[list[str]]:
    """The same of one operator of several that ran together."""
    steps = [[(change, row[name]) for change, row in step if row[name] is not None] for step in results.batches]
    return told(TestResults(steps))


def told_late(results: Sequence[TestResults]) -> list[str]:
    """The rows that were set aside, without what differs from operator to operator."""
    rows = [row for one in results for row in one.late]
    return sorted(str([row.get(name) for name in ("time", "watermark", "reason")]) for row in rows)


def _plain(value: Any) -> Any:
    """0.0 and -0.0 are one key: which of the two a result shows is that of any of its rows. Behind a stage the place of a row
    is that in a bucket."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if name not in ("partition", "offset")}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value + 0.0 if isinstance(value, float) else value
