"""An input that reaches every bucket: its rows count for what was appended after them, in every split, and when restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mainstem import Flow, Mainstem
from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, Step
from mainstem.operators.stage.state_runs import MemoryState, StageManifests, StateRuns
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.testing import TestStream, TestStreams
from tests.operators.flagging_engine import flagged
from tests.waiting import wait_until

Found = list[tuple[int, str]]


def program(rows_max: int | None) -> Callable[[Mainstem], Iterator[Flow]]:
    def flows(stem: Mainstem) -> Iterator[Flow]:
        found = flagged(stem.topic("numbers").stream(), stem.topic("rules").stream())
        yield Flow(found.select("n", "rule"), into=stem.topic("flags"), rows_max=rows_max)

    return flows


def make_topics(stem: Mainstem) -> None:
    stem.create_topic("numbers", schema="n BIGINT", partitions=3)
    stem.create_topic("rules", schema="rule STRING, floor BIGINT", key="rule", partitions=2)


def append_in_turns(stem: Mainstem, random: Random, first: int) -> None:
    for place in range(first, first + 8):
        stem.topic("numbers").append([{"n": n} for n in range(10 * place, 10 * place + random.randint(1, 5))])
        if random.random() < 0.7:
            stem.topic("rules").append([{"rule": f"rule-{place}", "floor": 10 * random.randint(0, place + 1)}])


def expected(stem: Mainstem) -> Found:
    found = stem.query(
        "SELECT n, rule FROM numbers JOIN rules ON rules.record.appended_at <= numbers.record.appended_at AND n >= floor"
    )
    return sorted((row["n"], row["rule"]) for row in found.to_pylist())


def flags(stem: Mainstem) -> Found:
    return sorted((row["n"], row["rule"]) for row in stem.topic("flags").to_arrow().to_pylist())


@pytest.mark.parametrize("rows_max", [None, 3])
def test_a_rule_counts_in_every_bucket_for_what_was_appended_after_it(stem: Mainstem, rows_max: int | None) -> None:
    make_topics(stem)
    random = Random(4)
    append_in_turns(stem, random, 0)
    # A bucket for each task that there will be: rows and rules are divided among seven.
    stem.spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        stem.run(program(rows_max), until="idle")
    finally:
        stem.spark.conf.unset("spark.sql.shuffle.partitions")
    assert flags(stem) == expected(stem) != []
    append_in_turns(stem, random, 8)
    # The number of buckets is the checkpoint's.
    stem.run(program(rows_max), until="idle")
    assert flags(stem) == expected(stem)
    last = StageManifests(FlowStore(stem.home, "flags").checkpoint(1)).last()
    assert last is not None
    assert last["stages"]["flagged-0"]["buckets"] == 7
    rules = stem.topic("rules").to_arrow().num_rows
    assert {bucket["live"] for bucket in last["stages"]["flagged-0"]["state"].values()} == {rules}


def test_a_rule_of_an_open_transaction_holds_back_what_was_appended_after_it(stem: Mainstem) -> None:
    make_topics(stem)
    stem.topic("numbers").append([{"n": 1}])
    with stem.start(program(None)) as running:
        with stem.transaction() as transaction:
            transaction.append("rules", [{"rule": "all", "floor": 0}])
            stem.topic("numbers").append([{"n": 2}])
            wait_until(lambda: running.handles["flags"].batches > 0)
            assert flags(stem) == []
        running.wait_until_idle()
    assert flags(stem) == expected(stem) == [(2, "all")]


def test_batch_rows_meet_every_rule(stem: Mainstem) -> None:
    make_topics(stem)
    append_in_turns(stem, Random(5), 0)
    found = flagged(stem.topic("numbers").read(), stem.topic("rules").read())
    assert sorted((row["n"], row["rule"]) for row in found.collect()) == expected(stem) != []


def test_without_spark() -> None:
    script = TestStreams(rows=TestStream("n BIGINT"), rules=TestStream("rule STRING, floor BIGINT"))
    script = script.now("2026-01-01 12:00:00").rows("rows", [{"n": 5}])
    script = script.now("2026-01-01 12:00:01").rows("rules", [{"rule": "all", "floor": 0}])
    script = script.now("2026-01-01 12:00:02").rows("rows", [{"n": 6}]).now("2026-01-01 12:00:03")
    found = script.run(flagged)
    assert [(row["n"], row["rule"]) for row in found.rows] == [(6, "all")]


def test_all_rows_of_a_bucket_are_read(tmp_path: Any) -> None:
    schema = pa.schema([*STATE_COLUMNS, ("n", pa.int64())])
    random, entries, live = Random(1), [], 0
    memory = MemoryState(schema)
    for batch in range(30):
        put = {(random.randint(0, 9), random.randint(0, 9)) for _ in range(5)}
        gone = {(random.randint(0, 9), random.randint(0, 9)) for _ in range(3)} - put
        rows = [
            {"group": g, "item": i, "event_due": NEVER, "processing_due": NEVER, "n": batch} for g, i in sorted(put)
        ]
        step = Step(
            schema.empty_table(),
            pa.Table.from_pylist(rows, schema),
            pa.Table.from_pylist([{"group": g, "item": i} for g, i in sorted(gone)], pa.schema(STATE_COLUMNS[:2])),
        )
        runs = StateRuns(str(tmp_path), entries, schema, live)
        assert runs.scan().to_pylist() == memory.scan().to_pylist()
        entries, live = runs.after(step, batch), runs.live
        memory.apply(step)
    assert np.unique(np.asarray(memory.scan().column("group"))).size == 10
