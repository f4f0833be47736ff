"""Cases A07 and A15 through Spark: joins of streams and look-ups in one flow each, in a few batches, one of which fails; at once.

What is put out after each record is seen without Spark. Both sides of A07 are one topic, which the joins read side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.errors import FlowFailed
from mainstem.operators import enrich, join, latest, table
from tests.acceptance import test_look_ups as look_ups
from tests.acceptance import test_stream_joins as joins
from tests.acceptance.stream_sides import DELAY, SCHEMA, START, facts_of, row_of, versions_of
from tests.flows.memory_sink import MemorySink

LONG = "36500 days"
END = datetime(2036, 1, 1, tzinfo=UTC)


def together(rows: DataFrame) -> DataFrame:
    """All answers of A07 side by side."""
    found = []
    for kind, how in joins.KINDS.items():
        asked: dict[str, Any] = {"on": "key", "within": "15 seconds", "how": how}
        pairs = join(facts_of(rows, "L"), facts_of(rows, "R"), **asked, name=f"{kind}_pairs")
        found.append(pairs.withColumn("answer", F.lit(f"{kind} pairs")))
    looked_up = enrich(facts_of(rows, "L"), table(versions_of(rows), key="key"), on="key", at="at", name="look_ups")
    found.append(looked_up.withColumn("answer", F.lit("look-ups")))
    columns = ("answer", "value", "other", "at", "record")
    return reduce(DataFrame.unionByName, [part.select(*columns) for part in found])


def answered(rows: list[dict[str, Any]], answer: str) -> list[list[Any]]:
    assert all(row["record"]["change"] == "insert" for row in rows)
    return sorted(([row["value"], row["other"]] for row in rows if row["answer"] == answer), key=str)


def check_look_ups(rows: list[dict[str, Any]]) -> None:
    found = {
        str(int((row["at"] - START).total_seconds())): [row["value"], row["other"]]
        for row in rows
        if row["answer"] == "look-ups"
    }
    extra = {str(t): [value, "d"] for t, side, value in joins.STREAMS["extra_input"] if side == "L"}
    # The records that come for the joins alone are looked up as well; the last of the table is "d", later "f".
    extra["100"] = ["G", "f"]
    assert found == look_ups.EXPECTED["left"] | extra


@pytest.mark.usefixtures("one_bucket")
def test_case_a07_in_a_stream_with_a_failure_and_at_once(stem: Mainstem) -> None:
    topic = stem.create_topic("records", schema=SCHEMA, event_time="at", partitions=1, idle_after=LONG, ahead_max=LONG)
    sink = MemorySink("answers", failing={1})

    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(together(stem.topic("records").stream(watermark=DELAY)), into=sink)

    rows = [row_of(entry) for entry in joins.ENTRIES]
    running = stem.start(flows)
    for part in (rows[:6], rows[6:]):
        # A row's own watermark is what was known before its append.
        for row in part:
            topic.append([row])
        try:
            running.wait_until_idle()
        except FlowFailed:
            running.stop()
            running = stem.start(flows)
            running.wait_until_idle()
    assert not sink.failing
    for kind in joins.KINDS:
        assert answered(sink.rows(), f"{kind} pairs") == joins.expected_rows(kind), kind
    stem.producer("end").declare_watermark("records", END)
    running.wait_until_idle()
    running.stop()
    check_look_ups(sink.rows())
    at_once = together(topic.read(watermark=DELAY)).toArrow().to_pylist()
    check_look_ups(at_once)
    for kind in joins.KINDS:
        # When everything has come, the last record has met nobody.
        last = [] if kind == "inner" else [["G", None]]
        assert answered(at_once, f"{kind} pairs") == sorted([*joins.expected_rows(kind), *last], key=str), kind


@pytest.mark.usefixtures("one_bucket")
def test_case_a15_in_a_stream_and_at_once(stem: Mainstem) -> None:
    scripts = {**_appends(joins.shipping_script()), **_appends(look_ups.rating_script())}
    times = {"orders": "order_ts", "shipments": "ship_ts"}
    for name, parts in scripts.items():
        settings = {"event_time": times[name], "idle_after": LONG, "ahead_max": LONG} if name in times else {}
        stem.create_topic(name, schema=parts[0].schema, partitions=1, **settings)
    shipped, rated = MemorySink("shipped"), MemorySink("rated")

    def shipped_of(read: Any) -> DataFrame:
        return joins.shipped(read("orders", joins.WEEK), read("shipments", joins.WEEK))  # type: ignore[no-any-return]

    def rated_of(read: Any) -> DataFrame:
        movies = table(read("movies", None), key="id")
        return enrich(read("ratings", None), movies, on={"movie": "id"}, at=latest())

    def flows(stem: Mainstem) -> Iterator[Flow]:
        def read(name: str, watermark: str | None) -> DataFrame:
            return stem.topic(name).stream(watermark=watermark)  # type: ignore[no-any-return]

        yield Flow(shipped_of(read), into=shipped)
        yield Flow(rated_of(read), into=rated)

    for name in ("shipments", "movies", "orders", "ratings"):
        for rows in scripts[name]:
            stem.topic(name).append(rows)
    with stem.start(flows) as running:
        running.wait_until_idle()
    at_once = {
        sink.name: of(lambda name, watermark: stem.topic(name).read(watermark=watermark)).toArrow().to_pylist()
        for sink, of in ((shipped, shipped_of), (rated, rated_of))
    }
    titles = {id: (title, year) for id, title, year in look_ups.MOVIES["movies"]}
    ratings = sorted((movie, rating, *titles[movie]) for movie, rating in look_ups.MOVIES["ratings"])
    for rows in (shipped.rows(), at_once["shipped"]):
        assert sorted(joins.told(row) for row in rows) == joins.SHIPPED
    for rows in (rated.rows(), at_once["rated"]):
        assert sorted((row["movie"], row["rating"], row["title"], row["release_year"]) for row in rows) == ratings


def _appends(script: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for step in script.steps:
        found.setdefault(step.stream, []).append(step.rows)
    return found
