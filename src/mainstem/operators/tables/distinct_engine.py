"""DistinctEngine: each row of a changing table once, for as long as the table has it at least once.

State rows: the count of a row. The row itself is not stored: its last delete has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import STATE_COLUMNS, BatchClock, StateTable, Step
from mainstem.operators.tables.weights import (
    emit_changes,
    find_groups,
    identify_rows,
    places_of,
    state_rows,
    sum_weights,
    weights_of,
    whole,
)
from mainstem.operators.windows.numbering import numbers

__all__ = ["DistinctEngine"]


@dataclass(frozen=True)
class DistinctEngine:
    """Takes `ChangedRows` whose key is the whole row. A value: it is sent to Spark's workers."""

    row_type: pa.DataType

    late_schema: ClassVar[pa.Schema | None] = None

    @property
    def state_schema(self) -> pa.Schema:
        return pa.schema([*STATE_COLUMNS, ("count", pa.int64())])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([("row", self.row_type), ("change", pa.string())])

    def describe(self) -> dict[str, Any]:
        return {"distinct": str(self.row_type)}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        group, item = numbers(rows, "group"), numbers(rows, "check")
        firsts, change = sum_weights(weights_of(rows, "distinct"), group, item)
        group, item = group[firsts], item[firsts]
        known = find_groups(state, group)
        places = places_of(known, group, item)
        before = np.where(places >= 0, np.r_[numbers(known, "count"), 0][places], 0)
        after = before + change
        moved = (after > 0).astype(np.int64) - (before > 0).astype(np.int64)
        shown = np.flatnonzero(moved)
        output = rows.select(["row"]).take(pa.array(firsts[shown]))
        there, gone = np.flatnonzero(after != 0), np.flatnonzero((after == 0) & (places >= 0))
        return Step(
            _cast_rows(emit_changes(output, moved[shown], (group[shown], item[shown])), self.output_schema),
            put=state_rows(self.state_schema, {"group": group[there], "item": item[there], "count": after[there]}),
            gone=identify_rows(group[gone], item[gone]),
        )


def _cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([whole(rows.column(at.name)).cast(at.type) for at in schema], schema=schema)
