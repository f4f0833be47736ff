"""join of streams: what is shown when, what comes too late, what is refused; told by small scripts."""

from __future__ import annotations

import inspect
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from mainstem.errors import Invalid
from mainstem.operators import join, tumbling, windowed
from mainstem.operators.joins import join_engine
from mainstem.testing import TestStream, TestStreams

SHOWN = TestStream("ad STRING, shown_at TIMESTAMP", event_time="shown_at")
CLICKS = TestStream("ad STRING, clicked_at TIMESTAMP", event_time="clicked_at")
STREAMS = TestStreams(shown=SHOWN, clicks=CLICKS)


def at(minute: int) -> str:
    return f"2026-01-01 12:{minute:02d}:00"


def shown(ad: str | None, minute: int) -> dict[str, Any]:
    return {"ad": ad, "shown_at": at(minute)}


def clicked(ad: str | None, minute: int) -> dict[str, Any]:
    return {"ad": ad, "clicked_at": at(minute)}


def joined(**asked: Any) -> Any:
    return lambda shown, clicks: join(shown, clicks, **{"on": "ad", "within": "10 minutes", **asked})


def told(changes: list[tuple[str, dict[str, Any]]]) -> list[tuple[Any, ...]]:
    names = ("shown_at", "clicked_at")
    return [(change, row["ad"], *(row[name].minute if row.get(name) else None for name in names if name in row))
            for change, row in changes]  # fmt: skip


def up_to(streams: TestStreams, minute: int) -> TestStreams:
    """Nothing earlier comes on either side."""
    return streams.watermark("shown", at(minute)).watermark("clicks", at(minute))


def test_a_partner_that_is_late_takes_back_what_was_shown_alone() -> None:
    script = up_to(STREAMS.rows("shown", [shown("a", 0)]), 11).rows("clicks", [clicked("a", 5)])
    results = script.run(joined(how="left", lateness="1 minute"))
    assert told(results.changes) == [("insert", "a", 0, None), ("delete", "a", 0, None), ("insert", "a", 0, 5)]
    assert results.late == []
    assert told(script.run(joined(how="anti", lateness="1 minute")).changes) == [("insert", "a", 0), ("delete", "a", 0)]
    assert told(script.run(joined(how="semi", lateness="1 minute")).changes) == [("insert", "a", 0)]


def test_a_partner_beyond_the_lateness_is_told_with_the_row_it_would_have_met() -> None:
    script = up_to(STREAMS.rows("shown", [shown("b", 1), shown("a", 0)]), 12).rows("clicks", [clicked("a", 5)])
    results = script.run(joined(how="left", lateness="1 minute"))
    assert told(results.changes) == [("insert", "b", 1, None), ("insert", "a", 0, None)]
    [late] = results.late
    assert (late["side"], late["ad"], late["time"].minute, late["watermark"].minute) == ("right", "a", 5, 12)
    assert (late["reason"], late["missed_time"].minute) == ("too late to meet this row", 0)
    assert (late["missed_partition"], late["missed_offset"]) == (0, 1)
    assert results.counts == {"too_late": 1}


def test_a_row_is_shown_alone_only_when_a_partner_at_the_last_moment_would_be_late() -> None:
    script = up_to(STREAMS.rows("shown", [shown("a", 0)]), 10).rows("clicks", [clicked("a", 10)])
    changes = told(up_to(script, 30).run(joined(how="left")).changes)
    assert changes == [("insert", "a", 0, 10)]


def test_a_row_too_late_for_everybody_takes_no_part() -> None:
    script = up_to(STREAMS.rows("shown", [shown("a", 0)]), 50).rows("clicks", [clicked("a", 5)])
    [late] = script.run(joined(how="full")).late
    assert late["reason"] == "too late to meet anybody"


def test_bounds_before_and_after_are_two() -> None:
    script = STREAMS.rows("shown", [shown("a", 10)]).rows("clicks", [clicked("a", minute) for minute in (7, 8, 15, 16)])
    results = script.run(joined(within=("2 minutes", "5 minutes")))
    assert told(results.changes) == [("insert", "a", 10, 8), ("insert", "a", 10, 15)]
    assert [row["event_time"].minute for row in results.rows] == [10, 15]


