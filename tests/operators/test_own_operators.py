"""process, dedupe, clock_corrected and late rows on Spark: over tables, in flows, and when something is wrong."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from pyspark.sql import functions as F

from mainstem.errors import FlowFailed, Invalid
from mainstem.flows.flow import Flow
from mainstem.operators import clock_corrected, dedupe, late_rows, on_time_rows, process
from mainstem.stem import Mainstem
from mainstem.testing import TestStream
from tests.flows.memory_sink import MemorySink
from tests.operators.counted_process import Counted, Renamed, Upgraded, in_place
from tests.operators.visits import PAGES, Visits, at, page


def plain(rows):
    return [{name: value for name, value in row.items() if name != "record"} for row in rows]


def collected(frame):
    return plain(frame.toArrow().to_pylist())


def test_over_a_table_everything_has_come(stem):
    topic = stem.create_topic("pages", schema=PAGES, event_time="at", key="user")
    topic.append([page("ada", "/", 0), page("bob", "/", 9), page("ada", "/b", 2), page("ada", "/", 20)])
    rows = topic.read()

    visits = process(rows, by="user", using=Visits)
    first = dedupe(rows, by=["user", "page"], within="15 minutes")

    # Nobody asked for a watermark, so nothing is known of time until the end: a visit never closes in between.
    assert sorted(collected(visits), key=lambda row: row["user"]) == [
        {"user": "ada", "pages": ["/", "/b", "/"], "closed_at": at(25)},
        {"user": "bob", "pages": ["/"], "closed_at": at(14)},
    ]
    assert sorted((row["user"], row["at"]) for row in collected(first)) == [
        ("ada", at(0)), ("ada", at(2)), ("ada", at(20)), ("bob", at(9)),
    ]  # fmt: skip
    # Keys that differ only in where a null is are different keys.
    tags = stem.spark.createDataFrame(
        [(None, "a", [None], 1), ("a", None, [None], 2), ("a", None, [], 3), ("a", None, [None], 4)],
        "one STRING, two STRING, tags ARRAY<STRING>, n INT",
    )
    told = dedupe(tags.withColumn("at", F.timestamp_micros("n")), by=["one", "two", "tags"], within="1 hour", on="at")
    assert len({row["n"] for row in collected(told)} & {1, 3}) == 2
    assert told.count() == 3
    with pytest.raises(Invalid, match='dedupe cannot take rows with a column "record" that is not from a topic'):
        dedupe(tags.withColumn("record", F.timestamp_micros("n")), by="one", within="1 hour", on="record")
    # And the results are frames like any other.
    assert visits.groupBy().agg(F.sum(F.size("pages")).alias("n")).first()["n"] == 4


def test_native_steps_are_what_they_are_without_spark(stem, spark):
    schema = "device STRING, tapped TIMESTAMP, sent TIMESTAMP, came TIMESTAMP"
    hours = timedelta(hours=3)
    taps = [
        {"device": "a", "tapped": at(0) - hours, "sent": at(1) - hours, "came": at(2)},
        {"device": "a", "tapped": at(5) - hours, "sent": at(6) - hours, "came": at(6)},
        {"device": "b", "tapped": at(3), "sent": None, "came": at(4)},
        {"device": "b", "tapped": at(0) + 50 * hours, "sent": at(1) + 50 * hours, "came": at(1)},
        {"device": "c", "tapped": None, "sent": at(1), "came": at(1)},
    ]
    script = TestStream(schema, event_time="tapped", delay="1 minute").rows(taps[:2]).rows(taps[2:])
    topic = stem.create_topic("taps", schema=schema, event_time="tapped", ahead_max="36500 days")
    topic.append(taps[:2])
    topic.append(taps[2:])
    frame = topic.read(watermark="1 minute")

    def corrected(rows):
        return clock_corrected(rows, occurred="tapped", sent="sent", received="came")

    for operator in (corrected, late_rows, on_time_rows, lambda rows: on_time_rows(corrected(rows))):
        assert collected(operator(frame).orderBy("record.offset")) == script.run(operator).rows
    by_device = clock_corrected(frame, occurred="tapped", sent="sent", received="came", by="device")
    drifts = collected(by_device.where("device = 'a'").orderBy("record.offset"))
    assert [(row["corrected_at"], row["drift_us"]) for row in drifts] == [
        (at(0), hours // timedelta(microseconds=1)),
        (at(5), hours // timedelta(microseconds=1)),
    ]
    with pytest.raises(Invalid, match="cannot be computed in a stream"):
        clock_corrected(topic.stream(), occurred="tapped", sent="sent", received="came", by="device")


def test_a_failure_names_key_and_row_and_a_changed_state_is_upgraded_or_refused(stem):
    topic = stem.create_topic("pages", schema=PAGES, event_time="at", key="user")
    topic.append([page("ada", "/", 0), page("bob", "/", 0), page("ada", "/", 1)])
    sink = MemorySink("counted")

    def flows(using):
        def program(stem: Mainstem) -> Iterator[Flow]:
            yield Flow(process(stem.topic("pages").stream(), by="user", using=in_place(using)), into=sink)

        return program

    stem.run(flows(Counted), until="idle")
    topic.append([page("cleo", "/", 2), page("cleo", "/bad", 2)])
    with pytest.raises(FlowFailed) as failed:
        stem.run(flows(Counted), until="idle")
    with pytest.raises(FlowFailed) as refused:
        stem.run(flows(Renamed), until="idle")
    topic.append([page("ada", "/", 3)])
    stem.run(flows(Upgraded), until="idle")

    told = str(failed.value)
    assert "process \"Counted\" failed in on_rows for the key 'cleo'" in told
    assert "ValueError: no such page (counted_process.py, line " in told
    assert "'page': '/bad'" in told
    assert "partition 0, offset 4" in told
    told = str(refused.value)
    assert 'State of process "Counted" does not match its stored state' in told
    assert "Set version = 2 and write upgrade(self, old)" in told
    assert sorted((row["user"], row["said"]) for row in plain(sink.rows())) == [
        ("ada", "1"), ("ada", "1003"), ("ada", "2"), ("bob", "1"), ("cleo", "1"), ("cleo", "2"),
    ]  # fmt: skip
