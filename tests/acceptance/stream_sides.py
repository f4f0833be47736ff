"""The input of case A07 as one stream, whose rows belong to the left or to the right side of a join, and its four ways."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.frame_columns import Shown, select_columns
from mainstem.testing import ScriptedRows, TestStream

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "t INT, key STRING, side STRING, value STRING, at TIMESTAMP"
GRACE = 5
# Kafka counts milliseconds, and at stream time s all up to and including s - grace is complete; below a watermark all is.
DELAY = timedelta(seconds=GRACE) - timedelta(milliseconds=1)
NAMES = {"L": ("value", "at"), "R": ("other", "other_at")}


def row_of(entry: Sequence[Any]) -> dict[str, Any]:
    t, side, value = entry
    return {"t": t, "key": "k", "side": side, "value": value, "at": START + timedelta(seconds=t)}


def as_written(entries: Sequence[Sequence[Any]], *, killed: bool = False) -> TestStream:
    """A batch for each record, each killed and done again if asked."""
    script = TestStream(SCHEMA, event_time="at", delay=DELAY)
    for entry in entries:
        script = script.rows([row_of(entry)])
        script = script.kill() if killed else script
    return script


def out_of_order(entries: Sequence[Sequence[Any]], seed: int) -> TestStream:
    """Every record in time, though not in order: none is more than the grace behind another."""
    random = Random(seed)
    return as_written(sorted(entries, key=lambda entry: entry[0] + random.uniform(0, GRACE)))


def facts_of(rows: Any, side: str) -> Any:
    """The rows of a side; a null value on the side of a stream is ignored."""
    value, at = NAMES[side]
    if isinstance(rows, ScriptedRows):
        schema = rows.schema
        kept = rows.mapped(lambda table: table.filter(_is_fact(table, side)), schema)
        fields = [("key", "key"), ("value", value), ("at", at), ("record", "record")]
        return select_columns(
            kept,
            [
                Shown(name, pa.field(new, schema.field(name).type, metadata=schema.field(name).metadata))
                for name, new in fields
            ],
        )
    return rows.where(f"side = '{side}' AND value IS NOT NULL").selectExpr(
        "key", f"value AS {value}", f"at AS {at}", "record"
    )


def _is_fact(table: pa.Table, side: str) -> pa.ChunkedArray:
    return pc.and_(pc.equal(table.column("side"), side), pc.is_valid(table.column("value")))


def versions_of(rows: Any) -> Any:
    """The rows of the right side as records of a table: a null value is a delete."""
    value, at = NAMES["R"]
    if isinstance(rows, ScriptedRows):
        schema = rows.schema
        kept = rows.mapped(_as_records, schema)
        fields = [("key", "key"), ("value", value), ("at", at), ("record", "record")]
        return select_columns(
            kept,
            [
                Shown(name, pa.field(new, schema.field(name).type, metadata=schema.field(name).metadata))
                for name, new in fields
            ],
        )
    from pyspark.sql import functions as F

    change = F.when(F.col("value").isNull(), "delete").otherwise("insert")
    # What is made anew has no mark.
    marked = F.col("record").withField("change", change).alias("record", metadata={"mainstem.record": "1"})
    changed = rows.where("side = 'R'").select("key", "value", "at", marked)
    return changed.selectExpr("key", f"value AS {value}", f"at AS {at}", "record")


def _as_records(table: pa.Table) -> pa.Table:
    given = table.filter(pc.equal(table.column("side"), "R")).combine_chunks()
    if not given.num_rows:
        return given
    record = given.column("record").combine_chunks()
    change = pc.if_else(pc.is_null(given.column("value").combine_chunks()), "delete", "insert")
    fields = [change if field.name == "change" else record.field(field.name) for field in record.type]
    place = given.schema.get_field_index("record")
    return given.set_column(place, "record", pa.StructArray.from_arrays(fields, fields=list(record.type)))
