"""What a reader got, in plain values that a test can compare whole."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from mainstem.log.topic import Topic

Rows = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]


def dicts(rows: Rows) -> list[dict[str, Any]]:
    """The rows, `record` included."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows.to_pylist()
    return [row for batch in rows for row in batch.to_pylist()]


def plain(rows: Rows) -> list[dict[str, Any]]:
    """The rows without `record`."""
    return [{name: value for name, value in row.items() if name != "record"} for row in dicts(rows)]


def numbers(rows: Rows) -> list[Any]:
    """Column `n`, in the order it came."""
    return [row["n"] for row in dicts(rows)]


def by_partition(rows: Rows) -> dict[int, list[Any]]:
    """Column `n` of each partition, in the order it came."""
    found: dict[int, list[Any]] = {}
    for row in dicts(rows):
        found.setdefault(row["record"]["partition"], []).append(row["n"])
    return found


def places(rows: Rows) -> list[tuple[int, int]]:
    """Partition and offset of each row."""
    return [(row["record"]["partition"], row["record"]["offset"]) for row in dicts(rows)]


def changes(rows: Rows) -> list[str]:
    return [row["record"]["change"] for row in dicts(rows)]


def taken(follower: Iterable[pa.RecordBatch], count: int) -> list[dict[str, Any]]:
    """The next `count` rows of a follower; it is never asked for more, since it would block."""
    rows: list[dict[str, Any]] = []
    for batch in follower:
        rows += batch.to_pylist()
        if len(rows) >= count:
            break
    return rows


def fill(topic: Topic, *values: int, key: str = "a", partition: int | None = None) -> None:
    """Append each value by itself, all under one key."""
    for value in values:
        topic.append([{"k": key, "n": value}], partition=partition)
