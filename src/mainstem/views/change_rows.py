"""Changes of a view as rows with `record`, from what a store kept of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from mainstem.log.record import record_array, record_schema

__all__ = ["change_rows"]


def change_rows(
    schema: pa.Schema,
    old: tuple[Sequence[int], pa.RecordBatch],
    new: tuple[Sequence[int], pa.RecordBatch],
    commits: Sequence[tuple[int, int]],
) -> pa.Table:
    """Rows as they were and as they became, each with its positions, as one table in the order of positions.

    `commits`: the last position of each commit and its time, from the first position on, in order.
    """
    both = pa.concat_tables([_side(schema, *old, "delete", commits), _side(schema, *new, "insert", commits)])
    return both.sort_by("offset").drop_columns(["offset"])


def _side(
    schema: pa.Schema, positions: Sequence[int], rows: pa.RecordBatch, change: str, commits: Iterable[tuple[int, int]]
) -> pa.Table:
    # Two for each position, so that the two halves of an update keep their order wherever they are sorted.
    offsets = pa.array([2 * position + (change == "insert") for position in positions], pa.int64())
    times = pa.array(_times(positions, commits), pa.int64())
    changes = pa.repeat(pa.scalar(change, pa.string()), len(positions))
    record = record_array(0, offsets, times, count=len(positions), change=changes)
    columns = [*rows.columns, record]
    return pa.Table.from_arrays(columns, schema=record_schema(schema)).append_column("offset", offsets)


def _times(positions: Sequence[int], commits: Iterable[tuple[int, int]]) -> list[int]:
    """When each change was committed."""
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
