"""TwoSided: what all engines with a left and a right side have in common.

What comes in (see `join_rows`) is one table for both sides:

    group      int64     the first hash of the key
    check      int64     the second one
    keyed      bool      false if a part of the key is null: such a row meets nobody
    side       int8      0 left, 1 right
    partition, offset, tie, time, watermark      as in `keyed_rows`
    taken_back bool      whether this says that an earlier row is no more
    left, right          the row, in the column of its side
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from mainstem.operators.joins.join_results import JoinLate

__all__ = ["INPUT_COLUMNS", "TwoSided"]

INPUT_COLUMNS = (
    pa.field("group", pa.int64()),
    pa.field("check", pa.int64()),
    pa.field("keyed", pa.bool_()),
    pa.field("side", pa.int8()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("tie", pa.int64()),
    pa.field("time", pa.int64()),
    pa.field("watermark", pa.int64()),
    pa.field("taken_back", pa.bool_()),
)


class Results(Protocol):
    """What makes the rows that are shown: of rows of these types, with these columns."""

    @property
    def left(self) -> pa.DataType: ...

    @property
    def right(self) -> pa.DataType: ...

    @property
    def schema(self) -> pa.Schema: ...


class TwoSided:
    """An engine whose results are made by `results`, and what is told of late rows by `late`."""

    results: Results
    late: JoinLate

    @property
    def input_schema(self) -> pa.Schema:
        """What the rows of both sides are prepared to."""
        return pa.schema([*INPUT_COLUMNS, ("left", self.results.left), ("right", self.results.right)])

    @property
    def output_schema(self) -> pa.Schema:
        return self.results.schema

    @property
    def late_schema(self) -> pa.Schema:
        return self.late.schema
