"""windowed over frames that are no streams: every aggregate as Spark gives it, every kind of window as DuckDB gives it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mainstem.operators import calendar, cumulating, everything, hopping, sessions, tumbling, windowed

# The clocks of Berlin go forward in the night after this evening.
START = datetime(2026, 3, 28, 18, tzinfo=UTC)
SCHEMA = "team string, score int, amount decimal(10,2), x double, word string, at timestamp"
ROWS = 400


@pytest.fixture(scope="module")
def table() -> pa.Table:
    chance = random.Random(5)
    rows = []
    for _ in range(ROWS):
        rows.append(
            {
                "team": chance.choice(["red", "blue", None, ""]),
                "score": chance.choice([None, *range(-3, 9)]),
                "amount": None if chance.random() < 0.1 else Decimal(chance.randint(-999, 9999)) / 100,
                "x": None if chance.random() < 0.1 else chance.gauss(10, 3),
                "word": chance.choice(["a", "b", "ä", None]),
                # Two rows never have the same time: which of them is first would be for Spark to choose.
                "at": START + timedelta(microseconds=len(rows), seconds=chance.randint(0, 3 * 86_400)),
            }
        )
    schema = pa.schema(
        [
            ("team", pa.string()),
            ("score", pa.int32()),
            ("amount", pa.decimal128(10, 2)),
            ("x", pa.float64()),
            ("word", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.fixture(scope="module")
def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table, SCHEMA)


def rows_of(frame: DataFrame) -> Iterator[dict[str, Any]]:
    yield from frame.drop("pane", "record").toArrow().to_pylist()


def shown(value: Any) -> Any:
    """A value that can be compared: times in UTC, doubles to nine digits."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return tuple((name, shown(inner)) for name, inner in value.items())
    return tuple(map(shown, value)) if isinstance(value, list) else value


def compared(rows: Any) -> Counter[Any]:
    return Counter(tuple((name, shown(value)) for name, value in row.items()) for row in rows)


def test_every_aggregate_is_what_spark_itself_gives(frame: DataFrame) -> None:
    aggregates = [
        F.sum("score").alias("sum"),
        F.sum("amount").alias("decimals"),
        F.count("*").alias("rows"),
        F.count("score").alias("known"),
        F.expr("count(score, x)").alias("both"),
        F.count_distinct("word").alias("words"),
        F.min("amount").alias("least"),
        F.max("word").alias("greatest"),
        F.avg("score").alias("mean"),
        F.avg("amount").alias("mean_decimal"),
        F.stddev("x").alias("spread"),
        F.var_pop("score").alias("variance"),
        F.max_by("word", "at").alias("last"),
        F.min_by("word", "at").alias("first"),
        F.sort_array(F.collect_list("score")).alias("listed"),
        F.sort_array(F.collect_set("word")).alias("set"),
        F.expr("sum(score) FILTER (WHERE word = 'a')").alias("filtered"),
        F.expr("count(*) FILTER (WHERE word = 'a')").alias("filtered_rows"),
        F.expr("count_if(score > 2)").alias("high"),
        F.bool_or(F.col("score") > 5).alias("any"),
        F.median("score").alias("median"),
        F.percentile("x", [0.1, 0.9]).alias("tails"),
        F.approx_percentile("score", 0.5, 1000).alias("near"),
        F.approx_count_distinct("word").alias("about"),
        (F.sum("score") / F.count("*") + F.max("score")).alias("arithmetic"),
        F.round(F.sum("x") * 2, 3).alias("doubled"),
        F.transform(F.sort_array(F.collect_set("score")), lambda v: v + 1).alias("after"),
        F.sum(F.when(F.col("word") == "b", F.col("score") * 2)).alias("case"),
        F.sum("score"),
    ]

    mine = windowed(frame, tumbling("6 hours", offset="90 minutes"), by="team", aggregates=aggregates, on="at")
    spark_own = frame.groupBy("team", F.window("at", "6 hours", startTime="90 minutes")).agg(*aggregates)

    assert mine.drop("pane", "record").columns == spark_own.columns
    assert [kind for _, kind in mine.dtypes][2:-2] == [kind for _, kind in spark_own.dtypes][2:]
    assert compared(rows_of(mine)) == compared(spark_own.toArrow().to_pylist())


def test_first_and_last_are_by_time_and_a_histogram_counts(frame: DataFrame, table: pa.Table) -> None:
    aggregates = [
        F.first("word").alias("first"),
        F.first("word", ignorenulls=True).alias("known"),
        F.last("score").alias("last"),
        F.histogram_numeric("score", F.lit(20)).alias("histogram"),
        F.expr("approx_top_k(word, 1)").alias("top"),
        F.collect_list("word").alias("words"),
    ]

    (found,) = rows_of(windowed(frame, everything(), aggregates=aggregates, on="at"))

    rows = table.to_pylist()
    by_time = sorted(rows, key=lambda row: row["at"])
    words = Counter(row["word"] for row in rows if row["word"] is not None)
    scores = Counter(row["score"] for row in rows if row["score"] is not None)
    assert found["window"] == {"start": None, "end": None}
    assert found["first"] == by_time[0]["word"]
    assert found["known"] == next(row["word"] for row in by_time if row["word"] is not None)
    assert found["last"] == by_time[-1]["score"]
    assert found["histogram"] == [{"x": score, "y": float(scores[score])} for score in sorted(scores)]
    assert found["top"] == [{"item": words.most_common(1)[0][0], "count": words.most_common(1)[0][1]}]
    assert Counter(found["words"]) == words


