"""EnrichEngine: each row with the row of a table that was valid at the row's time.

Facts are the left side, versions of the table's rows the right side; the input is as in `join_results`, where `taken_back`
marks a version that deletes its key. A fact waits until the watermark is past its time, when all versions up to then
have arrived; or, by the clock, for at most `wait`. A late version, by its own watermark, is effective only for facts
from then on: which one a fact gets depends only on the log. A version is evicted when the next one has been valid for
`lateness`: a later fact could no longer find its version, and is late. The last version
of a key stays; if it deletes the key, only for as long as deletions are kept (see `Versions`).

The end of a version's validity is computed from the versions that were known when the watermark was at the fact's time: of
later ones some may have arrived already, and some not.

With corrections facts are kept for `lateness` too: when a version arrives that changes what was valid at a fact's time, the
emitted row is retracted and emitted again.

State rows: the input columns, and
    shown      int8      of a fact: whether it was emitted
    version    int64     of a fact that was emitted: its version, by its item; 0 for none
    until      int64     of a fact that was emitted: the end of that version's validity then; NEVER if it was unknown
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.operators.joins.join_results import EnrichPart as Part
from mainstem.operators.joins.join_results import EnrichResults, JoinLate, TwoSided, in_order
from mainstem.operators.joins.join_terms import LEFT, RIGHT, dense_keys, shift
from mainstem.operators.stage.arrow_columns import in_log_order, numbers, whole
from mainstem.operators.stage.engine import NEVER, NO_TIME, STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix, tell_apart
from mainstem.operators.stage.integer_order import order_rows, search, sort_distinct

__all__ = ["EnrichEngine", "LatestEngine", "Versions", "known_ends"]


# Versions of a table's rows: which version holds at a time, and until when.
#
# A version *counts* from the later of two times: from when it is valid, and from when it was known. Of the versions that count
# at a time, the one with the latest start of validity holds; of several, the last in the log.
#
# A version may be a tombstone, which deletes its key. It is kept for `remembered`: an older version that begins to count after
# that holds as if nothing came before it. So keys that were deleted long ago need no state.


BoolArray = npt.NDArray[np.bool_]


class Versions:
    """The versions of a table's rows, by row number."""

    def __init__(
        self,
        keys: Int64Array,
        valid: Int64Array,
        counts: Int64Array,
        places: list[Int64Array],
        gone: BoolArray | None = None,
        remembered: int = NEVER,
    ) -> None:
        """`counts`: from when a version counts; `places`: the columns of the log order, the most significant first;
        `gone`: which versions are tombstones, which are kept for `remembered`."""
        by_validity = order_rows(valid, *places)
        rank = np.empty(len(keys), np.int64)
        rank[by_validity] = np.arange(len(keys))
        order = order_rows(keys, counts, rank)
        self._keys, self._counts = keys[order], counts[order]
        begins = np.r_[True, self._keys[1:] != self._keys[:-1]] if len(keys) else np.zeros(0, np.bool_)
        self._holding = _holding(begins, by_validity, rank[order])
        while gone is not None and gone.any():
            again = self._begins_again(begins, counts, gone, remembered)
            if not len(again):
                break
            begins[again] = True
            self._holding = _holding(begins, by_validity, rank[order])
        self._distinct = sort_distinct(counts)
        self._span = len(self._distinct) + 1
        self._joint = self._keys * self._span + search(self._distinct, self._counts)

    def _begins_again(self, begins: BoolArray, counts: Int64Array, gone: BoolArray, remembered: int) -> Int64Array:
        """Where a version begins to count that is older than an expired tombstone: the first of each key, since later versions
        may then hold by themselves."""
        held = self._holding
        over = np.where(counts[held] > NEVER - remembered, NEVER, counts[held] + remembered)
        found = ~begins & gone[held] & (self._counts > over)
        found[1:] &= held[1:] == held[:-1]
        places = np.flatnonzero(found)
        _, first = np.unique(np.cumsum(begins)[places], return_index=True)
        return np.asarray(places[first], np.int64)

    def at(self, keys: Int64Array, times: Int64Array) -> Int64Array:
        """For each key the number of the version that holds at a time; -1 if there is none, or no key (-1).

        >>> valid, counts = np.array([10, 20, 5, 15]), np.array([10, 20, 5, 30])
        >>> versions = Versions(np.array([0, 0, 1, 0]), valid, counts, [np.arange(4)])
        >>> versions.at(np.array([0, 0, 0, 1]), np.array([9, 10, 99, 7])).tolist()
        [-1, 0, 1, 2]
        """
        if not len(self._keys):
            return np.full(len(keys), -1)
        wanted = keys * self._span + search(self._distinct, times, side="right")
        place = search(self._joint, wanted) - 1
        found = (place >= 0) & (keys >= 0)
        found[found] = self._keys[place[found]] == keys[found]
        return np.where(found, self._holding[np.maximum(place, 0)], -1)

    def ends(self) -> Int64Array:
        """The end of each version: NEVER for the last of a key, NO_TIME for one that never holds.

        >>> valid, counts = np.array([10, 20, 5, 15]), np.array([10, 20, 5, 30])
        >>> ends = Versions(np.array([0, 0, 1, 0]), valid, counts, [np.arange(4)]).ends()
        >>> ends[0], ends[1] == ends[2] == NEVER, ends[3] == NO_TIME
        (np.int64(20), np.True_, np.True_)
        """
        following = np.full(len(self._keys), NEVER)
        followed = self._keys[1:] == self._keys[:-1]
        following[:-1][followed] = self._counts[1:][followed]
        found = np.full(len(self._keys), NO_TIME)
        np.maximum.at(found, self._holding, following)
        return found


