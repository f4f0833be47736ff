"""Cases A07 and A15: joins of streams, of Kafka Streams' documentation and of ksqlDB's tutorials.

Kafka has one stream time for both sides: here both come from one topic, whose watermark it is, less the grace.
"""

from __future__ import annotations

from datetime import datetime
from random import Random
from typing import Any

import pytest

from mainstem.operators import join
from mainstem.testing import TestStream, TestStreams
from tests.acceptance.case_files import case
from tests.acceptance.stream_sides import as_written, facts_of, out_of_order

CASE = case("A07")
STREAMS = CASE["stream_stream"]
ENTRIES = [*CASE["input"], *STREAMS["extra_input"]]
KINDS = {"inner": "inner", "left": "left", "outer": "full"}
SEEDS = range(8)


def joined(how: str) -> Any:
    return lambda rows: join(
        facts_of(rows, "L"), facts_of(rows, "R"), on="key", within="15 seconds", how=how, lateness="0 seconds"
    )


def pairs(changes: list[tuple[str, dict[str, Any]]]) -> list[list[Any]]:
    assert all(change == "insert" for change, _ in changes)
    return [[row["value"], row["other"]] for _, row in changes]


def expected_rows(kind: str) -> list[list[Any]]:
    return sorted((pair for rows in STREAMS[kind].values() for pair in rows), key=str)


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_gives_what_the_documentation_says(kind: str) -> None:
    for killed in (False, True):
        results = as_written(ENTRIES, killed=killed).run(joined(KINDS[kind]))
        given = {str(t): pairs(changes) for (t, *_), changes in zip(ENTRIES, results.batches, strict=True)}
        assert {t: rows for t, rows in given.items() if rows} == {t: rows for t, rows in STREAMS[kind].items() if rows}


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_end_all_ways_give_the_same(kind: str) -> None:
    how = joined(KINDS[kind])
    ways = [as_written(ENTRIES).run(how, batches="one")]
    ways += [out_of_order(ENTRIES, seed).run(how) for seed in SEEDS]
    for results in ways:
        assert sorted(pairs(results.changes), key=str) == expected_rows(kind)


# Orders and shipments

SHIPPING = case("A15")["stream_stream_join_within_7_days"]
WEEK = "7 days"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def shipping_script(*, killed: bool = False) -> TestStreams:
    orders = [{"id": id, "order_ts": moment(at), "total": total, "customer": customer}
              for id, at, total, customer in SHIPPING["orders [id, order_ts, total, customer]"]]  # fmt: skip
    shipments = [{"shipment": id, "ship_ts": moment(at), "order_id": order, "warehouse": warehouse}
                 for id, at, order, warehouse in SHIPPING["shipments [id, ship_ts, order_id, warehouse]"]]  # fmt: skip
    script = TestStreams(
        orders=TestStream(
            "id INT, order_ts TIMESTAMP, total DOUBLE, customer STRING", event_time="order_ts", delay=WEEK
        ),
        shipments=TestStream(
            "shipment STRING, ship_ts TIMESTAMP, order_id INT, warehouse STRING", event_time="ship_ts", delay=WEEK
        ),
    )
    assert SHIPPING["arrival"] == "shipments first, then orders"
    for stream, rows in (("shipments", shipments), ("orders", orders)):
        for row in rows:
            script = script.rows(stream, [row])
            script = script.kill() if killed else script
    return script


def shipped(orders: Any, shipments: Any) -> Any:
    return join(orders, shipments, on={"id": "order_id"}, within=WEEK)


def told(row: dict[str, Any]) -> list[Any]:
    minutes = (row["ship_ts"] - row["order_ts"]).total_seconds() // 60
    return [row["id"], row["shipment"], int(minutes), row["event_time"].strftime("%Y-%m-%dT%H:%M:%SZ")]


SHIPPED = SHIPPING["expected [order, shipment, ship_time_minutes, event time of result]"]


@pytest.mark.parametrize("killed", [False, True])
def test_shipments_meet_their_orders(killed: bool) -> None:
    assert [told(row) for row in shipping_script(killed=killed).run(shipped).rows] == SHIPPED


def test_shipments_meet_their_orders_in_any_order() -> None:
    script = shipping_script()
    assert sorted(told(row) for row in script.run(shipped, batches="one").rows) == SHIPPED
    for seed in SEEDS:
        # All of it happened within the week that the watermark waits.
        shuffled = TestStreams(**script.streams)
        steps = list(script.steps)
        Random(seed).shuffle(steps)
        object.__setattr__(shuffled, "steps", tuple(steps))
        assert sorted(told(row) for row in shuffled.run(shipped).rows) == SHIPPED, seed
