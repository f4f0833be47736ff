"""MemoryState: the state of an engine in this process's memory, for tests and for a batch that has no state before it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mainstem.operators.stage.engine import BatchClock, Int64Array, Step

__all__ = ["MemoryState"]


class MemoryState:
    """A state table that forgets nothing and saves nothing. For one thread."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = schema.empty_table()

    def find(self, groups: Int64Array) -> pa.Table:
        return self.rows.filter(pa.array(np.isin(_column(self.rows, "group"), groups)))

    def find_items(self, groups: Int64Array, items: Int64Array) -> pa.Table:
        wanted = np.empty(len(groups), dtype=[("group", np.int64), ("item", np.int64)])
        wanted["group"], wanted["item"] = groups, items
        return self.rows.filter(pa.array(np.isin(_ids(self.rows), wanted)))

    def due(self, clock: BatchClock) -> pa.Table:
        event = _column(self.rows, "event_due") <= clock.watermark
        return self.rows.filter(pa.array(event | (_column(self.rows, "processing_due") <= clock.now)))

    def apply(self, step: Step) -> None:
        """Take what a step put and what it let go."""
        replaced = [_ids(part) for part in (step.put, step.gone) if part is not None]
        if not replaced:
            return
        kept = self.rows.filter(pa.array(~np.isin(_ids(self.rows), np.concatenate(replaced))))
        parts = [kept] if step.put is None else [kept, step.put.select(self.rows.schema.names).cast(self.rows.schema)]
        rows = pa.concat_tables(parts)
        self.rows = rows.take(pa.array(np.lexsort((_column(rows, "item"), _column(rows, "group"))))).combine_chunks()


def _column(rows: pa.Table, name: str) -> Int64Array:
    return np.asarray(rows.column(name).combine_chunks() if rows.num_rows else np.empty(0, np.int64))


def _ids(rows: pa.Table) -> np.ndarray:
    """Group and item as one value that can be compared."""
    both = np.empty(rows.num_rows, dtype=[("group", np.int64), ("item", np.int64)])
    both["group"], both["item"] = _column(rows, "group"), _column(rows, "item")
    return both
