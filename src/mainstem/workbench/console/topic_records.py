"""Records of a topic for a page: a few at a time, from a position on, with a limit to how far it looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.clock import as_us
from mainstem.errors import Invalid
from mainstem.log.partition_reads import offsets_at
from mainstem.log.record import next_offset
from mainstem.log.rows.row_filter import RowFilter
from mainstem.log.topic import Topic
from mainstem.log.topic_reads import LiveReads
from mainstem.workbench.cli.command_arguments import parse_position
from mainstem.workbench.console.row_cells import column_facts, json_rows

__all__ = ["ROWS_MAX", "cursor_text", "newest_offsets", "parse_offsets", "read_records"]

ROWS_MAX = 1_000
# An answer ends with the row that exceeds this.
BYTES_MAX = 1 << 20
# A filter looks at no more records than this for one answer.
LOOKED_MAX = 50_000
# Rows that are read at a time.
STEP = 2_000


@dataclass
class _Found:
    rows: list[dict[str, Any]] = field(default_factory=list)
    looked: int = 0
    size: int = 0


def read_records(
    topic: Topic,
    *,
    position: str | None,
    cursor: str | None,
    limit: int,
    condition: str | None,
    until: datetime | None = None,
) -> dict[str, Any]:
    """Records from a cursor, or from a position, or else the newest; `cursor` of the answer continues after them.

    With `until` only those that were appended up to that time.
    """
    if not 1 <= limit <= ROWS_MAX:
        raise Invalid(
            f"limit {limit} is out of range",
            detail=f"A page has 1 to {ROWS_MAX:,} records.",
            hint="For example: limit=100",
        )
    backend = topic.backend
    numbers = range(topic.settings.partitions)
    ends = {
        number: backend.latest(number) if until is None else backend.at_time(number, as_us(until) + 1)
        for number in numbers
    }
    offsets = _starts(topic, position, cursor, LOOKED_MAX if condition is not None else limit, ends)
    wanted = None if condition is None else RowFilter(condition, topic.settings.record_schema)
    found = _Found()
    for number in numbers:
        # A partition that the position leaves out begins at its first record.
        offsets.setdefault(number, backend.earliest(number))
        for batch in _batches(topic, number, offsets[number], ends[number]):
            offsets[number] = _take(found, batch, wanted, limit)
            if offsets[number] < next_offset(batch) or _is_full(found, limit):
                break
        else:
            # After the last record there may be markers of transactions.
            offsets[number] = max(offsets[number], ends[number])
    at_end = all(offsets[number] >= ends[number] for number in numbers)
    return {
        "topic": topic.name,
        "columns": column_facts(topic.settings.schema),
        "rows": found.rows,
        "cursor": cursor_text(offsets),
        "at_end": at_end,
        "looked": found.looked,
    }


def _starts(
    topic: Topic, position: str | None, cursor: str | None, count: int, ends: Mapping[int, int]
) -> dict[int, int]:
    if cursor is not None:
        asked: Any = parse_offsets(cursor)
    elif position is None:
        return newest_offsets(topic, count, ends)
    else:
        asked = parse_position(position, "position")
    return offsets_at(asked, LiveReads(topic.backend), range(topic.settings.partitions))


def newest_offsets(topic: Topic, count: int, ends: Mapping[int, int] | None = None) -> dict[int, int]:
    """Where to begin for the newest `count` records before `ends`, by default all, the same number of each partition."""
    numbers = range(topic.settings.partitions)
    share = max(1, count // len(numbers))
    backend = topic.backend
    last = {number: backend.latest(number) for number in numbers} if ends is None else ends
    return {number: max(backend.earliest(number), last[number] - share) for number in numbers}


def _batches(topic: Topic, number: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    while start < stop:
        batch = topic.backend.read(number, start, min(STEP, stop - start))
        if batch is None:
            return
        start = next_offset(batch)
        if start > stop:
            # Offsets between records are those of markers.
            batch = batch.filter(pc.less(batch.column("record").field("offset"), stop))
            if not batch.num_rows:
                return
        yield batch


def _is_full(found: _Found, limit: int) -> bool:
    return len(found.rows) >= limit or found.size >= BYTES_MAX or found.looked >= LOOKED_MAX


def _take(found: _Found, batch: pa.RecordBatch, wanted: RowFilter | None, limit: int) -> int:
    """Add the rows of a batch, as many as there is room for; returns the offset after the last one looked at."""
    offsets = batch.column("record").field("offset").to_pylist()
    chosen = range(batch.num_rows)
    if wanted is not None:
        holds = wanted.mask(batch).to_pylist()
        chosen = [index for index in chosen if holds[index]]  # type: ignore[assignment]
    looked_before = found.looked
    for index in chosen:
        if _is_full(found, limit):
            found.looked = looked_before + index
            return int(offsets[index])
        row = json_rows(batch.slice(index, 1))
        found.rows += row
        found.size += len(str(row))
    found.looked = looked_before + batch.num_rows
    return next_offset(batch)


def cursor_text(offsets: Mapping[int, int]) -> str:
    """Offsets as text.

    >>> cursor_text({1: 7, 0: 12})
    '0:12,1:7'
    """
    return ",".join(f"{number}:{offset}" for number, offset in sorted(offsets.items()))


def parse_offsets(cursor: str) -> dict[int, int]:
    """The offsets of a cursor.

    >>> parse_offsets("0:12,1:7")
    {0: 12, 1: 7}
    """
    found = parse_position(cursor, "cursor")
    if not isinstance(found, dict):
        raise Invalid(
            f'"{cursor[:60]}" is not a cursor', detail="A cursor has offsets, such as 0:12,1:7.",
            hint="Give the cursor of the last answer.",
        )  # fmt: skip
    return found
