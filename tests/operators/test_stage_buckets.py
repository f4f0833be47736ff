"""Which bucket a task of a stage has: what its rows say, whatever number Spark gives the task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mainstem import Flow, Mainstem
from mainstem.errors import FlowFailed
from mainstem.flows import program, runner, staged_batches
from mainstem.operators import enrich, latest, table
from mainstem.operators.stage import stage_task
from mainstem.operators.stage.hashes import bucket_groups
from mainstem.operators.stage.spark_hashes import buckets_of
from mainstem.operators.stage.stage import StageSpec, stage_schema
from mainstem.operators.stage.stage_task import StageBatch
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.spark.checkpoint.flow_store import FlowStore

# Spark's workers cannot import what belongs to the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

USERS = range(8)


def test_a_bucket_is_where_spark_puts_a_number(spark: Any) -> None:
    random = Random(1)
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), *(random.randint(-(2**63), 2**63 - 1) for _ in range(200))]
    rows = spark.createDataFrame([(number,) for number in numbers], "group BIGINT")
    parts = (2, 7, 200)
    found = rows.select("group", *(F.pmod(F.hash("group"), F.lit(count)) for count in parts)).collect()
    for place, count in enumerate(parts):
        assert buckets_of(np.array([row[0] for row in found]), count).tolist() == [row[1 + place] for row in found]
        assert buckets_of(np.array(bucket_groups(count)), count).tolist() == list(range(count))
    divided = rows.repartition(7, "group").select("group", F.spark_partition_id()).collect()
    assert buckets_of(np.array([row[0] for row in divided]), 7).tolist() == [row[1] for row in divided]


def flows(stem: Mainstem) -> Iterator[Flow]:
    homes = table(stem.topic("moves").stream(), key="user")
    seen = enrich(stem.topic("visits").stream(), homes, on={"visitor": "user"}, at=latest())
    yield Flow(seen.select("visitor", "zip", "record"), into=stem.topic("seen"))


def found_after_all_moved_away(stem: Mainstem) -> list[str]:
    """Where somebody is found to live who is known to live nowhere. The rows of the first batch lie in one part, those of the
    second in three: Spark counts the tasks of the table behind them."""
    stem.create_topic("moves", schema="user INT, zip STRING", key="user")
    stem.create_topic("visits", schema="visitor INT", partitions=3)
    stem.topic("moves").append([{"user": user, "zip": "53111"} for user in USERS])
    stem.topic("visits").append([{"visitor": user} for user in USERS], partition=0)
    stem.run(flows, until="idle")
    stem.topic("moves").delete(list(USERS))
    for partition in range(3):
        stem.topic("visits").append([{"visitor": user} for user in USERS], partition=partition)
    stem.run(flows, until="idle")
    found = stem.topic("seen").to_arrow().to_pylist()
    assert len(found) == 4 * len(USERS)
    return [row["zip"] for row in found if row["zip"]][len(USERS) :]


def test_a_stage_finds_its_state_however_many_tasks_stand_before_its_own(stem: Mainstem) -> None:
    assert found_after_all_moved_away(stem) == []
    checkpoint = FlowStore(stem.home, "seen").checkpoint(1)
    manifests = StageManifests(checkpoint)
    last = manifests.last()
    assert last is not None
    assert [sorted(stage["state"]) for stage in last["stages"].values()] == [["0", "1"], ["0", "1"]]

    # What was numbered otherwise is not passed over.
    last["stages"]["table-0"]["state"] = {"2": last["stages"]["table-0"]["state"]["0"]}
    manifests.write(last["batch"], {"clock": last["clock"], "stages": last["stages"]})
    stem.topic("moves").append([{"user": 1, "zip": "10115"}])
    with pytest.raises(FlowFailed) as raised:
        stem.run(flows, until="idle")
    assert "has state for buckets beyond its number of buckets" in str(raised.value)


def through_stage_by_task(prepared: DataFrame, spec: StageSpec, batch: StageBatch, output: None) -> DataFrame:
    """As it was: the number of the task is taken for that of the bucket."""

    def one_bucket(batches: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        given = batch.step(context.partitionId(), stage_task._collect(batches, empty))
        yield from stage_task._cast_batches(given, stage_schema(spec.engine))

    empty = stage_task._empty(prepared)
    return stage_task._map(prepared.repartition(batch.buckets, "group"), one_bucket, stage_schema(spec.engine))


def test_a_stage_that_goes_by_the_number_of_its_task_is_found(stem: Mainstem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "through_stage", through_stage_by_task)
    # Rows as Spark divides them, and as the sink gets them from Spark.
    monkeypatch.setattr(program, "packed_query", lambda *_: None)
    monkeypatch.setattr(runner, "takes_columns", lambda _: False)
    monkeypatch.setattr(staged_batches, "_check_numbers", lambda *_: None)
    assert found_after_all_moved_away(stem) != []
