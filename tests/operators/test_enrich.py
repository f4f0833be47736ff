"""enrich: when a row is looked up, what corrections do, what is refused; told by small scripts."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem.errors import Invalid
from mainstem.operators import enrich, latest, table
from mainstem.operators.joins.enrich_engine import Versions
from mainstem.operators.stage.engine import NEVER
from mainstem.testing import TestStream, TestStreams
from tests.operators.naive_enrich import with_deletes

HOMES = TestStream("user INT, zip STRING, moved_at TIMESTAMP", event_time="moved_at")
VISITS = TestStream("user INT, page STRING, seen_at TIMESTAMP", event_time="seen_at")
STREAMS = TestStreams(homes=HOMES, visits=VISITS)


def day(number: int) -> str:
    return f"2026-01-{number:02d}"


def home(zip: str, moved: int, user: int = 1) -> dict[str, Any]:
    return {"user": user, "zip": zip, "moved_at": day(moved)}


def visit(seen: int, user: int | None = 1) -> dict[str, Any]:
    return {"user": user, "page": "/", "seen_at": day(seen)}


def up_to(streams: TestStreams, number: int) -> TestStreams:
    return streams.watermark("homes", day(number)).watermark("visits", day(number))


def looked_up(**asked: Any) -> Any:
    return lambda homes, visits: enrich(visits, table(homes, key="user"), on="user", **asked)


def told(changes: list[tuple[str, dict[str, Any]]]) -> list[tuple[Any, ...]]:
    return [(change, row["seen_at"].day, row["zip"]) for change, row in changes]


def test_a_row_waits_until_what_was_valid_is_known() -> None:
    script = STREAMS.rows("homes", [home("53111", 1)]).rows("visits", [visit(5)])
    # It moved before, and the record of it comes after the visit.
    script = script.rows("homes", [home("10115", 4)])
    assert script.run(looked_up()).rows == []
    results = up_to(script, 6).run(looked_up())
    assert told(results.changes) == [("insert", 5, "10115")]
    assert results.rows[0]["version"]["valid_from"].day == 4
    assert (results.rows[0]["version"]["partition"], results.rows[0]["version"]["offset"]) == (0, 1)
    # The version that was replaced, and the visit, are not needed any more.
    assert up_to(script, 8).run(looked_up()).state_rows["enrich-1"] == 1


def test_until_when_a_version_is_valid_is_what_was_known_then() -> None:
    script = STREAMS.rows("homes", [home("53111", 1), home("10115", 9)]).rows("visits", [visit(5), visit(9)])
    # The log has this one when nobody can know of it any more on day 5: for day 9 alone it is the next.
    script = up_to(script, 7).rows("homes", [home("20095", 8), home("80331", 12)])
    found = up_to(script, 13).run(looked_up()).rows
    told = [
        [row["version"][name] and row["version"][name].day for name in ("valid_from", "valid_until")] for row in found
    ]
    assert told == [[1, 9], [9, 12]]
    # As it is known, nobody knows until when.
    assert script.run(looked_up(at=latest())).rows[0]["version"]["valid_until"] is None


def test_nothing_is_kept_of_a_key_that_is_gone_for_long() -> None:
    def deleted(homes: Any, visits: Any) -> Any:
        return enrich(visits, table(with_deletes(homes), key="user"), on="user", lateness="2 days")

    def gone(zip: str, moved: int) -> dict[str, Any]:
        return {**home(zip, moved), "gone": zip == ""}

    homes = TestStream("user INT, zip STRING, gone BOOLEAN, moved_at TIMESTAMP", event_time="moved_at")
    script = up_to(TestStreams(homes=homes, visits=VISITS).rows("homes", [gone("53111", 1), gone("", 4)]), 7)
    assert script.run(deleted).state_rows["enrich-1"] == 0
    assert up_to(script, 6).run(deleted).state_rows["enrich-1"] == 0
    # While it is known that it is gone, what was valid before that does not count; later it does, from when it comes.
    early, late = (up_to(TestStreams(homes=homes, visits=VISITS).rows("homes", [gone("", 4)]), day) for day in (6, 7))
    for before, expected in ((early, None), (late, "10115")):
        script = up_to(before.rows("homes", [gone("10115", 3)]).rows("visits", [visit(8)]), 9)
        # Also where everything comes at once, and nothing was forgotten yet.
        for batches in ("scripted", "one"):
            assert [row["zip"] for row in script.run(deleted, batches=batches).rows] == [expected], batches


def test_deletes_that_are_remembered_for_ever_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Versions.__init__
    monkeypatch.setattr(
        Versions, "__init__", lambda self, *given, **more: right(self, *given, **{**more, "remembered": NEVER})
    )
    with pytest.raises(AssertionError, match="one"):
        test_nothing_is_kept_of_a_key_that_is_gone_for_long()


def test_a_row_waits_no_longer_than_it_may() -> None:
    script = STREAMS.now("2026-01-05 12:00").rows("homes", [home("53111", 1)]).rows("visits", [visit(5)])
    script = script.now("2026-01-05 12:09").now("2026-01-05 12:10").rows("homes", [home("10115", 4)])
    results = up_to(script, 6).run(looked_up(wait="10 minutes"))
    assert told(results.changes) == [("insert", 5, "53111")]
    corrected = up_to(script, 6).run(looked_up(wait="10 minutes", corrections="re-emit"))
    assert told(corrected.changes) == [("insert", 5, "53111"), ("delete", 5, "53111"), ("insert", 5, "10115")]


def test_a_correction_of_the_past_touches_exactly_the_rows_it_is_valid_for() -> None:
    script = STREAMS.rows("homes", [home("53111", 1), home("20095", 9)])
    script = up_to(script.rows("visits", [visit(seen) for seen in (3, 5, 7, 10)]), 11)
    script = script.rows("homes", [home("10115", 4)])
    again = script.run(looked_up(corrections="re-emit", lateness="10 days"))
    assert told(again.batches[-1]) == [
        ("delete", 5, "53111"), ("delete", 7, "53111"), ("insert", 5, "10115"), ("insert", 7, "10115")
    ]  # fmt: skip
    ignored = script.run(looked_up(lateness="10 days"))
    assert told(ignored.batches[-1]) == []
    # Too late for that: rows of four days ago are as they are.
    closed = script.run(looked_up(corrections="re-emit", lateness="5 days"))
    assert told(closed.batches[-1]) == [("delete", 7, "53111"), ("insert", 7, "10115")]


def test_the_latest_is_what_is_known_when_a_row_comes() -> None:
    script = STREAMS.rows("visits", [visit(9)]).rows("homes", [home("53111", 1)]).rows("visits", [visit(2)])
    script = script.rows("homes", [home("10115", 5)]).rows("visits", [visit(3), visit(3, None)])
    results = script.run(looked_up(at=latest()))
    assert told(results.changes) == [
        ("insert", 9, None),
        ("insert", 2, "53111"),
        ("insert", 3, "10115"),
        ("insert", 3, None),
    ]
    assert results.rows[0]["version"] is None
    assert results.state_rows["enrich-1"] == 1
    assert len(script.run(looked_up(at=latest(), how="inner")).rows) == 2


def test_a_table_is_ordered_by_what_it_says() -> None:
    changes = TestStream("user INT, zip STRING, since TIMESTAMP, moved_at TIMESTAMP", event_time="moved_at")
    script = TestStreams(homes=changes, visits=VISITS).rows(
        "homes", [{"user": 1, "zip": "53111", "since": day(7), "moved_at": day(1)}]
    )
    script = up_to(script.rows("visits", [visit(5), visit(8)]), 9)
    results = script.run(lambda homes, visits: enrich(visits, table(homes, key="user", order_by="since"), on="user"))
    assert told(results.changes) == [("insert", 5, None), ("insert", 8, "53111")]


def test_a_row_that_comes_when_versions_are_forgotten_is_told_apart() -> None:
    script = up_to(STREAMS.rows("homes", [home("53111", 1)]), 9).rows("visits", [visit(5), visit(8)])
    results = up_to(script, 10).run(looked_up(lateness="2 days"))
    assert told(results.changes) == [("insert", 8, "53111")]
    [late] = results.late
    assert (late["user"], late["time"].day, late["reason"]) == (1, 5, "too late: what was valid is forgotten")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"how": "right"}, 'does not support how="right"'),
        ({"corrections": "always"}, 'does not support corrections="always"'),
        ({"at": latest(), "wait": "1 minute"}, "neither waits nor corrects"),
        ({"at": latest(), "corrections": "re-emit"}, "neither waits nor corrects"),
        ({"at": "sen_at"}, 'uses the column "sen_at", which the rows lack'),
        ({"on": {"user": "zip"}}, "looks up rows by zip, but the key of the table is user"),
    ],
)
def test_what_cannot_be_looked_up_is_refused_while_building(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        STREAMS.run(lambda homes, visits: enrich(visits, table(homes, key="user"), **{"on": "user", **asked}))


def test_what_is_no_table_or_has_no_time_is_refused() -> None:
    with pytest.raises(Invalid, match="needs a table, and was given a stream"):
        STREAMS.run(lambda homes, visits: enrich(visits, homes, on="user"))
    numbered = TestStreams(homes=TestStream("user INT, zip STRING, edition INT"), visits=VISITS)
    with pytest.raises(Invalid, match='a table ordered by "edition"'):
        numbered.run(lambda homes, visits: enrich(visits, table(homes, key="user", order_by="edition"), on="user"))
    numbered.run(
        lambda homes, visits: enrich(visits, table(homes, key="user", order_by="edition"), on="user", at=latest())
    )
    timeless = TestStreams(homes=HOMES, visits=TestStream("user INT, seen_at TIMESTAMP"))
    with pytest.raises(Invalid, match="enrich by time needs a watermark"):
        timeless.run(lambda homes, visits: enrich(visits, table(homes, key="user"), on="user", at="seen_at"))
    clashing = TestStreams(homes=TestStream("user INT, page STRING"), visits=VISITS)
    with pytest.raises(Invalid, match='both sides of the join have a column "page"'):
        clashing.run(lambda homes, visits: enrich(visits, table(homes, key="user"), on="user", at=latest()))