def test_null_meets_nobody_and_is_shown_alone_on_both_sides() -> None:
    script = up_to(STREAMS.rows("shown", [shown(None, 0)]).rows("clicks", [clicked(None, 0)]), 30)
    results = script.run(joined(how="full"))
    assert sorted(told(results.changes), key=str) == [("insert", None, 0, None), ("insert", None, None, 0)]
    assert results.counts == {"null_keys": 2}
    # The key of a row that came alone from the right is there too.
    alone = up_to(STREAMS.rows("clicks", [clicked("z", 0)]), 30).run(joined(how="right"))
    assert told(alone.changes) == [("insert", "z", None, 0)]


def test_more_than_the_limit_is_cut_and_counted() -> None:
    script = STREAMS.rows("clicks", [clicked("a", minute) for minute in range(9, 0, -1)]).rows("shown", [shown("a", 5)])
    results = script.run(joined(limit=4))
    assert [row["clicked_at"].minute for row in results.rows] == [1, 2, 3, 4]
    assert results.counts == {"pairs_cut": 5, "too_late": 1}
    assert results.late[0]["reason"] == "met more than 4 rows: the others were left out"


def test_without_bounds_rows_meet_for_ever() -> None:
    script = up_to(STREAMS.rows("shown", [shown("a", 0), shown("b", 0)]), 50).rows(
        "clicks", [clicked("a", 55), clicked("a", 1)]
    )
    results = script.run(joined(within=None, state="unbounded"))
    assert told(results.changes) == [("insert", "a", 0, 55), ("insert", "a", 0, 1)]
    assert results.state_rows == {"join-1": 4}


def test_windows_over_a_join_wait_for_rows_that_are_shown_late() -> None:
    """An ad that nobody clicked is shown ten minutes after its time, and is not late for its window."""
    script = up_to(STREAMS.rows("shown", [shown("a", 1), shown("b", 2)]).rows("clicks", [clicked("a", 3)]), 10)
    script = up_to(script, 13)
    rates = ["count(*) AS shown", "count(clicked_at) AS clicked"]

    def counted(shown: Any, clicks: Any) -> Any:
        pairs = join(shown, clicks, on="ad", within="10 minutes", how="left")
        return windowed(pairs, tumbling("5 minutes"), aggregates=rates)

    assert script.run(counted).rows == []
    results = up_to(script, 15).run(counted)
    assert [(row["shown"], row["clicked"]) for row in results.rows] == [(2, 1)]
    assert results.late == []


def test_what_a_stage_gives_is_joined_with_a_topic() -> None:
    def busy(shown: Any, clicks: Any) -> Any:
        counted = windowed(clicks, tumbling("5 minutes"), by="ad", aggregates=["count(*) AS clicks"])
        return join(shown, counted, on="ad", within="10 minutes", at=("shown_at", "closed_at"))

    script = up_to(STREAMS.rows("clicks", [clicked("a", 1), clicked("a", 2)]).rows("shown", [shown("a", 3)]), 6)
    with pytest.raises(Invalid, match='join uses the column "closed_at", which the rows lack'):
        script.run(busy)
    results = script.run(
        lambda shown, clicks: join(
            shown,
            windowed(clicks, tumbling("5 minutes"), by="ad", aggregates=["count(*) AS clicks"]),
            on="ad",
            within="10 minutes",
        )
    )
    assert [(row["ad"], row["clicks"], row["event_time"].minute) for row in results.rows] == [("a", 2, 4)]


def test_one_key_with_half_of_all_rows_does_not_stop_the_rest() -> None:
    """Of ten thousand rows half are of one ad, which is clicked all the time; each of the others is clicked once."""
    hot = [shown("hot", number % 50) for number in range(2_500)]
    script = STREAMS.rows("shown", [*hot, *(shown(f"ad {number}", 1) for number in range(2_500))])
    clicks = [clicked("hot", number % 50) for number in range(2_500)]
    script = script.rows("clicks", [*clicks, *(clicked(f"ad {number}", 2) for number in range(2_500))])
    results = script.run(joined(within="10 minutes", limit=10))
    counted = Counter(row["ad"] == "hot" for row in results.rows)
    assert counted == {True: 2_500 * 10, False: 2_500}
    assert results.counts["pairs_cut"] > 2_500 * 100


