"""Conditions that are applied in Arrow before rows are sent: never fewer rows than Spark keeps, and mostly as many."""

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.spark.plan.flow_plan import row_conditions
from mainstem.spark.plan.row_condition import Condition, any_of, columns_in, condition_mask
from mainstem.spark.sources.spark_topic import SparkTopic
from mainstem.stem import Mainstem

SCHEMA = """n BIGINT, i INT, small TINYINT, x DOUBLE, f FLOAT, s STRING, yes BOOLEAN, m DECIMAL(8,2), d DATE, at TIMESTAMP,
            local TIMESTAMP_NTZ, raw BINARY, inner STRUCT<a: INT, b: STRING>"""
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

VALUES: dict[str, list[object]] = {
    "n": [None, 0, 1, -1, 7, -7, 123, 2**63 - 1, -(2**63)],
    "i": [None, 0, 1, -1, 5, -5, 2**31 - 1],
    "small": [None, 0, 3, -128, 127],
    "x": [None, 0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 1000.0],
    "f": [None, 0.0, 1.5, float("nan"), float("inf")],
    "s": [None, "", "a", "b", "ab", "ä", "z\U0001f600"],
    "yes": [None, True, False],
    "m": [None, Decimal("0.00"), Decimal("12.50"), Decimal("-12.50")],
    "d": [None, date(2026, 3, 1), date(1969, 12, 31), date(2026, 3, 2)],
    "at": [None, NOON, NOON + timedelta(microseconds=1), datetime(1969, 1, 1, tzinfo=UTC)],
    "local": [None, NOON.replace(tzinfo=None), datetime(2026, 1, 1)],  # noqa: DTZ001 - a time without a zone
    "raw": [None, b"", b"\x00", b"\xff"],
    "inner": [None, {"a": 1, "b": "x"}, {"a": None, "b": None}, {"a": 2, "b": None}],
}

# Conditions that say in Arrow exactly what they say in Spark.
EXACT = [
    "n = 7", "n > 0", "n >= 1", "n < 1", "n <= -1", "n <> 7", "7 < n", "n <=> 7", "n <=> null", "n = 9223372036854775807",
    "n % 7 = 0", "n % 7 = -1", "i % 5 = 0", "small % 3 = 0", "n % 2 <> 0", "small > 3", "i = 5", "n = i", "n > small",
    "x > 1.0D", "x >= 1000D", "x < 0D", "x = 0D", "x <> 0D", "not x > 1.0D", "1.0D < x", "x <= 1.5D", "f > 1.5F",
    "s = 'a'", "s > 'a'", "s >= 'ä'", "s <> ''", "s in ('a', 'b')", "s not in ('a', 'b')", "s in ('a', null)",
    "s is null", "s is not null", "not s is null", "yes", "not yes", "yes = true", "yes is null",
    "m = 12.50BD", "m > -12.50BD", "m <= 0.00BD", "d = date'2026-03-01'", "d < date'1970-01-01'", "at > timestamp'2026-03-01T12:00:00Z'",
    "at <= timestamp'2026-03-01T12:00:00Z'", "at < timestamp'1970-01-01T00:00:00Z'", "local = timestamp_ntz'2026-03-01 12:00:00'",
    "raw = X'FF'", "raw > X'00'", "inner.a = 1", "inner.a is null", "inner.b = 'x' or inner.a > 1", "inner is null",
    "record.offset % 2 = 0", "record.change = 'insert'", "record.appended_at > timestamp'2020-01-01T00:00:00Z'",
    "n in (0, 1, 7, 123, 4, 5, 6, 8, 9, 10, 11, 12)",
    "n > 0 and s = 'a'", "n > 0 or s = 'a'", "not (n > 0 and s = 'a')", "not (n > 0 or s = 'a')", "(n > 0) = true",
    "n between 1 and 200", "d in (date'2026-03-01', date'2026-03-02')", "m in (12.50BD, 0.00BD)",
    "length(s) = 1", "x = x", "x <=> double('nan')", "x > double('nan')", "f > x", "s like 'a%'", "small > 3.5BD", "i > 1.5D", "coalesce(n, 0) = 0 and s is not null",
]  # fmt: skip
# Conditions of which a part, or nothing, can be said in Arrow.
LOOSE = [
    # Never true: nothing is left of the plan.
    "not (s in ('a', null))", "n not in (0, 1, 7, 123, 4, 5, 6, 8, 9, 10, 11, 12, null)",
    "n > 0 and ascii(s) = 97", "ascii(s) = 97", "n > 0 or ascii(s) = 97", "not (n > 0 and ascii(s) = 97)",
    "not (ascii(s) = 97 or n > 0)", "x in (0D, 1.5D)",
    "(n > 0 and upper(s) = 'A') or (i = 5 and n is null)", "try_add(n, 1) > 3 and n < 1000", "rand() < 2 and n > 0",
    "n % -7 = 0", "at > current_timestamp() - interval 1 day",
]  # fmt: skip


