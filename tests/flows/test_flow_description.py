"""What a flow does, as a run writes it: operators of Spark and of Mainstem with their parameters, in a sentence."""

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import functions as F

from mainstem import Flow
from mainstem.batch import FlowRun
from mainstem.flows.flow_description import describe_flow, read_description, sentence_of, write_description
from mainstem.flows.program import Program
from mainstem.operators import dedupe, join, sessions, table, top, tumbling, windowed
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem

SCHEMA = "store STRING, amount DOUBLE, at TIMESTAMP"


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream(watermark="1 minute")
    total = F.sum("amount").alias("total")
    window = F.window("at", "5 minutes")
    yield Flow(orders.groupBy("store", window).agg(total), into=stem.view("a", key=["store", "window"]))
    hops = orders.groupBy(F.window("at", "5 minutes", "1 minute")).count().select("window", "count")
    yield Flow(hops, into=stem.view("b", key="window"))
    visits = orders.groupBy("store", F.session_window("at", "90 seconds")).count()
    yield Flow(visits, into=stem.view("c", key=["store", "session_window"]))
    yield Flow(orders.where("amount > 3").groupBy("store").agg(total), into=stem.view("d", key="store"))
    yield Flow(orders.dropDuplicatesWithinWatermark(["store"]), into=stem.topic("e"))
    own = windowed(orders, tumbling("1 minute"), by="store", aggregates=total, lateness="5 minutes")
    yield Flow(own, into=stem.view("f", key=["store", "window"]))
    quiet = windowed(dedupe(orders, by="store", within="1 hour"), sessions("30 minutes"), aggregates=F.count("*"))
    yield Flow(quiet, into=stem.topic("g"))
    refunds = stem.topic("refunds").stream(watermark="2 minutes")
    yield Flow(join(orders, refunds, on="store", within="10 minutes").select("store"), into=stem.topic("h"))
    best = top(table(refunds, key="store"), 3, order=F.desc("back"))
    yield Flow(best, into=stem.view("i", key="store"))
    yield Flow(
        stem.topics("ord*").stream().select("store", "amount"),
        into=stem.files(f"{stem.home}/files", partition_by="store"),
    )


SAID = {
    "a": "reads orders, keeps 5-minute windows by store that wait 1 minute for late rows, into the view a",
    "b": "reads orders, keeps 5-minute windows every 1 minute that wait 1 minute for late rows, into the view b",
    "c": "reads orders, keeps sessions with a gap of 90 seconds by store that wait 1 minute for late rows, into the view c",
    "d": "reads orders, keeps sum(amount) by store, into the view d",
    "e": "reads orders, drops rows that repeat by store, into the topic e",
    "f": "reads orders, keeps 1-minute windows by store that wait 1 minute for late rows and take corrections for 5 minutes "
    "more, into the view f",
    "g": "reads orders, drops rows that repeat by store within 1 hour, keeps sessions with a gap of 30 minutes that wait "
    "1 minute for late rows, into the topic g",
    "h": "reads orders and refunds, joins them by store, from 10 minutes before and 10 minutes after, into the topic h",
    "i": "reads refunds, keeps the newest row of each store, keeps the first 3, ordered by back DESC NULLS LAST, into the view i",
    "home.files": "reads the topics ord*, into the files in home.files",
}


def test_a_flow_is_described_in_a_sentence_and_with_all_parameters(stem: Mainstem) -> None:
    stem.create_topic("orders", schema=SCHEMA, event_time="at", key="store")
    stem.create_topic(
        "refunds", schema="store STRING, back DOUBLE, done_at TIMESTAMP", event_time="done_at", key="store"
    )
    planned = {flow.name: flow for flow in Program(stem, flows).flows}
    described = {name: describe_flow(flow, FlowRun(name, 7)) for name, flow in planned.items()}
    assert {name: sentence_of(content) for name, content in described.items()} == SAID
    assert described["a"]["operators"] == [
        {
            "operator": "aggregate",
            "stage": None,
            "parameters": {
                "by": ["store"], "aggregates": ["sum(amount)"], "window": "tumbling", "size": "5 minutes", "on": "at",
            },
        }
    ]  # fmt: skip
    assert [one["stage"] for one in described["g"]["operators"]] == ["dedupe-0", "windowed-1"]
    assert described["f"]["sink"] == {"kind": "view", "name": "f", "key": ["store", "window"]}
    assert described["h"]["sources"] == [
        {"source": "orders", "delay": "1 minute", "idle_after": None},
        {"source": "refunds", "delay": "2 minutes", "idle_after": None},
    ]

    # As a file; a damaged one is as none.
    store = FlowStore(stem.home, "f")
    run = store.begin(1)
    write_description(store, run, planned["f"])
    assert read_description(store, 1) == {**described["f"], "epoch": 1, "format": 1}
    with open(store.description(1), "r+b") as file:
        file.write(b"X")
    assert read_description(store, 1) is None
    store.forget(1)
    assert not Path(store.description(1)).exists()
