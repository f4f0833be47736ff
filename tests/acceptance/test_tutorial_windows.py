"""Case A15: the windows of ksqlDB's tutorials: tumbling counts, an alert over hopping windows, sessions of clicks.

Its joins are answered in test_stream_joins.py and test_look_ups.py.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainstem.operators.windows.triggers import each_row
from mainstem.operators.windows.window_kinds import WindowKind, hopping, sessions, tumbling
from tests.acceptance.case_files import case
from tests.acceptance.window_script import Shown, WindowScript, status

CASE = case("A15")
COUNTS = CASE["tumbling_6h_count"]
ALERTS = CASE["hopping_10m_by_5m_average_below_45"]
CLICKS = CASE["session_5m"]
SHOWN = ["scripted", "killed"]
SEEDS = range(5)


def moment(date: str, time: str) -> datetime:
    return datetime.fromisoformat(f"{date.removesuffix(' UTC')}T{time}").replace(tzinfo=UTC)


def milliseconds(at: datetime | None) -> int:
    assert at is not None
    return int(at.timestamp() * 1000)


def in_the_end(script: WindowScript, window: WindowKind, **asked: Any) -> list[list[dict[str, Any]]]:
    """What stands when everything has come: all rows at once, and in other orders."""
    ways = [script.at_once(window, **asked), *(script.shuffled(seed, window, **asked) for seed in SEEDS)]
    return [status(shown) for shown in ways]


# Tumbling

SIX_HOURS = tumbling("6 hours")
COUNTED = {"by": "title", "aggregates": ["count(*) AS ratings", "max(at) AS latest"], "early": each_row()}


def rating_script() -> WindowScript:
    script = WindowScript("title STRING, rating DOUBLE, at TIMESTAMP", event_time="at")
    for title, rating, time in COUNTS["input [title, rating, time] in arrival order"]:
        script.add({"title": title, "rating": rating, "at": moment(COUNTS["date"], time)})
    return script


def counted(row: dict[str, Any]) -> list[Any]:
    span = [milliseconds(row["window"][name]) for name in ("start", "end")]
    return [row["title"], *span, row["ratings"], milliseconds(row["latest"])]


EXPECTED = COUNTS["expected updates [title, window start ms, window end ms, count, result event time ms]"]


@pytest.mark.parametrize("way", SHOWN)
def test_updates_of_counts(way: str) -> None:
    assert [counted(at.row) for at in getattr(rating_script(), way)(SIX_HOURS, **COUNTED)] == EXPECTED


def test_counts_in_the_end() -> None:
    last = {(title, start): [title, start, end, *rest] for title, start, end, *rest in EXPECTED}
    for rows in in_the_end(rating_script(), SIX_HOURS, **COUNTED):
        assert sorted(counted(row) for row in rows) == sorted(last.values())


# Hopping

SUMMED = ["sum(reading) AS total", "count(*) AS readings", "max(at) AS latest"]
READINGS = {"by": "key", "aggregates": SUMMED, "early": each_row()}
LOW = ALERTS["expected alerts [window start, end, average, event time]"]
TEN_BY_FIVE = hopping("10 minutes", slide="5 minutes")


def reading_script() -> WindowScript:
    script = WindowScript("key STRING, reading INT, at TIMESTAMP", event_time="at")
    for time, reading in ALERTS["input [time, reading] key 1"]:
        script.add({"key": "1", "reading": reading, "at": moment(ALERTS["date"], time)})
    return script


def alerts(rows: list[dict[str, Any]]) -> list[list[Any]]:
    low = [row for row in rows if row["total"] // row["readings"] < 45]
    return [
        [
            *(row["window"][name].strftime("%H:%M:%S") for name in ("start", "end")),
            row["total"] // row["readings"],
            row["latest"].strftime("%H:%M:%S"),
        ]
        for row in low
    ]


@pytest.mark.parametrize("way", SHOWN)
def test_alerts_of_low_readings(way: str) -> None:
    shown = getattr(reading_script(), way)(TEN_BY_FIVE, **READINGS)
    found = alerts([at.row for at in shown])
    # One reading is in two windows, and which of them is told first is not said.
    assert sorted(found, key=lambda alert: (alert[3], alert[0])) == LOW


def test_low_readings_in_the_end() -> None:
    last = {start: [start, end, *rest] for start, end, *rest in LOW}
    for rows in in_the_end(reading_script(), TEN_BY_FIVE, **READINGS):
        assert sorted(alerts(rows)) == sorted(last.values())


# Sessions

GAP = timedelta(minutes=5)
CLICKED = {"by": "ip", "aggregates": "count(*) AS clicks", "early": each_row(), "results": "retract"}
UPDATES = CLICKS["expected updates [ip, start ms, end ms, clicks or null=retraction]"]


def click_script() -> WindowScript:
    script = WindowScript("ip STRING, at TIMESTAMP", event_time="at")
    for ip, time in CLICKS["input [ip, time]"]:
        script.add({"ip": ip, "at": moment(CLICKS["date"], time)})
    return script


def clicked(row: dict[str, Any], change: str = "insert") -> list[Any]:
    """The tutorial's sessions end with their last click, ours one gap later."""
    start, end = row["window"]["start"], row["window"]["end"] - GAP
    return [row["ip"], milliseconds(start), milliseconds(end), None if change == "delete" else row["clicks"]]


@pytest.mark.parametrize("way", SHOWN)
def test_updates_of_sessions(way: str) -> None:
    shown: list[Shown] = getattr(click_script(), way)(sessions(GAP), **CLICKED)
    assert [clicked(at.row, at.change) for at in shown] == UPDATES


def test_sessions_in_the_end() -> None:
    last: dict[tuple[Any, ...], list[Any]] = {}
    for ip, start, end, clicks in UPDATES:
        last[ip, start, end] = [ip, start, end, clicks]
    standing_ones = sorted(update for update in last.values() if update[3] is not None)
    for rows in in_the_end(click_script(), sessions(GAP), **CLICKED):
        assert sorted(clicked(row) for row in rows) == standing_ones
