"""Look-ups in views and tables as flows: a view as it is known, and windows behind a table whose topic has no times."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainstem import Flow, Mainstem
from mainstem.errors import Invalid
from mainstem.flows.program import Program
from mainstem.operators import enrich, latest, table, tumbling, windowed
from mainstem.testing import TestStream, TestStreams

START = datetime(2026, 1, 1, tzinfo=UTC)


def visit(user: int, minute: int) -> dict[str, Any]:
    return {"user": user, "seen_at": START + timedelta(minutes=minute)}


def flows(stem: Mainstem) -> Iterator[Flow]:
    moves, visits = stem.topic("moves").stream(), stem.topic("visits").stream(watermark="1 minute")
    yield Flow(moves, into=stem.view("homes", key="user"))
    seen = enrich(visits, stem.view("homes", key="user"), on="user", at=latest())
    yield Flow(seen.select("user", "seen_at", "zip", "record"), into=stem.topic("seen"))
    located = enrich(visits, table(moves, key="user"), on="user", at=latest(), how="inner")
    counted = windowed(located, tumbling("10 minutes"), by="zip", aggregates=["count(*) AS visits"])
    yield Flow(counted, into=stem.view("visits_per_zip", key=["zip", "window"]))


@pytest.mark.usefixtures("one_bucket")
def test_rows_are_looked_up_in_a_view_and_counted_behind_a_table(stem: Mainstem) -> None:
    stem.create_topic("moves", schema="user INT, zip STRING", key="user")
    stem.create_topic("visits", schema="user INT, seen_at TIMESTAMP", event_time="seen_at")
    with stem.start(flows) as running:
        stem.topic("moves").append([{"user": 1, "zip": "53111"}, {"user": 2, "zip": "20095"}])
        running.wait_until_idle()
        stem.topic("visits").append([visit(1, 1), visit(2, 2), visit(3, 3)])
        running.wait_until_idle()
        stem.topic("moves").append([{"user": 1, "zip": "10115"}])
        stem.topic("moves").delete([2])
        running.wait_until_idle()
        stem.topic("visits").append([visit(1, 4), visit(2, 5), visit(1, 20)])
        running.wait_until_idle()
    seen = {(row["user"], row["seen_at"].minute): row["zip"] for row in stem.topic("seen").to_arrow().to_pylist()}
    assert seen == {(1, 1): "53111", (2, 2): "20095", (3, 3): None, (1, 4): "10115", (2, 5): None, (1, 20): "10115"}
    # The window is over: the topic of the table has no times, and holds nobody up.
    counted = {row["zip"]: row["visits"] for row in stem.view("visits_per_zip").to_arrow().to_pylist()}
    assert counted == {"53111": 1, "20095": 1, "10115": 1}


def test_a_view_is_asked_by_its_key(stem: Mainstem) -> None:
    stem.create_topic("moves", schema="user INT, zip STRING", key="user")
    stem.create_topic("visits", schema="user INT, seen_at TIMESTAMP", event_time="seen_at")
    with stem.start(lambda stem: [Flow(stem.topic("moves").stream(), into=stem.view("homes", key="user"))]) as running:
        running.wait_until_idle()

    def wrong(stem: Mainstem) -> Iterator[Flow]:
        visits = stem.topic("visits").stream(watermark="1 minute")
        yield Flow(enrich(visits, stem.view("homes"), on={"user": "zip"}, at=latest()), into=stem.topic("seen"))

    with pytest.raises(Invalid, match="enrich looks up rows by zip, but the key of the table is user"):
        Program(stem, wrong)


def test_rows_are_looked_up_in_a_table_that_is_written_once(spark: Any) -> None:
    streams = TestStreams(
        users=TestStream("user INT, city STRING, since TIMESTAMP", event_time="since", delay="0 seconds",
                         idle_after="1 minute"),
        orders=TestStream("order INT, user INT, at TIMESTAMP", event_time="at", delay="0 seconds"),
    )  # fmt: skip

    def order(number: int, minute: int) -> list[dict[str, Any]]:
        return [{"order": number, "user": 1, "at": f"2026-01-01 12:{minute:02}"}]

    def user(city: str, since: str) -> list[dict[str, Any]]:
        return [{"user": 1, "city": city, "since": since}]

    script = streams.now("2026-01-01 12:00").rows("users", user("Bonn", "2025-06-01"))
    for number, at in enumerate(["12:00:01", "12:01:30", "12:02:30", "12:03:00"]):
        # From the second on the table is idle; what was recorded before each of them is released.
        script = script.now(f"2026-01-01 {at}").rows("orders", order(number + 1, number))
    # Too late for the orders that were put out; and at the quiet end the clock releases what nothing is recorded of.
    script = script.now("2026-01-01 12:03:01").rows("users", user("Köln", "2025-07-01")).now("2026-01-01 12:30")

    def placed(users: Any, orders: Any) -> Any:
        return enrich(orders, table(users, key="user"), on="user")

    alone, with_spark = script.run(placed), script.run_on_spark(placed, spark)
    told = [[(row["order"], row["city"]) for _, row in step] for step in alone.batches]
    assert [(row["order"], row["city"]) for row in alone.rows] == [(1, "Bonn"), (2, "Bonn"), (3, "Köln")]
    assert [[(row["order"], row["city"]) for _, row in step] for step in with_spark.batches] == told
    assert with_spark.counts == alone.counts == {"late": 1}


def looking_up(stem: Mainstem, **users: Any) -> Iterator[Flow]:
    orders = stem.topic("visits").stream(watermark="1 minute")
    homes = table(stem.topic("homes").stream(watermark="1 minute", **users), key="user")
    yield Flow(enrich(orders, homes, on="user"), into=stem.topic("seen"))


def test_the_table_of_an_enrich_is_idle_by_the_rule_of_its_topic_unless_said(stem: Mainstem) -> None:
    stem.create_topic("homes", schema="user INT, at TIMESTAMP", event_time="at", idle_after="3 minutes")
    stem.create_topic("visits", schema="user INT, seen_at TIMESTAMP", event_time="seen_at")
    beside = [["visits", 60_000_000]]
    for given, after in (({}, 180_000_000), ({"idle_after": "5 seconds"}, 5_000_000), ({"idle_after": "never"}, None)):
        [flow] = Program(stem, lambda stem, given=given: looking_up(stem, **given)).flows
        idle = {leaf.source: leaf.idle for leaf in flow.leaves.values()}
        assert idle == {"visits": None, "homes": None if after is None else {"after": after, "beside": beside}}
        warnings = [text for text in flow.warnings() if "waits for homes" in text]
        assert len(warnings) == (after is None)
    with pytest.raises(Invalid, match="has idle_after= but no watermark"):
        stem.topic("homes").stream(idle_after="1 minute")
