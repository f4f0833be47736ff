"""Programs from end to end: flows into topics and views, one after another, restarted, thrown away, fenced."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import functions as F

from mainstem.errors import Conflict, FlowFailed, FlowNotFound, Invalid, SchemaMismatch, TopicNotFound
from mainstem.flows.flow import Flow
from mainstem.flows.program import Program
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem

START = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = "order_id STRING, store STRING, amount DOUBLE, placed_at TIMESTAMP"


def orders(first: int, end: int) -> list[dict[str, Any]]:
    return [
        {
            "order_id": f"o-{n}",
            "store": "ABC"[n % 3],
            "amount": float(n),
            "placed_at": START + timedelta(seconds=n),
        }
        for n in range(first, end)
    ]


@pytest.fixture
def shop(stem: Mainstem) -> Mainstem:
    stem.create_topic("orders", schema=ORDERS, key="order_id", event_time="placed_at", partitions=2)
    stem.topic("orders").append(orders(0, 1000))
    return stem


def pipeline(stem: Mainstem):
    rows = stem.topic("orders").stream(watermark="10 minutes")
    yield Flow(rows.where("amount >= 500"), into=stem.topic("big_orders"))
    yield Flow(
        rows.groupBy(F.window("placed_at", "5 minutes"), "store").agg(F.sum("amount").alias("revenue")),
        into=stem.view("revenue", key=["window", "store"]),
    )
    yield Flow(
        stem.topic("big_orders").stream().groupBy("store").agg(F.count("*").alias("orders")),
        into=stem.view("big_per_store", key="store"),
    )
    yield Flow(stem.view("revenue").stream().where("store = 'A'"), into=stem.view("revenue_of_a", key="window"))


def check_equal(stem: Mainstem) -> None:
    big = stem.query("SELECT order_id, store, amount, placed_at FROM big_orders ORDER BY amount")
    assert big.equals(
        stem.query("SELECT order_id, store, amount, placed_at FROM orders WHERE amount >= 500 ORDER BY amount")
    )
    revenue = stem.view("revenue").query('SELECT "window".start AS at, store, revenue FROM revenue ORDER BY 1, 2')
    expected = stem.query(
        "SELECT time_bucket(INTERVAL 5 minutes, placed_at) AS at, store, sum(amount) AS revenue FROM orders "
        "GROUP BY ALL ORDER BY 1, 2"
    )
    assert revenue.to_pylist() == expected.to_pylist()
    per_store = stem.view("big_per_store").query("SELECT store, orders FROM big_per_store ORDER BY 1")
    counted = stem.query("SELECT store, count(*) AS orders FROM orders WHERE amount >= 500 GROUP BY ALL ORDER BY 1")
    assert per_store.to_pylist() == counted.to_pylist()
    of_a = stem.view("revenue_of_a").to_arrow().to_pylist()
    assert of_a == [row for row in stem.view("revenue").to_arrow().to_pylist() if row["store"] == "A"]


def test_a_pipeline_is_kept_current_and_goes_on_after_a_stop(shop):
    with shop.start(pipeline) as running:
        running.wait_until_idle()
        check_equal(shop)
        token = shop.topic("orders").append(orders(1000, 1100)).token
        window = {"start": START + timedelta(minutes=15), "end": START + timedelta(minutes=20)}
        row = shop.view("revenue").get((window, "A"), after=token, wait="60 seconds")
        assert row["revenue"] == sum(n for n in range(900, 1100) if n % 3 == 0)
        running.wait_until_idle()
        check_equal(shop)
        handle = running["big_orders"]
        assert (handle.state, handle.progress.lag_records) == ("running", 0)
    assert handle.state == "stopped"

    shop.topic("orders").append(orders(1100, 1200))
    shop.run(pipeline, until="idle")
    check_equal(shop)
    rows = shop.query(
        'SELECT flow, sum(rows_in) AS rows FROM "mainstem.progress" GROUP BY flow ORDER BY flow'
    ).to_pylist()
    assert {row["flow"]: row["rows"] for row in rows}["big_orders"] == 700  # those that it wants

    # Everything that was derived is thrown away: the next run makes it again from the log.
    for name in ("revenue", "big_per_store", "revenue_of_a"):
        shutil.rmtree(f"{shop.home}/flows/{name}")
        shop.view(name).drop()
    shop.run(pipeline, until="idle")
    check_equal(shop)


def test_a_flow_reads_only_the_columns_it_needs(shop):
    [big, revenue, per_store, _] = Program(shop, pipeline).flows
    assert [leaf.columns for leaf in big.leaves.values()] == [("order_id", "store", "amount", "placed_at", "record")]
    assert [leaf.columns for leaf in revenue.leaves.values()] == [("store", "amount", "placed_at")]
    assert [leaf.columns for leaf in per_store.leaves.values()] == [("store",)]
    assert (big.output_mode, revenue.output_mode, revenue.sources) == ("update", "update", ["orders"])
    assert [(operator.name, operator.bounded_by) for operator in revenue.operators] == [
        ("aggregate", "the watermark of placed_at")
    ]
    assert [(operator.name, operator.bounded_by) for operator in per_store.operators] == [
        ("aggregate", "one row for each store")
    ]
    assert per_store.warnings() == []


def one(rows: Any, sink: Any) -> Any:
    return lambda stem: [Flow(rows(stem), into=sink(stem))]


WRONG = {
    "an unknown topic": (
        one(lambda stem: stem.topic("ordres").stream(), lambda stem: stem.topic("out")),
        TopicNotFound, 'topic "ordres" does not exist',
    ),
    "an unknown column": (
        one(lambda stem: stem.topic("orders").stream().where("amout > 1"), lambda stem: stem.topic("out")),
        SchemaMismatch, 'the program uses the column "amout", which does not exist',
    ),
    "a view without a key": (
        one(lambda stem: stem.topic("orders").stream(), lambda stem: stem.view("out")),
        Invalid, 'view "out" has no key',
    ),
    "a key that the rows do not have": (
        one(lambda stem: stem.topic("orders").stream(), lambda stem: stem.view("out", key="id")),
        Invalid, 'view "out" has the key "id", which the rows lack',
    ),
    "rows that the topic cannot take": (
        one(lambda stem: stem.topic("orders").stream().select("store"), lambda stem: stem.topic("orders")),
        SchemaMismatch, 'topic "orders" needs the column "order_id", which the rows lack',
    ),
    "two flows into one sink": (
        lambda stem: [
            Flow(stem.topic("orders").stream(), into=stem.view("out", key="store")),
            Flow(stem.topic("orders").stream(), into=stem.view("out", key="store"), name="again"),
        ],
        Conflict, 'two flows write into view "out"',
    ),
    "rows that are no stream": (
        one(lambda stem: stem.spark.range(1), lambda stem: stem.view("out", key="id")),
        Invalid, 'the rows of flow "out" are not a stream',
    ),
    "an aggregate that Spark cannot stream": (
        one(lambda stem: stem.topic("orders").stream().orderBy("amount"), lambda stem: stem.view("out", key="store")),
        Invalid, 'flow "out" cannot run as a stream',
    ),
    "no flows": (lambda stem: None, Invalid, "the program returned NoneType, not flows"),
    "no watermark to be had": (
        one(lambda stem: stem.topic("clicks").stream(watermark="1 minute"), lambda stem: stem.topic("out")),
        Invalid, 'topic "clicks" has no event time',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found_before_anything_starts(shop, case):
    shop.create_topic("clicks", schema="page STRING")
    flows, kind, message = WRONG[case]
    with pytest.raises(kind) as raised:
        Program(shop, flows)
    assert raised.value.summary == message
    assert raised.value.detail
    assert raised.value.hint


def test_a_join_that_keeps_record_of_both_sides_is_told_to_drop_one(shop):
    shop.create_topic("payments", schema="paid_id STRING, paid DOUBLE")

    def flows(stem: Mainstem):
        orders, payments = stem.topic("orders").stream(), stem.topic("payments").stream()
        yield Flow(orders.join(payments, F.expr("order_id = paid_id")), into=stem.view("paid", key="order_id"))

    with pytest.raises(SchemaMismatch) as raised:
        Program(shop, flows)
    assert raised.value.parts() == [
        'the rows of flow "paid" have two columns "record"',
        (
            "Detail: Their columns are: order_id, store, amount, placed_at, record, paid_id, paid, record. Spark's join keeps "
            "the columns of both sides. Every stream of a topic has a `record`."
        ),
        'Hint: Drop or rename one of them before the join: orders.join(payments.drop("record"), ...).',
    ]


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (
            lambda orders: orders.limit(orders.count()),
            [
                "the program asks a stream for its rows",
                "Detail: A stream has no end, so count(), collect(), show() and the like have no result.",
                (
                    'Hint: For a number that is kept current: rows.groupBy("...").count() into a view. To see rows now, use '
                    ".read() instead of .stream(), or mainstem topic read."
                ),
            ],
        ),
        (
            lambda orders: orders.rename({"store": "shop"}),
            [
                'the program uses "rename", which a DataFrame of Spark does not have',
                "Detail: It is neither a method nor a column.",
                'Hint: As in Spark: rows.withColumnRenamed("old", "new").',
            ],
        ),
        (
            lambda orders: orders.where(orders.amuont > 1),
            [
                'the program uses "amuont", which a DataFrame of Spark does not have',
                "Detail: It is neither a method nor a column.",
                "Hint: Name a method of Spark's DataFrame, or a column that the rows have.",
            ],
        ),
    ],
    ids=["count", "rename", "column"],
)
def test_what_a_stream_of_spark_cannot_do_is_told(shop, rows, parts):
    with pytest.raises(Invalid) as refused:
        Program(shop, lambda stem: [Flow(rows(stem.topic("orders").stream()), into=stem.topic("out"))])
    assert refused.value.parts() == parts


def test_a_changed_flow_is_refused_before_it_starts(shop):
    def program(minutes: int) -> Any:
        def flows(stem: Mainstem):
            rows = stem.topic("orders").stream(watermark="10 minutes")
            counted = rows.groupBy(F.window("placed_at", f"{minutes} minutes")).agg(F.count("*").alias("orders"))
            yield Flow(counted, into=stem.view("counts", key="window"))

        return flows

    shop.run(program(5), until="idle")
    with pytest.raises(FlowFailed) as raised:
        shop.run(program(10), until="idle")
    cause = raised.value.__cause__
    assert isinstance(cause, Conflict)
    assert cause.summary == 'flow "counts" was changed in a way that does not fit its checkpoint'
    assert "mainstem view rebuild counts" in cause.hint
    assert "1,000 rows" in cause.hint
    assert len(shop.view("counts").to_arrow()) == 4


def test_a_lost_checkpoint_is_not_taken_for_a_new_flow(shop):
    program = one(lambda stem: stem.topic("orders").stream(), lambda stem: stem.view("copy", key="order_id"))
    shop.run(program, until="idle")
    shutil.rmtree(f"{shop.home}/flows/copy/v1")
    with pytest.raises(FlowFailed) as raised:
        shop.run(program, until="idle")
    assert (
        raised.value.__cause__.summary == 'the checkpoint of flow "copy" is not the one that its sink was written from'
    )


def test_a_later_run_fences_the_older_one(shop):
    program = one(lambda stem: stem.topic("orders").stream(), lambda stem: stem.topic("copy"))
    with shop.start(program) as older:
        older.wait_until_idle()
        with shop.start(program) as newer:
            shop.topic("orders").append(orders(1000, 1010))
            newer.wait_until_idle()
            with pytest.raises(FlowFailed) as raised:
                older["copy"].wait_until_idle()
            assert type(raised.value.__cause__).__name__ == "Fenced"
    assert len(shop.topic("copy").to_arrow()) == 1010


def test_a_failed_flow_names_its_cause_and_the_others_go_on(shop):
    def flows(stem: Mainstem):
        rows = stem.topic("orders").stream()
        broken = rows.select(
            F.expr("CASE WHEN amount < 10 THEN 1 ELSE raise_error('too much') END").alias("n"), "store"
        )
        yield Flow(broken, into=stem.view("broken", key="store"))
        yield Flow(rows, into=stem.view("sound", key="order_id"))

    with shop.start(flows) as running:
        running["sound"].wait_until_idle()
        with pytest.raises(FlowFailed) as raised:
            running["broken"].wait_until_idle()
    assert raised.value.summary == 'flow "broken" stopped at batch 0'
    assert "too much" in raised.value.detail
    assert "orders[0] up to" in raised.value.detail
    assert "\n\tat " not in raised.value.detail
    assert len(shop.view("sound").to_arrow()) == 1000


def test_a_view_that_was_made_again_is_not_taken_for_the_one_that_was_read(shop):
    def flows(stem: Mainstem):
        rows = stem.topic("orders").stream().groupBy("store").agg(F.sum("amount").alias("revenue"))
        yield Flow(rows, into=stem.view("revenue", key="store"))
        yield Flow(stem.view("revenue").stream(), into=stem.view("copy", key="store"))

    shop.run(flows, until="idle")
    assert shop.view("copy").to_arrow().equals(shop.view("revenue").to_arrow())
    shutil.rmtree(f"{shop.home}/flows/revenue")
    shop.view("revenue").drop()
    with shop.start(flows) as running, pytest.raises(FlowFailed) as raised:
        running["copy"].wait_until_idle()
    assert 'view "revenue" is not the one that flow "copy" has read so far' in raised.value.detail
    assert "\n\tat " not in raised.value.detail


def test_a_column_that_only_another_flow_needs_is_not_read(shop):
    def flows(stem: Mainstem):
        rows = stem.topic("orders").stream()
        yield Flow(rows.select("order_id", "amount"), into=stem.view("amounts", key="order_id"))
        counted = rows.groupBy("store").agg(F.count("*").alias("orders"))
        yield Flow(counted, into=stem.view("per_store", key="store"))

    program = Program(shop, flows)
    amounts, per_store = program.flows
    run = FlowStore(shop.home, "per_store").begin()
    # Built on the way to it is a flow that names other columns: these are there, and null.
    built = program.build_for(per_store, run)
    [leaf] = leaf_requests(built.rows)
    assert leaf["columns"] == ["store"]
    assert [leaf["columns"] for leaf in leaf_requests(program.build_for(amounts, run).rows)] == [["order_id", "amount"]]

    shop.run(flows, until="idle")
    assert shop.view("per_store").to_arrow().column("orders").to_pylist() == [334, 333, 333]
    assert shop.view("amounts").query("SELECT sum(amount) AS total FROM amounts").to_pylist() == [{"total": 499500.0}]


def leaf_requests(rows: Any) -> list[dict[str, Any]]:
    found = []

    def look(node: Any) -> None:
        if node.nodeName() == "StreamingRelationV2":
            found.append(json.loads(node.extraOptions().get("request")))
        for index in range(node.children().size()):
            look(node.children().apply(index))

    look(rows._jdf.queryExecution().analyzed())
    return found


def test_slips_in_a_program_s_use_are_told(shop):
    with pytest.raises(Invalid, match="a flow cannot read int"):
        Flow(1, into=shop.topic("orders"))
    with pytest.raises(Invalid, match="a flow cannot write into str"):
        Flow(shop.topic("orders").stream(), into="orders")
    with pytest.raises(Invalid, match='until must be "stopped" or "idle"'):
        shop.run(pipeline, until="done")
    with shop.start(lambda stem: []) as running, pytest.raises(FlowNotFound, match='no flow "nope" was started'):
        running["nope"]