@pytest.fixture
def topic(stem: Mainstem) -> SparkTopic:
    """Rows in which every value meets many others."""
    chance = random.Random(7)
    made = stem.create_topic("values", schema=SCHEMA, partitions=2)
    made.append([{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(400)])
    return made


def condition_of(rows: DataFrame) -> Condition | None:
    return row_conditions(rows).get(-1)


def kept_by_arrow(condition: Condition | None, rows: pa.Table) -> set[int]:
    if condition is None:
        return set(range(len(rows)))
    mask = condition_mask(condition, rows.combine_chunks().to_batches()[0])
    return {row for row, kept in enumerate(mask.to_pylist()) if kept}


def kept_by_spark(topic: SparkTopic, conditions: list[str], rows: pa.Table) -> list[set[int]]:
    place = {
        (record["partition"], record["offset"]): row for row, record in enumerate(rows.column("record").to_pylist())
    }
    frame = topic.read().select("record", *(F.expr(text).alias(f"c{at}") for at, text in enumerate(conditions)))
    found: list[set[int]] = [set() for _ in conditions]
    for row in frame.toArrow().to_pylist():
        at = place[row["record"]["partition"], row["record"]["offset"]]
        for number in range(len(conditions)):
            if row[f"c{number}"]:
                found[number].add(at)
    return found


def test_a_condition_keeps_what_spark_keeps(topic: SparkTopic):
    rows = topic.to_arrow()
    conditions = EXACT + LOOSE
    truth = dict(zip(conditions, kept_by_spark(topic, conditions, rows), strict=True))
    arrow = {text: kept_by_arrow(condition_of(topic.stream().where(text)), rows) for text in conditions}
    assert {text: truth[text] - arrow[text] for text in conditions if truth[text] - arrow[text]} == {}
    assert {text: arrow[text] - truth[text] for text in EXACT if arrow[text] != truth[text]} == {}


def random_condition(chance: random.Random, depth: int) -> str:
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(EXACT + LOOSE)
    kind = chance.choice(["and", "or", "not"])
    left = random_condition(chance, depth - 1)
    return f"not ({left})" if kind == "not" else f"({left}) {kind} ({random_condition(chance, depth - 1)})"


def test_any_combination_of_conditions_keeps_what_spark_keeps(topic: SparkTopic):
    chance = random.Random(20260301)
    rows = topic.to_arrow()
    conditions = [random_condition(chance, 3) for _ in range(120)]
    truth = kept_by_spark(topic, conditions, rows)
    narrowed = 0
    for text, kept in zip(conditions, truth, strict=True):
        arrow = kept_by_arrow(condition_of(topic.stream().where(text)), rows)
        assert kept <= arrow, text
        narrowed += len(arrow) < len(rows)
    assert narrowed > 40


def test_where_a_filter_stands_decides_whether_it_narrows(topic: SparkTopic):
    stream = topic.stream()
    column: Condition = [">", ["column", "n"], ["literal", "bigint", 0]]
    present: Condition = ["not", ["null", ["column", "n"]]]
    assert condition_of(stream) is None
    assert condition_of(stream.where("n > 0").select("s")) == ["and", present, column]
    assert condition_of(stream.select("n", "s").where("n > 0").groupBy("s").count()) == ["and", present, column]
    # A renamed column is found under its own name; of one that is computed only what Arrow can say.
    assert condition_of(stream.withColumnRenamed("n", "m2").where("m2 > 0")) == ["and", present, column]
    there: Condition = ["not", ["null", ["column", "s"]]]
    assert condition_of(stream.withColumn("n", F.ascii("s")).where("n > 0")) == there
    length: Condition = [">", ["length", ["column", "s"]], ["literal", "int", 0]]
    assert condition_of(stream.withColumn("n", F.length("s")).where("n > 0")) == ["and", there, length]
    # Read twice, it must give what either wants.
    assert condition_of(stream.where("n > 0").unionAll(stream)) is None
    either = condition_of(stream.where("n > 0").unionAll(stream.where("i > 0")))
    assert either is not None
    assert either[0] == "or"
    assert columns_in(either) == {"n", "i"}
    # After an aggregate a filter is about something else.
    assert condition_of(stream.groupBy("s").agg(F.count("*").alias("n")).where("n > 0")) is None


def test_a_filter_on_the_event_time_stays_above_the_watermark(stem: Mainstem):
    topic = stem.create_topic("timed", schema="n BIGINT, at TIMESTAMP", event_time="at")
    rows = topic.stream(watermark="1 minute")
    # What it keeps out has moved the watermark all the same.
    assert condition_of(rows.where("at > timestamp'2026-01-01T00:00:00Z'")) is None
    assert condition_of(rows.where("n = 3 and at > timestamp'2026-01-01T00:00:00Z'")) is not None
    assert "at" not in columns_in(condition_of(rows.where("n = 3 and at > timestamp'2026-01-01T00:00:00Z'")) or [])


def test_conditions_of_several_readers_are_put_together():
    one: Condition = ["null", ["column", "a"]]
    assert any_of([]) is None
    assert any_of([one]) == one
    assert any_of([one, one]) == ["or", one, one]
    assert any_of([one, None]) is None
