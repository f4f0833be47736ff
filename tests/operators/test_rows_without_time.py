"""Rows without an event time, in every operator: set aside where somebody can see them, or treated as any other row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainstem.clock import as_datetime
from mainstem.operators import (
    aggregate,
    calendar,
    compare_with,
    cumulating,
    dedupe,
    distinct,
    each_row,
    enrich,
    everything,
    hopping,
    join,
    late_rows,
    latest,
    on_time_rows,
    process,
    sessions,
    sliding,
    table,
    top,
    tumbling,
    validity,
    windowed,
)
from mainstem.operators.joins.join_terms import HOW
from mainstem.operators.processes.process_class import Process
from mainstem.testing import TestResults, TestStream, TestStreams
from tests.operators.two_streams import ORIGIN

Row = dict[str, Any]
Operator = Callable[..., Any]

SECOND = 1_000_000
SEEDS = range(3)
UTC = ZoneInfo("UTC")
FACTS = "key INT, number INT, at TIMESTAMP"
OTHERS = "key INT, other INT, other_at TIMESTAMP"


def moment(microseconds: int) -> datetime:
    """As a result has it."""
    return as_datetime(microseconds).astimezone(UTC)


def facts(random: Random, rows: int = 40) -> list[Row]:
    """Rows of a few keys, some of them late, every third without a time."""
    found = []
    for number in range(rows):
        at = ORIGIN + (number - random.choice([0, 0, 3, 12])) * SECOND
        timed = random.random() > 0.3
        found.append({"key": random.randrange(3), "number": number, "at": moment(at) if timed else None})
    return found


def scripted(rows: list[Row], batches: int = 5) -> TestStream:
    """In batches by number: rows that are left out do not move the others into another one."""
    script = TestStream(FACTS, event_time="at", delay="4 seconds")
    for batch in range(batches):
        script = script.rows([row for row in rows if row["number"] * batches // 40 == batch])
    return script.watermark("2027-01-01")


def timed(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["at"] is not None]


def told(results: TestResults) -> list[Any]:
    return [sorted(map(str, batch)) for batch in results.batches]


def without_time(results: TestResults, reason: str) -> Counter[Any]:
    return Counter((row.get("side"), row["offset"]) for row in results.late if row["reason"] == reason)


# Operators that go by time set such a row aside, and else do as if it had not come.

WINDOWS = {
    "tumbling": tumbling("5 seconds"),
    "hopping": hopping("6 seconds", slide="3 seconds"),
    "cumulating": cumulating("6 seconds", step="2 seconds"),
    "calendar": calendar("hour", time_zone="Europe/Berlin"),
    "sliding": sliding("3 seconds"),
    "sessions": sessions("2 seconds"),
    "validity": validity(),
    "everything": everything(),
}


def over_windows(window: Any, **more: Any) -> Operator:
    return lambda rows: windowed(rows, window, by="key", aggregates=["count(*) AS rows", "max(number) AS last"], **more)


SETTING_ASIDE: dict[str, Operator] = {
    **{name: over_windows(window) for name, window in WINDOWS.items()},
    **{
        f"{name}, shown early and late": over_windows(window, early=each_row(), lateness="5 seconds", results="retract")
        for name, window in WINDOWS.items()
    },
    "dedupe": lambda rows: dedupe(rows, by="key", within="2 seconds"),
}


@pytest.mark.parametrize("name", SETTING_ASIDE)
def test_an_operator_that_goes_by_time_sets_it_aside_once(name: str) -> None:
    for seed in SEEDS:
        rows = facts(Random(seed))
        found, expected = (scripted(of).run(SETTING_ASIDE[name]) for of in (rows, timed(rows)))
        assert told(found) == told(expected), seed
        places = [place for place, row in enumerate(rows) if row["at"] is None]
        assert without_time(found, "no event time") == Counter((None, place) for place in places), seed
        assert len(found.late) - len(places) == len(expected.late), seed


# Two streams


@dataclass(frozen=True)
class Sides:
    """Rows of both, each batch of one of them."""

    left: list[Row]
    right: list[Row]

    def script(self, *, timed: bool = True) -> TestStreams:
        left, right = ("at", "other_at") if timed else (None, None)
        script = TestStreams(
            left=TestStream(FACTS, event_time=left, delay="4 seconds" if timed else None),
            right=TestStream(OTHERS, event_time=right, delay="4 seconds" if timed else None),
        )
        for batch in range(4):
            script = script.rows("left", [row for row in self.left if row["number"] * 4 // 40 == batch])
            script = script.rows("right", [row for row in self.right if row["other"] * 4 // 40 == batch])
        return script.watermark("left", "2027-01-01").watermark("right", "2027-01-01") if timed else script

    def timed(self) -> Sides:
        return Sides(timed(self.left), [row for row in self.right if row["other_at"] is not None])

    def timeless(self) -> Counter[Any]:
        sides = (("left", [row["at"] for row in self.left]), ("right", [row["other_at"] for row in self.right]))
        return Counter((side, place) for side, times in sides for place, at in enumerate(times) if at is None)


def both(seed: int) -> Sides:
    random = Random(seed)
    others = [{"key": row["key"], "other": row["number"], "other_at": row["at"]} for row in facts(random)]
    return Sides(facts(random), others)


@pytest.mark.parametrize("how", HOW)
def test_a_join_within_a_time_sets_it_aside(how: Any) -> None:
    for seed in SEEDS:
        sides = both(seed)
        found, expected = (
            of.script().run(lambda left, right: join(left, right, on="key", within="2 seconds", how=how))
            for of in (sides, sides.timed())
        )
        assert told(found) == told(expected), seed
        assert without_time(found, "no event time") == sides.timeless(), seed


@pytest.mark.parametrize("how", ["inner", "semi"])
@pytest.mark.parametrize("timed", [True, False], ids=["times missing in some rows", "streams without event time"])
def test_a_join_without_a_bound_asks_for_no_time(how: Any, timed: bool) -> None:
    for seed in SEEDS:
        sides = both(seed)
        results = sides.script(timed=timed).run(
            lambda left, right: join(left, right, on="key", how=how, state="unbounded")
        )
        pairs = [(a["number"], b["other"]) for a in sides.left for b in sides.right if a["key"] == b["key"]]
        expected = pairs if how == "inner" else sorted({(number, None) for number, _ in pairs})
        assert Counter((row["number"], row.get("other")) for row in results.rows) == Counter(expected), seed
        assert results.late == []


def test_a_lookup_by_time_sets_it_aside() -> None:
    for seed in SEEDS:
        sides = both(seed)
        found, expected = (
            of.script().run(lambda left, right: enrich(left, table(right, key="key"), on="key"))
            for of in (sides, sides.timed())
        )
        # Where a version stands differs: fewer rows stand before it.
        plain = [
            [[(row["number"], row["other"]) for _, row in batch] for batch in of.batches] for of in (found, expected)
        ]
        assert plain[0] == plain[1], seed
        assert without_time(found, "no time") == sides.timeless(), seed


def test_a_lookup_in_what_is_known_asks_for_no_time() -> None:
    for seed in SEEDS:
        sides = both(seed)
        results = sides.script().run(lambda left, right: enrich(left, table(right, key="key"), on="key", at=latest()))
        expected, known = [], {}
        for batch in range(4):
            # A batch has rows of one stream; the facts come first.
            of = [row for row in sides.left if row["number"] * 4 // 40 == batch]
            expected += [(row["number"], known.get(row["key"])) for row in of]
            known |= {row["key"]: row["other"] for row in sides.right if row["other"] * 4 // 40 == batch}
        assert [(row["number"], row["other"]) for row in results.rows] == expected, seed
        assert results.late == []


# Operators that do not go by time take the row as any other.


def tabled(results: TestResults) -> list[str]:
    """What is there in the end."""
    counted: Counter[str] = Counter()
    for change, row in results.changes:
        counted[str(row)] += -1 if change == "delete" else 1
    assert min(counted.values(), default=0) >= 0
    return sorted(counted.elements())


def newest(rows: list[Row]) -> list[Row]:
    return list({row["key"]: row for row in rows}.values())


def highest(rows: list[Row]) -> list[Row]:
    """A missing time is below every other; of equal ones the last counts."""
    return newest(sorted(rows, key=lambda row: (row["at"] is not None, row["at"] or 0)))


def totals(rows: list[Row]) -> list[Row]:
    found = []
    for key in sorted({row["key"] for row in rows}):
        of = [row for row in rows if row["key"] == key]
        times = [row["at"] for row in of if row["at"] is not None]
        found.append({"key": key, "rows": len(of), "timed": len(times), "last": max(times, default=None)})
    return found


def firsts(rows: list[Row]) -> list[Row]:
    """The two latest of each key, those without a time last."""
    found = []
    for key in {row["key"] for row in rows}:
        of = [row for row in rows if row["key"] == key]
        of.sort(key=lambda row: (row["at"] is None, -(row["at"].timestamp() if row["at"] else 0), row["number"]))
        found += of[:2]
    return found


class Counted(Process):
    output = "key INT, rows BIGINT"

    @dataclass
    class State:
        rows: int = 0

    def on_rows(self, key, rows, state, timers):  # type: ignore[no-untyped-def]
        state.rows += len(list(rows))
        yield {"key": key, "rows": state.rows}


GROUPED = ["count(*) AS rows", "count(at) AS timed", "max(at) AS last"]
TAKING: dict[str, tuple[Operator, Callable[[list[Row]], list[Row]]]] = {
    "table": (lambda rows: table(rows, key="key"), newest),
    "table by time": (lambda rows: table(rows, key="key", order_by="at"), highest),
    "aggregate": (lambda rows: aggregate(table(rows, key="number"), by="key", aggregates=GROUPED), totals),
    "top": (lambda rows: top(rows, 2, by="key", order="at DESC NULLS LAST"), firsts),
    "distinct": (distinct, lambda rows: rows),
}


@pytest.mark.parametrize("name", TAKING)
def test_an_operator_that_does_not_go_by_time_takes_it_as_any_other(name: str) -> None:
    operator, naive = TAKING[name]
    for seed in SEEDS:
        rows = facts(Random(seed))
        results = scripted(rows).run(operator)
        assert tabled(results) == sorted(map(str, naive(rows))), seed
        assert results.late == []


def test_a_process_is_given_it() -> None:
    for seed in SEEDS:
        rows = facts(Random(seed))
        results = scripted(rows).run(lambda rows: process(rows, by="key", using=Counted))
        counted = {row["key"]: row["rows"] for row in results.rows}
        assert counted == Counter(row["key"] for row in rows), seed


def test_nobody_can_say_that_it_is_late() -> None:
    rows = facts(Random(1))
    timeless = [row["number"] for row in rows if row["at"] is None]
    late, on_time = (scripted(rows).run(split).rows for split in (late_rows, on_time_rows))
    assert [row["number"] for row in late if row["at"] is None] == []
    assert [row["number"] for row in on_time if row["at"] is None] == timeless


WINDOW = "key INT, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, total INT"


def test_a_window_without_a_start_has_nothing_earlier_to_be_compared_with() -> None:
    """One of `everything` has neither start nor end, the last of `validity` no end."""
    start, later = moment(ORIGIN), moment(ORIGIN + 10 * SECOND)
    spans = [None, {"start": None, "end": None}, {"start": start, "end": later}, {"start": later, "end": None}]
    given = [{"key": key, "window": span, "total": 7 + key} for key, span in enumerate(spans[:2])]
    given += [{"key": 9, "window": span, "total": 3 * place} for place, span in enumerate(spans[2:], 1)]
    script = TestStream(WINDOW).rows(given).rows([{**given[0], "total": 8}])
    results = script.run(lambda rows: compare_with(rows, earlier="10 seconds"))
    nowhere = {"start": None, "end": None}
    assert sorted(map(str, results.changes)) == sorted(
        str((change, {"key": key, "window": window, "total": total, "total_earlier": earlier, "total_ratio": ratio}))
        for change, key, window, total, earlier, ratio in [
            ("insert", 0, nowhere, 7, None, None),
            ("insert", 1, nowhere, 8, None, None),
            ("insert", 9, spans[2], 3, None, None),
            ("insert", 9, spans[3], 6, 3, 2.0),
            ("update", 0, nowhere, 8, None, None),
        ]
    )
