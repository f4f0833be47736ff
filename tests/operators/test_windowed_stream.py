"""windowed in flows: into views and topics, early, late and taken back; the law for every kind of window."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.log.activity import read_activity
from mainstem.operators import (
    calendar,
    cumulating,
    each_row,
    everything,
    hopping,
    sessions,
    sliding,
    tumbling,
    validity,
    windowed,
)
from tests.laws import Case, law_differences, split

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = "team STRING, score INT, at TIMESTAMP"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def score(team: str, points: int, seconds: float) -> dict[str, Any]:
    return {"team": team, "score": points, "at": at(seconds)}


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Team, minute of the window's start, total, and the rest as it is needed to tell panes apart."""
    return [
        (
            row["team"],
            round((row["window"]["start"] - START).total_seconds()),
            row["total"],
            row["pane"]["timing"],
            row["pane"]["index"],
            row["pane"]["final"],
        )
        for row in rows
    ]


def totals(stem: Mainstem) -> dict[tuple[str, int], int]:
    return {(team, start): total for team, start, total, *_ in shown(stem.view("totals").to_arrow().to_pylist())}


def check_reports(stem, scores):
    """The reports on the batches of `totals` agree with the log, and its activity with its runs."""
    batches = stem.query("SELECT * FROM \"mainstem.progress\" WHERE flow = 'totals' ORDER BY batch").to_pylist()
    reads = [source for batch in batches for source in batch["sources"]]
    assert {source["source"] for source in reads} == {"scores"}
    assert sum(source["records"] for source in reads) == scores.to_arrow().num_rows
    for number in range(scores.settings.partitions):
        ranges = [source["partitions"][number] for source in reads]
        assert ranges[0]["start"] == 0
        assert [part["start"] for part in ranges[1:]] == [part["stop"] for part in ranges[:-1]]
        assert ranges[-1]["stop"] == scores.backend.latest(number)
    reached = [part["watermark"] for part in reads[-1]["partitions"] if part["watermark"] is not None]
    assert min(reached) == batches[-1]["watermark"]
    stages = [stage for batch in batches for stage in batch["stages"]]
    [name] = {stage["stage"] for stage in stages}
    assert name == "windowed-0"
    assert sum(stage["rows_in"] for stage in stages) == scores.to_arrow().num_rows
    assert [sum(stage[unit] for stage in stages) for unit in ("late", "too_late")] == [1, 2]
    assert [stages[-1][unit] for unit in ("state_rows", "state_bytes")] == [
        batches[-1]["state_rows"],
        batches[-1]["state_bytes"],
    ]
    assert all(0 <= stage["slowest_ms"] <= stage["ms"] for stage in stages)
    assert all(0 <= batch["sink_ms"] <= dict(batch["phases"])["addBatch"] for batch in batches)
    happened = [(row["what"], row["epoch"]) for row in read_activity(stem.log, 0, {"totals"})]
    assert happened == [("begun", 1), ("ended", 1), ("begun", 2), ("ended", 2)]
    minutes = stem.query("SELECT sum(batches) AS n FROM \"mainstem.progress.minutes\" WHERE flow = 'totals'")
    assert minutes.to_pylist() == [{"n": len(batches)}]


