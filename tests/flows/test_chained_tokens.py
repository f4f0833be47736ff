"""Read your own writes through views and topics that are made from others: the token of a topic holds in all of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import functions as F

from mainstem.errors import NotYet
from mainstem.flows.flow import Flow
from mainstem.stem import Mainstem

pytestmark = pytest.mark.usefixtures("one_bucket")


def flows(stem: Mainstem) -> Iterator[Flow]:
    orders = stem.topic("orders").stream()
    largest = orders.groupBy("store").agg(F.max("amount").alias("amount"))
    yield Flow(largest, into=stem.view("largest", key="store"))
    changes = stem.view("largest").stream()
    yield Flow(changes.where("amount >= 100"), into=stem.view("large", key="store"))
    yield Flow(stem.view("large").stream(), into=stem.view("copy", key="store"))
    yield Flow(orders.where("amount >= 100").drop("record"), into=stem.topic("large_orders"))
    yield Flow(stem.topic("large_orders").stream(), into=stem.topic("again"))
    yield Flow(stem.topic("again").stream(), into=stem.view("of_again", key="store"))


def latest(stem: Mainstem, topic: str) -> list[int]:
    backend = stem.log.open_topic(topic)
    return [backend.latest(number) for number in range(backend.settings.partitions)]


def test_a_token_holds_two_flows_away(stem: Mainstem) -> None:
    orders = stem.create_topic("orders", schema="store STRING, amount BIGINT", partitions=2)
    orders.append([{"store": "A", "amount": 120}])
    with stem.start(flows) as running:
        running.wait_until_idle()
        placed = orders.append([{"store": "A", "amount": 150}])
        for name in ("largest", "large", "copy", "of_again"):
            assert stem.view(name).get("A", after=placed.token, wait="60 seconds") == {"store": "A", "amount": 150}

        # Nothing changes in the first view, so nothing comes to the others; the token holds all the same.
        placed = orders.append([{"store": "A", "amount": 3}])
        for name in ("copy", "of_again"):
            assert stem.view(name).get("A", after=placed.token, wait="60 seconds") == {"store": "A", "amount": 150}
        # And what changes there and is kept out here.
        placed = orders.append([{"store": "B", "amount": 4}])
        assert stem.view("copy").get("B", after=placed.token, wait="60 seconds") is None
        running.wait_until_idle()
        assert stem.view("copy").offsets() == stem.view("largest").offsets()
        assert sum(stem.view("copy").offsets()["orders"].values()) == 4
        assert {topic: sum(ends.values()) for topic, ends in stem.view("of_again").offsets().items()} == {
            "orders": 4,
            **{topic: sum(latest(stem, topic)) for topic in ("large_orders", "again")},
        }

        with pytest.raises(NotYet) as not_yet:
            stem.view("of_again").get("A", after="payments@0:1", wait="0 seconds")
        assert "nothing was applied from payments, only from again, large_orders, orders" in not_yet.value.detail
        assert "Topics that are read by a pattern pass no tokens on" in not_yet.value.hint

    # Without the first flow nothing moves, and it is said what is missing.
    placed = orders.append([{"store": "C", "amount": 500}])
    with stem.start(flows, only=["large", "copy", "again", "of_again"]) as running:
        running.wait_until_idle()
        for name in ("copy", "of_again"):
            with pytest.raises(NotYet) as not_yet:
                stem.view(name).get("C", after=placed.token, wait="100 milliseconds")
            assert set(not_yet.value.missing) == {"orders"}
    stem.run(flows, until="idle")
    for name in ("copy", "of_again"):
        assert stem.view(name).get("C", after=placed.token) == {"store": "C", "amount": 500}
    assert stem.view("copy").to_arrow().equals(stem.view("large").to_arrow())


def test_what_an_older_version_lacks_is_not_in_behind_it_either(stem: Mainstem) -> None:
    orders = stem.create_topic("orders", schema="store STRING, amount BIGINT")
    orders.append([{"store": "A", "amount": 150}])
    stem.run(flows, only=["largest", "large"], until="idle")
    with stem.rebuild("largest", flows) as rebuild:
        rebuild.wait()
        rebuild.apply()
    placed = orders.append([{"store": "A", "amount": 200}])
    stem.run(flows, only=["largest", "large"], until="idle")
    assert stem.view("large").get("A", after=placed.token, wait="0 seconds") == {"store": "A", "amount": 200}

    stem.view("largest").use(1)
    stem.run(flows, only=["large"], until="idle")
    assert stem.view("large").get("A") == {"store": "A", "amount": 150}
    with pytest.raises(NotYet):
        stem.view("large").get("A", after=placed.token, wait="100 milliseconds")
