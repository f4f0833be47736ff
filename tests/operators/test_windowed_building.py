"""What windowed refuses while a program is built; that rows are made ready alike with Spark and without."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mainstem import Mainstem
from mainstem.errors import Invalid
from mainstem.operators import (
    after_rows,
    calendar,
    cumulating,
    everything,
    hopping,
    sessions,
    tumbling,
    windowed,
)
from mainstem.operators.stage.engine import BatchClock
from mainstem.operators.stage.stage_task import END_OF_TIME
from mainstem.operators.stage.state_runs import MemoryState
from mainstem.operators.windows.session_engine import SessionEngine
from mainstem.operators.windows.window_assignment import WindowAssignment
from mainstem.operators.windows.window_engine import WindowEngine
from mainstem.operators.windows.window_rows import WindowRows
from mainstem.spark.spark_types import arrow_schema
from mainstem.testing.row_sql import read_aggregate_text

SUM = "sum(score) AS total"


@pytest.fixture
def scores(stem: Mainstem) -> Any:
    stem.create_topic("scores", schema="team STRING, score INT, at TIMESTAMP, `window` INT", event_time="at")
    return stem.topic("scores").stream(watermark="1 minute")


def test_mistakes_are_told_while_building(stem: Mainstem, scores: Any) -> None:
    plain = stem.topic("scores").stream()
    timeless = stem.create_topic("timeless", schema="team STRING, score INT").stream()
    two = tumbling("2 minutes")
    mistakes: list[tuple[str, Any]] = [
        ('column "tean"', lambda: windowed(scores, two, by="tean", aggregates=SUM)),
        ('column "scor"', lambda: windowed(scores, two, aggregates=F.sum("scor"))),
        ('time "sent"|column "sent"', lambda: windowed(scores, two, aggregates=SUM, on="sent")),
        ('"score", which is int32', lambda: windowed(scores, two, aggregates=SUM, on="score")),
        ("each row's watermark", lambda: windowed(plain, two, aggregates=SUM)),
        ("needs one event time", lambda: windowed(timeless, two, aggregates=SUM)),
        ('size "0 seconds" is not positive', lambda: windowed(scores, tumbling("0 seconds"), aggregates=SUM)),
        ('gap "0 seconds" is not positive', lambda: windowed(scores, sessions("0 seconds"), aggregates=SUM)),
        ('results="retracted" is not supported', lambda: windowed(scores, two, aggregates=SUM, results="retracted")),
        ('on_time="never" is not supported', lambda: windowed(scores, two, aggregates=SUM, on_time="never")),
        ("skewness", lambda: windowed(scores, two, aggregates=F.skewness("score"))),
        ("sum_distinct|sum\\(DISTINCT", lambda: windowed(scores, two, aggregates=F.sum_distinct("score"))),
        ("hll_sketch_agg", lambda: windowed(scores, two, aggregates=F.hll_sketch_agg("score"))),
        ('named "pane"', lambda: windowed(scores, two, aggregates=F.sum("score").alias("pane"))),
        ('key column: "team"', lambda: windowed(scores, two, by="team", aggregates=F.sum("score").alias("team"))),
        ('key is named "window"', lambda: windowed(scores, two, by="window", aggregates=SUM)),
        (
            'two aggregates are named "n"',
            lambda: windowed(scores, two, aggregates=["sum(score) AS n", "count(*) AS n"]),
        ),
        ("no aggregates", lambda: windowed(scores, two, aggregates=[])),
        ("is not a kind of window", lambda: windowed(scores, "2 minutes", aggregates=SUM)),
        ("is not a trigger", lambda: windowed(scores, two, aggregates=SUM, early="1 minute")),
        ("late= needs a lateness", lambda: windowed(scores, two, aggregates=SUM, late=after_rows(1))),
        ("gap is a column of type int", lambda: windowed(scores, sessions(F.col("score")), aggregates=SUM)),
        ("the aggregates cannot be parsed", lambda: windowed(scores, two, aggregates=F.col("score"))),
    ]
    for message, build in mistakes:
        with pytest.raises(Invalid, match=message) as refused:
            build()
        assert refused.value.detail, message
        assert refused.value.hint, message
    assert 'stream(watermark="10 minutes")' in _refusal(lambda: windowed(plain, two, aggregates=SUM)).hint


def _refusal(build: Any) -> Invalid:
    with pytest.raises(Invalid) as refused:
        build()
    return refused.value


def test_columns_are_named_as_spark_names_them_and_marked(stem: Mainstem, scores: Any) -> None:
    built = windowed(scores, tumbling("2 minutes"), by="team", aggregates=[F.sum("score"), F.count("*").alias("plays")])
    assert built.isStreaming
    assert built.columns == ["team", "window", "sum(score)", "plays", "pane", "record"]
    assert built.schema["record"].metadata == {"mainstem.record": "1"}
    # Over windows: by their last moment, though no column is marked as the event time.
    again = windowed(built, tumbling("1 hour"), by="team", aggregates=F.sum("plays").alias("plays"))
    assert again.columns == ["team", "window", "plays", "pane", "record"]


def test_panes_that_hold_only_what_is_new_go_into_a_view_as_rows_of_their_own(stem: Mainstem, scores: Any) -> None:
    def schema(**how: Any) -> pa.Schema:
        return arrow_schema(windowed(scores, tumbling("2 minutes"), by="team", aggregates=SUM, **how).schema)

    by_window = stem.view("by_window", key=["team", "window"])
    discarded = schema(results="discard", early=after_rows(2))
    assert "would keep only the last pane" in str(_refusal(lambda: by_window.accept(discarded)))
    stem.view("by_pane", key=["team", "window", "pane"]).accept(discarded)
    # Where a window has one pane, nothing is replaced.
    by_window.accept(schema(results="discard"))
    by_window.accept(schema(results="accumulate", early=after_rows(2)))


KINDS = {
    "tumbling": tumbling("10 minutes", offset="3 minutes"),
    "hopping": hopping("30 minutes", slide="10 minutes"),
    "with a rest": hopping("25 minutes", slide="10 minutes", offset="1 minute"),
    "with gaps": hopping("4 minutes", slide="10 minutes"),
    "cumulating": cumulating("1 hour", step="10 minutes", offset="5 minutes"),
    "hours": calendar("hour", time_zone="Asia/Kolkata"),
    "hours that are cut": calendar("hour", time_zone="Australia/Lord_Howe"),
    "days": calendar("day", time_zone="Europe/Berlin"),
    "weeks": calendar("week", time_zone="America/Havana"),
    "quarters": calendar("quarter", time_zone="America/Sao_Paulo"),
    "everything": everything(),
}


# When clocks are moved.
BERLIN, LORD_HOWE = datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 4, 4, 15, tzinfo=UTC)


def narrow_rows(count: int, chance: random.Random, moved: datetime = BERLIN) -> pa.Table:
    # Around a clock change, with watermarks before and after.
    start = int(moved.timestamp() * 1e6)
    times = [None if chance.random() < 0.05 else start + chance.randint(-7200, 7200) * 1_000_000 for _ in range(count)]
    # Every other one at a whole minute, where windows end.
    watermarks = [
        None if time is None or chance.random() < 0.3 else time + chance.randint(-3600, 5400) * 1_000_000
        for time in times
    ]
    for place in range(0, count, 2):
        watermarks[place] = None if watermarks[place] is None else watermarks[place] // 60_000_000 * 60_000_000
    return pa.table(
        {
            "by_0": pa.array([chance.choice(["a", "b", None]) for _ in range(count)]),
            "time": pa.array(times, pa.int64()),
            "watermark": pa.array(watermarks, pa.int64()),
            "topic": pa.array(np.zeros(count, np.int32)),
            "partition": pa.array(np.arange(count, dtype=np.int32) % 2),
            "offset": pa.array(np.arange(count) // 2),
            "i0_0": pa.array([chance.choice([None, 1, 2, 3]) for _ in range(count)], pa.int32()),
        }
    )


@pytest.mark.parametrize("single", [False, True], ids=["put together", "one by one"])
def test_rows_are_made_ready_alike_with_spark_and_without(spark: SparkSession, single: bool) -> None:
    aggregates = read_aggregate_text(pa.schema([("i0_0", pa.int32())]), ["sum(i0_0)", "count(*)"], "time").aggregates
    key = pa.schema([("by_0", pa.string())])
    wanted = WindowEngine(key, aggregates).input_schema
    tables = [narrow_rows(300, random.Random(11), moved) for moved in (BERLIN, LORD_HOWE)]
    frames = [spark.createDataFrame(table) for table in tables]
    for title, kind in KINDS.items():
        at = 1 if title == "hours that are cut" else 0
        rows, frame = tables[at], frames[at]
        ready = WindowRows(key, aggregates, wanted, WindowAssignment(kind, 1_200_000_000), single)
        native, arrow = ready.native(frame).toArrow(), ready.arrow(rows)

        assert native.schema.names == wanted.names
        assert _summed(native) == _summed(arrow), title
        # Late rows are told one by one, wherever they stood.
        assert _late(native) == _late(arrow), title
        assert _late(arrow) or kind == everything(), title


def test_rows_of_a_session_are_put_together_and_give_the_same(spark: SparkSession) -> None:
    chance = random.Random(12)
    rows = narrow_rows(600, chance)
    gaps = [chance.choice([None, 0, *[1_200_000_000] * 6, 300_000_000]) for _ in range(600)]
    rows = rows.append_column("gap", pa.array(gaps, pa.int64()))
    aggregates = read_aggregate_text(pa.schema([("i0_0", pa.int32())]), ["sum(i0_0)", "count(*)"], "time").aggregates
    engine = SessionEngine(pa.schema([("by_0", pa.string())]), aggregates, lateness=600_000_000, results="retract")
    ready = WindowRows(engine.by, aggregates, engine.input_schema, None, single=False, sessions=True)

    native, arrow = ready.native(spark.createDataFrame(rows)).toArrow(), ready.arrow(rows)

    assert native.num_rows == arrow.num_rows < 0.8 * rows.num_rows
    assert native.schema.names == arrow.schema.names
    assert _sessions(engine, native) == _sessions(engine, arrow)


def _sessions(engine: SessionEngine, rows: pa.Table) -> list[list[str]]:
    """What the sessions are when everything has come, and what came too late for them."""
    clock = BatchClock(watermark=END_OF_TIME, now=END_OF_TIME)
    step = engine.step(MemoryState(engine.state_schema), rows.cast(engine.input_schema), clock)
    assert step.late is not None
    assert step.late.num_rows
    return [sorted(map(str, table.to_pylist())) for table in (step.output, step.late)]


def _summed(rows: pa.Table) -> list[Any]:
    names = ["by_0", "window_start", "window_end", "timing"]
    found = rows.group_by(names).aggregate([("rows", "sum"), ("a0_sum", "sum"), ("a1_count", "sum")])
    return sorted((list(row.values()) for row in found.to_pylist()), key=str)


def _late(rows: pa.Table) -> list[Any]:
    names = ["by_0", "window_start", "window_end", "timing", "time", "watermark", "partition", "offset", "a0_sum"]
    return sorted((list(row.values()) for row in rows.select(names).to_pylist() if row["timing"] == 2), key=str)
