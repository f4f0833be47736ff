"""A small operator for the tests of stages: how often each key came, and a row for a key that was quiet for a while.

counted(rows, by="store", quiet="10 seconds")        store, n, change: one row for each key that came in a batch; and, when
                                                     the watermark is `quiet` behind the key's last event time, n is null
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from mainstem.durations import duration_us
from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, BatchClock, StateTable, Step
from mainstem.operators.stage.stage import StageSpec, add_stage

# Spark's workers cannot import what belongs to the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STATE = pa.schema([*STATE_COLUMNS, ("by", pa.string()), ("n", pa.int64())])
OUTPUT = pa.schema([("by", pa.string()), ("n", pa.int64()), ("change", pa.string())])
LATE = pa.schema([("by", pa.string()), ("time", pa.int64())])


@dataclass(frozen=True)
class CountingEngine:
    quiet: int

    state_schema = STATE
    output_schema = OUTPUT
    late_schema = LATE

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        too_late = np.asarray(rows.column("time")) < np.asarray(rows.column("watermark")) - self.quiet
        late = rows.filter(pa.array(too_late)).select(["by", "time"])
        rows = rows.filter(pa.array(~too_late))
        groups = np.unique(np.asarray(rows.column("group")))
        known = {row["group"]: row for row in state.find(groups).to_pylist()}
        out: list[dict[str, Any]] = []
        touched: dict[int, dict[str, Any]] = {}
        for row in rows.to_pylist():
            group = row["group"]
            kept = touched.get(group) or known.get(group) or {"by": row["by"], "n": 0, "event_due": 0}
            due = max(kept["event_due"], row["time"] + self.quiet)
            touched[group] = {
                "group": group,
                "item": 0,
                "event_due": due,
                "processing_due": NEVER,
                "by": row["by"],
                "n": kept["n"] + 1,
            }
        out += [
            {"by": row["by"], "n": row["n"], "change": "insert" if row["n"] == 1 else "update"}
            for row in touched.values()
        ]
        gone = [row for row in state.due(clock).to_pylist() if row["group"] not in touched]
        gone += [row for row in touched.values() if row["event_due"] <= clock.watermark]
        out += [{"by": row["by"], "n": None, "change": "insert"} for row in gone]
        left = {row["group"] for row in gone}
        put = [row for group, row in touched.items() if group not in left]
        return Step(
            pa.Table.from_pylist(out, OUTPUT),
            pa.Table.from_pylist(put, STATE),
            pa.Table.from_pylist([{"group": row["group"], "item": 0} for row in gone], pa.schema(STATE_COLUMNS[:2])),
            late=late,
            counts={"late": late.num_rows},
        )

    def describe(self) -> dict[str, Any]:
        return {"quiet": self.quiet}


def counted(rows: Any, by: str, quiet: str = "10 seconds", name: str | None = None) -> Any:
    from pyspark.sql import functions as F

    time = next(at.name for at in rows.schema.fields if "mainstem.event_time" in at.metadata)
    narrowed = rows.select(F.col(by).alias("by"), F.col(time).alias("time"), F.col("record"))

    def prepare(batch: Any) -> Any:
        return batch.select(
            F.xxhash64("by").alias("group"), "by", F.unix_micros("time").alias("time"),
            F.coalesce(F.unix_micros("record.watermark"), F.lit(-(2**62))).alias("watermark"),
        )  # fmt: skip

    spec = StageSpec("counted", CountingEngine(duration_us(quiet)), prepare, lambda rows: rows, "its quiet time",
                     late_names={"by": by}, late_units=())  # fmt: skip
    given = add_stage(narrowed, spec, name=name)
    return given.select(F.col("by").alias(by), "n", "record")
