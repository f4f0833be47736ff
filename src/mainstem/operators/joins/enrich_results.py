"""What a look-up in a table gives: the fact, the table's row, and which version of it that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.arrow_columns import numbers, whole
from mainstem.operators.stage.engine import NO_TIME, Int64Array

__all__ = ["VERSION", "EnrichResults"]

TIME = pa.timestamp("us", "UTC")
# From when on the version is valid, and where in the log it stands.
VERSION = pa.struct([("valid_from", TIME), ("partition", pa.int32()), ("offset", pa.int64())])


@dataclass(frozen=True)
class EnrichResults:
    """`left` is the type of facts, `right` that of the table's rows; `how` is "left" or "inner"."""

    left: pa.DataType
    right: pa.DataType
    how: str = "left"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("left", self.left), ("right", self.right), ("version", VERSION), ("change", pa.string())])

    def table(self, rows: pa.Table, parts: Sequence[tuple[Int64Array, Int64Array, str]]) -> pa.Table:
        """Facts with versions (-1 for none), as numbers of rows, and their change."""
        nobody = np.empty(0, np.int64)
        facts = np.concatenate([nobody, *(facts for facts, _, _ in parts)]).astype(np.int64)
        versions = np.concatenate([nobody, *(versions for _, versions, _ in parts)]).astype(np.int64)
        changes = np.repeat(np.arange(len(parts)), [len(facts) for facts, _, _ in parts])
        if self.how == "inner":
            kept = versions >= 0
            facts, versions, changes = facts[kept], versions[kept], changes[kept]
        which = pa.array(versions, mask=versions < 0)
        times = pa.array(numbers(rows, "time"), mask=numbers(rows, "time") == NO_TIME).view(TIME)
        places = [whole(rows.column(name)).take(which) for name in ("partition", "offset")]
        version = pa.StructArray.from_arrays(
            [times.take(which), *places], fields=list(VERSION), mask=pa.array(versions < 0)
        )
        columns = [
            whole(rows.column("left")).take(pa.array(facts)),
            whole(rows.column("right")).take(which),
            version,
            pa.array([change for _, _, change in parts], pa.string()).take(pa.array(changes)),
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)
