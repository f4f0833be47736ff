"""A small operator for the tests of broadcast inputs: which rows are at or above the floor of which rules.

flagged(rows, rules)        n, rule: a row for each rule that was appended before it, or at the same time
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, BatchClock, StateTable, Step
from mainstem.operators.stage.hashes import text_hash
from mainstem.operators.stage.stage import Preparation, StageSpec, add_stage

# Spark's workers cannot import what belongs to the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

COLUMNS = [("n", pa.int64()), ("rule", pa.string()), ("floor", pa.int64()), ("appended", pa.int64())]
STATE = pa.schema([*STATE_COLUMNS, *COLUMNS])
OUTPUT = pa.schema([("n", pa.int64()), ("rule", pa.string()), ("change", pa.string())])
# When a row that waits is looked at again.
WAIT_US = 1_000


@dataclass(frozen=True)
class FlaggingEngine:
    state_schema = STATE
    output_schema = OUTPUT
    late_schema = None

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        kept = state.scan().to_pylist()
        came = [
            {**row, "item": text_hash(f"{row['rule']} {row['n']}"), "event_due": NEVER, "processing_due": NEVER}
            for row in rows.to_pylist()
        ]
        rules = [row for row in [*kept, *came] if row["rule"] is not None]
        put = [row for row in came if row["rule"] is not None]
        out, gone = [], []
        for row in sorted([row for row in [*kept, *came] if row["rule"] is None], key=lambda row: row["n"]):
            if row["appended"] >= clock.appended:
                # A rule of an earlier append may still come.
                put.append({**row, "processing_due": clock.now + WAIT_US})
                continue
            gone.append({"group": row["group"], "item": row["item"]})
            out += [
                {"n": row["n"], "rule": rule["rule"], "change": "insert"}
                for rule in sorted(rules, key=lambda rule: rule["rule"])
                if rule["appended"] <= row["appended"] and row["n"] >= rule["floor"]
            ]
        return Step(
            pa.Table.from_pylist(out, OUTPUT),
            pa.Table.from_pylist(put, STATE),
            pa.Table.from_pylist(gone, pa.schema(STATE_COLUMNS[:2])),
        )

    def describe(self) -> dict[str, Any]:
        return {}


def _appended(rows: pa.Table) -> pa.Array:
    record = rows.column("record").combine_chunks()
    return pa.chunked_array([record]).combine_chunks().field("appended_at").view(pa.int64())


def flagged(rows: Any, rules: Any) -> Any:
    def native(frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.select(
            F.xxhash64("n").alias("group"), "n", F.lit(None).cast("string").alias("rule"),
            F.lit(None).cast("bigint").alias("floor"), F.unix_micros("record.appended_at").alias("appended"),
        )  # fmt: skip

    def native_rules(frame: Any) -> Any:
        from pyspark.sql import functions as F

        nothing = F.lit(None).cast("bigint")
        appended = F.unix_micros("record.appended_at").alias("appended")
        return frame.select(nothing.alias("group"), nothing.alias("n"), "rule", "floor", appended)

    def arrow(table: pa.Table) -> pa.Table:
        count = table.num_rows
        group = pa.array(np.arange(count, dtype=np.int64))
        columns = [
            group,
            table.column("n"),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.int64()),
            _appended(table),
        ]
        return pa.table(columns, names=["group", *(name for name, _ in COLUMNS)])

    def arrow_rules(table: pa.Table) -> pa.Table:
        nothing = pa.nulls(table.num_rows, pa.int64())
        columns = [nothing, nothing, table.column("rule"), table.column("floor"), _appended(table)]
        return pa.table(columns, names=["group", *(name for name, _ in COLUMNS)])

    others = (Preparation(native_rules, arrow_rules, every_bucket=True),)
    return add_stage(rows, StageSpec("flagged", FlaggingEngine(), native, arrow, "nothing", others=others), rules)
