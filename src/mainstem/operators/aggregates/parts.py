"""Parts: rows of accumulators that belong together, by a number for each, and what can be made of their columns at once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Parts"]

Int64Array = npt.NDArray[np.int64]


class Parts:
    """Row i belongs to the whole number `ids[i]`, of which there are `count`. For one thread."""

    def __init__(self, ids: Int64Array, count: int) -> None:
        self.ids = ids
        self.count = count

    @cached_property
    def _ids(self) -> pa.Array:
        return pa.array(self.ids, pa.int64())

    @cached_property
    def single(self) -> bool:
        """Whether nothing is to be put together: part i is the whole number i."""
        return len(self.ids) == self.count and bool((self.ids == np.arange(self.count)).all())

    @cached_property
    def order(self) -> Int64Array:
        """The rows of the first whole, then those of the second, each in the order in which they came."""
        return np.argsort(self.ids, kind="stable")

    @cached_property
    def sizes(self) -> Int64Array:
        """How many parts each whole has."""
        return np.bincount(self.ids, minlength=self.count).astype(np.int64)

    def added(self, values: pa.Array) -> pa.Array:
        """The sums, added in the order of the rows; null where there is no value."""
        return values if self.single else self._grouped(values, "sum").cast(values.type)

    def extreme(self, values: pa.Array, which: str) -> pa.Array:
        """The `min` or `max`; null where there is no value."""
        if self.single:
            return values
        if not pa.types.is_floating(values.type):
            return self._grouped(values, which)
        # Arrow passes over NaN; here it is the largest number.
        known = np.asarray(values.is_valid())
        floats = np.asarray(values.fill_null(0.0))
        found = np.full(self.count, np.nan if which == "min" else -np.inf, floats.dtype)
        with np.errstate(invalid="ignore"):
            (np.fmin if which == "min" else np.maximum).at(found, self.ids[known], floats[known])
        none = np.bincount(self.ids[known], minlength=self.count) == 0
        return pa.array(found, values.type, mask=none)

    def first(self, order: Int64Array) -> Int64Array:
        """For each whole the row that stands first in `order` (rows of it), -1 where none does."""
        found = np.full(self.count, -1, np.int64)
        # Written from the end, so that what stands first is written last.
        found[self.ids[order[::-1]]] = order[::-1]
        return found

    def _grouped(self, values: pa.Array, function: str) -> pa.Array:
        table = pa.table({"id": self._ids, "value": values})
        # Threads would add in another order each time.
        found = table.group_by("id", use_threads=False).aggregate([("value", function)])
        places = np.full(self.count, -1, np.int64)
        places[np.asarray(found.column("id"))] = np.arange(found.num_rows)
        return found.column(f"value_{function}").combine_chunks().take(pa.array(places, mask=places < 0))
