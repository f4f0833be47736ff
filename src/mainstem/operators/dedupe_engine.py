"""DedupeEngine: keeps the first row in the log of several with the same key within a duration of event time.

A row is a duplicate if a kept row of its key is less than `within` apart in event time, before or after. A kept row
is evicted when the watermark is twice `within` past it. A row whose own watermark is `within` or more past its
event time is late: it is reported and counted, not kept. Every other row finds all rows that it could be a
duplicate of, so the result does not depend on how the rows are split into batches:

    remembered t  while  watermark < t + 2 within
    decided    r  while  watermark < r + within        so a row that no longer finds t is at least `within` after it

State rows: `check` and `time` of the kept rows.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.operators.stage.arrow_columns import in_log_order, numbers
from mainstem.operators.stage.engine import NEVER, NO_TIME, STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix
from mainstem.operators.stage.integer_order import order_rows, sort_distinct

__all__ = ["DedupeEngine"]

BoolArray = npt.NDArray[np.bool_]
TIME = pa.timestamp("us", "UTC")

# A round decides one row of every key. Keys with rows left after this many rounds are finished row by row: one key with
# 100,000 rows would take as many rounds.
ROUNDS = 8


@dataclass(frozen=True)
class DedupeEngine:
    """Keeps the first row. `row_type` is the type of the output rows."""

    by_fields: tuple[pa.Field, ...]
    row_type: pa.DataType
    within: int
    # The column with a row's change; empty if there is none.
    record: str = ""

    @property
    def state_schema(self) -> pa.Schema:
        return pa.schema([*STATE_COLUMNS, ("check", pa.int64()), ("time", pa.int64())])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([("row", self.row_type), ("change", pa.string())])

    @property
    def late_schema(self) -> pa.Schema:
        times = [("time", TIME), ("watermark", TIME), ("reason", pa.string())]
        return pa.schema([*self.by_fields, *times, ("partition", pa.int32()), ("offset", pa.int64())])

    def describe(self) -> dict[str, Any]:
        return {"dedupe": [str(column.type) for column in self.by_fields], "within": self.within}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        rows = in_log_order(rows)
        times = numbers(rows, "time")
        timeless = times == NO_TIME
        late = ~timeless & (numbers(rows, "watermark") - self.within >= np.where(timeless, 0, times))
        late &= numbers(rows, "watermark") != NO_TIME
        decided = np.flatnonzero(~(timeless | late))
        candidates = rows.take(pa.array(decided))
        kept = self._choose_rows(state, candidates)
        found = candidates.take(pa.array(kept))
        counts = {"duplicates": len(decided) - len(kept), "too_late": int((late | timeless).sum())}
        return Step(
            output=self._output(found),
            own=numbers(found, "watermark"),
            put=self._put(found, clock),
            gone=state.due(clock).select(["group", "item"]),
            late=self._late(rows, timeless, late),
            counts={what: count for what, count in counts.items() if count},
        )

    def _choose_rows(self, state: StateTable, rows: pa.Table) -> Int64Array:
        """The numbers of the rows that are kept, in order."""
        before = state.find(sort_distinct(numbers(rows, "group")))
        identities = [np.concatenate([numbers(before, name), numbers(rows, name)]) for name in ("group", "check")]
        keys = _dense(*identities)
        known, keys = keys[: before.num_rows], keys[before.num_rows :]
        times = numbers(rows, "time")
        near = _near(known, numbers(before, "time"), keys, times, self.within)
        pending = np.flatnonzero(~near)
        kept: list[Int64Array] = []
        for _ in range(ROUNDS):
            if not len(pending):
                break
            # The first row of each key is not a duplicate: no kept row is near it.
            _, places, of_key = np.unique(keys[pending], return_index=True, return_inverse=True)
            first = pending[places]
            kept.append(first)
            pending = pending[np.abs(times[pending] - times[first][of_key]) >= self.within]
        kept.append(self._row_by_row(keys, times, pending))
        return np.sort(np.concatenate(kept))

    def _row_by_row(self, keys: Int64Array, times: Int64Array, pending: Int64Array) -> Int64Array:
        kept: dict[int, list[int]] = {}
        found = []
        for row, key, time in zip(pending.tolist(), keys[pending].tolist(), times[pending].tolist(), strict=True):
            of_key = kept.setdefault(key, [])
            place = bisect.bisect(of_key, time)
            # Kept rows are at least `within` apart, so only the neighbours can be near.
            if any(abs(time - other) < self.within for other in of_key[max(0, place - 1) : place + 1]):
                continue
            of_key.insert(place, time)
            found.append(row)
        return np.array(found, np.int64)

    def _output(self, rows: pa.Table) -> pa.Table:
        row = rows.column("row").cast(self.row_type)
        if self.record and rows.num_rows:
            change = pc.fill_null(pc.struct_field(row, [self.record, "change"]), "insert")
        else:
            change = pa.array(["insert"] * rows.num_rows, pa.string())
        return pa.Table.from_arrays([row, change], schema=self.output_schema)

    def _put(self, rows: pa.Table, clock: BatchClock) -> pa.Table:
        groups, checks, times = (numbers(rows, name) for name in ("group", "check", "time"))
        due = times + 2 * self.within
        # A row that no later row can be a duplicate of is not stored.
        lasting = due > clock.watermark
        columns = [groups, mix(checks, times), due, np.full(len(due), NEVER), checks, times]
        return pa.Table.from_arrays([pa.array(column[lasting]) for column in columns], schema=self.state_schema)

    def _late(self, rows: pa.Table, timeless: BoolArray, late: BoolArray) -> pa.Table:
        chosen = np.flatnonzero(timeless | late)
        taken = rows.take(pa.array(chosen))
        times = [_times(numbers(taken, name)) for name in ("time", "watermark")]
        reasons = np.where(timeless[chosen], "no event time", "too late to tell whether it is a duplicate")
        by = [taken.column(column.name) for column in self.by_fields]
        places = [taken.column("partition"), taken.column("offset")]
        return pa.Table.from_arrays([*by, *times, pa.array(reasons, pa.string()), *places], schema=self.late_schema)


def _times(microseconds: Int64Array) -> pa.Array:
    return pa.array(microseconds, mask=microseconds == NO_TIME).view(TIME)


def _dense(groups: Int64Array, checks: Int64Array) -> Int64Array:
    """A number from 0 on for each distinct pair."""
    order = order_rows(groups, checks)
    first = np.ones(len(order), np.int64)
    first[1:] = (groups[order][1:] != groups[order][:-1]) | (checks[order][1:] != checks[order][:-1])
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(first) - 1
    return found


def _near(known: Int64Array, known_times: Int64Array, keys: Int64Array, times: Int64Array, within: int) -> BoolArray:
    """Whether one of the known times of a row's key is less than `within` away."""
    if not len(known):
        return np.zeros(len(keys), np.bool_)
    order = order_rows(known, known_times)
    known, known_times = known[order], known_times[order]
    first, end = np.searchsorted(known, keys, side="left"), np.searchsorted(known, keys, side="right")
    found = np.zeros(len(keys), np.bool_)
    # The number of the key's known times at or before the row's, by one sort of all.
    # Of equal times the known ones, which are the first rows, come first.
    whole = order_rows(np.concatenate([known, keys]), np.concatenate([known_times, times]))
    is_known = whole < len(known)
    before = np.empty(len(whole), np.int64)
    before[whole] = np.cumsum(is_known)
    place = before[len(known) :]
    for neighbour in (place - 1, place):
        inside = (neighbour >= first) & (neighbour < end)
        found[inside] |= np.abs(known_times[neighbour[inside]] - times[inside]) < within
    return found
