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

    with pytest.raises(Invalid, match="enrich looks rows up by zip, and the table's key is user"):
        Program(stem, wrong)
