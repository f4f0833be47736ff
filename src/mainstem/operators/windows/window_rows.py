"""WindowRows: converts a batch's rows to the input of a window engine, with Spark, or over Arrow (packed rows, tests).

Input, from a plain select (see `windowed`):

    by_0, by_1, ...                 the key
    time, watermark      bigint     event time and the row's own watermark in microseconds, null where there is none
    gap                  bigint     of sessions
    topic, partition, offset        the position of the row in the log
    i0_0, i0_1, ...                 the arguments of the aggregate functions

For windows that depend on a row's time alone, rows of one key and window are pre-aggregated natively, except those that are
late for one of their windows. So are rows of sessions within one gap of each other, if each is ahead of its own
watermark: no session that was closed before could have included it, so the order does not matter. If a
trigger counts rows, or windows depend on the other rows in other ways, no rows are pre-aggregated. Over Arrow rows of one
window are merged too, which with Spark is left to the engine: it gives the same for rows that are single and together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.watermark import NO_TIME
from mainstem.operators.aggregates.accumulators import whole
from mainstem.operators.aggregates.aggregates import Aggregates
from mainstem.operators.stage.engine import NEVER, Int64Array
from mainstem.operators.stage.frame_columns import add_columns
from mainstem.operators.stage.keyed_rows import arrow_hashes
from mainstem.operators.stage.spark_hashes import hashable
from mainstem.operators.windows.cells import POSITION
from mainstem.operators.windows.numbering import Mask, highest, lowest, number_values, numbers
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

    # How the engine orders rows of one position in the log; see `packed_rows`.
    same_position: ClassVar[str] = "merged"

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

    @property
    def packable(self) -> bool:
        """Whether `arrow` gives rows the groups and the accumulators that `native` does."""
        return all(hashable(kind) for kind in self.by.types) and self.aggregates.packable

    def arrow(self, rows: pa.Table) -> pa.Table:
        """The same without Spark."""
        rows, key = self._identify(self._unsign_zeros(rows))
        found = {} if self.assignment is None else self.assignment.arrow(whole(rows, "time"))
        if self.assignment is not None and self.assignment.leaves_gaps:
            rows, key, found = _take(rows, key, found, found["windows"] > 0)
        together = self._find_together(rows, found)
        parts = [self._put_together_arrow(*_take(rows, key, found, together))] if together.any() else []
        if not together.all() or not parts:
            parts.append(self._keep_single(*_take(rows, key, found, ~together)))
        return pa.concat_tables([part.select(self.wanted.names).cast(self.wanted) for part in parts])

    def _unsign_zeros(self, rows: pa.Table) -> pa.Table:
        """As Spark's groupBy does: a key of -0.0 is 0.0."""
        floats = [field.name for field in self.by if pa.types.is_floating(field.type)]
        if self.single or not floats or (self.assignment is None and not self.sessions):
            return rows
        return _with_columns(
            rows, {name: pc.add(rows.column(name), pa.scalar(0.0, rows.column(name).type)) for name in floats}
        )

    def _identify(self, rows: pa.Table) -> tuple[pa.Table, Int64Array]:
        """The rows with the hashes of their keys, and a number for each row's key."""
        keys = [whole(rows, name) for name in self.by.names]
        if all(hashable(key.type) for key in keys):
            # Each distinct key is hashed once.
            key, firsts = number_values(*keys) if keys else number_values(np.zeros(rows.num_rows, np.int64))
            group, check = arrow_hashes([column.take(pa.array(firsts)) for column in keys], len(firsts))
            group, check = group[key], check[key]
        else:
            group, check = arrow_hashes(keys, rows.num_rows)
            key, _ = number_values(group, check)
        return _with_columns(rows, {"group": group, "check": check}), key

    def _find_together(self, rows: pa.Table, found: Mapping[str, Int64Array]) -> Mask:
        """Which rows may be merged with others."""
        time, own = numbers(rows, "time"), numbers(rows, "watermark", NO_TIME)
        if self.single or not self.aggregates.mergeable or not (found or self.sessions):
            return np.zeros(rows.num_rows, np.bool_)
        apart = own < found["window_end"] if found else (time > own) & (numbers(rows, "gap") > 0)
        return np.asarray(whole(rows, "time").is_valid()) & apart

    def _keep_single(self, rows: pa.Table, key: Int64Array, found: Mapping[str, Int64Array]) -> pa.Table:
        """Each row by itself, and once for every one of its windows."""
        rows = add_columns(rows, self.aggregates.of_rows(rows))
        if self.assignment is None:
            return _with_columns(rows, {"watermark": numbers(rows, "watermark", NO_TIME)})
        time, watermark = whole(rows, "time"), whole(rows, "watermark")
        gone, closed = (self.assignment.arrow_passed(which, time, watermark, found) for which in ("gone", "closed"))
        taken, place = _places(found["windows"])
        timing = np.where(place < gone[taken], 2, np.where(place < closed[taken], 1, 0))
        exploded = rows.take(pa.array(taken))
        timeless = np.asarray(whole(exploded, "time").is_null())
        windows = {name: pa.array(of, mask=timeless) for name, of in self._windows(found, taken, place).items()}
        more = {"timing": timing.astype(np.int8), "rows": np.ones(len(taken), np.int64)}
        return _with_columns(exploded, {**windows, **more})

    def _put_together_arrow(self, rows: pa.Table, key: Int64Array, found: Mapping[str, Int64Array]) -> pa.Table:
        return self._by_window(rows, key, found) if found else self._by_gap(rows, key)

    def _by_window(self, rows: pa.Table, key: Int64Array, found: Mapping[str, Int64Array]) -> pa.Table:
        """One row for each key and window. Rows with the same windows are merged first, so that few are exploded."""
        assert self.assignment is not None
        ids, firsts = number_values(key, *(found[name] for name in self.assignment.native_keys()))
        partials = self.aggregates.merge(self.aggregates.of_rows(rows), ids, len(firsts))
        time = highest(ids, numbers(rows, "time"), len(firsts))
        taken, place = _places(found["windows"][firsts])
        windows = self._windows(found, firsts[taken], place)
        if self.assignment.step:
            ids, some = number_values(key[firsts[taken]], *windows.values())
            partials = self.aggregates.merge(partials.take(pa.array(taken)), ids, len(some))
            time = highest(ids, time[taken], len(some))
            windows, taken = {name: of[some] for name, of in windows.items()}, taken[some]
        count = len(taken)
        keys = rows.select(["group", "check", *self.by.names]).take(pa.array(firsts[taken]))
        unknown = {name: pa.nulls(count, pa.int64()) for name in ("watermark", *(at.name for at in POSITION))}
        more = {"timing": np.zeros(count, np.int8), "rows": partials.column(0), "time": time}
        return _with_columns(add_columns(keys, partials), {**windows, **unknown, **more})

    def _by_gap(self, rows: pa.Table, key: Int64Array) -> pa.Table:
        """One row for rows that are certainly in one session, with a gap up to the end of the last one."""
        time, gap = numbers(rows, "time"), numbers(rows, "gap")
        # By topic and partition too: in the state the position of the first row identifies them.
        places = [numbers(rows, name) for name in ("topic", "partition")]
        ids, firsts = number_values(key, gap, time - time % gap, *places)
        count = len(firsts)
        first, offset = (lowest(ids, numbers(rows, name), count) for name in ("time", "offset"))
        own = lowest(ids, numbers(rows, "watermark", NEVER), count)
        merged = {
            "time": first,
            "gap": highest(ids, time, count) - first + gap[firsts],
            "watermark": np.where(own == NEVER, NO_TIME, own),
            "offset": offset,
        }
        partials = self.aggregates.merge(self.aggregates.of_rows(rows), ids, count)
        return _with_columns(add_columns(rows.take(pa.array(firsts)), partials), merged)

    def _windows(self, found: Mapping[str, Int64Array], rows: Int64Array, place: Int64Array) -> dict[str, Int64Array]:
        """Start and end of windows: of which row, and the how manieth of it."""
        assert self.assignment is not None
        steps = {"window_start": self.assignment.start_step, "window_end": self.assignment.step}
        return {name: found[name][rows] + place * step for name, step in steps.items()}


def _take(
    rows: pa.Table, key: Int64Array, found: Mapping[str, Int64Array], which: Mask
) -> tuple[pa.Table, Int64Array, dict[str, Int64Array]]:
    if which.all():
        return rows, key, dict(found)
    return rows.filter(pa.array(which)), key[which], {name: of[which] for name, of in found.items()}


def _places(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Each row as often as its count, and the place among its repetitions."""
    taken = np.repeat(np.arange(len(counts)), counts)
    return taken, np.arange(len(taken)) - np.repeat(np.cumsum(counts) - counts, counts)


def _with_columns(rows: pa.Table, columns: Mapping[str, object]) -> pa.Table:
    """The rows with these columns, which may replace others."""
    kept = {name: rows.column(name) for name in rows.column_names if name not in columns}
    made = {name: pa.array(column) if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    return pa.table({**kept, **made})
