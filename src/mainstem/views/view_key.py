"""The key that a user gives to `get`, converted for the lookup in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from mainstem.arguments import text
from mainstem.log.record import record_array, record_schema
from mainstem.log.rows.key_values import key_column, key_values
from mainstem.views.sqlite.sqlite_columns import stored_values

__all__ = ["change_rows", "stored_key"]


# Changes of a view as rows with `record`, from the stored changes.


def change_rows(
    schema: pa.Schema,
    old: tuple[Sequence[int], pa.RecordBatch],
    new: tuple[Sequence[int], pa.RecordBatch],
    commits: Sequence[tuple[int, int]],
) -> pa.Table:
    """Old and new rows of changes, each with its position, as one table in the order of positions.

    `commits`: the last position of each commit and its time, from the first position on, in order.
    """
    both = pa.concat_tables([_side(schema, *old, "delete", commits), _side(schema, *new, "insert", commits)])
    return both.sort_by("offset").drop_columns(["offset"])


def _side(
    schema: pa.Schema, positions: Sequence[int], rows: pa.RecordBatch, change: str, commits: Iterable[tuple[int, int]]
) -> pa.Table:
    # Two offsets for each position, so that delete and insert of an update keep their order when sorted.
    offsets = pa.array([2 * position + (change == "insert") for position in positions], pa.int64())
    times = pa.array(_times(positions, commits), pa.int64())
    changes = pa.repeat(pa.scalar(change, pa.string()), len(positions))
    record = record_array(0, offsets, times, count=len(positions), change=changes)
    columns = [*rows.columns, record]
    return pa.Table.from_arrays(columns, schema=record_schema(schema)).append_column("offset", offsets)


def _times(positions: Sequence[int], commits: Iterable[tuple[int, int]]) -> list[int]:
    """The commit time of each change."""
    if not positions:
        return []
    times = []
    following = iter(commits)
    end, committed_at = next(following)
    for position in positions:
        while position > end:
            end, committed_at = next(following)
        times.append(committed_at)
    return times


# The most common types of keys: stored as they are, without a conversion through Arrow.
_PLAIN = {pa.string(): str, pa.int64(): int, pa.int32(): int, pa.binary(): bytes}


def stored_key(given: Any, key: Sequence[str], schema: pa.Schema, *, view: str) -> list[Any]:
    """A scalar, a tuple or a dict as the values of the key's columns.

    >>> schema = pa.schema({"store": pa.string(), "day": pa.date32()})
    >>> from datetime import date
    >>> stored_key(("Berlin", date(1970, 1, 2)), ["store", "day"], schema, view="revenue")
    ['Berlin', 1]
    """
    return [
        _to_stored(value, schema.field(name), view)
        for name, value in zip(key, key_values(given, key, of=f'view "{view}"'), strict=True)
    ]


def _to_stored(value: Any, field: pa.Field, view: str) -> Any:
    if type(value) is _PLAIN.get(field.type):
        return text(value, field.name) if isinstance(value, str) else value
    return stored_values(key_column(value, field, of=f'view "{view}"'))[0]
