"""A home is copied while its flows run: in the copy they go on, and give what the copied log gives."""

import itertools
import threading
from collections import Counter

import pytest

import mainstem
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.flows.killed_driver import flows, prepare, rows_of

COPIES = 1


def program(stem):
    return flows(stem, f"{stem.home}/out")


@pytest.fixture
def copied(spark, tmp_path):
    """Copies of a home whose flows (into a topic, views and files) run in this process, while a thread appends."""
    home = tmp_path / "home"
    prepare(home)
    ended = threading.Event()

    def append(orders):
        for part in itertools.takewhile(lambda _: not ended.is_set(), itertools.count(1)):
            orders.append(rows_of(part))

    with mainstem.open(home, upkeep="manual", spark=spark) as stem, stem.start(program) as running:
        stem.topic("orders").append(rows_of(0))
        running.wait_until_idle()
        appending = threading.Thread(target=append, args=[stem.topic("orders")])
        appending.start()
        try:
            copies = [stem.copy_to(tmp_path / f"copy-{number}" / "home") for number in range(COPIES)]
        finally:
            ended.set()
            appending.join()
    return copies


@pytest.mark.thorough
@pytest.mark.usefixtures("one_bucket")
def test_in_a_copy_of_a_home_with_live_flows_they_go_on(copied, spark):
    for copy in copied:
        assert copy.flows == ("kept", "per_store", "per_window", "remainders")
        assert copy.elsewhere == ()
        with mainstem.open(copy.path, upkeep="manual", spark=spark) as stem:
            assert [problem for name in stem.topics() for problem in stem.topic(name).verify().problems] == []
            begun = {name: FlowStore(copy.path, name).read()["epoch"] for name in copy.flows}
            stem.run(program, until="idle")
            assert {name: FlowStore(copy.path, name).read()["epoch"] for name in copy.flows} == {
                name: epoch + 1 for name, epoch in begun.items()
            }
            orders = stem.topic("orders").to_arrow().to_pylist()
            fits = Counter(row["amount"] % 140 <= 127 for row in orders)
            assert stem.topic("remainders").to_arrow().num_rows == fits[True]
            assert stem.topic("remainders.rejected").to_arrow().num_rows == fits[False]
            per_store = Counter(row["store"] for row in orders)
            assert {row["store"]: row["orders"] for row in stem.view("per_store").to_arrow().to_pylist()} == per_store
            kept = Counter(stem.files(f"{copy.path}/out").to_arrow().column("order_id").to_pylist())
            assert kept == Counter(row["order_id"] for row in orders if row["store"])
    with mainstem.open(copied[-1].path, upkeep="manual", spark=spark) as stem:
        assert stem.check_view("per_window", program, sample=20, seed=1).right
