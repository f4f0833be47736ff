"""LatestEngine: each row with the row of a table as it is known when the row comes. The table's changes of a batch come first.

What comes in is as in `two_sided`, facts on the left and the table's changes on the right; of these the newest of each key
is kept. A fact is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.operators.joins.enrich_engine import flags
from mainstem.operators.joins.enrich_results import EnrichResults, Part
from mainstem.operators.joins.join_results import JoinLate
from mainstem.operators.joins.join_terms import LEFT, RIGHT
from mainstem.operators.joins.pairing import dense_keys
from mainstem.operators.joins.two_sided import TwoSided
from mainstem.operators.joins.versions import Versions
from mainstem.operators.stage.arrow_columns import in_log_order, numbers, whole
from mainstem.operators.stage.engine import NEVER, STATE_COLUMNS, BatchClock, Int64Array, StateTable, Step

__all__ = ["LatestEngine"]


@dataclass(frozen=True)
class LatestEngine(TwoSided):
    """Looks rows up in what is known."""

    results: EnrichResults
    late: JoinLate

    @property
    def state_schema(self) -> pa.Schema:
        own = [at for at in self.input_schema if at.name in ("check", "time", "partition", "offset", "right")]
        return pa.schema([*STATE_COLUMNS, *own])

    def described(self) -> dict[str, Any]:
        return {"enrich": "latest", "left": str(self.results.left), "right": str(self.results.right)}

    def step(self, state: StateTable, rows: pa.Table, clock: BatchClock) -> Step:
        rows = in_log_order(rows.combine_chunks())
        side, back = numbers(rows, "side"), flags(rows, "taken_back")
        late = self.late.rows(
            rows.filter(pa.array((side == LEFT) & back)), "takes a row back, and what was put out stays"
        )
        rows = rows.filter(pa.array(~((side == LEFT) & back)))
        kept = state.find(np.unique(numbers(rows, "group")))
        together = self._together(kept, rows)
        fresh = np.arange(together.num_rows) >= kept.num_rows
        side = numbers(together, "side")
        [keys] = dense_keys((numbers(together, "group"), numbers(together, "check")))
        keys[~flags(together, "keyed")] = -1
        facts, table = np.flatnonzero(side == LEFT), np.flatnonzero(side == RIGHT)
        # What was kept came before: the order in which changes come is the order in which they are looked at.
        same = np.zeros(len(table), np.int64)
        newest = Versions(keys[table], same, same, [np.arange(len(table))])
        found = newest.at(keys[facts], np.zeros(len(facts), np.int64))
        gone = flags(together, "taken_back")
        valid = table[np.maximum(found, 0)] if len(table) else found
        valid = np.where((found >= 0) & ~gone[np.maximum(valid, 0)], valid, -1) if len(table) else found
        replaced = newest.ends() != NEVER
        last = table[~replaced & (keys[table] >= 0)]
        put = last[fresh[last] & ~gone[last]]
        # Until when it is valid is not known of the latest.
        parts: list[Part] = [(facts, valid, np.full(len(facts), NEVER), "insert")]
        own = [numbers(together, "watermark")[of] for of, *_ in self.results.kept(parts)]
        return Step(
            self.results.table(together, parts),
            self._put(together.take(pa.array(put))),
            self._gone(together, last[fresh[last] & gone[last]]),
            late,
            {"too_late": late.num_rows} if late.num_rows else {},
            own=own[0],
        )

    def _together(self, kept: pa.Table, rows: pa.Table) -> pa.Table:
        """What is kept of the table as rows that came before."""
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

    def _gone(self, rows: pa.Table, which: Int64Array) -> pa.Table:
        taken = rows.take(pa.array(which))
        return pa.table({"group": taken.column("group"), "item": taken.column("check")})
