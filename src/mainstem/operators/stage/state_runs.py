"""StateRuns: the state of one bucket as runs, of which newer ones override older ones, merged like an LSM tree.

A batch reads the runs that the manifest of the previous batch names, and writes at most two: its changes, and at times
a merge of the newest runs, so that there are never many. Older runs are never changed, so a replayed batch
finds the same state.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from mainstem.durable_files import REAL_FILES, decode_checked, encode_checked, replace_file
from mainstem.errors import CorruptHome, NewerFormat
from mainstem.operators.stage.engine import NEVER, NO_TIME, STATE_COLUMNS, BatchClock, Int64Array, Step
from mainstem.operators.stage.integer_order import order_rows, sort_distinct
from mainstem.operators.stage.state_run_file import RunEntry, RunFile, open_run, write_run

__all__ = ["MemoryState", "StageManifests", "StateRuns", "next_due"]


# The manifest of a batch: which runs are the state of a flow's stages after it.
#
#     <checkpoint>/stages/<batch>.json            one manifest for all stages of the flow; the last two are kept
#     <checkpoint>/stages/<stage>/<run>.arrow     the runs of a stage
#     <checkpoint>/stages/attempt-<batch>-<id>/   files of the tasks of a batch, until its manifest is written
#
# A manifest is written atomically and synced, after the sink has committed the batch and before Spark commits it. A replayed
# batch starts from the manifest of the previous batch, so it does not matter where it was interrupted.
#
#     {"format": 2, "crc32c": ..., "batch": 7, "clock": {"watermark": ..., "now": ...},
#      "stages": {"windowed-0": {"described": {...}, "buckets": 2, "counts": {...}, "late": {...},
#                                "state": {"0": {"runs": [...], "live": 12, "given": 340}}}}}


# 2: it has a checksum.
FORMAT = 2


class StageManifests:
    """The manifests of one checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self.folder = f"{checkpoint}/stages"

    def read(self, batch: int) -> dict[str, Any]:
        """The manifest of a batch; raises if it is missing or damaged."""
        path = f"{self.folder}/{batch}.json"
        try:
            with open(path, "rb") as file:
                content = decode_checked(file.read(), since=2, known=FORMAT)
            if content.get("batch", batch) != batch:
                raise ValueError(f"it is the file of batch {content['batch']}")
        except (FileNotFoundError, ValueError) as error:
            raise CorruptHome(
                f"the state of a flow after batch {batch} is missing or damaged",
                detail=f'"{path}" cannot be read: {error}.',
                hint="The log has all rows: rebuild the flow's sink, or delete the flow's checkpoint together with what it "
                "has written, and run it again.",
                path=path,
            ) from error
        if (found := content.get("format", 1)) > FORMAT:
            raise NewerFormat.of(f'"{path}"', found, FORMAT)
        return content

    def last(self) -> dict[str, Any] | None:
        """The newest manifest; None if there is none."""
        numbers = list(self._numbers())
        return self.read(max(numbers)) if numbers else None

    def write(self, batch: int, content: Mapping[str, Any]) -> None:
        """Write the manifest of a batch, synced, and delete the files that no remaining manifest names."""
        data = encode_checked({"format": FORMAT, "batch": batch, **content})
        replace_file(REAL_FILES, f"{self.folder}/{batch}.json", data)
        self._tidy(batch, content)

    def begin(self, batch: int, attempt: str, stages: Mapping[str, Any]) -> str:
        """Create the directory of an attempt at a batch; the first batch deletes old manifests."""
        if batch == 0:
            for number in list(self._numbers()):
                os.remove(f"{self.folder}/{number}.json")
        for stage in stages:
            os.makedirs(f"{self.folder}/{stage}", exist_ok=True)
        path = f"{self.folder}/attempt-{batch}-{attempt}"
        os.makedirs(path)
        return path

    def batches(self) -> list[int]:
        """The batches that have a manifest, in order."""
        return sorted(self._numbers())

    def _numbers(self) -> Iterator[int]:
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):
                number, _, kind = name.partition(".")
                if kind == "json" and number.isdigit():
                    yield int(number)

    def _tidy(self, batch: int, content: Mapping[str, Any]) -> None:
        """Delete old manifests, runs that no manifest names, and attempts, also those that a crash left."""
        kept = [content]
        for number in list(self._numbers()):
            if number < batch - 1:
                os.remove(f"{self.folder}/{number}.json")
            elif number != batch:
                kept.append(self.read(number))
        for stage in content["stages"]:
            named = {
                run["name"]
                for manifest in kept
                for bucket in manifest["stages"].get(stage, {}).get("state", {}).values()
                for run in bucket["runs"]
            }
            for name in os.listdir(f"{self.folder}/{stage}"):
                if name not in named:
                    os.remove(f"{self.folder}/{stage}/{name}")
        for name in os.listdir(self.folder):
            if name.startswith("attempt-"):
                shutil.rmtree(f"{self.folder}/{name}", ignore_errors=True)


