"""WindowRows: converts a batch's rows to the input of a window engine, with Spark and, for tests without it, over Arrow.

Input, from a plain select (see `windowed`):

    by_0, by_1, ...                 the key
    time, watermark      bigint     event time and the row's own watermark in microseconds, null where there is none
    gap                  bigint     of sessions
    topic, partition, offset        the position of the row in the log
    i0_0, i0_1, ...                 the arguments of the aggregate functions

For windows that depend on a row's time alone, rows of one key and window are pre-aggregated natively, except those that are
late for one of their windows. So are rows of sessions within one gap of each other, if each is ahead of its own
watermark: no session that was closed before could have included it, so the order does not matter. If a
trigger counts rows, or windows depend on the other rows in other ways, no rows are pre-aggregated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mainstem.log.watermark import NO_TIME
from mainstem.operators.aggregates.accumulators import whole
from mainstem.operators.aggregates.aggregates import Aggregates
from mainstem.operators.stage.hashes import key_hashes
from mainstem.operators.windows.window_assignment import WindowAssignment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["WindowRows"]

# A row that is late for one of its windows stays single: its position is part of the grouping key.
_LATE = "time IS NULL OR watermark >= window_end"
_ALONE = ("partition", "offset")
# SQL has no literal for the smallest bigint.
_NO_TIME = f"({NO_TIME + 1}L - 1L)"


@dataclass(frozen=True)
class WindowRows:
    """Prepares rows for one engine, whose input columns are `wanted`."""

    by: pa.Schema
    aggregates: Aggregates
    wanted: pa.Schema
    # None if windows depend on other rows.
    assignment: WindowAssignment | None
    # Whether every row must stay single.
    single: bool
    sessions: bool = False

    # With Spark

    def native(self, rows: DataFrame) -> DataFrame:
        """Prepare a frame that is not a stream. In few steps: Spark analyses each of them for every batch."""
        partials = self.aggregates.native_row()
        if self.assignment is None and self.sessions and not self.single:
            return self._within_gaps(rows).selectExpr(*self._select_wanted())
        if self.assignment is None:
            watermark = f"coalesce(watermark, {_NO_TIME}) AS known_watermark"
            prepared = rows.selectExpr("*", *partials, watermark, *self._hashes())
            return prepared.selectExpr(*self._select_wanted(watermark="known_watermark"))
        if self.single:
            prepared = self._assign(rows, *partials, "1L AS rows", *self._hashes())
        else:
            prepared = self._put_together(
                self._assign(rows, *(f"IF({_LATE}, {at}, NULL) AS late_{at}" for at in _ALONE))
            )
        return self._explode(prepared)

    def _assign(self, rows: DataFrame, *more: str) -> DataFrame:
        """Add the row's windows, and more columns that may use them."""
        assert self.assignment is not None
        windows = (f"{sql} AS {name}" for name, sql in self.assignment.native().items())
        assigned = rows.selectExpr("*", *windows, *more)
        return assigned.where("windows > 0 OR time IS NULL") if self.assignment.leaves_gaps else assigned

    def _put_together(self, rows: DataFrame) -> DataFrame:
        """One row for each key and set of windows; rows that are late for one of them stay single."""
        from pyspark.sql import functions as F

        assert self.assignment is not None
        known = self.assignment.native_keys()
        keys = [*self.by.names, *known, *(f"late_{at}" for at in _ALONE)]
        kept = ["max(time) AS time", "max(watermark) AS last_watermark", *self.aggregates.native_rows()]
        together = rows.groupBy(*keys).agg(*map(F.expr, kept))
        windows = {name: sql for name, sql in self.assignment.native_again().items() if name not in known}
        return together.selectExpr(
            "*",
            *(f"{sql} AS {name}" for name, sql in windows.items()),
            # Aggregated rows were on time for all of their windows, whatever their last watermark.
            "IF(late_offset IS NULL, NULL, last_watermark) AS watermark",
            "IF(late_offset IS NULL, NULL, 0) AS topic",
            "late_partition AS partition",
            "late_offset AS offset",
            f"{self.aggregates.partial_schema.names[0]} AS rows",
            *self._hashes(),
        )

    def _within_gaps(self, rows: DataFrame) -> DataFrame:
        """One row for rows that are certainly in one session, with a gap up to the end of the last one."""
        from pyspark.sql import functions as F

        ahead = f"time > coalesce(watermark, {_NO_TIME}) AND gap > 0"
        alone = {
            "within": f"IF({ahead}, time - pmod(time, gap), NULL)",
            "late_offset": f"IF({ahead}, NULL, offset)",
        }
        marked = rows.selectExpr("*", *(f"{sql} AS {name}" for name, sql in alone.items()))
        kept = {
            "first": "min(time)",
            "last": "max(time)",
            "watermark": f"coalesce(min(watermark), {_NO_TIME})",
            "offset": "min(offset)",
        }
        found = [*(f"{sql} AS {name}" for name, sql in kept.items()), *self.aggregates.native_rows()]
        # By topic and partition too: in the state the position of the first row identifies them.
        together = marked.groupBy(*self.by.names, "gap", *alone, "topic", "partition").agg(*map(F.expr, found))
        return together.withColumnsRenamed({"first": "time", "gap": "own_gap"}).selectExpr(
            "*", "last - time + own_gap AS gap", *self._hashes()
        )

    def _explode(self, rows: DataFrame) -> DataFrame:
        """One row for each window."""
        assert self.assignment is not None
        step, start_step = self.assignment.step, self.assignment.start_step
        closed, gone = self.assignment.native_passed("closed"), self.assignment.native_passed("gone")
        if step:
            rows = rows.selectExpr("*", "explode(sequence(0L, windows - 1L)) AS place")
        place = "place" if step else "0L"
        timing = f"CAST(CASE WHEN {place} < {gone} THEN 2 WHEN {place} < {closed} THEN 1 ELSE 0 END AS TINYINT)"
        moved = {"window_start": start_step, "window_end": step}
        windows = {name: f"{name} + place * {by}L" for name, by in moved.items() if by}
        return rows.selectExpr(*self._select_wanted(timing=timing, **windows))

    def _select_wanted(self, **made: str) -> list[str]:
        return [f"{made[name]} AS {name}" if name in made else name for name in self.wanted.names]

    def _hashes(self) -> list[str]:
        """Two hashes of the key, which together identify it."""
        names = ", ".join(self.by.names)
        if not names:
            return ["0L AS group", "0L AS check"]
        # xxhash64 skips nulls: without `nulls` (null, "a") and ("a", null) would be one key.
        nulls = ", ".join(f"isnull({name})" for name in self.by.names)
        texts = "".join(f", to_json(struct({at.name}))" for at in self.by if pa.types.is_nested(at.type))
        return [f"xxhash64({names}) AS group", f"xxhash64('check', {names}, {nulls}{texts}) AS check"]

    # Over Arrow

    def arrow(self, rows: pa.Table) -> pa.Table:
        """The same without Spark; every row stays single."""
        count = rows.num_rows
        keys = [rows.column(name) for name in self.by.names]
        rows = rows.append_column("group", pa.array(key_hashes(keys, count, "group")))
        rows = rows.append_column("check", pa.array(key_hashes(keys, count, "check")))
        partials = self.aggregates.of_rows(rows)
        for field in self.aggregates.partial_schema:
            rows = rows.append_column(field, partials.column(field.name))
        if self.assignment is None:
            known = whole(rows, "watermark").fill_null(NO_TIME)
            rows = rows.set_column(rows.schema.get_field_index("watermark"), "watermark", known)
            return rows.select(self.wanted.names).cast(self.wanted)
        rows = rows.append_column("rows", pa.array(np.ones(count, np.int64)))
        return self._windows_of(rows).select(self.wanted.names).cast(self.wanted)

    def _windows_of(self, rows: pa.Table) -> pa.Table:
        assert self.assignment is not None
        found = self.assignment.arrow(whole(rows, "time"), whole(rows, "watermark"))
        windows = found["windows"]
        taken = np.repeat(np.arange(rows.num_rows), windows)
        place = np.arange(len(taken)) - np.repeat(np.cumsum(windows) - windows, windows)
        timing = np.where(place < found["gone"][taken], 2, np.where(place < found["closed"][taken], 1, 0))
        rows = rows.take(pa.array(taken))
        timeless = np.asarray(whole(rows, "time").is_null())
        steps = {"window_start": self.assignment.start_step, "window_end": self.assignment.step}
        for name, step in steps.items():
            rows = rows.append_column(name, pa.array(found[name][taken] + place * step, mask=timeless))
        return rows.append_column("timing", pa.array(timing.astype(np.int8)))
