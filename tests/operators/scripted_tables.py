"""Scripts of tables that change: batches of rows with their changes, for operators without Spark."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mainstem.log.record import record_array, record_schema
from mainstem.operators.stage.engine import BatchClock
from mainstem.testing.scripted_rows import ScriptedBatch, ScriptedRows, ScriptedRun

__all__ = ["changes", "held", "scripted_table"]

# A row with its change: "+" put in, "-" taken away, "~" an update.
Change = tuple[str, Mapping[str, Any]]
_CHANGES = {"+": "insert", "-": "delete", "~": "update"}


def scripted_table(
    schema: pa.Schema, batches: Sequence[Sequence[Change]], *, run: ScriptedRun | None = None, killed: bool = False
) -> ScriptedRows:
    """Rows as the log would give them; with `killed` every batch is done twice, the first time for nothing."""
    shown = record_schema(schema)
    made, offset = [], 0
    for batch in batches:
        rows = pa.Table.from_pylist([dict(row) for _, row in batch], schema=schema)
        change = pa.array([_CHANGES[sign] for sign, _ in batch], pa.string())
        record = record_array(0, offset, 0, count=len(batch), change=change)
        offset += len(batch)
        table = pa.Table.from_arrays([*rows.columns, record], schema=shown)
        made.append(ScriptedBatch(table, BatchClock(), killed))
    return ScriptedRows(shown, made, ScriptedRun() if run is None else run)


def changes(rows: ScriptedRows) -> list[list[Change]]:
    """What came out, batch by batch."""
    found = []
    for batch in rows.batches:
        plain = batch.rows.drop_columns(["record"]).to_pylist()
        signs = [record["change"] for record in batch.rows.column("record").to_pylist()]
        found.append([("+" if sign == "insert" else "-", row) for sign, row in zip(signs, plain, strict=True)])
    return found


def held(batches: Sequence[Sequence[Change]]) -> list[dict[str, Any]]:
    """The rows that are there in the end."""
    there: list[Mapping[str, Any]] = []
    for batch in batches:
        for sign, row in batch:
            if sign == "+":
                there.append(row)
            else:
                there.remove(row)
    return sorted(map(dict, there), key=str)
