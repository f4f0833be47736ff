"""Case A01: team scores, what and where and when and how, as Streaming Systems and its own examples have them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainstem.operators.windows.triggers import Trigger, each_row, every
from mainstem.operators.windows.window_kinds import WindowKind, everything, sessions, tumbling, validity
from tests.acceptance.case_files import case
from tests.acceptance.window_script import Shown, WindowScript, status

CASE = case("A01")
EXAMPLES = CASE["examples (panes compared in any order)"]
RENDERING = CASE["sql_rendering"]
SESSIONS = CASE["sessions_with_retractions"]

SCHEMA = "team STRING, score INT, at TIMESTAMP"
TOTAL = {"by": "team", "aggregates": ["sum(score) AS total"]}
SEEDS = range(5)
NOT_IN_TIME = "1000 days"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-01T{text}").replace(tzinfo=UTC)


def passed(text: str) -> datetime | None:
    """What a watermark has reached; None if everything has come."""
    return None if text == "+inf" else moment(text)


def row(score: int, at: str) -> dict[str, Any]:
    return {"team": "TeamX", "score": score, "at": moment(at)}


def script_of(name: str) -> WindowScript:
    script, steps = WindowScript(SCHEMA, event_time="at"), CASE["scripts"][name]
    if isinstance(steps, str):
        for score, at in re.findall(r"\((\d+),([\d:]+)\)", steps):
            script.add(row(int(score), at))
        script.watermark(None)
        return script
    script.now(moment("12:00:00"))
    doing: dict[str, Callable[[Any], None]] = {
        "add": lambda of: script.add(row(*of)),
        "wm": lambda of: script.watermark(passed(of)),
        "proc": lambda of: script.now(moment(of)),
    }
    for step in steps:
        [(what, of)] = step.items()
        doing[what](of)
    return script


def window_of(text: str) -> WindowKind:
    kinds = {"global": everything(), "fixed 2m": tumbling("2 minutes"), "sessions gap 1m": sessions("1 minute")}
    return validity() if text.startswith("validity") else kinds[text]


def shown_when(text: str) -> dict[str, Any]:
    """A trigger of the case as Mainstem says it."""
    if text.startswith("default"):
        return {}
    if text == "repeatedly(after count 1)":
        # It fires for rows alone, so that nothing is shown when the watermark comes and nothing is new.
        return {"early": each_row(), "late": each_row(), "on_time": "if changed"}
    [minutes] = re.findall(r"first element in pane \+ (\d+)m", text)
    early: Trigger = every(f"{minutes} minutes", since="first row")
    return {"early": early, "late": each_row() if "late: every element" in text else early}


def asked(example: dict[str, Any]) -> dict[str, Any]:
    units = {"m": "minutes", " days": "days"}
    number, unit = re.fullmatch(r"(\d+)(.*)", example.get("allowed_lateness", "0")).groups()  # type: ignore[union-attr]
    when = shown_when(example["trigger"])
    lateness = f"{number} {units[unit]}" if unit else "0 seconds"
    if not unit:
        when.pop("late", None)
    results = {"accumulating": "accumulate", "discarding": "discard"}[example.get("accumulation", "accumulating")]
    return {**TOTAL, **when, "lateness": lateness, "results": results}


def window_text(window: tuple[datetime | None, datetime | None]) -> Any:
    start, end = window
    if start is None:
        return "global"
    return [start.strftime("%H:%M:%S"), "+inf" if end is None else end.strftime("%H:%M:%S")]


def panes(shown: list[Shown]) -> list[dict[str, Any]]:
    """As the case writes them; what is taken back is no pane there."""
    found, later_ones = [], {}  # type: ignore[var-annotated]
    for at in shown:
        if at.change == "delete":
            continue
        window, pane = window_text(at.window), at.row["pane"]
        told = {
            "window": window,
            "total": at.row["total"],
            "timing": pane["timing"].upper(),
            "pane_index": pane["index"],
        }
        if pane["timing"] != "early":
            # A session that grew is another window, whose panes are counted anew.
            told["non_speculative_index"] = later_ones.get(str(window), 0)
            later_ones[str(window)] = told["non_speculative_index"] + 1
        found.append(told | ({"first": True} if pane["index"] == 0 else {}) | ({"last": True} if pane["final"] else {}))
    return sorted(found, key=str)


@pytest.mark.parametrize("way", ["scripted", "killed"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_panes_of_an_example(name: str, way: str) -> None:
    example = EXAMPLES[name]
    shown = getattr(script_of(example["script"]), way)(window_of(example["windowing"]), **asked(example))
    assert panes(shown) == sorted(({**pane} for pane in example["expected"]), key=lambda pane: str(_ordered(pane)))


def _ordered(pane: dict[str, Any]) -> dict[str, Any]:
    names = ("window", "total", "timing", "pane_index", "non_speculative_index", "first", "last")
    return {name: pane[name] for name in names if name in pane}


def _span(window: Any) -> tuple[str, str]:
    """Later than every time of day: +inf."""
    start, end = ("", "+inf") if window == "global" else window
    return start, end.replace("+inf", "~")


def last_totals(expected: list[dict[str, Any]], *, discards: bool) -> dict[str, int]:
    """What stands in the end: of each window the last total (or all of them), of sessions the largest alone."""
    totals: dict[str, int] = {}
    spans = [_span(pane["window"]) for pane in expected]
    for pane in sorted(expected, key=lambda pane: pane["pane_index"]):
        window, (start, end) = pane["window"], _span(pane["window"])
        swallowed = any((start, end) != span and span[0] <= start and end <= span[1] for span in spans)
        if not swallowed:
            before = totals.get(str(window), 0) if discards else 0
            totals[str(window)] = before + pane["total"]
    return totals


@pytest.mark.parametrize("name", EXAMPLES)
def test_totals_of_an_example_in_a_batch_and_in_other_orders(name: str) -> None:
    example = EXAMPLES[name]
    script, window, wanted = script_of(example["script"]), window_of(example["windowing"]), asked(example)
    discards = wanted["results"] == "discard"
    expected = last_totals(example["expected"], discards=discards)
    for shown in [script.at_once(window, **wanted), *(script.shuffled(seed, window, **wanted) for seed in SEEDS)]:
        rows = [at.row for at in shown] if discards else status(shown)
        totals: dict[str, int] = {}
        for at in rows:
            text = str(window_text((at["window"]["start"], at["window"]["end"])))
            totals[text] = totals.get(text, 0) + at["total"]
        assert totals == expected


# The SQL rendering


PASSES = {"12:02:00": "12:06:00", "12:04:00": "12:07:30", "12:06:00": "12:07:41", "12:08:00": "12:09:22"}


def rendered(rows: list[tuple[int, str, str]], *, watermarks: bool, delays: bool = False) -> WindowScript:
    """Rows at their processing times, and the watermark when it passes, in the order of processing time."""
    events: list[tuple[datetime, int, Any]] = [(moment(came), 1, row(score, at)) for score, at, came in rows]
    if watermarks:
        events += [(moment(came), 0, moment(reached)) for reached, came in PASSES.items()]
    if delays:
        events += [(moment(came) + timedelta(minutes=1), 2, None) for _, _, came in rows]
    script = WindowScript(SCHEMA, event_time="at")
    for at, kind, of in sorted(events, key=lambda event: (event[0], event[1] != 2, event[1])):
        script.now(at)
        if kind == 0:
            script.watermark(of)
        elif kind == 1:
            script.add(of)
    return script


SCORES = [(score, at, came) for _, score, at, came in CASE["user_scores [name, score, event time, processing time]"]]


def told(shown: list[Shown]) -> list[list[Any]]:
    return [[at.row["total"], window_text(at.window), f"{at.at:%H:%M:%S}"] for at in shown]


@pytest.mark.parametrize("way", ["scripted", "killed"])
def test_a_row_for_each_record(way: str) -> None:
    shown = getattr(rendered(SCORES, watermarks=False), way)(tumbling("2 minutes"), **TOTAL, early=each_row())
    assert told(shown) == RENDERING["per_record_trigger_accumulating"]


@pytest.mark.parametrize("way", ["scripted", "killed"])
def test_a_row_when_the_watermark_passes(way: str) -> None:
    shown = getattr(rendered(SCORES, watermarks=True), way)(tumbling("2 minutes"), **TOTAL)
    assert told(shown) == RENDERING["watermark_trigger_only"]


@pytest.mark.parametrize("way", ["scripted", "killed"])
def test_a_row_when_the_watermark_passes_and_for_each_late_record(way: str) -> None:
    shown = getattr(rendered(SCORES, watermarks=True), way)(tumbling("2 minutes"), **TOTAL, lateness=NOT_IN_TIME)
    timings = [at.row["pane"]["timing"].replace("_", "-") for at in shown]
    indexes = [at.row["pane"]["index"] for at in shown]
    rows = [[*row, timing, index] for row, timing, index in zip(told(shown), timings, indexes, strict=True)]
    assert rows == RENDERING["watermark_then_every_late_record"]


@pytest.mark.parametrize("way", ["scripted", "killed"])
def test_a_row_one_minute_after_new_data(way: str) -> None:
    script = rendered(SCORES, watermarks=False, delays=True)
    delay = every("1 minute", since="first row")
    shown = getattr(script, way)(tumbling("2 minutes"), **TOTAL, early=delay)
    rows = [[*row, at.row["pane"]["index"]] for row, at in zip(told(shown), shown, strict=True)]
    expected = RENDERING["delay_one_minute_after_new_data"]
    assert rows[:-1] == expected[:-1]
    # The book's last time is that of the watermark; a delay of a minute alone ends 17 seconds later.
    *total, at, index = rows[-1]
    assert ([*total], index) == (expected[-1][:2], expected[-1][3])
    assert at in ("12:09:22", "12:09:39")


# Sessions with retractions


def session_script() -> WindowScript:
    rows = SESSIONS["dataset [score, event time, processing time]"]
    return rendered([(score, at, came) for score, at, came in rows], watermarks=False)


TOUCHING = sessions("1 minute", touching="join")


@pytest.mark.parametrize("way", ["scripted", "killed"])
def test_sessions_that_accumulate(way: str) -> None:
    shown = getattr(session_script(), way)(TOUCHING, **TOTAL, early=each_row())
    assert told([at for at in shown if at.change != "delete"]) == SESSIONS["accumulating_only"]


@pytest.mark.parametrize("way", ["scripted", "killed"])
def test_sessions_that_retract(way: str) -> None:
    shown = getattr(session_script(), way)(TOUCHING, **TOTAL, early=each_row(), results="retract")
    rows = [[*row, *(["undo"] if at.change == "delete" else [])] for row, at in zip(told(shown), shown, strict=True)]
    expected = SESSIONS["accumulating_and_retracting"]
    # What one record takes back, in any order; then what it puts in its place.
    assert [_moments(row) for row in rows] == [_moments(row) for row in expected]
    assert sorted(rows, key=str) == sorted(expected, key=str)


def _moments(row: list[Any]) -> tuple[str, bool]:
    return row[2], row[-1] == "undo"


def test_sessions_in_the_end() -> None:
    wanted = {**TOTAL, "early": each_row(), "results": "retract"}
    script = session_script()
    shuffled = [script.shuffled(seed, TOUCHING, **wanted) for seed in SEEDS]
    for shown in [script.at_once(TOUCHING, **wanted), *shuffled]:
        held = [[at["total"], window_text((at["window"]["start"], at["window"]["end"]))] for at in status(shown)]
        assert sorted(held, key=str) == sorted(SESSIONS["final_table"], key=str)
