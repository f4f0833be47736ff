"""The topics of reports: one append a second, sums by minute, and columns that an earlier version did not have."""

from pathlib import Path

import pytest

from mainstem.clock import ManualClock, as_datetime
from mainstem.flows import progress_rows
from mainstem.flows.progress_rows import MINUTES_TOPIC, PROGRESS_TOPIC, SCHEMA, ProgressRows
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.own_topic import own_topic
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings
from tests.waiting import wait_until


def rows_of(log: EmbeddedLog, topic: str = PROGRESS_TOPIC) -> list[dict]:
    return Topic(log, log.open_topic(topic)).to_arrow().drop_columns(["record"]).to_pylist()


def report(clock: ManualClock, batch: int, flow: str = "totals", **figures: object) -> dict:
    counts = dict.fromkeys(("rows_in", "rows_out", "rejected", "late", "too_late", "batch_ms"), 1)
    known = {"flow": flow, "version": 1, "epoch": 7, "batch": batch, "at": as_datetime(clock.now()), "lag_seconds": 0.5}
    return {**known, **counts, **figures}


def test_reports_of_an_earlier_version_stay_and_get_the_new_columns(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    earlier = SCHEMA.partition(", sink_ms")[0].replace("too_late BIGINT, ", "")
    made = log.create_topic(TopicSettings.of(PROGRESS_TOPIC, schema=earlier, event_time="at", keep="7 days"))
    Topic(log, made).append([{"flow": "totals", "at": None, "late": 1}])

    topic = Topic(log, own_topic(log, PROGRESS_TOPIC, schema=SCHEMA, keep="7 days"))
    partitions = [{"partition": 0, "start": 3, "stop": 5, "watermark": None}]
    sources = [{"source": "orders", "records": 2, "partitions": partitions}]
    topic.append([{"flow": "totals", "at": None, "late": 1, "too_late": 2, "sources": sources}])

    assert [(row["late"], row["too_late"], row["sources"]) for row in rows_of(log)] == [
        (1, None, None),
        (1, 2, sources),
    ]
    # Found as it is from then on.
    assert own_topic(log, PROGRESS_TOPIC, schema=SCHEMA, keep="7 days").settings.schema_version == 2
    log.close()


def test_a_run_appends_once_a_second_for_all_flows(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_rows, "LOOK_SECONDS", 3600)
    log = EmbeddedLog(tmp_path, clock=clock)
    rows = ProgressRows(log)
    seen = []
    for batch in range(20):
        rows.add(report(clock, batch, flow=f"flow_{batch % 3}"))
        seen.append(len(rows_of(log)))
        clock.advance("250 milliseconds")
    # The first at once, then what came in a second.
    assert seen == [1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13, 17, 17, 17, 17]
    rows.flush()
    assert [row["batch"] for row in rows_of(log)] == list(range(20))
    rows.add(report(clock, 20))
    rows.end()
    rows.end()
    assert len(rows_of(log)) == 21
    log.close()


def test_what_waits_is_appended_without_another_report(tmp_path: Path, clock: ManualClock) -> None:
    log = EmbeddedLog(tmp_path, clock=clock)
    rows = ProgressRows(log)
    rows.add(report(clock, 0))
    rows.add(report(clock, 1))
    wait_until(lambda: len(rows_of(log)) == 2)
    clock.advance("1 minute")
    wait_until(lambda: MINUTES_TOPIC in log.topic_names() and len(rows_of(log, MINUTES_TOPIC)) == 1)
    rows.end()
    assert len(rows_of(log, MINUTES_TOPIC)) == 1
    log.close()


def test_minutes_have_sums_and_maxima(tmp_path: Path, clock: ManualClock) -> None:
    log = EmbeddedLog(tmp_path, clock=clock)
    rows = ProgressRows(log)
    rows.add(report(clock, 0, rows_in=5, batch_ms=40, lag_seconds=2.5))
    clock.advance("59 seconds")
    rows.add(report(clock, 1, rows_in=7, batch_ms=20))
    rows.add(report(clock, 0, flow="other"))
    first = as_datetime(clock.now()).replace(second=0)
    clock.advance("5 minutes")
    rows.add(report(clock, 2))
    rows.end()
    found = sorted(rows_of(log, MINUTES_TOPIC), key=lambda row: (row["flow"], row["minute"]))
    assert [(row["flow"], row["batches"], row["rows_in"]) for row in found] == [
        ("other", 1, 1), ("totals", 2, 12), ("totals", 1, 1),
    ]  # fmt: skip
    assert found[1] == {
        "flow": "totals", "version": 1, "minute": first, "rows_in": 12, "rows_out": 2, "rejected": 2, "late": 2, "too_late": 2,
        "lag_seconds_max": 2.5, "batches": 2, "batch_ms_max": 40, "batch_ms": 60,
    }  # fmt: skip
    assert str(log.open_topic(MINUTES_TOPIC).settings.keep) == "90 days"
    log.close()
