"""S11: a flow that is started again with other code goes on where that is sound, and is refused where it is not.

Each pair is judged as at the start of a flow: by what was written down of the old program, and what the new one is. A few
are run. "Goes on" means what Spark allows: other filters and projections count from the next row on.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem.errors import Conflict, FlowFailed, Invalid
from mainstem.flows import runner
from mainstem.flows.checkpoint_fit import check_code
from mainstem.flows.flow import Flow
from mainstem.flows.program import PlannedFlow, Program
from mainstem.operators import dedupe, enrich, every, join, table, tumbling, windowed
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem

ORDERS = "order_id STRING, store STRING, amount BIGINT, tax BIGINT, at TIMESTAMP"

Rows = Callable[[Mainstem], DataFrame]
Sink = Callable[[Mainstem], Any]


def orders(stem: Mainstem, watermark: str | None = None) -> DataFrame:
    return stem.topic("orders").stream(watermark=watermark)


def payments(stem: Mainstem, watermark: str | None = None) -> DataFrame:
    rows = stem.topic("payments").stream(watermark=watermark)
    return rows.select(F.col("order_id").alias("paid_id"), F.col("amount").alias("paid"), F.col("at").alias("paid_at"))


def totals(stem: Mainstem) -> DataFrame:
    return orders(stem).groupBy("store").agg(F.sum("amount").alias("a"), F.sum("tax").alias("b"))


def windows(stem: Mainstem, delay: str = "1 hour", width: str = "5 minutes", slide: str | None = None) -> DataFrame:
    return orders(stem, delay).groupBy(F.window("at", width, slide)).agg(F.count("*").alias("orders"))


def own_windows(
    stem: Mainstem, by: str = "store", width: str = "5 minutes", of: str = "amount", rows: str = "true",
    delay: str = "1 hour", **given: Any,
) -> DataFrame:  # fmt: skip
    total = F.sum(of).alias("total")
    shown = windowed(orders(stem, delay).where(rows), tumbling(width), by=by, aggregates=total, **given)
    return shown.select(F.col(by).alias("key"), "total")


def looked_up(stem: Mainstem, **given: Any) -> DataFrame:
    """Payments with the order that they are for."""
    known = table(orders(stem, "1 hour").select("order_id", "store", "at", "record"), key="order_id")
    return enrich(timed_payments(stem), known.drop("at"), on={"paid_id": "order_id"}, **given).drop("version", "record")


def timed_payments(stem: Mainstem, watermark: str = "1 hour") -> DataFrame:
    rows = stem.topic("payments").stream(watermark=watermark)
    return rows.select(F.col("order_id").alias("paid_id"), F.col("at").alias("paid_at"), "record")


def met(stem: Mainstem, watermark: str = "1 hour", **given: Any) -> DataFrame:
    given = {"on": {"order_id": "paid_id"}, "within": "1 hour"} | given
    paid = timed_payments(stem, watermark)
    return join(orders(stem, "1 hour").select("order_id", "at", "record"), paid, **given).drop("event_time", "record")


def sessions(stem: Mainstem, gap: str) -> DataFrame:
    return orders(stem, "1 hour").groupBy(F.session_window("at", gap), "store").agg(F.count("*").alias("orders"))


def joined(stem: Mainstem, kind: str = "inner", within: str = "1 hour") -> DataFrame:
    near = F.expr(f"order_id = paid_id AND paid_at BETWEEN at AND at + INTERVAL {within}")
    both = orders(stem, "1 hour").join(payments(stem, "1 hour"), near, kind)
    return both.select("order_id", "amount", "tax", "paid")


def per_key(stem: Mainstem, key: str = "store", state: str = "n BIGINT") -> DataFrame:
    def count(key: Any, batches: Any, state: Any) -> Any:
        yield from batches

    return orders(stem).groupBy(key).applyInPandasWithState(count, "n BIGINT", state, "append", "NoTimeout")


def into_view(key: str = "store") -> Sink:
    return lambda stem: stem.view("out", key=key)


def into_topic(stem: Mainstem) -> Any:
    return stem.topic("out")


# What it is -> old rows, new rows, sinks of both, and what must come of it.
Pair = tuple[Rows, Rows, Sink, Sink, str]


def pair(old: Rows, new: Rows, outcome: str, sink: Sink = into_topic, other: Sink | None = None) -> Pair:
    return old, new, sink, other or sink, outcome


PAIRS: dict[str, Pair] = {
    "nothing": pair(totals, totals, "goes on"),
    "another filter, no state": pair(orders, lambda s: orders(s).where("amount > 5"), "goes on"),
    "another projection, no state": pair(orders, lambda s: orders(s).select("store"), "goes on"),
    "a filter before an aggregate": pair(
        totals,
        lambda s: orders(s).where("amount > 5").groupBy("store").agg(F.sum("amount").alias("a"), F.sum("tax").alias("b")),
        "goes on",
    ),
    "a filter behind an aggregate": pair(totals, lambda s: totals(s).where("a > 5"), "goes on"),
    "a result renamed": pair(totals, lambda s: totals(s).withColumnRenamed("a", "c"), "goes on"),
    "a key renamed": pair(
        totals,
        lambda s: orders(s).withColumnRenamed("store", "shop").groupBy("shop")
        .agg(F.sum("amount").alias("a"), F.sum("tax").alias("b")),
        "goes on",
    ),
    "the same sum given twice": pair(totals, lambda s: totals(s).withColumn("c", F.col("a")), "goes on"),
    "another aggregate": pair(
        totals, lambda s: orders(s).groupBy("store").agg(F.max("amount").alias("a"), F.sum("tax").alias("b")), "refused"
    ),
    "one aggregate more": pair(
        totals,
        lambda s: orders(s).groupBy("store").agg(F.sum("amount"), F.sum("tax"), F.count("*")),
        "refused",
    ),
    "one aggregate less": pair(totals, lambda s: totals(s).drop("b"), "refused"),
    "aggregates in another order": pair(
        totals, lambda s: orders(s).groupBy("store").agg(F.sum("tax").alias("b"), F.sum("amount").alias("a")), "refused"
    ),
    "aggregates put in another order behind": pair(totals, lambda s: totals(s).select("store", "b", "a"), "refused"),
    "an aggregate of another type": pair(
        totals,
        lambda s: orders(s).withColumn("amount", F.col("amount").cast("double")).groupBy("store")
        .agg(F.sum("amount").alias("a"), F.sum("tax").alias("b")),
        "refused",
    ),
    "another key": pair(
        totals, lambda s: orders(s).groupBy("order_id").agg(F.sum("amount").alias("a"), F.sum("tax").alias("b")), "refused"
    ),
    "one key more": pair(
        totals,
        lambda s: orders(s).groupBy("store", "order_id").agg(F.sum("amount").alias("a"), F.sum("tax").alias("b")),
        "refused",
    ),
    "keys in another order": pair(
        lambda s: orders(s).groupBy("store", "order_id").count(),
        lambda s: orders(s).groupBy("order_id", "store").count(),
        "refused",
    ),
    "a key made in another way": pair(
        lambda s: orders(s).groupBy(F.upper("store").alias("store")).count(),
        lambda s: orders(s).groupBy(F.lower("store").alias("store")).count(),
        "refused",
    ),
    "an aggregate where there was none": pair(orders, totals, "refused"),
    "no aggregate where there was one": pair(totals, orders, "refused"),
    "a longer watermark": pair(windows, lambda s: windows(s, "2 hours"), "goes on"),
    "a wider window": pair(windows, lambda s: windows(s, width="10 minutes"), "refused"),
    "a window that slides": pair(windows, lambda s: windows(s, slide="1 minute"), "refused"),
    "another gap of sessions": pair(lambda s: sessions(s, "5 minutes"), lambda s: sessions(s, "6 minutes"), "refused"),
    "windows of ours by another key": pair(own_windows, lambda s: own_windows(s, by="order_id"), "refused"),
    "a wider window of ours": pair(own_windows, lambda s: own_windows(s, width="10 minutes"), "refused"),
    "windows of ours with the sum of another column": pair(own_windows, lambda s: own_windows(s, of="tax"), "refused"),
    "a filter before windows of ours": pair(own_windows, lambda s: own_windows(s, rows="amount > 5"), "goes on"),
    "windows of ours with a longer watermark": pair(own_windows, lambda s: own_windows(s, delay="2 hours"), "refused"),
    "windows of ours with a shorter watermark": pair(own_windows, lambda s: own_windows(s, delay="1 minute"), "goes on"),
    "early results of windows of ours": pair(
        own_windows, lambda s: own_windows(s, early=every("1 minute")), "refused"
    ),
    "a row that waits in enrich waits no longer": pair(looked_up, lambda s: looked_up(s, wait="1 minute"), "refused"),
    "a join of ours over more time": pair(met, lambda s: met(s, within="2 hours"), "refused"),
    "a join of ours that meets fewer": pair(met, lambda s: met(s, limit=7), "goes on"),
    "a join of ours with a longer watermark": pair(met, lambda s: met(s, "2 hours"), "refused"),
    "duplicates of ours by another key": pair(
        lambda s: dedupe(orders(s, "1 hour"), by="store", within="1 hour"),
        lambda s: dedupe(orders(s, "1 hour"), by="order_id", within="1 hour"),
        "refused",
    ),
    "duplicates by another key": pair(
        lambda s: orders(s).dropDuplicates(["order_id"]), lambda s: orders(s).dropDuplicates(["store"]), "refused"
    ),
    "duplicates within the watermark": pair(
        lambda s: orders(s, "1 hour").dropDuplicates(["order_id"]),
        lambda s: orders(s, "1 hour").dropDuplicatesWithinWatermark(["order_id"]),
        "refused",
    ),
    "a join of another kind": pair(joined, lambda s: joined(s, "left"), "refused"),
    "a join over more time": pair(joined, lambda s: joined(s, within="2 hours"), "refused"),
    "a join that keeps less": pair(joined, lambda s: joined(s).drop("tax"), "refused"),
    "a join whose side has another order": pair(
        lambda s: orders(s).select("order_id", "amount", "tax").join(payments(s), F.expr("order_id = paid_id")),
        lambda s: orders(s).select("order_id", "tax", "amount").join(payments(s), F.expr("order_id = paid_id")),
        "refused",
    ),
    "a table joined, which keeps nothing": pair(
        orders, lambda s: orders(s).join(s.spark.createDataFrame([("A", 1)], "store STRING, size INT"), "store"), "goes on"
    ),
    "another topic": pair(
        lambda s: orders(s).select("order_id"), lambda s: s.topic("payments").stream().select("order_id"), "refused"
    ),
    "one topic more": pair(
        lambda s: orders(s).select("order_id"),
        lambda s: orders(s).select("order_id").union(s.topic("payments").stream().select("order_id")),
        "refused",
    ),
    "topics in another order": pair(
        lambda s: orders(s).select("order_id").union(payments(s).select("paid_id")),
        lambda s: payments(s).select("paid_id").union(orders(s).select("order_id")),
        "refused",
    ),
    "a pattern for a topic": pair(orders, lambda s: s.topics("order*").stream(), "refused"),
    "a function's state by another key": pair(per_key, lambda s: per_key(s, "order_id"), "refused"),
    "a function's state of another type": pair(per_key, lambda s: per_key(s, state="n BIGINT, m BIGINT"), "refused"),
    "a topic for a view": pair(totals, totals, "refused", into_view(), into_topic),
    "a view for a topic": pair(totals, totals, "refused", into_topic, into_view()),
    "files for a topic": pair(totals, totals, "refused", into_topic, lambda s: s.files(f"{s.home}/out/out")),
    "another topic to write": pair(orders, orders, "refused", into_topic, lambda s: s.topic("other")),
}  # fmt: skip


def flow_of(rows: Rows, sink: Sink) -> Callable[[Mainstem], Iterator[Flow]]:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(rows(stem), into=sink(stem), name="flow")

    return flows


def planned(stem: Mainstem, rows: Rows, sink: Sink) -> PlannedFlow:
    [found] = Program(stem, flow_of(rows, sink)).flows
    return found


@pytest.fixture
def shop(stem: Mainstem) -> Mainstem:
    for name in ("orders", "payments"):
        stem.create_topic(name, schema=ORDERS, event_time="at")
    stem.topic("orders").append([{"order_id": "o-1", "store": "A", "amount": 1, "tax": 100, "at": None}])
    return stem


def judged(stem: Mainstem, case: Pair, checkpoint: Path) -> tuple[str, str]:
    """What comes of starting the new program on the checkpoint of the old one, and what is said."""
    old_rows, new_rows, old_sink, new_sink, _ = case
    old, new = planned(stem, old_rows, old_sink), planned(stem, new_rows, new_sink)
    known = json.loads(json.dumps({"plan": old.plan, "sink": f"{old.flow.into.kind} {old.flow.into.name}"}))
    try:
        check_code(new, known, str(checkpoint), stem.log)
    except Conflict as error:
        return "refused", f"{error} {error.detail} {error.hint}"
    return "goes on", ""


def says_what_changed(said: str) -> bool:
    """Whether each change has two halves that differ."""
    listed = said.partition("What changed: ")[2].partition(". Its state was built")[0]
    halves = [part.split(" -> ") for part in listed.split("; ")]
    return all(len(half) == 2 and not half[0].endswith(f" {half[1]}") for half in halves)


def test_a_changed_flow_goes_on_or_is_refused(
    shop: Mainstem, tmp_path: Path, fault_report: Callable[..., None]
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    wrong = []
    for name, case in PAIRS.items():
        outcome, said = judged(shop, case, tmp_path)
        if outcome != case[-1]:
            wrong.append(f"{name}: {outcome}, {said}")
        elif outcome == "refused" and not ("starts from the beginning" in said or " replays " in said):
            wrong.append(f"{name}: does not say what it would cost: {said}")
        elif "What changed: " in said and not says_what_changed(said):
            wrong.append(f"{name}: does not say what changed: {said}")
    fault_report("S11", points=len(PAIRS), compared=len(PAIRS), violations=wrong)


def test_where_nothing_was_done_yet_every_change_goes_on(shop: Mainstem, tmp_path: Path) -> None:
    assert judged(shop, PAIRS["another topic"], tmp_path)[0] == "goes on"


def swapped(stem: Mainstem) -> DataFrame:
    return PAIRS["aggregates in another order"][1](stem)


def test_sums_that_changed_places_would_be_taken_for_each_other(
    shop: Mainstem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself notices nothing: without the check the view is wrong, and nobody is told."""
    shop.run(flow_of(totals, into_view()), until="idle")
    shop.topic("orders").append([{"order_id": "o-2", "store": "A", "amount": 1, "tax": 100, "at": None}])
    with pytest.raises(FlowFailed, match="was not started") as refused:
        shop.run(flow_of(swapped, into_view()), until="idle")
    assert "mainstem view rebuild out" in refused.value.hint
    assert "replays 2 rows" in refused.value.hint
    # Other processes are told the same.
    ended = FlowStore(shop.home, "flow").of_version(1)["ended"]
    assert (ended["state"], ended["error"][1:]) == ("failed", refused.value.parts()[1:])
    assert shop.view("out").get("A") == {"store": "A", "a": 1, "b": 100}

    with shop.rebuild("out", flow_of(swapped, into_view())) as rebuild:
        rebuild.wait()
        rebuild.apply()
    assert shop.view("out").get("A") == {"store": "A", "b": 200, "a": 2}

    monkeypatch.setattr(runner, "check_code", lambda *_: None)
    shop.topic("orders").append([{"order_id": "o-3", "store": "A", "amount": 1, "tax": 100, "at": None}])
    shop.run(flow_of(totals, into_view()), until="idle")
    assert shop.view("out").get("A") != {"store": "A", "b": 300, "a": 3}


