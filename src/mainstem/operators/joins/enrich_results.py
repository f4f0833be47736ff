"""What a look-up in a table gives: the fact, the table's row, and which version of it that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.arrow_columns import numbers, whole
from mainstem.operators.stage.engine import NEVER, NO_TIME, Int64Array

__all__ = ["VERSION", "EnrichResults", "Part"]

TIME = pa.timestamp("us", "UTC")
# From when on the version is valid, until when as far as was known, and where in the log it stands.
VERSION = pa.struct([("valid_from", TIME), ("valid_until", TIME), ("partition", pa.int32()), ("offset", pa.int64())])
# Numbers of facts, of their versions (-1 for none), until when these are valid (NEVER if that is not known), and the change.
Part: TypeAlias = tuple[Int64Array, Int64Array, Int64Array, str]


@dataclass(frozen=True)
class EnrichResults:
    """`left` is the type of facts, `right` that of the table's rows; `how` is "left" or "inner"."""

    left: pa.DataType
    right: pa.DataType
    how: str = "left"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("left", self.left), ("right", self.right), ("version", VERSION), ("change", pa.string())])

    def kept(self, parts: Sequence[Part]) -> list[Part]:
        """Without the facts that found nothing, where these are left out."""
        if self.how != "inner":
            return list(parts)
        found = [versions >= 0 for _, versions, _, _ in parts]
        return [(facts[at], versions[at], until[at], change)
                for (facts, versions, until, change), at in zip(parts, found, strict=True)]  # fmt: skip

    def table(self, rows: pa.Table, parts: Sequence[Part]) -> pa.Table:
        """Facts with their versions."""
        parts = self.kept(parts)
        facts, versions, until = (
            np.concatenate([np.empty(0, np.int64), *(part[which] for part in parts)]).astype(np.int64)
            for which in range(3)
        )
        changes = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        which = pa.array(versions, mask=versions < 0)
        times = pa.array(numbers(rows, "time"), mask=numbers(rows, "time") == NO_TIME).view(TIME)
        places = [whole(rows.column(name)).take(which) for name in ("partition", "offset")]
        ends = pa.array(until, mask=(until == NEVER) | (versions < 0)).view(TIME)
        version = pa.StructArray.from_arrays(
            [times.take(which), ends, *places], fields=list(VERSION), mask=pa.array(versions < 0)
        )
        columns = [
            whole(rows.column("left")).take(pa.array(facts)),
            whole(rows.column("right")).take(which),
            version,
            pa.array([part[3] for part in parts], pa.string()).take(pa.array(changes)),
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)
