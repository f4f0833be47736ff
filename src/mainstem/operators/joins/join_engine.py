"""JoinEngine: emits matching rows of two streams at once, and unmatched rows when their time is up; see `join_terms`.

The state has the input columns (see `join_results`), and

    met        int8      whether it has matched, or was emitted unmatched

Rows of the right side are stored under another group than they arrived with: a new row looks up only the other side's.

In a batch new rows are joined with all stored rows and with each other. A stored row is written again only when
it changes: it got its first match, or its time is up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.errors import Invalid
from mainstem.operators.joins.join_results import JoinLate, JoinResults, Part, TwoSided, in_order
from mainstem.operators.joins.join_terms import LEFT, RIGHT, JoinTerms, dense_keys, find_pairs, shift
from mainstem.operators.stage.arrow_columns import in_order_of, numbers, whole
from mainstem.operators.stage.engine import NEVER, NO_TIME, STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step
from mainstem.operators.stage.hashes import mix, tell_apart
from mainstem.operators.stage.integer_order import sort_distinct

__all__ = ["JoinEngine"]

BoolArray = npt.NDArray[np.bool_]

# The status of a stored row: unmatched, matched, or emitted unmatched.
WAITING, MET, ALONE = 0, 1, 2
# Why a row is not joined; the first: it is joined.
REASONS = (
    "", "too late to meet anybody", "no event time", "takes a row back, and pairs of streams stay"
)  # fmt: skip
_RIGHT_GROUPS = np.int64(0x52B9_3F0C_65A1_D7E3)
# More pairs in one bucket of one batch would not fit into memory.
PAIRS_MAX = 20_000_000


@dataclass(frozen=True)
class JoinEngine(TwoSided):
    """Joins by `terms`; `results` and `late` build the output and the late rows."""

    terms: JoinTerms
    results: JoinResults
    late: JoinLate

    @property
    def state_schema(self) -> pa.Schema:
        own = [at for at in self.input_schema if at.name not in ("group", "tie", "taken_back")]
        return pa.schema([*STATE_COLUMNS, *own, ("met", pa.int8())])

    def describe(self) -> dict[str, Any]:
        terms = self.terms
        return {
            "join": terms.how, "kept": "by side", "before": terms.before, "after": terms.after, "lateness": terms.lateness,
            "left": str(self.results.left), "right": str(self.results.right),
        }  # fmt: skip

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        rows = in_order_of(rows.combine_chunks(), ("side", "partition", "offset", "tie"))
        refused = self._find_reasons(rows)
        told = [
            self.late.rows(rows.filter(pa.array(refused == number)), REASONS[number])
            for number in range(1, len(REASONS))
            if (refused == number).any()
        ]
        rows = rows.filter(pa.array(refused == 0)) if told else rows
        batch = _Batch(self, state, rows, clock)
        late = pa.concat_tables([self.late_schema.empty_table(), *told, *batch.too_late()])
        counts = {
            "too_late": late.num_rows,
            "null_keys": int((~_flags(rows, "keyed")).sum()),
            "pairs_cut": int(batch.cut.sum()),
        }
        return Step(
            output=batch.output(),
            own=batch.watermarks(),
            put=batch.put(),
            gone=batch.find_gone(),
            late=late,
            counts={what: count for what, count in counts.items() if count},
        )

    def _find_reasons(self, rows: pa.Table) -> npt.NDArray[Any]:
        """For each row the reason why it is not joined, as a number of `REASONS`; 0 if it is."""
        found = np.zeros(rows.num_rows, np.int8)
        if self.terms.bounded:
            times = numbers(rows, "time")
            found[self.terms.hopeless(times, numbers(rows, "watermark"))] = 1
            found[times == NO_TIME] = 2
        found[_flags(rows, "taken_back")] = 3
        return found


class _Batch:
    """One batch in one bucket: matches stored and new rows."""

    def __init__(self, engine: JoinEngine, state: StateTable, rows: pa.Table, clock: BatchClock) -> None:
        self._engine = engine
        self._terms = engine.terms
        self._clock = clock
        # A row matches only rows of the other side.
        groups = sort_distinct(_by_side(numbers(rows, "group"), 1 - numbers(rows, "side")))
        due = state.due(clock)
        others = due.filter(pa.array(~np.isin(numbers(due, "group"), groups)))
        kept = pa.concat_tables([state.find(groups), others])
        self._old = kept.num_rows
        self.rows = _concatenate(kept, self._new(rows))
        self.side, self.met, self.time, self.own = (
            numbers(self.rows, name) for name in ("side", "met", "time", "watermark")
        )
        self._fresh = np.arange(self.rows.num_rows) >= self._old
        self.cut = np.zeros(self.rows.num_rows, np.int64)
        self._pairs_made = 0
        self.up, self.closed, self.forgotten = (
            np.where(self.side == LEFT, of(LEFT, self.time), of(RIGHT, self.time))
            for of in (self._terms.up, self._terms.last_watermarks, self._terms.eviction_watermarks)
        )
        left, right = self._meetings()
        late_right, late_left = self.own[right] > self.closed[left], self.own[left] > self.closed[right]
        paired = ~(late_right | late_left)
        self.left, self.right = left[paired], right[paired]
        # Late rows, and the rows that they would have matched.
        missed = np.flatnonzero(~paired)
        self._missed = (
            np.where(late_right[missed], right[missed], left[missed]),
            np.where(late_right[missed], left[missed], right[missed]),
        )
        self._follow()

    def _new(self, rows: pa.Table) -> pa.Table:
        items = tell_apart(mix(*(numbers(rows, name) for name in ("side", "partition", "offset", "tie"))))
        never = np.full(rows.num_rows, NEVER)
        group = _by_side(numbers(rows, "group"), numbers(rows, "side"))
        known = {
            "group": group,
            "item": items,
            "event_due": never,
            "processing_due": never,
            "met": np.zeros(rows.num_rows, np.int8),
        }
        schema = self._engine.state_schema
        columns = [pa.array(known[at.name]) if at.name in known else rows.column(at.name) for at in schema]
        return pa.Table.from_arrays([whole(column).cast(at.type) for column, at in zip(columns, schema, strict=True)],
                                    schema=schema)  # fmt: skip

    def _meetings(self) -> tuple[Int64Array, Int64Array]:
        """All matching left and right rows of which at least one is new, as row numbers."""
        [keys] = dense_keys((_by_side(numbers(self.rows, "group"), self.side), numbers(self.rows, "check")))
        keys[~_flags(self.rows, "keyed")] = -1
        left, right = (np.flatnonzero(self.side == side) for side in (LEFT, RIGHT))
        # New left rows with all right rows, then new right rows with stored left rows.
        new_left, old_left = left[self._fresh[left]], left[~self._fresh[left]]
        one = self._pairs(LEFT, keys, new_left, right)
        other = self._pairs(RIGHT, keys, right[self._fresh[right]], old_left)
        return np.concatenate([one[0], other[1]]), np.concatenate([one[1], other[0]])

    def _pairs(
        self, side: int, keys: Int64Array, asking: Int64Array, others: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        lowest, highest = self._terms.range_of(side, self.time[asking])
        found = find_pairs(
            keys[asking], lowest, highest, keys[others], self.time[others], self._terms.limit, self._check_size
        )
        self.cut[asking] += found.cut
        return asking[found.asking], others[found.met]

    def _check_size(self, pairs: int) -> None:
        self._pairs_made += pairs
        if self._pairs_made > PAIRS_MAX:
            raise _too_many(self._pairs_made)

    def _follow(self) -> None:
        """Find the rows that matched for the first time, and those whose time is up."""
        terms = self._terms
        met = np.zeros(self.rows.num_rows, np.bool_)
        met[self.left] = terms.follows(LEFT)
        met[self.right] |= terms.follows(RIGHT)
        self.first_met = met & (self.met != MET)
        self.taken_back = met & (self.met == ALONE)
        shows = np.where(self.side == LEFT, terms.shows_alone(LEFT), terms.shows_alone(RIGHT))
        waits = shows & (self.met == WAITING) & ~met
        self.alone = waits & (self.up < self._clock.watermark)
        self._waits = waits & ~self.alone
        self.after = np.where(met, MET, np.where(self.alone, ALONE, self.met))

    def output(self) -> pa.Table:
        """Retractions, then pairs, then unmatched rows whose time is up."""
        return self._engine.results.table(self.rows, self.time, self._parts())

    def watermarks(self) -> Int64Array:
        """The watermark of each output row: for a pair that of its later row, for an unmatched row when its time was up."""
        own, first = self.own.copy(), np.full(self.rows.num_rows, NEVER)
        made = np.maximum(self.own[self.left], self.own[self.right])
        for side in (self.left, self.right):
            np.minimum.at(first, side, made)
        found = [np.empty(0, np.int64)]
        for left, right, change in self._parts():
            if right is not None and change == "insert" and right is self.right:
                found.append(made)
                continue
            rows = left if right is None else np.maximum(left, right)
            alone = np.maximum(own[rows], shift(self.up[rows], 1))
            # A retraction or first match has the watermark of the first pair.
            found.append(np.where(self.alone[rows], alone, first[rows]))
        return np.concatenate(found)

    def _parts(self) -> list[Part]:
        how = self._terms.how
        back, alone, first = (
            in_order(self.rows, np.flatnonzero(which)) for which in (self.taken_back, self.alone, self.first_met)
        )
        parts: list[Part]
        if how == "semi":
            parts = [(first, None, "insert")]
        elif how == "anti":
            parts = [(back, None, "delete"), (alone, None, "insert")]
        else:
            parts = [(*self._sides(back), "delete"), (self.left, self.right, "insert"), (*self._sides(alone), "insert")]
        return parts

    def _sides(self, alone: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Unmatched rows, with -1 for the other side."""
        left = self.side[alone] == LEFT
        return np.where(left, alone, -1), np.where(left, -1, alone)

    def _done(self) -> BoolArray:
        """Rows to evict."""
        found: BoolArray = self.forgotten <= self._clock.watermark
        return found

    def put(self) -> pa.Table:
        """New and changed state rows."""
        woken = numbers(self.rows, "event_due") <= self._clock.watermark
        changed = np.flatnonzero((self._fresh | (self.after != self.met) | woken) & ~self._done())
        due = np.where(self._waits, np.minimum(shift(self.up, 1), self.forgotten), self.forgotten)[changed]
        # Usually only the new rows, which are adjacent at the end.
        together = len(changed) and changed[-1] - changed[0] == len(changed) - 1
        rows = self.rows.slice(changed[0], len(changed)) if together else self.rows.take(pa.array(changed))
        for name, values in (("event_due", due), ("met", self.after[changed].astype(np.int8))):
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(place), pa.array(values))
        return rows

    def find_gone(self) -> pa.Table:
        return self.rows.select(["group", "item"]).filter(pa.array(~self._fresh & self._done()))

    def too_late(self) -> list[pa.Table]:
        """Rows that are too late to match another one, each with that one; and rows with more matches than the limit."""
        late = self._engine.late
        told = []
        if len(self._missed[0]):
            told.append(late.rows(self.rows.take(pa.array(self._missed[0])), "too late to meet this row",
                                  self.rows.take(pa.array(self._missed[1]))))  # fmt: skip
        many = np.flatnonzero(self.cut)
        if len(many):
            rows = self.rows.take(pa.array(many))
            told.append(late.rows(rows, f"met more than {self._terms.limit:,} rows: the others were left out"))
        return told


def _by_side(groups: Int64Array, side: Int64Array) -> Int64Array:
    """The group under which rows of a side are stored, and back: a lookup reads one side only."""
    return np.where(side == RIGHT, groups ^ _RIGHT_GROUPS, groups)


def _concatenate(kept: pa.Table, new: pa.Table) -> pa.Table:
    """Both, the columns as one array each but for the rows themselves, which are wide: those are copied once, to where they
    are needed."""
    both = pa.concat_tables([kept, new])
    columns = [
        both.column(name) if name in ("left", "right") else whole(both.column(name)) for name in both.column_names
    ]
    return pa.Table.from_arrays(columns, schema=both.schema)


def _flags(rows: pa.Table, name: str) -> BoolArray:
    return np.asarray(whole(rows.column(name)).cast(pa.int8())).view(np.bool_)


def _too_many(pairs: int) -> Invalid:
    return Invalid(
        f"a join would produce {pairs:,} pairs in one bucket of one batch",
        detail=f"The maximum is {PAIRS_MAX:,}, to fit into memory: a few keys have very many rows on both sides.",
        hint="Lower limit= so that a row joins with fewer others, join on more columns, or use a shorter within=.",
    )