def test_a_view_with_other_columns_is_refused_when_the_program_is_built(shop: Mainstem) -> None:
    shop.run(flow_of(totals, into_view()), until="idle")
    with pytest.raises(Invalid, match="out"):
        planned(shop, lambda s: totals(s).withColumn("c", F.lit(1)), into_view())
    with pytest.raises(Conflict, match="has the key store"):
        planned(shop, totals, into_view("a"))


def test_a_table_goes_on_when_its_topic_got_a_column(stem: Mainstem) -> None:
    """The column is null in rows from before; other tables joined with it go on too."""
    people = stem.create_topic("people", schema="id BIGINT, city STRING", key="id")
    visits = stem.create_topic("visits", schema="visit BIGINT, person BIGINT", key="visit")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        known = table(stem.topic("people").stream(), key="id")
        seen = table(stem.topic("visits").stream(), key="visit").select("visit", "person", "record")
        placed = join(seen, known.select("id", "city", "record"), on={"person": "id"})
        yield Flow(placed.select("visit", "city", "record"), into=stem.view("placed", key="visit"))
        named = known.selectExpr("id", "city", "record")
        if "name" in known.columns:
            named = known.selectExpr("id", "coalesce(name, city) AS city", "record")
        yield Flow(named, into=stem.view("named", key="id"))

    people.append([{"id": 1, "city": "Berlin"}, {"id": 2, "city": "Tunis"}])
    visits.append([{"visit": 7, "person": 1}])
    stem.run(flows, until="idle")
    people.alter(schema="id BIGINT, city STRING, name STRING")
    people.append([{"id": 2, "city": "Tunis", "name": "b"}])
    visits.append([{"visit": 8, "person": 2}])
    stem.run(flows, until="idle")
    people.append([{"id": 1, "city": "Lisbon", "name": None}])
    people.delete([2])
    stem.run(flows, until="idle")
    assert stem.view("placed").to_arrow().to_pylist() == [{"visit": 7, "city": "Lisbon"}]
    assert stem.view("named").to_arrow().to_pylist() == [{"id": 1, "city": "Lisbon"}]
