"""Case A05: tumbling, hopping, cumulating and session windows, and offsets, as Flink's documents have them.

`window_time` of the case is Flink's way to hand a window on to the next query, and counts in milliseconds: Mainstem
takes `window.end` less one microsecond there, and has no such column.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainstem.operators.windows.window_kinds import WindowKind, cumulating, hopping, sessions, tumbling
from tests.acceptance.case_files import case
from tests.acceptance.window_script import WindowScript, status

CASE = case("A05")
SCHEMA = "item STRING, price DOUBLE, at TIMESTAMP"
BIDS = CASE["bids [time, price, item]"]
SESSION_BIDS = CASE["session_gap5m"]["bids [time, price, item] in arrival order"]

TUMBLE = tumbling("10 minutes")
HOP = hopping("10 minutes", slide="5 minutes")
CUMULATE = cumulating("10 minutes", step="2 minutes")
SESSION = sessions("5 minutes")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(f"{CASE['date']}T{text}").replace(tzinfo=UTC)


def script_of(bids: list[list[Any]]) -> WindowScript:
    script = WindowScript(SCHEMA, event_time="at")
    for at, price, item in bids:
        script.add({"item": item, "price": price, "at": moment(at)})
    script.watermark(None)
    return script


def answers(bids: list[list[Any]], window: WindowKind, **asked: Any) -> list[list[dict[str, Any]]]:
    """What stands in the end, in the four ways."""
    script = script_of(bids)
    ways = [script.scripted, script.killed, script.at_once]
    shown = [way(window, **asked) for way in ways] + [script.shuffled(seed, window, **asked) for seed in range(5)]
    return [status(rows) for rows in shown]


def span(row: dict[str, Any]) -> list[str]:
    return [row["window"][name].strftime("%H:%M") for name in ("start", "end")]


@pytest.mark.parametrize(
    ("window", "name"), [(TUMBLE, "tumble_10m"), (HOP, "hop_size10m_slide5m"), (CUMULATE, "cumulate_step2m_max10m")]
)
def test_sums(window: WindowKind, name: str) -> None:
    for rows in answers(BIDS, window, aggregates="sum(price) AS total"):
        assert sorted([*span(row), row["total"]] for row in rows) == CASE[name]["sum"]


def test_assignments_of_hopping_windows() -> None:
    for rows in answers(BIDS, HOP, by="item", aggregates="count(*) AS bids"):
        found: dict[str, list[list[str]]] = {}
        for row in rows:
            found.setdefault(row["item"], []).append(span(row))
        assert {item: sorted(spans) for item, spans in found.items()} == CASE["hop_size10m_slide5m"]["assignments"]


def test_assignments_of_cumulating_windows() -> None:
    for rows in answers(BIDS, CUMULATE, by="item", aggregates="count(*) AS bids"):
        found: dict[str, list[str]] = {}
        for row in rows:
            start, end = span(row)
            assert start == ("08:00" if end <= "08:10" else "08:10")
            found.setdefault(row["item"], []).append(end)
        assert {item: sorted(ends) for item, ends in found.items()} == CASE["cumulate_step2m_max10m"]["assignments"]


def test_sessions_of_each_item() -> None:
    for rows in answers(SESSION_BIDS, SESSION, by="item", aggregates="sum(price) AS total"):
        assert sorted([row["item"], *span(row), row["total"]] for row in rows) == CASE["session_gap5m"]["per_item"]


def test_sessions_of_all_items() -> None:
    for rows in answers(SESSION_BIDS, SESSION, aggregates="sum(price) AS total"):
        assert sorted([*span(row), row["total"]] for row in rows) == CASE["session_gap5m"]["no_key"]


@pytest.mark.parametrize("offset", CASE["offset"]["expected"])
def test_offsets(offset: str) -> None:
    script = WindowScript(SCHEMA, event_time="at")
    script.add({"item": "A", "price": 1.0, "at": datetime.fromisoformat(CASE["offset"]["record"]).replace(tzinfo=UTC)})
    script.watermark(None)
    window = tumbling("10 minutes", offset=offset.replace("m", " minutes") if offset != "0" else "0 seconds")
    [shown] = script.scripted(window, aggregates="count(*) AS rows_in_it")
    assert [at.strftime("%Y-%m-%d %H:%M:%S") for at in shown.window if at] == CASE["offset"]["expected"][offset]


def test_what_the_book_says_windows_hold() -> None:
    [minute, *five_minutes] = re.findall(r"(\d\d:\d\d:\d\d)\.\.(\d\d:\d\d:\d\d)", CASE["ddia_windows"])
    hop = hopping("5 minutes", slide="1 minute")
    for window, (first, last) in [(tumbling("1 minute"), minute), *((hop, held) for held in five_minutes)]:
        bids = [[first, 1.0, "A"], [last, 1.0, "A"]]
        for rows in answers(bids, window, aggregates="count(*) AS bids"):
            [row] = [row for row in rows if row["bids"] == 2]
            begin, end = row["window"]["start"], row["window"]["end"]
            assert (begin, end) == (moment(first), moment(last) + timedelta(seconds=1))
