"""windowed over scripted streams, without Spark: its columns, its arithmetic, what is late, windows over windows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mainstem.errors import Invalid
from mainstem.operators import dedupe, each_row, enrich, everything, hopping, join, sessions, table, tumbling, windowed
from mainstem.operators.stage.frame_columns import Shown, columns_of, select_columns
from mainstem.testing import TestStream, TestStreams

SCORES = TestStream("team STRING, score INT, at TIMESTAMP", event_time="at")


def score(team: str, points: int, at: str) -> dict[str, Any]:
    return {"team": team, "score": points, "at": f"2026-01-01 {at}"}


def noon(minute: int) -> datetime:
    return datetime(2026, 1, 1, 12, minute, tzinfo=UTC)


def test_columns_are_the_key_the_window_the_aggregates_and_the_pane() -> None:
    script = SCORES.rows([score("red", 5, "12:00:26"), score("red", 2, "12:01:00")]).watermark("2026-01-01 12:02")
    aggregates = ["sum(score) AS total", "sum(score) / count(*) AS mean", "first(score)"]

    [row] = script.run(lambda rows: windowed(rows, tumbling("2 minutes"), by="team", aggregates=aggregates)).rows

    assert row == {
        "team": "red",
        "window": {"start": noon(0), "end": noon(2)},
        "total": 7,
        "mean": 3.5,
        "first(score)": 5,
        "pane": {"index": 0, "timing": "on_time", "final": True},
    }


def test_too_late_rows_are_told_with_what_they_would_have_added() -> None:
    script = (
        SCORES.rows([score("red", 5, "12:00:26")])
        .watermark("2026-01-01 12:10")
        .rows([score("red", 9, "12:01:00"), {"team": "red", "score": 4, "at": None}])
        .kill()
    )

    results = script.run(lambda rows: windowed(rows, tumbling("2 minutes"), by="team", aggregates="sum(score) AS rows"))

    assert [(late["team"], late["rows_"], late["reason"]) for late in results.late] == [
        ("red", 9, "too late"),
        ("red", 4, "no event time"),
    ]
    assert results.counts["too_late"] == 2


def test_windows_over_windows_are_by_their_last_moment() -> None:
    script = SCORES.rows([score("red", 5, "12:01:00"), score("blue", 3, "12:05:00"), score("red", 1, "12:11:00")])
    done = script.watermark("2026-01-01 14:00").watermark("2026-01-01 15:00")

    def per_ten_minutes(rows: Any) -> Any:
        per_minute = windowed(rows, tumbling("2 minutes"), by="team", aggregates="sum(score) AS total")
        return windowed(per_minute, tumbling("10 minutes"), aggregates="sum(total) AS total")

    results = done.run(per_ten_minutes)

    assert sorted((row["window"]["end"], row["total"]) for row in results.rows) == [(noon(10), 8), (noon(20), 1)]
    assert set(results.state_rows.values()) == {0}


def test_windows_over_windows_do_not_depend_on_how_batches_are_cut() -> None:
    script = TestStream("score INT, at TIMESTAMP", event_time="at", delay="0 seconds")
    for points, at in ((1, "12:00:05"), (1, "12:01:30"), (2, "12:00:06")):
        script = script.rows([{"score": points, "at": f"2026-01-01 {at}"}])

    def minutes(rows: Any) -> Any:
        tens = windowed(
            rows, tumbling("10 seconds"), aggregates="sum(score) AS ten", lateness="100 seconds", results="discard"
        )
        return windowed(tens, tumbling("60 seconds"), aggregates="sum(ten) AS total")

    for batches in ("scripted", "single rows", "one"):
        results = script.watermark("2026-01-02").run(minutes, batches=batches)
        assert [row["total"] for row in results.rows] == [1, 1]
        assert [(row["total"], row["reason"]) for row in results.late] == [(2, "too late")]


def test_a_function_that_is_written_twice_is_told_once_of_late_rows() -> None:
    aggregates = ["sum(score) AS total", "sum(score) / count(*) AS mean"]
    script = SCORES.watermark("2026-01-01 13:00").rows([score("red", 4, "12:00:26")])

    [late] = script.run(lambda rows: windowed(rows, tumbling("2 minutes"), by="team", aggregates=aggregates)).late

    told = {name: late[name] for name in late if "score" in name or "count" in name or name == "total"}
    assert told == {"total": 4, "count(1)": 1}


def test_rows_that_take_others_back_are_not_counted_as_rows() -> None:
    streams = TestStreams(
        red=TestStream("team STRING, at TIMESTAMP", event_time="at"),
        blue=TestStream("team STRING, blue_at TIMESTAMP", event_time="blue_at"),
    )
    streams = streams.rows("red", [{"team": "red", "at": "2026-01-01"}])

    def counted(rows: Any) -> Any:
        return windowed(rows, tumbling("1 minute"), aggregates="count(*) AS rows")

    def alone(red: Any, blue: Any) -> Any:
        return join(red, blue, on="team", within="1 minute", how="left", lateness="1 minute")

    with pytest.raises(Invalid, match="windowed cannot take a changing table"):
        streams.run(lambda red, blue: counted(table(red, key="team")))
    with pytest.raises(Invalid, match="windowed cannot take rows that retract earlier ones"):
        streams.run(lambda red, blue: counted(alone(red, blue)))
    with pytest.raises(Invalid, match="dedupe cannot take rows that retract earlier ones"):
        streams.run(lambda red, blue: dedupe(alone(red, blue), by="team", within="1 minute"))
    with pytest.raises(Invalid, match="enrich cannot take a changing table"):
        streams.run(lambda red, blue: enrich(table(red, key="team"), table(blue, key="team"), on="team"))
    with pytest.raises(Invalid, match="enrich cannot take rows that retract earlier ones"):
        streams.run(lambda red, blue: enrich(alone(red, narrow(blue)), table(blue, key="team"), on="team"))
    with pytest.raises(Invalid, match="join cannot take rows that retract earlier ones"):
        streams.run(lambda red, blue: join(alone(red, narrow(blue)), blue, on="team", within="1 minute"))


def narrow(rows: Any) -> Any:
    """Under another name, so that a second join has no column twice."""
    names = {"team": "team", "blue_at": "seen_at", "record": "record"}
    schema = columns_of(rows)
    return select_columns(rows, [Shown(name, schema.field(name).with_name(called)) for name, called in names.items()])


@pytest.mark.parametrize("results", ["accumulate", "retract"])
def test_windows_that_are_shown_again_are_not_taken_for_further_rows(results: str) -> None:
    streams = TestStreams(red=SCORES, blue=TestStream("team STRING, blue_at TIMESTAMP", event_time="blue_at"))

    def again(rows: Any, **how: Any) -> Any:
        more = {"lateness": "1 minute", "results": results} | how
        return windowed(rows, tumbling("1 minute"), by="team", aggregates="sum(score) AS total", **more)

    with pytest.raises(Invalid, match="dedupe cannot take windows that are emitted more than once"):
        streams.run(lambda red, blue: dedupe(again(red), by="team", within="1 minute"))
    with pytest.raises(Invalid, match="join cannot take windows that are emitted more than once"):
        streams.run(lambda red, blue: join(again(red), blue, on="team", within="1 minute"))
    with pytest.raises(Invalid, match="enrich cannot take windows that are emitted more than once"):
        streams.run(lambda red, blue: enrich(again(red), table(blue, key="team"), on="team"))
    # Each window once, or what came since it was shown, are rows as any others.
    for how in ({"lateness": "0 seconds"}, {"results": "discard"}):
        streams.run(lambda red, blue: join(again(red, **how), blue, on="team", within="1 minute"))  # noqa: B023


def test_windows_that_are_shown_again_are_not_counted_again() -> None:
    def twice(results: str) -> Any:
        def build(rows: Any) -> Any:
            first = windowed(
                rows,
                tumbling("2 minutes"),
                by="team",
                aggregates="sum(score) AS total",
                early=each_row(),
                results=results,
            )
            return windowed(first, tumbling("10 minutes"), aggregates="sum(total) AS total")

        return build

    with pytest.raises(Invalid, match="cannot aggregate windows with"):
        SCORES.rows([score("red", 5, "12:01:00")]).run(twice("accumulate"))
    # What each pane adds can be added up, and so can what is shown anew after it was taken back.
    shown = SCORES.rows([score("red", 5, "12:01:00")]).rows([score("red", 2, "12:01:30")]).watermark("2026-01-01 13:00")
    for results in ("discard", "retract"):
        found = shown.watermark("2026-01-01 14:00").run(twice(results))
        assert [row["total"] for row in found.rows] == [7]


def test_of_windows_that_are_taken_back_sums_and_counts_are_right() -> None:
    """As without them: whatever comes late, in any batches."""
    points = [
        ("red", 5, "12:00:30"),
        ("red", 1, "12:01:10"),
        ("blue", 3, "12:03:00"),
        ("red", 7, "12:00:40"),
        ("red", 2, "12:01:50"),
    ]
    script = SCORES.watermark("2026-01-01 12:00")
    for number, point in enumerate(points):
        script = script.rows([score(*point)])
        script = script.watermark("2026-01-01 12:02:30") if number == 1 else script
    script = script.watermark("2026-01-01 14:00")

    def minutes(rows: Any) -> Any:
        aggregates = ["sum(score) AS total", "count(*) AS scores"]
        return windowed(rows, tumbling("1 minute"), aggregates=aggregates, lateness="1 hour", results="retract")

    def longer(rows: Any) -> Any:
        aggregates = [
            "sum(total) AS total", "sum(scores) AS scores", "count(*) AS minutes",
            "count(total) FILTER (WHERE total > 2) AS large",
        ]  # fmt: skip
        return windowed(minutes(rows), tumbling("4 minutes"), aggregates=aggregates, lateness="1 hour")

    for batches in ("scripted", "single rows", "one"):
        last = script.run(longer, batches=batches).latest("window")
        told = [(row["total"], row["scores"], row["minutes"], row["large"]) for row in last]
        assert told == [(18, 5, 3, 3)], batches
    with pytest.raises(Invalid, match=r"max\(total\) is not supported over windows that are retracted"):
        script.run(lambda rows: windowed(minutes(rows), tumbling("4 minutes"), aggregates="max(total) AS most"))


def test_sessions_and_hops_and_everything_take_the_same_settings() -> None:
    rows = [score("red", 5, "12:00:00"), score("red", 1, "12:00:50"), score("red", 2, "12:05:00")]
    script = SCORES.rows(rows).watermark("2026-01-01 13:00")

    def found(kind: Any, **how: Any) -> list[tuple[Any, int]]:
        results = script.run(lambda rows: windowed(rows, kind, by="team", aggregates="sum(score) AS total", **how))
        return [(row["window"]["start"], row["total"]) for row in results.rows]

    assert sorted(found(sessions("1 minute"))) == [(noon(0), 6), (noon(5), 2)]
    assert sorted(found(hopping("1 minute", slide="2 minutes"))) == [(noon(0), 6)]
    assert found(everything(), early=each_row())[-1] == (None, 8)


def test_rows_one_gap_apart_are_one_session_wherever_the_watermark_stands_between_them() -> None:
    script = SCORES.rows([score("red", 5, "12:00:00")]).watermark("2026-01-01 12:01:00")
    script = script.rows([score("red", 2, "12:01:00")]).watermark("2026-01-01 13:00")

    def totals(touching: str) -> list[int]:
        window = sessions("1 minute", touching=touching)
        return [
            row["total"]
            for row in script.run(lambda rows: windowed(rows, window, aggregates="sum(score) AS total")).rows
        ]

    assert totals("join") == [7]
    assert totals("split") == [5, 2]


def test_by_the_time_of_the_append_no_row_is_late() -> None:
    script = (
        SCORES.now("2026-01-01 12:00:30")
        .rows([score("red", 5, "11:00:00")])
        .watermark("2026-01-01 12:00:10")
        .now("2026-01-01 12:01:30")
        .rows([score("red", 2, "11:00:00")])
        .watermark("2026-01-01 12:02:00")
        .now("2026-01-01 12:02:00")
    )
    aggregates = "sum(score) AS total"

    by_append = script.run(
        lambda rows: windowed(rows, tumbling("2 minutes"), aggregates=aggregates, on="record.appended_at")
    )
    by_event = script.run(lambda rows: windowed(rows, tumbling("2 minutes"), aggregates=aggregates))

    assert [(row["window"]["end"], row["total"]) for row in by_append.rows] == [(noon(2), 7)]
    assert by_append.late == []
    assert ([row["total"] for row in by_event.rows], len(by_event.late)) == ([5], 1)


def test_a_gap_that_is_a_column_needs_spark() -> None:
    stream = TestStream("team STRING, at TIMESTAMP", event_time="at")
    gap = object()  # in place of a Spark column, which cannot be made without Spark

    with pytest.raises(Invalid, match="needs Spark, and this test runs without it"):
        stream.run(lambda rows: windowed(rows, sessions(gap), by="team", aggregates="count(*) AS n"))
