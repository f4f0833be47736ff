"""Stages with a small operator: state, clock and late rows through restarts, failures and kills; what is refused."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.batch import FlowRun
from mainstem.crash_points import VARIABLE
from mainstem.errors import Corrupt, Fenced, FlowFailed, MainstemError
from mainstem.flows.program import Program
from mainstem.spark.checkpoint.flow_store import FlowStore
from tests.flows.memory_sink import MemorySink
from tests.operators.counting_engine import counted

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "store STRING, at TIMESTAMP"


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def orders_of(stem: Mainstem, name: str = "orders") -> Any:
    return stem.create_topic(name, schema=SCHEMA, event_time="at", partitions=2)


def rows_at(second: int, count: int = 10) -> list[dict[str, Any]]:
    return [{"store": f"s{number % 3}", "at": at(second)} for number in range(count)]


def into(sink: Any, quiet: str = "10 seconds") -> Callable[[Mainstem], Iterator[Flow]]:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        yield Flow(counted(stem.topic("orders").stream(watermark="5 seconds"), by="store", quiet=quiet), into=sink)

    return flows


def counts(stem: Mainstem, view: str = "counts") -> dict[str, int | None]:
    return {row["store"]: row["n"] for row in stem.view(view).to_arrow().to_pylist()}


def test_state_goes_on_through_restarts_and_wakes_by_the_watermark(stem: Mainstem) -> None:
    orders, flows = orders_of(stem), into(stem.view("counts", key="store"))
    for part in range(2):
        with stem.start(flows) as running:
            for second in range(2):
                orders.append(rows_at(2 * part + second))
                running.wait_until_idle()
    assert counts(stem) == {"s0": 16, "s1": 12, "s2": 12}
    with stem.start(flows) as running:
        # No more rows: the watermark alone lets the state go.
        stem.producer("till").declare_watermark(orders, at(60))
        running.wait_until_idle()
        assert counts(stem) == {"s0": None, "s1": None, "s2": None}
        assert running["counts"].progress.state_rows == 0
        orders.append([{"store": "late", "at": at(1)}, {"store": "new", "at": at(61)}])
        running.wait_until_idle()
        progress = running["counts"].progress
    assert counts(stem)["new"] == 1
    assert (progress.too_late, progress.state_rows, progress.watermark) == (1, 1, "2026-01-01T00:01:00+00:00")
    [late] = stem.topic("counts.late").to_arrow().to_pylist()
    assert (late["store"], late["stage"], late["version"]) == ("late", "counted-0", 1)


def test_whatever_fails_on_the_way_each_row_counts_once(stem: Mainstem, tmp_path: Path) -> None:
    orders = orders_of(stem)
    sink = MemorySink("counts", failing={1, 3})
    environment = stem.spark.sparkContext.environment
    environment[VARIABLE] = f"stage_runs_written:1@{tmp_path}/killed"
    try:
        running = stem.start(into(sink))
        for second in range(5):
            orders.append([*rows_at(second), {"store": f"only {second}", "at": at(second)}])
            try:
                running.wait_until_idle()
            except FlowFailed:
                running.stop()
                running = stem.start(into(sink))
                running.wait_until_idle()
        running.stop()
    finally:
        del environment[VARIABLE]
    given = [row for _, attempts in sorted(sink.attempts.items()) for row in attempts[-1]]
    assert {row["store"]: row["n"] for row in given} == {
        "s0": 20, "s1": 15, "s2": 15, **{f"only {second}": 1 for second in range(5)}
    }  # fmt: skip
    # A worker was killed when its state was written, and a sink failed twice: what was tried again was the same.
    assert (tmp_path / "killed").exists()
    assert not sink.failing
    again = [attempts for attempts in sink.attempts.values() if len(attempts) > 1]
    assert again
    for attempts in again:
        assert all(_plain(attempt) == _plain(attempts[0]) for attempt in attempts)


def _plain(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(sorted((name, str(value)) for name, value in row.items())) for row in rows)


def test_stages_in_a_row_and_side_by_side_are_right_after_every_batch(stem: Mainstem) -> None:
    slow, fast = orders_of(stem), orders_of(stem, "others")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        one = counted(stem.topic("orders").stream(watermark="5 seconds"), by="store")
        two = counted(stem.topic("others").stream(watermark="5 seconds"), by="store", name="of_others")
        named = one.withColumn("store", F.concat("store", F.lit("!"))).unionByName(two)
        marked = named.select(
            "store", "n", F.current_timestamp().alias("at", metadata={"mainstem.event_time": "1"}), "record"
        )
        yield Flow(
            counted(marked.where("n is not null"), by="store", quiet="1000 days"), into=stem.view("times", key="store")
        )

    with stem.start(flows) as running:
        for second in range(3):
            fast.append(rows_at(second, 30))
            if second == 1:
                slow.append(rows_at(second, 3))
            running.wait_until_idle()
            # How often the count of each store was told, which is once a batch.
            shown = {"s0": second + 1, "s1": second + 1, "s2": second + 1}
            assert {store: n for store, n in counts(stem, "times").items() if "!" not in store} == shown
    assert {store: n for store, n in counts(stem, "times").items() if "!" in store} == {"s0!": 1, "s1!": 1, "s2!": 1}


def test_three_stages_in_a_row_are_right_after_every_batch(stem: Mainstem) -> None:
    orders = orders_of(stem)

    def told(rows: Any) -> Any:
        """What a stage gives, as rows that happened now, for the next one to count."""
        now = F.current_timestamp().alias("at", metadata={"mainstem.event_time": "1"})
        return rows.where("n is not null").select("store", "n", now, "record")

    def flows(stem: Mainstem) -> Iterator[Flow]:
        rows = counted(stem.topic("orders").stream(watermark="5 seconds"), by="store")
        for name in ("second", "third"):
            rows = counted(told(rows), by="store", quiet="1000 days", name=name)
        yield Flow(rows, into=stem.view("times", key="store"))

    with stem.start(flows) as running:
        for second in range(3):
            orders.append(rows_at(second, 30))
            running.wait_until_idle()
            # Each stage tells once a batch how often the one before has told.
            assert counts(stem, "times") == {"s0": second + 1, "s1": second + 1, "s2": second + 1}


def test_rows_that_are_no_stream_give_the_answer_at_once(stem: Mainstem) -> None:
    orders_of(stem).append(rows_at(1))
    found = counted(stem.topic("orders").read(watermark="5 seconds"), by="store").collect()
    assert sorted((row["store"], row["n"], row["record"]["change"]) for row in found if row["n"] is not None) == [
        ("s0", 4, "update"), ("s1", 3, "update"), ("s2", 3, "update")
    ]  # fmt: skip


def test_what_cannot_stand_behind_a_stage_is_refused_while_building(stem: Mainstem) -> None:
    orders_of(stem), orders_of(stem, "others")

    def grouped(stem: Mainstem) -> Iterator[Flow]:
        rows = counted(stem.topic("orders").stream(watermark="5 seconds"), by="store")
        yield Flow(rows.groupBy("store").count(), into=stem.view("counts", key="store"))

    def joined(stem: Mainstem) -> Iterator[Flow]:
        rows = counted(stem.topic("orders").stream(watermark="5 seconds"), by="store").select("store")
        yield Flow(rows.union(stem.topic("others").stream().select("store")), into=stem.view("counts", key="store"))

    def alike(stem: Mainstem) -> Iterator[Flow]:
        rows = stem.topic("orders").stream(watermark="5 seconds")
        both = counted(rows, by="store", name="one").union(counted(rows, by="store", name="one"))
        yield Flow(both, into=stem.view("counts", key="store"))

    for program, said in (
        (grouped, 'Spark\'s stateful "aggregate" after an operator'), (joined, "combines another stream with the output"),
        (alike, 'two stages of flow "counts" are named "one"'),
    ):  # fmt: skip
        with pytest.raises(MainstemError, match=said):
            Program(stem, program)
    [planned] = Program(stem, into(stem.view("counts", key="store"))).flows
    assert [(operator.name, operator.bounded_by) for operator in planned.operators] == [("counted-0", "its quiet time")]
    # Only what the operator wants is read.
    assert planned.leaves[0].columns == ("store", "at", "record")


def test_state_of_other_code_or_with_damage_is_refused_and_rebuilt_from_the_log(stem: Mainstem) -> None:
    orders, view = orders_of(stem), stem.view("counts", key="store")
    orders.append(rows_at(1))
    stem.run(into(view), until="idle")
    with pytest.raises(FlowFailed, match=r"rebuild|checkpoint"):
        stem.run(into(view, quiet="1 minute"), until="idle")

    stages = Path(FlowStore(stem.home, "counts").checkpoint(1), "stages")
    for run in (stages / "counted-0").glob("*.arrow"):
        content = bytearray(run.read_bytes())
        content[-100] ^= 1
        run.write_bytes(content)
    orders.append(rows_at(2))
    # Processes that knew the file before would not look at it again.
    environment = stem.spark.sparkContext.environment
    environment["MAINSTEM_TEST"] = "fresh workers"
    try:
        with pytest.raises(FlowFailed) as raised:
            stem.run(into(view), until="idle")
    finally:
        del environment["MAINSTEM_TEST"]
    assert isinstance(raised.value.__cause__, Corrupt) or "state of a flow is damaged" in str(raised.value)
    assert counts(stem) == {"s0": 4, "s1": 3, "s2": 3}

    for manifest in stages.glob("*.json"):
        os.remove(manifest)
    with pytest.raises(FlowFailed) as missing:
        stem.run(into(view), until="idle")
    assert "is missing or damaged" in str(missing.value)

    with stem.rebuild("counts", into(view)) as rebuild:
        rebuild.wait()
        rebuild.apply()
    assert counts(stem) == {"s0": 8, "s1": 6, "s2": 6}


def test_a_run_that_was_replaced_keeps_no_state(stem: Mainstem) -> None:
    store = FlowStore(stem.home, "counts")
    older, newer = store.begin(), store.begin()
    with store.guard(newer):
        pass
    with pytest.raises(Fenced), store.guard(FlowRun(older.flow, older.epoch, older.version)):
        pytest.fail("an older run went on")


def test_a_stage_outside_of_a_flow_says_what_it_gives(stem: Mainstem) -> None:
    orders_of(stem)
    rows = counted(stem.topic("orders").stream(watermark="5 seconds"), by="store")
    assert rows.isStreaming
    assert rows.schema["record"].metadata == {"mainstem.record": "1"}
