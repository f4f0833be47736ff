"""Sealed segments written anew without some of their rows, small neighbours together.

A segment that loses nothing keeps its file, unless it is small beside those it is put together with: so a row is
written again a few times at most, however often the partition is compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.embedded.latest_offsets import RowMarks
from mainstem.log.embedded.manifest import SealedEntry
from mainstem.log.embedded.partition import Partition
from mainstem.log.embedded.sealed_check import check_sealed
from mainstem.log.embedded.sealed_segment import noted_spans, read_sealed, sealed_schema
from mainstem.log.embedded.topic_schemas import Reading, TopicSchemas
from mainstem.log.embedded.upkeep_pass import GoOn, put_sealed
from mainstem.log.schema_evolution import fit
from mainstem.log.transaction_spans import TransactionSpans


def plan_merges(entries: Sequence[SealedEntry], gone: RowMarks, bytes_max: int) -> list[list[SealedEntry]]:
    """Which runs of neighbours are to be written anew, each run as one segment."""
    left = {entry.base: entry.rows - gone.count(entry.base) for entry in entries}

    def size(entry: SealedEntry) -> int:
        return entry.bytes * left[entry.base] // entry.rows if entry.rows else 0

    def touched(entry: SealedEntry) -> bool:
        return left[entry.base] < entry.rows

    runs: list[list[SealedEntry]] = []
    for entry in entries:
        run = runs[-1] if runs else []
        fits = sum(map(size, run)) + size(entry) <= bytes_max and all(_same_age(entry, other) for other in run)
        if run and fits:
            run.append(entry)
        else:
            runs.append([entry])
    return [part for run in runs for part in _worth_it(run, size, touched)]


def _same_age(one: SealedEntry, other: SealedEntry) -> bool:
    """Whether both may be one segment: the time of its tombstones runs from one moment."""
    return one.cleaned_at == other.cleaned_at or not one.tombstones or not other.tombstones


def _worth_it(
    run: list[SealedEntry], size: Callable[[SealedEntry], int], touched: Callable[[SealedEntry], bool]
) -> Iterator[list[SealedEntry]]:
    """The parts of a run to write: a segment that loses nothing is not written again for the sake of smaller ones."""
    if not run or (len(run) == 1 and not touched(run[0])):
        return
    whole = [entry for entry in run if not touched(entry)]
    largest = max(whole, key=size, default=None)
    if largest is not None and size(largest) > sum(size(entry) for entry in run if entry is not largest):
        at = run.index(largest)
        yield from _worth_it(run[:at], size, touched)
        yield from _worth_it(run[at + 1 :], size, touched)
    else:
        yield run


def without_empty(entries: Sequence[SealedEntry]) -> list[SealedEntry]:
    """The segments with those that have no rows left made part of a neighbour, whose file stays as it is."""
    found: list[SealedEntry] = []
    for entry in entries:
        if found and not (entry.rows and found[-1].rows):
            before = found.pop()
            has_rows = entry if entry.rows else before
            found.append(replace(has_rows, **_together([before, entry])))
        else:
            found.append(entry)
    return found


def _together(run: Sequence[SealedEntry]) -> dict[str, Any]:
    """What several neighbours have in common as one segment, whatever rows are left."""
    futures = [entry.future_since for entry in run if entry.future_since is not None]
    return {
        "base": run[0].base,
        "end": run[-1].end,
        "appended_first": min(entry.appended_first for entry in run),
        "appended_last": max(entry.appended_last for entry in run),
        "event_time_max": max(entry.event_time_max for entry in run),
        "observed_up_to": max(entry.observed_up_to for entry in run),
        "stated_watermark": max(entry.stated_watermark for entry in run),
        "markers": [marker for entry in run for marker in entry.markers],
        "aborted": [span for entry in run for span in entry.aborted],
        "marked": sum(entry.marked for entry in run),
        "future_since": max(futures, default=None),
    }


def merged(
    partition: Partition, schemas: TopicSchemas, run: Sequence[SealedEntry], gone: RowMarks, go_on: GoOn
) -> SealedEntry:
    """Write a run anew as one segment, on disk when this returns; the manifest does not name it yet."""
    tombstones: list[int] = []
    rows = _rows(partition, schemas, run, gone, tombstones, go_on)
    spans = TransactionSpans.together(
        noted_spans(partition.files, f"{partition.folder}/{entry.file}") for entry in run if entry.transactions
    )
    file, written = put_sealed(partition, run[0].base, sealed_schema(schemas.current), rows, spans)
    # Those without tombstones have no say in how old they are.
    ages = [entry.cleaned_at for entry in run if entry.tombstones] or [entry.cleaned_at for entry in run]
    return SealedEntry(
        file=file,
        bytes=written.bytes,
        crc32c=written.crc32c,
        rows=written.rows,
        schema_version=schemas.version,
        cleaned_at=ages[0],
        tombstones=sum(tombstones),
        transactions=None if all(entry.transactions is None for entry in run) else spans.numbers_between(),
        **_together(run),
    )


def _rows(
    partition: Partition,
    schemas: TopicSchemas,
    run: Sequence[SealedEntry],
    gone: RowMarks,
    tombstones: list[int],
    go_on: GoOn,
) -> Iterator[pa.RecordBatch]:
    plain, _ = schemas.shown(Reading())
    schema = sealed_schema(schemas.current)
    for entry in run:
        path = f"{partition.folder}/{entry.file}"
        # Always, and not once: what is written anew gets a new checksum, and damage would be sound for ever.
        check_sealed(partition.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
        stays = ~gone.of(entry.base)
        row = 0
        for batch in read_sealed(partition.files, path, record_columns=("record",)):
            go_on()
            left = batch.filter(pa.array(stays[row : row + batch.num_rows]))
            row += batch.num_rows
            if not left.num_rows:
                continue
            record = left.column(left.num_columns - 1)
            tombstones.append(pc.sum(pc.equal(record.field("change"), "delete")).as_py() or 0)
            rows = fit(left.select(left.schema.names[:-1]), plain)
            yield pa.RecordBatch.from_arrays([*rows.columns, record], schema=schema)