def test_keys_with_nulls_in_different_places_are_different_keys(frame: DataFrame, table: pa.Table) -> None:
    even = F.coalesce(F.col("score") % 2 == 0, F.lit(True))
    one, two = F.when(even, F.col("word")).alias("one"), F.when(~even, F.col("word")).alias("two")
    keyed = frame.select(one, two, "at")

    found = windowed(keyed, everything(), by=["one", "two"], aggregates=F.count("*").alias("rows"), on="at")

    wanted = Counter(
        (row["word"], None) if row["score"] is None or row["score"] % 2 == 0 else (None, row["word"])
        for row in table.to_pylist()
    )
    assert {(row["one"], row["two"]): row["rows"] for row in rows_of(found)} == wanted


WINDOWS_OF = {
    "hopping": "SELECT *, unnest(range(CAST(floor(epoch_us(moment) / 3600e6) AS BIGINT) - 2, CAST(floor(epoch_us(moment) / 3600e6) "
    "AS BIGINT) + 1)) * 3600000000 AS start, start + 10800000000 AS stop FROM given",
    # 90 minutes every hour: now one window, now two.
    "overlapping by half": "SELECT * FROM (SELECT *, (epoch_us(moment) // 3600000000 - unnest([0, 1])) * 3600000000 AS start, "
    "start + 5400000000 AS stop FROM given) WHERE epoch_us(moment) < stop",
    "with gaps": "SELECT * FROM (SELECT *, epoch_us(moment) // 3600000000 * 3600000000 AS start, start + 600000000 AS stop "
    "FROM given) WHERE epoch_us(moment) < stop",
    "cumulating": "SELECT * FROM (SELECT *, epoch_us(moment) // 86400000000 * 86400000000 AS start, start + unnest(range(1, 5)) "
    "* 21600000000 AS stop FROM given) WHERE epoch_us(moment) < stop",
    "days in Berlin": "SELECT *, epoch_us(timezone('Europe/Berlin', date_trunc('day', timezone('Europe/Berlin', moment)))) AS "
    "start, epoch_us(timezone('Europe/Berlin', date_trunc('day', timezone('Europe/Berlin', moment)) + INTERVAL 1 DAY)) AS stop "
    "FROM given",
    "months in Auckland": "SELECT *, epoch_us(timezone('Pacific/Auckland', date_trunc('month', timezone('Pacific/Auckland', "
    "moment)))) AS start, epoch_us(timezone('Pacific/Auckland', date_trunc('month', timezone('Pacific/Auckland', moment)) + "
    "INTERVAL 1 MONTH)) AS stop FROM given",
    "weeks": "SELECT *, epoch_us(date_trunc('week', moment)) AS start, epoch_us(date_trunc('week', moment) + INTERVAL 7 DAY) AS stop "
    "FROM given",
    "sessions": "SELECT *, min(epoch_us(moment)) OVER s AS start, max(epoch_us(moment)) OVER s + 1800000000 AS stop FROM (SELECT *, "
    "sum(CASE WHEN epoch_us(moment) - before >= 1800000000 THEN 1 ELSE 0 END) OVER (PARTITION BY team ORDER BY moment) AS number "
    "FROM (SELECT *, lag(epoch_us(moment)) OVER (PARTITION BY team ORDER BY moment) AS before FROM given)) WINDOW s AS (PARTITION BY "
    "team, number)",
}
KINDS = {
    "hopping": hopping("3 hours", slide="1 hour"),
    "overlapping by half": hopping("90 minutes", slide="1 hour"),
    "with gaps": hopping("10 minutes", slide="1 hour"),
    "cumulating": cumulating("1 day", step="6 hours"),
    "days in Berlin": calendar("day", time_zone="Europe/Berlin"),
    "months in Auckland": calendar("month", time_zone="Pacific/Auckland"),
    "weeks": calendar("week"),
    "sessions": sessions("30 minutes"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_window_is_what_duckdb_gives(frame: DataFrame, table: pa.Table, kind: str) -> None:
    aggregates = [F.sum("score").alias("total"), F.count("*").alias("rows"), F.min("at").alias("first")]

    mine = windowed(frame, KINDS[kind], by=["team"], aggregates=aggregates, on="at")

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", table.rename_columns([*table.column_names[:-1], "moment"]))
        wanted = connection.sql(
            f'SELECT team, start, stop, sum(score)::BIGINT AS total, count(*) AS "rows", min(moment) AS "first" '
            f"FROM ({WINDOWS_OF[kind]}) GROUP BY ALL"
        ).to_arrow_table()
    found = [
        {
            "team": row["team"],
            "start": round(row["window"]["start"].timestamp() * 1e6),
            "stop": round(row["window"]["end"].timestamp() * 1e6),
            **{name: row[name] for name in ("total", "rows", "first")},
        }
        for row in rows_of(mine)
    ]
    assert len(found) > 3
    assert compared(found) == compared(wanted.to_pylist())
