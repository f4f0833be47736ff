"""What bounds the state of Spark's operators: the watermark, the number of keys, or nothing."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import mainstem
from mainstem import Flow
from mainstem.flows.program import Program
from mainstem.spark.plan.flow_plan import operators_in

WATERMARK = "the watermark of at"


@pytest.fixture
def stem(spark, tmp_path):
    with mainstem.open(tmp_path, spark=spark) as opened:
        opened.create_topic("orders", schema="id STRING, store STRING, n INT, at TIMESTAMP", event_time="at")
        yield opened


Make = Callable[[DataFrame, DataFrame, DataFrame], DataFrame]
NEAR = "a.id = b.id AND b.at BETWEEN a.at AND a.at + INTERVAL 1 MINUTE"

# Of a stream without a watermark, and two with one.
BOUNDS: dict[str, tuple[Make, str]] = {
    "one row a key": (lambda bare, a, b: bare.groupBy("store").count(), "one row for each store"),
    "one row a key, with a watermark": (
        lambda bare, a, b: a.groupBy("store", "n").count(),
        "one row for each store, n",
    ),
    "one row": (lambda bare, a, b: bare.groupBy().count(), "one row"),
    "a window": (lambda bare, a, b: a.groupBy(F.window("at", "1 minute"), "store").count(), WATERMARK),
    "a window without a watermark": (lambda bare, a, b: bare.groupBy(F.window("at", "1 minute")).count(), ""),
    "a day without a watermark": (lambda bare, a, b: bare.groupBy(F.to_date("at")).count(), ""),
    "a day, with a watermark": (lambda bare, a, b: a.groupBy(F.to_date("at")).count(), ""),
    "a time, with a watermark": (lambda bare, a, b: a.groupBy("at", "store").count(), WATERMARK),
    "a named window": (lambda bare, a, b: a.groupBy(F.window("at", "1 minute").alias("w")).count(), WATERMARK),
    "a month as text": (lambda bare, a, b: bare.groupBy(F.date_format("at", "yyyy-MM")).count(), ""),
    "a month as text, with a watermark": (
        lambda bare, a, b: a.withColumn("m", F.date_format("at", "yyyy-MM")).groupBy("m", "store").count(),
        "",
    ),
    "seconds since 1970": (lambda bare, a, b: bare.groupBy(F.unix_timestamp("at")).count(), ""),
    "an hour of the day": (
        lambda bare, a, b: bare.withColumn("h", F.hour("at")).groupBy("h").count(),
        "one row for each h",
    ),
    "an hour of the day as text": (
        lambda bare, a, b: bare.select(F.date_format("at", "HH:mm").alias("h")).groupBy("h").count(),
        "one row for each h",
    ),
    "before a day": (
        lambda bare, a, b: bare.select(F.expr("at < DATE '2026-01-01' AS old")).groupBy("old").count(),
        "one row for each old",
    ),
    "an offset": (lambda bare, a, b: bare.groupBy("record.offset").count(), ""),
    "an offset, by another name": (
        lambda bare, a, b: bare.select(F.col("record.offset").alias("o")).groupBy("o").count(),
        "",
    ),
    "a remainder of an offset": (
        lambda bare, a, b: bare.selectExpr("record.offset % 8 AS part").groupBy("part").count(),
        "one row for each part",
    ),
    "a partition": (
        lambda bare, a, b: bare.selectExpr("record.partition AS p").groupBy("p").count(),
        "one row for each p",
    ),
    "lists of a key": (lambda bare, a, b: bare.groupBy("store").agg(F.collect_list("n")), ""),
    "duplicates": (lambda bare, a, b: bare.dropDuplicates(["id"]), ""),
    "duplicates, with a watermark but without its time": (lambda bare, a, b: a.dropDuplicates(["id"]), ""),
    "duplicates of a time": (lambda bare, a, b: a.dropDuplicates(["id", "at"]), WATERMARK),
    "duplicates within the watermark": (lambda bare, a, b: a.dropDuplicatesWithinWatermark(["id"]), WATERMARK),
    "a join within a minute": (lambda bare, a, b: a.join(b, F.expr(NEAR)), WATERMARK),
    "a join at any distance": (lambda bare, a, b: a.join(b, F.expr("a.id = b.id")), ""),
    "a join without a watermark": (lambda bare, a, b: bare.alias("a").join(b, F.expr(NEAR)), ""),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_what_bounds_the_state(stem, case):
    make, bound = BOUNDS[case]
    orders = stem.topic("orders")
    found: list[str] = []

    def flows(stem):
        bare = orders.stream()
        timed = [orders.stream(watermark="10 minutes").alias(name) for name in ("a", "b")]
        rows = make(bare, *timed)
        found.extend(operator.bounded_by for operator in operators_in(rows))
        yield Flow(stem.topic("orders").stream(), into=stem.topic("copy"))

    Program(stem, flows)

    assert set(found) == {bound}


def test_state_that_grows_is_a_warning_with_a_way_out(stem):
    def flows(stem):
        orders = stem.topic("orders").stream()
        yield Flow(orders.dropDuplicates(["id"]).select("id"), into=stem.topic("once"))
        yield Flow(orders.groupBy("store").count(), into=stem.view("per_store", key="store"))

    once, per_store = Program(stem, flows).flows

    assert once.warnings() == [
        (
            'the state of "deduplicate" in flow "once" grows without bound: it is never evicted; give the stream a watermark '
            "and use dropDuplicatesWithinWatermark, or dedupe of mainstem.operators"
        )
    ]
    assert per_store.warnings() == []


def test_a_sorted_stream_is_refused_with_a_word_of_top(stem):
    def flows(stem):
        orders = stem.topic("orders").stream()
        yield Flow(orders.orderBy("n").limit(3).select("id", "n"), into=stem.view("first", key="id"))

    with pytest.raises(mainstem.Invalid) as refused:
        Program(stem, flows)

    assert refused.value.summary == 'flow "first" cannot run as a stream'
    assert refused.value.hint.startswith(
        'Spark does not sort a stream. For the first rows by an order: top(rows, 10, order="revenue DESC")'
    )


def test_a_view_of_windows_without_the_window_in_its_key_is_a_warning(stem):
    def flows(stem):
        orders = stem.topic("orders").stream(watermark="10 minutes")
        counted = orders.groupBy(F.window("at", "1 minute"), "store").count()
        yield Flow(counted, into=stem.view("last", key="store"))
        yield Flow(counted, into=stem.view("all", key=["window", "store"]))
        yield Flow(counted.drop("window"), into=stem.view("counts", key="store"))

    assert [flow.warnings() for flow in Program(stem, flows).flows] == [
        [
            (
                'view "last" keeps one window for each store, the last that is written: its key lacks the window; to keep all, '
                'add "window" to its key'
            )
        ],
        [],
        [],
    ]


def test_a_flow_into_the_topic_that_it_reads_is_a_warning(stem):
    def flows(stem):
        yield Flow(stem.topic("orders").stream().where("n > 3").drop("record"), into=stem.topic("orders"))

    [flow] = Program(stem, flows).flows
    assert flow.warnings() == [
        (
            'flow "orders" writes into topic "orders", which it reads: it reads each row that it writes, and ends only if it '
            "filters them out"
        )
    ]


def test_a_view_with_the_name_of_a_topic_is_a_warning(stem):
    def flows(stem):
        yield Flow(stem.topic("orders").stream().groupBy("store").count(), into=stem.view("orders", key="store"))

    [flow] = Program(stem, flows).flows
    assert flow.warnings() == [
        'SQL queries do not see view "orders": a topic has the same name; give the view another one'
    ]