@pytest.mark.usefixtures("one_bucket")
def test_windows_are_shown_early_on_time_and_late_and_too_late_rows_are_kept(stem: Mainstem) -> None:
    scores = stem.create_topic("scores", schema=SCHEMA, event_time="at")
    total = F.sum("score").alias("total")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("scores").stream(watermark="10 seconds")
        two = tumbling("2 minutes")
        corrected = windowed(
            rows, two, by="team", aggregates=total, early=each_row(), lateness="2 minutes", results="retract"
        )
        yield Flow(corrected, into=stem.view("totals", key=["team", "window"]))
        yield Flow(windowed(rows, two, by="team", aggregates=[total, F.count("*")]), into=stem.topic("finals"))
        # Over windows that are corrected: what is taken back is subtracted.
        aggregates = [F.sum("total").alias("total"), F.count("*").alias("windows")]
        hourly = windowed(corrected, tumbling("1 hour"), aggregates=aggregates, early=each_row(), lateness="1 day")
        yield Flow(hourly.drop("pane"), into=stem.view("hours", key="window"))

    running = stem.start(flows)
    scores.append([score("red", 5, 10), score("blue", 2, 20)])
    running.wait_until_idle()
    assert totals(stem) == {("red", 0): 5, ("blue", 0): 2}
    scores.append([score("red", 3, 100), score("red", 1, 150)])
    running.wait_until_idle()
    assert totals(stem) == {("red", 0): 8, ("blue", 0): 2, ("red", 120): 1}
    running.stop()
    # On time is up to 150 - 10 seconds: the first window's end has passed, and the red row of 50 seconds is late.
    running = stem.start(flows)
    scores.append([score("red", 4, 50)])
    running.wait_until_idle()
    assert totals(stem) == {("red", 0): 12, ("blue", 0): 2, ("red", 120): 1}
    # Now its lateness is over as well: nothing counts there any more.
    scores.append([score("blue", 1, 400)])
    scores.append([score("red", 100, 60), {"team": "red", "score": 7, "at": None}])
    scores.append([score("blue", 1, 4000)])
    running.wait_until_idle()
    running.stop()

    assert totals(stem) == {("red", 0): 12, ("blue", 0): 2, ("red", 120): 1, ("blue", 360): 1, ("blue", 3960): 1}
    late = stem.topic("totals.late").to_arrow().to_pylist()
    assert Counter((row["team"], row["total"], row["reason"]) for row in late) == Counter(
        [("red", 100, "too late"), ("red", 7, "no event time")]
    )
    counted = "sum(late) AS late, sum(too_late) AS too_late"
    told = stem.query(f"SELECT {counted} FROM \"mainstem.progress\" WHERE flow = 'totals'").to_pylist()
    assert told == [{"late": 1, "too_late": 2}]
    check_reports(stem, scores)
    finals = stem.topic("finals").to_arrow().to_pylist()
    assert sorted(shown(finals)) == [
        ("blue", 0, 2, "on_time", 0, True),
        ("blue", 360, 1, "on_time", 0, True),
        ("red", 0, 8, "on_time", 0, True),
        ("red", 120, 1, "on_time", 0, True),
    ]
    assert [(row["total"], row["windows"]) for row in stem.view("hours").to_arrow().to_pylist()] == [(16, 4), (1, 1)]


KINDS = {
    "tumbling": tumbling("1 minute"),
    "hopping": hopping("3 minutes", slide="1 minute"),
    "with a rest": hopping("90 seconds", slide="1 minute"),
    "cumulating": cumulating("4 minutes", step="1 minute"),
    "calendar": calendar("hour", time_zone="Asia/Kolkata"),
    "sessions": sessions("40 seconds"),
    "sliding": sliding("1 minute"),
    # These have windows that end when everything has come: in a stream they are seen early alone.
    "validity": validity(),
    "everything": everything(),
}


def side_by_side(rows: DataFrame, kinds: Sequence[str]) -> DataFrame:
    """Each kind beside the others, over the same rows."""

    def one(title: str) -> DataFrame:
        aggregates: list[Column] = [
            F.sum("score").alias("total"),
            F.count("*").alias("plays"),
            F.last("score").alias("last"),
            F.sort_array(F.collect_set("score")).alias("scores"),
        ]
        early = each_row() if title in ("validity", "everything") else None
        found = windowed(rows, KINDS[title], by=["case_id", "team"], aggregates=aggregates, on="at", early=early)
        return found.select(F.lit(title).alias("kind"), *found.drop("pane").columns)

    return reduce(DataFrame.unionByName, map(one, kinds))


# In every run one kind of each engine.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kinds", "steps"),
    [
        pytest.param(["tumbling", "sessions", "sliding", "validity"], 3, id="some"),
        pytest.param(list(KINDS), 4, marks=pytest.mark.long, id="all"),
    ],
)
def test_the_law_holds_for_every_kind_of_window(stem: Mainstem, kinds: list[str], steps: int) -> None:
    chance = random.Random(17)
    cases = []
    for case in range(30):
        rows = [score(chance.choice("ab"), chance.randint(0, 9), chance.randint(0, 600)) for _ in range(12)]
        # Rows come up to two minutes late, which the watermark allows.
        rows.sort(key=lambda row: row["at"] + timedelta(seconds=chance.randint(0, 120)))
        cases.append(Case(case, split(rows, steps, chance)))

    differences = law_differences(
        stem,
        lambda rows: side_by_side(rows, kinds),
        cases,
        schema=SCHEMA,
        key=["kind", "case_id", "team", "window"],
        event_time="at",
        watermark="20 minutes",
        flush=[score("z", 0, 20_000), score("z", 0, 20_000)],
        restarts=1,
        seed=3,
    )

    assert not differences, differences[0]