def _holding(begins: BoolArray, by_validity: Int64Array, ranks: Int64Array) -> Int64Array:
    """For each version, in the order of counting: the number of the version that holds from then on."""
    if not len(ranks):
        return ranks
    # The running maximum of the ranks of each part; the part is the higher digit, so parts do not mix.
    total = len(ranks)
    held = np.maximum.accumulate(np.cumsum(begins) * total + ranks)
    return np.asarray(by_validity[held % total], np.int64)


def known_ends(
    keys: Int64Array, valid: Int64Array, known: Int64Array, asking: Int64Array, times: Int64Array
) -> Int64Array:
    """For each asking key and time: when the next version that was known by then becomes valid; NEVER if there is none.
    `known`: from when each version was known.

    >>> keys, valid, known = np.array([0, 0, 0]), np.array([10, 20, 30]), np.array([5, 25, 12])
    >>> known_ends(keys, valid, known, np.array([0, 0, 0, 7]), np.array([7, 12, 26, 7])).tolist()[:3]
    [10, 30, 30]
    """
    count = len(keys)
    if not count:
        return np.full(len(asking), NEVER)
    # A sentinel after the versions of each key: valid NEVER, always known.
    distinct = sort_distinct(keys)
    keys = np.r_[keys, distinct]
    valid, known = np.r_[valid, np.full(len(distinct), NEVER)], np.r_[known, np.full(len(distinct), NO_TIME)]
    order = order_rows(keys, valid)
    last, keys, valid, known = order >= count, keys[order], valid[order], known[order]
    # For each version the next one that was known earlier, by pointer jumping.
    earlier = np.where(last, np.arange(len(keys)), np.arange(len(keys)) + 1)
    while len(behind := np.flatnonzero((known[earlier] >= known) & ~last[earlier])):
        earlier[behind] = earlier[earlier[behind]]
    times_known = sort_distinct(valid)
    joint = keys * (len(times_known) + 1) + search(times_known, valid)
    wanted = asking * (len(times_known) + 1) + search(times_known, times, side="right")
    place = np.minimum(search(joint, wanted), len(keys) - 1)
    while len(unknown := np.flatnonzero((known[place] > times) & ~last[place])):
        place[unknown] = earlier[place[unknown]]
    return np.where(keys[place] == asking, valid[place], NEVER)


WAITING, SHOWN = 0, 1


