"""Which flows may read sealed files first: those that give the same rows by it, and only where it is worth it."""

from collections.abc import Iterator

from pyspark.sql import functions as F

from mainstem import Mainstem
from mainstem.flows import native_catch_up
from mainstem.flows.flow import Flow
from mainstem.flows.native_catch_up import NativeCatchUp, could_catch_up
from mainstem.flows.program import Program
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.flows.memory_sink import MemorySink
from tests.flows.native_shop import Shop

# What a flow is, by its name; True: it may.
CHOICE = {
    "whole": True,
    "filtered": True,
    "counted": True,
    "distinct": True,
    "joined to a table": True,
    "with a watermark and no state": True,
    "counted by a watermark": False,
    "distinct within a watermark": False,
    "from the end": False,
    "from offsets": False,
    "limited": False,
    "with itself": False,
    "of two topics": False,
    "of a pattern": False,
    "of a view": False,
}


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream()
    yield Flow(orders.select("id", "amount"), into=stem.view("kept", key="id"))
    marked = stem.topic("orders").stream(watermark="1 hour")
    side = stem.spark.createDataFrame([("A", "Aachen")], "store STRING, town STRING")
    frames = {
        "whole": orders,
        "filtered": orders.where("amount > 3").select("id"),
        "counted": orders.groupBy("store").count(),
        "distinct": orders.dropDuplicates(["id"]),
        "joined to a table": orders.join(side, "store"),
        "with a watermark and no state": marked.select("id", "record"),
        "counted by a watermark": marked.groupBy(F.window("at", "1 hour")).count(),
        "distinct within a watermark": marked.dropDuplicatesWithinWatermark(["id"]),
        "from the end": stem.topic("orders").stream(start="latest"),
        "from offsets": stem.topic("orders").stream(start={0: 3}),
        "limited": orders.limit(3),
        "with itself": orders.union(orders),
        "of two topics": orders.select("id").union(stem.topic("copied_plain").stream().select("id")),
        "of a pattern": stem.topics("copied_*").stream(),
        "of a view": stem.view("kept").stream(),
    }
    for number, name in enumerate(CHOICE):
        yield Flow(frames[name], into=MemorySink(f"sink_{number}"), name=f"flow_{number}")


def test_a_flow_may_read_files_first_if_that_changes_nothing_and_does_so_if_it_is_worth_it(stem, monkeypatch):
    shop = Shop(stem, 3, partitions=2)
    shop.append(40)
    planned = {flow.name: flow for flow in Program(stem, flows).flows}
    found = {name: could_catch_up(planned[f"flow_{number}"]) for number, name in enumerate(CHOICE)}
    assert found == CHOICE

    whole = planned["flow_0"]
    checkpoint = FlowStore(stem.home, whole.name).checkpoint(1)
    monkeypatch.setattr(native_catch_up, "ROWS_MIN", 37)
    # Nothing is sealed; then too little is; then it is enough, but where Spark would not find it.
    assert NativeCatchUp.begin(whole, checkpoint, stem.log) is None
    shop.topic.seal()
    monkeypatch.setattr(native_catch_up, "ROWS_MIN", 60)
    assert NativeCatchUp.begin(whole, checkpoint, stem.log) is None
    monkeypatch.setattr(native_catch_up, "ROWS_MIN", 37)
    assert NativeCatchUp.begin(whole, f"{checkpoint}[1]", stem.log) is None
    assert NativeCatchUp.begin(planned["flow_6"], checkpoint, stem.log) is None
    begun = NativeCatchUp.begin(whole, checkpoint, stem.log)
    assert begun is not None
    assert (begun.over, begun.history.rows) == (False, 38)