# MemoryState: the state of an engine in memory, for tests and for batch rows.


class MemoryState:
    """A state table in memory. For one thread."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = schema.empty_table()

    def find(self, groups: Int64Array) -> pa.Table:
        return self.rows.filter(pa.array(np.isin(_column(self.rows, "group"), groups)))

    def find_items(self, groups: Int64Array, items: Int64Array) -> pa.Table:
        wanted = np.empty(len(groups), dtype=[("group", np.int64), ("item", np.int64)])
        wanted["group"], wanted["item"] = groups, items
        return self.rows.filter(pa.array(np.isin(_ids(self.rows), wanted)))

    def scan(self) -> pa.Table:
        return self.rows

    def due(self, clock: BatchClock) -> pa.Table:
        event = _column(self.rows, "event_due") <= clock.watermark
        return self.rows.filter(pa.array(event | (_column(self.rows, "processing_due") <= clock.now)))

    def apply(self, step: Step) -> None:
        """Apply the upserts and deletes of a step."""
        replaced = [_ids(part) for part in (step.put, step.gone) if part is not None]
        if not replaced:
            return
        kept = self.rows.filter(pa.array(~np.isin(_ids(self.rows), np.concatenate(replaced))))
        parts = [kept] if step.put is None else [kept, step.put.select(self.rows.schema.names).cast(self.rows.schema)]
        rows = pa.concat_tables(parts)
        self.rows = rows.take(pa.array(order_rows(_column(rows, "group"), _column(rows, "item")))).combine_chunks()


def _column(rows: pa.Table, name: str) -> Int64Array:
    return np.asarray(rows.column(name).combine_chunks() if rows.num_rows else np.empty(0, np.int64))


def _ids(rows: pa.Table) -> np.ndarray:
    """Group and item as one value that can be compared."""
    both = np.empty(rows.num_rows, dtype=[("group", np.int64), ("item", np.int64)])
    both["group"], both["item"] = _column(rows, "group"), _column(rows, "item")
    return both


# This many runs are merged into one, if none has more than LARGER times the rows of the newest.
RUNS_MERGED = 8
LARGER = 2
# All are merged if they have more than DEAD times as many rows as are live; fewer than DEAD_ROWS_MIN count as that many.
DEAD = 8
DEAD_ROWS_MIN = 1_000
# Runs that have more bytes together are not merged, unless most of their rows are dead: a merge takes about three times as much
# memory, and of large runs it costs more than searching each of them.
MERGED_BYTES_MAX = 128 << 20


def next_due(folder: str, entries: Sequence[RunEntry], clock: BatchClock) -> tuple[int, int]:
    """When the rows of some runs wake next, by the watermark and by the clock; NEVER if none does.

    It may be the time of a replaced row, which then wakes nothing.
    """
    runs = [open_run(folder, entry) for entry in entries]
    newest = max((run.batch for run in runs), default=-1)
    found = [
        min((run.first_due(kind, NO_TIME if run.batch == newest else reached) for run in runs), default=NEVER)
        for kind, reached in (("event", clock.watermark), ("processing", clock.now))
    ]
    return found[0], found[1]


class StateRuns:
    """The state of one bucket. For one thread."""

    def __init__(self, folder: str, entries: Sequence[RunEntry], schema: pa.Schema, live: int = 0) -> None:
        self._folder = folder
        self._entries = list(entries)
        self._schema = schema
        # The number of live rows.
        self.live = live
        self._runs: list[RunFile] = [open_run(folder, entry) for entry in entries]

    def find(self, groups: Int64Array) -> pa.Table:
        wanted = sort_distinct(np.asarray(groups, np.int64))
        return self._gather(*self._newest([_rows_of(run, wanted) for run in self._runs]))

    def find_items(self, groups: Int64Array, items: Int64Array) -> pa.Table:
        found = [_places(run, np.asarray(groups, np.int64), np.asarray(items, np.int64)) for run in self._runs]
        return self._gather(*self._newest([sort_distinct(at[at >= 0]) for at in found]))

    def scan(self) -> pa.Table:
        return self._gather(*self._newest([np.arange(len(run.group)) for run in self._runs]))

    def due(self, clock: BatchClock) -> pa.Table:
        """As in `StateTable`. In runs from before the last batch, only rows that became due since are searched."""
        newest = max((run.batch for run in self._runs), default=-1)
        groups = []
        for run in self._runs:
            fresh = run.batch == newest
            for kind, before, now in (
                ("event", clock.watermark_before, clock.watermark), ("processing", clock.now_before, clock.now)
            ):  # fmt: skip
                groups.append(run.group[run.rows_due(kind, NO_TIME if fresh else before, now)])
        rows = self.find(np.concatenate([np.empty(0, np.int64), *groups]))
        is_due = (_numbers(rows, "event_due") <= clock.watermark) | (_numbers(rows, "processing_due") <= clock.now)
        return rows.filter(pa.array(is_due))

    def after(self, step: Step, batch: int) -> list[RunEntry]:
        """The runs after a step; its changes are written and synced."""
        changed, gone = self._changes(step)
        entries = list(self._entries)
        if changed.num_rows:
            self.live += self._growth(changed, gone)
            if not self.live:
                return []
            entries.append(write_run(self._folder, changed, gone, batch))
        return self._merge(entries, batch)

    def _changes(self, step: Step) -> tuple[pa.Table, Any]:
        parts, marks = [], []
        if step.put is not None and step.put.num_rows:
            parts.append(step.put.select(self._schema.names).cast(self._schema))
            marks.append(np.zeros(step.put.num_rows, np.bool_))
        if step.gone is not None and step.gone.num_rows:
            parts.append(self._tombstones(step.gone))
            marks.append(np.ones(step.gone.num_rows, np.bool_))
        if not parts:
            return self._schema.empty_table(), np.empty(0, np.bool_)
        rows, gone = pa.concat_tables(parts), np.concatenate(marks)
        order = order_rows(_numbers(rows, "group"), _numbers(rows, "item"))
        return rows.take(pa.array(order)).combine_chunks(), gone[order]

    def _tombstones(self, gone: pa.Table) -> pa.Table:
        never = pa.array(np.full(gone.num_rows, NEVER))
        known = {
            "group": gone.column("group"),
            "item": gone.column("item"),
            "event_due": never,
            "processing_due": never,
        }
        return pa.table([known.get(at.name, pa.nulls(gone.num_rows, at.type)) for at in self._schema], self._nullable())

    def _nullable(self) -> pa.Schema:
        return pa.schema([at if at.name in _OWN else at.with_nullable(True) for at in self._schema])

    def _growth(self, changed: pa.Table, gone: Any) -> int:
        """The change of the number of live rows."""
        groups, items = _numbers(changed, "group"), _numbers(changed, "item")
        alive = np.zeros(len(groups), np.bool_)
        unknown = np.ones(len(groups), np.bool_)
        for run in reversed(self._runs):
            at = _places(run, groups, items)
            known = unknown & (at >= 0)
            alive[known] = ~run.gone[at[known]]
            unknown &= ~known
        return int((~gone & ~alive).sum()) - int((gone & alive).sum())

    def _merge(self, entries: list[RunEntry], batch: int) -> list[RunEntry]:
        """Merge the newest runs if many have about the same size, or all if most of their rows are dead."""
        count = _merged_count([entry.rows for entry in entries], [entry.bytes for entry in entries], self.live)
        if not count:
            return entries
        kept, merged = entries[:-count], entries[-count:]
        runs = [open_run(self._folder, entry) for entry in merged]
        whole = [np.arange(len(run.group)) for run in runs]
        places, rows, gone = _newest_of(runs, whole)
        if not kept:
            # There are no older runs, so tombstones are dropped.
            places, rows, gone = places[~gone], rows[~gone], gone[~gone]
        if not len(rows):
            return kept
        if 2 * len(rows) < sum(len(run.group) for run in runs):
            # Most are dead, and are not copied.
            return [*kept, write_run(self._folder, _take(runs, places, rows, self._nullable()), gone, batch)]
        # Concatenated, then sorted once: faster than taking rows from each run.
        first = np.cumsum([0, *(len(run.group) for run in runs[:-1])])
        table = pa.concat_tables([_everything(run, self._schema) for run in runs]).combine_chunks()
        return [*kept, write_run(self._folder, table.take(pa.array(first[places] + rows)), gone, batch)]

    def _newest(self, found: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
        places, rows, gone = _newest_of(self._runs, found)
        return places[~gone], rows[~gone]

    def _gather(self, places: Int64Array, rows: Int64Array) -> pa.Table:
        return _take(self._runs, places, rows, self._schema)


_OWN = {at.name for at in STATE_COLUMNS}


def _merged_count(sizes: Sequence[int], lengths: Sequence[int], live: int) -> int:
    """The number of newest runs to merge; `sizes` are their numbers of rows, `lengths` of bytes, the oldest first.

    Eight of about the same size; and if this gives eight of the next size, these too: so a row is merged again only when
    there are eight times as many. Of these the newest that have no more than `MERGED_BYTES_MAX` together.

    >>> def count(sizes, live, row_bytes=1):
    ...     return _merged_count(sizes, [size * row_bytes for size in sizes], live)
    >>> count([800, 100, 100, 100, 100, 100, 100, 100], 1500), count([800, *[100] * 8], 1600)
    (0, 8)
    >>> count([800] * 7 + [100] * 8, 6400), count([8000, 100], 20)
    (15, 2)
    >>> count([800] * 7 + [100] * 8, 6400, row_bytes=1 << 16), count([1 << 20] * 8, 8 << 20, row_bytes=1000)
    (9, 0)
    """
    if sum(sizes) > DEAD * max(live, DEAD_ROWS_MIN):
        return len(sizes)
    count = _alike(sizes)
    fitting = int(np.searchsorted(np.cumsum(lengths[::-1][:count]), MERGED_BYTES_MAX, side="right"))
    return fitting if fitting > 1 else 0


def _alike(sizes: Sequence[int]) -> int:
    count, size = 0, max(sizes[-1:], default=0)
    while True:
        more = 0
        while count + more < len(sizes) and sizes[-1 - count - more] <= LARGER * max(1, size):
            more += 1
        if more + bool(count) < RUNS_MERGED:
            return count
        count += more
        size = sum(sizes[-count:])


def _everything(run: RunFile, schema: pa.Schema) -> pa.Table:
    return _with_columns(run.everything(), schema)


def _with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows of a run with the columns of the engine: one that the engine got after the run was written is null, and so is a
    field of a struct that was added since.

    A file does not record which columns are not null, as engines' own tables do.
    """
    there = set(rows.column_names)
    columns = [
        _of_type(rows.column(at.name), at.type) if at.name in there else pa.nulls(rows.num_rows, at.type)
        for at in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _of_type(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == data_type else column.cast(data_type)


def _numbers(rows: pa.Table, name: str) -> Any:
    return rows.column(name).to_numpy()


def _rows_of(run: RunFile, groups: Int64Array) -> Int64Array:
    """The row numbers of some groups, which are sorted, in a run."""
    first = np.searchsorted(run.group, groups, side="left")
    counts = np.searchsorted(run.group, groups, side="right") - first
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum())


def _places(run: RunFile, groups: Int64Array, items: Int64Array) -> Int64Array:
    """The row numbers of these rows in a run; -1 if missing. By bisection, all at once: a group may be large."""
    low = np.searchsorted(run.group, groups, side="left")
    end = np.searchsorted(run.group, groups, side="right")
    high = end.copy()
    while (between := np.flatnonzero(low < high)).size:
        middle = (low[between] + high[between]) // 2
        less = run.item[middle] < items[between]
        low[between] = np.where(less, middle + 1, low[between])
        high[between] = np.where(less, high[between], middle)
    found = np.full(len(groups), -1, np.int64)
    inside = np.flatnonzero(low < end)
    same = inside[run.item[low[inside]] == items[inside]]
    found[same] = low[same]
    return found


def _newest_of(runs: Sequence[RunFile], found: Sequence[Int64Array]) -> tuple[Any, Any, Any]:
    """The newest row of each group and item, the oldest run first: its run, its row number, and whether it is a tombstone."""
    if not runs:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    places = np.repeat(np.arange(len(runs)), [len(rows) for rows in found])
    rows = np.concatenate(found)
    groups = np.concatenate([run.group[at] for run, at in zip(runs, found, strict=True)])
    items = np.concatenate([run.item[at] for run, at in zip(runs, found, strict=True)])
    order = order_rows(groups, items, -places)
    groups, items = groups[order], items[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (groups[1:] != groups[:-1]) | (items[1:] != items[:-1])
    kept = order[first]
    gone = np.concatenate([run.gone[at] for run, at in zip(runs, found, strict=True)])
    return places[kept], rows[kept], gone[kept]


def _take(runs: Sequence[RunFile], places: Int64Array, rows: Int64Array, schema: pa.Schema) -> pa.Table:
    """Rows of several runs, in the order given."""
    parts, origins = [], []
    for number, run in enumerate(runs):
        of_run = np.flatnonzero(places == number)
        if len(of_run):
            parts.append(_with_columns(pa.Table.from_batches([run.take(rows[of_run])]), schema))
            origins.append(of_run)
    if not parts:
        return schema.empty_table()
    table = pa.concat_tables(parts)
    order = np.argsort(np.concatenate(origins), kind="stable")
    return table if len(parts) == 1 else table.take(pa.array(order)).combine_chunks()