@dataclass(frozen=True)
class EnrichEngine(TwoSided):
    """`wait`: the maximum time that a fact waits, by the clock, in microseconds; None for no limit."""

    results: EnrichResults
    late: JoinLate
    lateness: int
    wait: int | None = None
    corrected: bool = False

    @property
    def state_schema(self) -> pa.Schema:
        own = [at for at in self.input_schema if at.name not in ("group", "tie")]
        return pa.schema([*STATE_COLUMNS, *own, ("shown", pa.int8()), ("version", pa.int64()), ("until", pa.int64())])

    def describe(self) -> dict[str, Any]:
        return {
            "enrich": "by time", "lateness": self.lateness, "corrected": self.corrected,
            "left": str(self.results.left), "right": str(self.results.right),
        }  # fmt: skip

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        rows = in_log_order(rows.combine_chunks())
        rows = _date_deletes(rows, clock)
        reasons = self._find_reasons(rows)
        told = [
            self.late.rows(rows.filter(pa.array(reasons == reason)), str(reason))
            for reason in np.unique(reasons)
            if reason
        ]
        late = pa.concat_tables([self.late_schema.empty_table(), *told])
        batch = _Batch(self, state, rows.filter(pa.array(reasons == "")), clock)
        counts = {"late": int((reasons == "")[_late_versions(rows)].sum()), "too_late": late.num_rows}
        counted = {what: count for what, count in counts.items() if count}
        return Step(batch.output(), batch.put(), batch.find_gone(), late, counted, own=batch.watermarks())

    def _find_reasons(self, rows: pa.Table) -> npt.NDArray[Any]:
        found = np.full(rows.num_rows, "", dtype="U64")
        times, facts = numbers(rows, "time"), numbers(rows, "side") == LEFT
        found[facts & (numbers(rows, "watermark") > shift(times, self.lateness))] = (
            "too late: what was valid is forgotten"
        )
        found[times == NO_TIME] = "no time"
        found[~facts & ~flags(rows, "keyed")] = "no key"
        found[facts & flags(rows, "taken_back")] = "takes a row back, and what it was put out with stays"
        return found


