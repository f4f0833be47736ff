"""Rows prepared for windows over Arrow are those that Spark prepares: keys, windows, timing, and what the accumulators give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mainstem.log.record import EVENT_TIME_MARK, RECORD_MARK
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators import (
    calendar,
    cumulating,
    each_row,
    everything,
    hopping,
    sessions,
    sliding,
    tumbling,
    validity,
)
from mainstem.operators.windows import window_rows
from mainstem.operators.windows.numbering import number_values, numbers
from mainstem.operators.windows.window_plan import WindowPlan, plan_windows

TIME = pa.timestamp("us", "UTC")
# Before a change of the clock in Berlin.
NIGHT = datetime(2026, 3, 29, 0, 40, tzinfo=UTC)
AGGREGATES = [
    "count(*) AS rows", "count(n) AS known", "sum(n) AS total", "sum(d) AS exact", "avg(n) AS mean", "max(s) AS text",
    "min(struct(n, s)) AS least", "max(struct(n, at, s)) AS most", "first(s) AS first", "max_by(s, n) AS best",
    "collect_set(s) AS texts", "collect_list(n) AS numbers", "approx_count_distinct(s) AS about", "median(n) AS middle",
    "approx_percentile(n, 0.5) AS half", "count_if(n > 2) AS some", "sum(n) FILTER (WHERE s = 'a') AS of_a",
]  # fmt: skip
KINDS: dict[str, Any] = {
    "tumbling": tumbling("7 minutes", offset="2 minutes"),
    "hopping": hopping("10 minutes", slide="3 minutes"),
    "hopping in slices": hopping("10 minutes", slide="2 minutes"),
    "hopping with gaps": hopping("2 minutes", slide="5 minutes"),
    "cumulating": cumulating("20 minutes", step="5 minutes"),
    "calendar": calendar("hour", time_zone="Europe/Berlin"),
    "everything": everything(),
    "sessions": sessions("5 minutes"),
    "sliding": sliding("4 minutes"),
    "validity": validity(),
}


def rows_of(seed: int, count: int = 300) -> pa.Table:
    """Rows of a few keys; some are late, some have no time, no watermark or no value."""
    chance = Random(seed)
    found = []
    for number in range(count):
        at = NIGHT + timedelta(seconds=20 * number + chance.randint(-600, 60))
        watermark = NIGHT + timedelta(seconds=20 * number - 300)
        known = chance.random() > 0.05
        found.append(
            {
                "k": chance.choice([None, "", "a", "ä€"]), "g": chance.choice([None, -5.0, 0.0, -0.0]),
                "at": at if chance.random() > 0.05 else None, "n": chance.choice([None, 1, 2, 3, 4]),
                "d": chance.choice([None, "1.25", "-3.50"]), "s": chance.choice([None, "a", "b", "c"]),
                "record": {
                    "partition": number % 2, "offset": number // 2, "appended_at": NIGHT, "change": "insert",
                    "watermark": watermark if known and number > 10 else None,
                },
            }
        )  # fmt: skip
    plain = pa.schema([("k", pa.string()), ("g", pa.float64()), ("at", TIME), ("n", pa.int32()), ("d", pa.string()),
                       ("s", pa.string()), ("record", WATERMARKED_RECORD)])  # fmt: skip
    table = pa.Table.from_pylist(found, plain)
    place = plain.get_field_index("d")
    return table.set_column(place, "d", table.column("d").cast(pa.decimal128(8, 2)))


def marked(spark: SparkSession, rows: pa.Table) -> Any:
    frame = spark.createDataFrame(rows)
    for name, mark in (("at", EVENT_TIME_MARK), ("record", RECORD_MARK)):
        frame = frame.withMetadata(name, {key.decode(): value.decode() for key, value in mark.items()})
    return frame


def planned(frame: Any, kind: Any, by: list[str], lateness: int = 0, early: Any = None) -> WindowPlan:
    settings = {"early": early, "late": None, "lateness": lateness, "results": "retract", "on_time": "always"}
    return plan_windows(frame, kind, by, AGGREGATES, None, settings)


def comparable(prepared: pa.Table, plan: WindowPlan) -> list[str]:
    """One line for each key, window and single row. What Spark leaves to the engine is merged here."""
    aggregates = plan.written.aggregates
    names = [name for name in prepared.column_names if name not in aggregates.partial_schema.names]
    apart = ["group", "check", "window_start", "window_end", "timing", "topic", "partition", "offset"]
    keys = [prepared.column(name).combine_chunks() for name in apart if name in names]
    ids, firsts = number_values(*keys) if prepared.num_rows else (np.empty(0, np.int64),) * 2
    merged = aggregates.merge(prepared.select(aggregates.partial_schema.names), ids, len(firsts))
    shown = prepared.select(names).take(pa.array(firsts))
    for name, last in (("time", np.maximum), ("rows", np.add)):
        if name in names and "timing" in names:
            found = np.zeros(len(firsts), np.int64)
            last.at(found, ids, numbers(prepared, name))
            shown = shown.set_column(names.index(name), name, pa.array(found))
    found = pa.table({**_columns(shown), **_columns(aggregates.finish(merged))}).to_pylist()
    # The gap of a row without a time is not used.
    return sorted(
        str({**row, "gap": row["gap"] if row.get("time") else None} if "gap" in row else row) for row in found
    )


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: table.column(name) for name in table.column_names}


def difference(spark: SparkSession, kind: Any, seed: int, **how: Any) -> list[str]:
    """What one of the two gives and the other does not."""
    plan = planned(marked(spark, rows_of(seed)), kind, ["k", "g"], **how)
    narrow = plan.narrow(marked(spark, rows_of(seed)))
    given = narrow.coalesce(1).toArrow()
    given = given.cast(pa.schema([pa.field(at.name, at.type) for at in given.schema]))
    theirs = plan.spec.prepare(spark.createDataFrame(given)).toArrow().cast(plan.spec.engine.input_schema)
    ours = plan.spec.prepare_rows(given)
    assert ours.schema == plan.spec.engine.input_schema
    assert plan.spec.packed == ours.schema
    one, other = comparable(theirs, plan), comparable(ours, plan)
    assert len(one) > 5
    return [row for row in one if row not in other] + [row for row in other if row not in one]


@pytest.mark.parametrize("name", ["tumbling", "hopping", "hopping with gaps", "sessions", "sliding"])
def test_rows_are_prepared_as_by_spark(spark: SparkSession, name: str) -> None:
    assert difference(spark, KINDS[name], 1, lateness=240_000_000) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize("name", KINDS)
def test_rows_of_all_kinds_are_prepared_as_by_spark(spark: SparkSession, name: str, seed: int) -> None:
    lateness = 0 if seed == 2 else 240_000_000
    early = each_row() if seed == 4 else None
    assert difference(spark, KINDS[name], seed, lateness=lateness, early=early) == []


def test_what_is_prepared_otherwise_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    right = window_rows.WindowRows._find_together
    monkeypatch.setattr(
        window_rows.WindowRows, "_find_together", lambda self, rows, found: right(self, rows, found) | (numbers(rows, "time") > 0)
    )  # fmt: skip
    assert difference(spark, KINDS["tumbling"], 1, lateness=240_000_000)
