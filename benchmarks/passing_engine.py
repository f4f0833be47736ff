"""A stage that does nothing: rows in, the same rows out, no state."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mainstem.operators.stage.engine import STATE_COLUMNS, BatchClock, StateTable, Step
from mainstem.operators.stage.stage import StageSpec, add_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class PassingEngine:
    """Gives what it gets."""

    output_schema: pa.Schema
    late_schema = None
    state_schema = pa.schema(STATE_COLUMNS)

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        change = pa.repeat(pa.scalar("insert"), rows.num_rows)
        return Step(rows.drop_columns(["group"]).append_column("change", change))

    def describe(self) -> dict[str, Any]:
        return {}


def passed(rows: DataFrame, by: str) -> DataFrame:
    """The rows through such a stage."""
    from pyspark import cloudpickle
    from pyspark.sql import functions as F

    from mainstem.spark.spark_types import arrow_schema

    # Spark's workers cannot import what belongs to the benchmarks.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    plain = rows.drop("record")
    schema = pa.schema([*arrow_schema(plain.schema), ("change", pa.string())])

    def prepare(batch: DataFrame) -> DataFrame:
        return batch.select(F.xxhash64(by).alias("group"), *plain.columns)

    return add_stage(plain, StageSpec("passed", PassingEngine(schema), prepare, lambda table: table, "nothing"))