class _Batch:
    """One batch in one bucket."""

    def __init__(self, engine: EnrichEngine, state: StateTable, rows: pa.Table, clock: BatchClock) -> None:
        self._engine = engine
        self._clock = clock
        groups = np.concatenate([numbers(rows, "group"), numbers(state.due(clock), "group")])
        kept = state.find(groups)
        self.rows = pa.concat_tables([kept, self._new(rows)]).combine_chunks()
        self._fresh = np.arange(self.rows.num_rows) >= kept.num_rows
        self.time, self.item, self.before, self.event_due, self.processing_due, was_shown = (
            numbers(self.rows, name) for name in ("time", "item", "version", "event_due", "processing_due", "shown")
        )
        side = numbers(self.rows, "side")
        self.facts, self.table = np.flatnonzero(side == LEFT), np.flatnonzero(side == RIGHT)
        [self._keys] = dense_keys((numbers(self.rows, "group"), numbers(self.rows, "check")))
        self._keys[~flags(self.rows, "keyed")] = -1
        places = [numbers(self.rows, name)[self.table] for name in ("partition", "offset")]
        # With corrections a late version also counts for facts up to `lateness` earlier.
        slack = engine.lateness if engine.corrected else 0
        own, valid_from = numbers(self.rows, "watermark")[self.table], self.time[self.table]
        counts = np.maximum(valid_from, shift(own, -slack))
        gone = flags(self.rows, "taken_back")
        versions = Versions(
            self._keys[self.table], valid_from, counts, places, gone[self.table], remembered=engine.lateness
        )
        ends = versions.ends()
        # The watermark at which a version is evicted: when the next one has held for `lateness`.
        over = np.where(ends == NO_TIME, valid_from, ends)
        last_gone = gone[self.table] & (ends == NEVER)
        self._over = shift(np.where(last_gone, shift(counts, slack), over), engine.lateness + 1)
        # For each fact the row number of the version valid at its time; -1 for none.
        self.valid = np.full(self.rows.num_rows, -1)
        found = versions.at(self._keys[self.facts], self.time[self.facts])
        valid = np.where(found >= 0, self.table[np.maximum(found, 0)], -1) if len(self.table) else found
        self.valid[self.facts] = np.where((valid >= 0) & ~gone[np.maximum(valid, 0)], valid, -1)
        self._was_shown = was_shown == SHOWN
        ready = (self.time < clock.watermark) | (self.processing_due <= clock.now)
        self.now_shown = (side == LEFT) & ~self._was_shown & ready
        chosen = np.where(self.valid >= 0, self.item[np.maximum(self.valid, 0)], 0)
        self.changed = (side == LEFT) & self._was_shown & (chosen != self.before)
        self._chosen = chosen
        self.until = np.full(self.rows.num_rows, NEVER)
        self.until[self.facts] = known_ends(
            self._keys[self.table], valid_from, own, self._keys[self.facts], self.time[self.facts]
        )

    def _new(self, rows: pa.Table) -> pa.Table:
        engine, count = self._engine, rows.num_rows
        items = tell_apart(mix(*(numbers(rows, name) for name in ("side", "partition", "offset", "tie"))))
        facts = numbers(rows, "side") == LEFT
        wakes = NEVER if engine.wait is None else min(self._clock.now + engine.wait, NEVER)
        known = {
            "item": items,
            "event_due": np.where(facts, shift(numbers(rows, "time"), 1), NEVER),
            "processing_due": np.where(facts, wakes, NEVER),
            "shown": np.zeros(count, np.int8),
            "version": np.zeros(count, np.int64),
            "until": np.full(count, NEVER),
        }
        schema = engine.state_schema
        columns = [pa.array(known[at.name]) if at.name in known else rows.column(at.name) for at in schema]
        arrays = [whole(column).cast(at.type) for column, at in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def output(self) -> pa.Table:
        """Retractions, then the rows that replace them, then new rows, each in log order."""
        return self._engine.results.table(self.rows, self._parts())

    def watermarks(self) -> Int64Array:
        """The watermark of each output row: that of the fact, or its time if that is later. NO_TIME for corrections: only the
        batch's is known."""
        own = np.maximum(self.time, numbers(self.rows, "watermark"))
        own = np.where(self.now_shown, own, NO_TIME)
        return np.concatenate([own[facts] for facts, *_ in self._engine.results.filter_parts(self._parts())])

    def _parts(self) -> list[Part]:
        changed, shown = (in_order(self.rows, np.flatnonzero(which)) for which in (self.changed, self.now_shown))
        return [
            (changed, self._before(changed), numbers(self.rows, "until")[changed], "delete"),
            (changed, self.valid[changed], self.until[changed], "insert"),
            (shown, self.valid[shown], self.until[shown], "insert"),
        ]

    def _until(self) -> Int64Array:
        """For each fact the end of validity that it was last emitted with."""
        return np.where(self.now_shown | self.changed, self.until, numbers(self.rows, "until"))

    def _before(self, facts: Int64Array) -> Int64Array:
        """The versions that facts were emitted with; -1 for none."""
        order = self.table[np.argsort(self.item[self.table])]
        items = self.item[order]
        place = np.minimum(np.searchsorted(items, self.before[facts]), max(0, len(items) - 1))
        if not len(items):
            return np.full(len(facts), -1)
        return np.where((self.before[facts] != 0) & (items[place] == self.before[facts]), order[place], -1)

    def _dues(self) -> Int64Array:
        """The watermark at which each row is evicted, or a waiting fact is ready."""
        engine = self._engine
        found = self.event_due.copy()
        found[self.table] = self._over
        shown = self._was_shown | self.now_shown
        kept_until = shift(self.time, engine.lateness + 1) if engine.corrected else np.full(len(self.time), NO_TIME)
        return np.where(shown, kept_until, found)

    def put(self) -> pa.Table:
        """New and changed state rows."""
        dues = self._dues()
        shown = self._was_shown | self.now_shown
        changed = self._fresh | self.now_shown | self.changed | (dues != self.event_due)
        rows = np.flatnonzero(changed & ~self._done(dues))
        taken = self.rows.take(pa.array(rows))
        for name, values in (
            ("event_due", dues[rows]),
            ("processing_due", np.where(shown, NEVER, self.processing_due)[rows]),
            ("shown", shown[rows].astype(np.int8)),
            ("version", np.where(shown, self._chosen, 0)[rows]),
            ("until", self._until()[rows]),
        ):
            place = taken.schema.get_field_index(name)
            taken = taken.set_column(place, taken.schema.field(place), pa.array(values))
        return taken

    def find_gone(self) -> pa.Table:
        return self.rows.filter(pa.array(~self._fresh & self._done(self._dues()))).select(["group", "item"])

    def _done(self, dues: Int64Array) -> BoolArray:
        waits = np.zeros(self.rows.num_rows, np.bool_)
        waits[self.facts] = ~(self._was_shown | self.now_shown)[self.facts]
        found: BoolArray = ~waits & (dues <= self._clock.watermark)
        return found


def _late_versions(rows: pa.Table) -> BoolArray:
    """Versions that are late by their own watermark: rows that they are valid for may have been emitted."""
    found: BoolArray = (numbers(rows, "side") == RIGHT) & (numbers(rows, "watermark") > numbers(rows, "time"))
    return found


def flags(rows: pa.Table, name: str) -> BoolArray:
    """A Boolean column."""
    return np.asarray(whole(rows.column(name)).cast(pa.int8())).view(np.bool_)


def _date_deletes(rows: pa.Table, clock: BatchClock) -> pa.Table:
    """A delete without a time is effective from its append (`JoinSide.dated`), or, if that is unknown, from the time of the
    batch."""
    times = numbers(rows, "time")
    undated = (times == NO_TIME) & flags(rows, "taken_back") & (numbers(rows, "side") == RIGHT)
    if not undated.any():
        return rows
    place = rows.schema.get_field_index("time")
    return rows.set_column(place, "time", pa.array(np.where(undated, clock.now, times)))


# LatestEngine: each row with the latest row of a table when it arrives. In a batch the table's changes come first.
#
# The input is as in `join_results`: facts on the left, the table's changes on the right. The state is the newest row of each
# key; facts are not stored.


@dataclass(frozen=True)
class LatestEngine(TwoSided):
    """Looks up facts in the latest version of a table."""

    results: EnrichResults
    late: JoinLate

    @property
    def state_schema(self) -> pa.Schema:
        own = [at for at in self.input_schema if at.name in ("check", "time", "partition", "offset", "right")]
        return pa.schema([*STATE_COLUMNS, *own])

    def describe(self) -> dict[str, Any]:
        return {"enrich": "latest", "left": str(self.results.left), "right": str(self.results.right)}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        rows = in_log_order(rows.combine_chunks())
        side, back = numbers(rows, "side"), flags(rows, "taken_back")
        late = self.late.rows(
            rows.filter(pa.array((side == LEFT) & back)), "takes a row back, and what was put out stays"
        )
        rows = rows.filter(pa.array(~((side == LEFT) & back)))
        kept = state.find(sort_distinct(numbers(rows, "group")))
        together = self._together(kept, rows)
        fresh = np.arange(together.num_rows) >= kept.num_rows
        side = numbers(together, "side")
        [keys] = dense_keys((numbers(together, "group"), numbers(together, "check")))
        keys[~flags(together, "keyed")] = -1
        facts, table = np.flatnonzero(side == LEFT), np.flatnonzero(side == RIGHT)
        # Stored rows come first: the row order is the order of arrival.
        same = np.zeros(len(table), np.int64)
        newest = Versions(keys[table], same, same, [np.arange(len(table))])
        found = newest.at(keys[facts], np.zeros(len(facts), np.int64))
        gone = flags(together, "taken_back")
        valid = table[np.maximum(found, 0)] if len(table) else found
        valid = np.where((found >= 0) & ~gone[np.maximum(valid, 0)], valid, -1) if len(table) else found
        replaced = newest.ends() != NEVER
        last = table[~replaced & (keys[table] >= 0)]
        put = last[fresh[last] & ~gone[last]]
        # The end of the latest version is unknown.
        parts: list[Part] = [(facts, valid, np.full(len(facts), NEVER), "insert")]
        own = [numbers(together, "watermark")[of] for of, *_ in self.results.filter_parts(parts)]
        return Step(
            self.results.table(together, parts),
            self._put(together.take(pa.array(put))),
            self._identify(together, last[fresh[last] & gone[last]]),
            late,
            {"too_late": late.num_rows} if late.num_rows else {},
            own=own[0],
        )

    def _together(self, kept: pa.Table, rows: pa.Table) -> pa.Table:
        """The stored rows of the table, then the rows of the batch."""
        count = kept.num_rows
        known = {
            "keyed": pa.array(np.ones(count, np.bool_)),
            "side": pa.array(np.full(count, RIGHT, np.int8)),
            "tie": pa.array(np.zeros(count, np.int64)),
            "watermark": pa.array(np.zeros(count, np.int64)),
            "taken_back": pa.array(np.zeros(count, np.bool_)),
            "left": pa.nulls(count, self.results.left),
        }
        schema = self.input_schema
        before = [known[at.name] if at.name in known else whole(kept.column(at.name)) for at in schema]
        new = [whole(rows.column(at.name)).cast(at.type) for at in schema]
        tables = [pa.Table.from_arrays(columns, schema=schema) for columns in (before, new)]
        return pa.concat_tables(tables).combine_chunks()

    def _put(self, rows: pa.Table) -> pa.Table:
        never = pa.array(np.full(rows.num_rows, NEVER))
        known = {"item": rows.column("check"), "event_due": never, "processing_due": never}
        columns = [known[at.name] if at.name in known else rows.column(at.name) for at in self.state_schema]
        return pa.Table.from_arrays([whole(column) for column in columns], schema=self.state_schema)

    def _identify(self, rows: pa.Table, which: Int64Array) -> pa.Table:
        taken = rows.take(pa.array(which))
        return pa.table({"group": taken.column("group"), "item": taken.column("check")})
