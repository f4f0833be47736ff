"""Which rows of a view are looked at when not all are: the same keys wherever they are looked up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from mainstem.operators.windows.panes import BATCH_DEPENDENT, COUNTS

__all__ = ["Row", "RowSample", "Rows", "names_of", "same_rows", "sampled"]

# A row, or None where there is none; and several, each by the text of its key.
Row = dict[str, Any] | None
Rows = dict[str, Row]

# Sums of doubles differ in their last digits with the order in which they were added.
TOLERANCE = 1e-9
# What says of a result of `windowed` which one of its window it is. A right view may differ from a replay in two of its fields.
PANE = "pane"


class RowSample:
    """A share of all keys, chosen by a hash of the key: two views with the same keys give the same ones.

    >>> rows = pa.table({"id": list(range(1000)), "n": [0] * 1000})
    >>> some = RowSample(["id"], share=0.1, seed=1).of(rows.to_batches())
    >>> 60 < len(some) < 140, some == RowSample(["id"], share=0.1, seed=1).of(rows.to_batches())
    (True, True)
    """

    def __init__(self, key: Sequence[str], *, share: float, seed: int) -> None:
        self._key = key
        self._whole = share >= 1
        self._below = int(share * (1 << 64))
        self._salt = seed.to_bytes(16, "big", signed=True)

    def of(self, batches: Iterable[pa.RecordBatch]) -> Rows:
        """Those of the rows that are in it, each by its key as text."""
        found: Rows = {}
        for batch in batches:
            names = names_of(batch, self._key)
            places = [place for place, name in enumerate(names) if self._whole or self._chosen(name)]
            rows = batch.take(pa.array(places, pa.int64())).to_pylist()
            found.update(zip((names[place] for place in places), rows, strict=True))
        return found

    def _chosen(self, name: str) -> bool:
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, salt=self._salt).digest()
        return int.from_bytes(digest, "big") < self._below


def sampled(
    batches: Callable[[], Iterable[pa.RecordBatch]], key: Sequence[str], *, rows: int, wanted: int, seed: int
) -> tuple[RowSample, Rows]:
    """A sample of about so many of so many rows, and those that are in it: at least one, if there are any.

    >>> table = pa.table({"id": list(range(1000))})
    >>> {len(sampled(table.to_batches, ["id"], rows=1000, wanted=1, seed=seed)[1]) > 0 for seed in range(20)}
    {True}
    """
    share = wanted / rows if rows > wanted else 1.0
    while True:
        sample = RowSample(key, share=share, seed=seed)
        found = sample.of(batches())
        if found or share >= 1:
            return sample, found
        # Chance would have it that none of them is: nothing would be compared, and nothing found wrong.
        share = min(1.0, 4 * share)


def names_of(rows: pa.RecordBatch | pa.Table, key: Sequence[str]) -> list[str]:
    """The key of each row as text: also of keys that are structs, which Python cannot look up."""
    columns = [
        [_lasting(name, value, BATCH_DEPENDENT) for value in rows.column(rows.schema.get_field_index(name)).to_pylist()]
        for name in key
    ]
    return [repr(values) for values in zip(*columns, strict=True)]


def same_rows(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether two rows are the same, but for what summing up in another order does to doubles, and for what of a `pane` depends
    on how the log was cut into batches.

    >>> same_rows({"n": 0.1 + 0.2}, {"n": 0.3}), same_rows({"n": 1}, None)
    (True, False)
    """
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(
        _same(*(_lasting(name, row[name], BATCH_DEPENDENT, COUNTS) for row in (one, other))) for name in one
    )


def _lasting(name: str, value: Any, *fields: str) -> Any:
    """A value of a column; that of `pane` without some of its fields."""
    if name != PANE or not isinstance(value, dict) or value.keys() != {BATCH_DEPENDENT, COUNTS, "timing"}:
        return value
    return {field: part for field, part in value.items() if field not in fields}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return same_rows(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