def test_pairs_that_would_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_engine, "PAIRS_MAX", 99)
    script = STREAMS.rows("shown", [shown("a", 1)] * 10).rows("clicks", [clicked("a", 1)] * 10)
    with pytest.raises(Invalid, match="a join would produce 100 pairs in one bucket"):
        script.run(joined())


def test_pairs_are_refused_before_there_is_a_place_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four million of them, of one ad: with their numbers alone they would take 64 million bytes."""
    monkeypatch.setattr(join_engine, "PAIRS_MAX", 1_000_000)
    script = STREAMS.rows("shown", [shown("a", 1)] * 2_000).rows("clicks", [clicked("a", 1)] * 2_000)
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match="a join would produce 4,000,000 pairs in one bucket"):
            script.run(joined())
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def limit_forgotten(patch: pytest.MonkeyPatch) -> None:
    found = join_engine.find_pairs
    patch.setattr(join_engine, "find_pairs", lambda *given: found(*given[:5], 2**40, *given[6:]))


def cuts_not_counted(patch: pytest.MonkeyPatch) -> None:
    found = join_engine.find_pairs
    patch.setattr(join_engine, "find_pairs", lambda *given: replace(pairs := found(*given), cut=pairs.cut * 0))


def checked_too_late(patch: pytest.MonkeyPatch) -> None:
    found = join_engine.find_pairs

    def wrong(*given: Any) -> Any:
        pairs = found(*given[:6])
        given[6](len(pairs.asking))
        return pairs

    patch.setattr(join_engine, "find_pairs", wrong)


@pytest.mark.parametrize(
    ("mutate", "test"),
    [
        (limit_forgotten, test_more_than_the_limit_is_cut_and_counted),
        (cuts_not_counted, test_more_than_the_limit_is_cut_and_counted),
        (cuts_not_counted, test_one_key_with_half_of_all_rows_does_not_stop_the_rest),
        (checked_too_late, test_pairs_are_refused_before_there_is_a_place_for_them),
    ],
)
def test_a_join_that_bounds_nothing_is_found(mutate: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    given = [monkeypatch] * len(inspect.signature(test).parameters)
    with pytest.raises((AssertionError, KeyError)):
        test(*given)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"within": None}, "has no time bound"),
        ({"within": None, "state": "unbounded", "how": "left"}, 'without a time bound does not support how="left"'),
        ({"how": "outer"}, 'does not support how="outer"'),
        ({"on": []}, "no columns to join on"),
        ({"on": "add"}, 'uses the column "add", which the rows lack'),
        ({"on": {"ad": "clicked_at"}}, 'cannot compare "ad" with "clicked_at"'),
        ({"limit": 0}, "limit is 0"),
        ({"within": ("-1 minutes", "5 minutes")}, "is negative"),
    ],
)
def test_what_cannot_be_joined_is_refused_while_building(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        STREAMS.run(joined(**asked))


def test_columns_of_both_sides_must_be_told_apart() -> None:
    both = TestStreams(left=SHOWN, right=SHOWN)
    with pytest.raises(Invalid, match='both sides of the join have a column "shown_at"') as raised:
        both.run(lambda left, right: join(left, right, on="ad", within="1 minute"))
    assert 'right.withColumnRenamed("shown_at", "right_shown_at")' in raised.value.hint
    # Where the right side is not shown its names do no harm.
    both.run(lambda left, right: join(left, right, on="ad", within="1 minute", how="semi"))
    named = TestStreams(shown=TestStream("ad STRING, event_time TIMESTAMP", event_time="event_time"), clicks=CLICKS)
    with pytest.raises(Invalid, match='a side of the join has a column "event_time"'):
        named.run(joined())


def test_a_stream_without_a_watermark_is_refused() -> None:
    timeless = TestStreams(shown=TestStream("ad STRING, shown_at TIMESTAMP"), clicks=CLICKS)
    with pytest.raises(Invalid, match="join needs one event time, and no columns are marked"):
        timeless.run(joined())
    with pytest.raises(Invalid, match="join needs a watermark, and the left stream has none"):
        timeless.run(joined(at=("shown_at", "clicked_at")))
