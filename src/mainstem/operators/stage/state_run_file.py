"""One run: a part of the state of a stage's bucket, sorted, never changed, in a file of its own.

A run is an Arrow IPC file of one record batch, not compressed, so that it is read where it lies:

    group, item             int64       sorted by both; no pair twice
    gone                    bool        whether this row says that an older one is no more
    event_due               int64       as the state has them
    processing_due          int64
    event_due_sorted        int64       the same times in their own order, and beside each the number of its row:
    event_due_row           int32       what is due is found without looking at the rest
    processing_due_sorted   int64
    processing_due_row      int32
    ...                                 the engine's own columns

Its name is its own: a task that runs twice leaves a file that nobody names, never two truths. The schema's metadata says
`mainstem.format`.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from mainstem.errors import Corrupt
from mainstem.operators.stage.engine import NEVER, Int64Array

__all__ = ["OWN_COLUMNS", "RunEntry", "RunFile", "open_run", "write_run"]

FORMAT = b"1"
OWN_COLUMNS = (
    "group", "item", "gone", "event_due", "processing_due",
    "event_due_sorted", "event_due_row", "processing_due_sorted", "processing_due_row",
)  # fmt: skip
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RunEntry:
    """What a manifest says of a run."""

    name: str
    rows: int
    bytes: int
    crc32c: int
    # The batch that wrote it.
    batch: int

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class RunFile:
    """A run, mapped."""

    def __init__(self, path: str, batch: int) -> None:
        with pa.memory_map(path) as file:
            self.table: pa.RecordBatch = pa.ipc.open_file(file).get_batch(0)
        self.batch = batch
        self.group = self._numbers("group")
        self.item = self._numbers("item")
        self.gone = np.asarray(self.table.column("gone").cast(pa.int8())).view(np.bool_)
        self._own = [name for name in self.table.schema.names if name not in OWN_COLUMNS]

    def _numbers(self, name: str) -> Any:
        return self.table.column(name).to_numpy()

    def rows_due(self, kind: str, after: int, up_to: int) -> Any:
        """The numbers of the rows whose time of this kind ("event", "processing") lies behind `after`, up to `up_to`."""
        times = self._numbers(f"{kind}_due_sorted")
        first, end = np.searchsorted(times, [after, up_to], side="right")
        return self._numbers(f"{kind}_due_row")[first:end]

    def first_due(self, kind: str, after: int) -> int:
        """The first time of this kind behind `after`; NEVER if there is none."""
        times = self._numbers(f"{kind}_due_sorted")
        place = int(np.searchsorted(times, after, side="right"))
        return int(times[place]) if place < len(times) else NEVER

    def taken(self, rows: Int64Array) -> pa.RecordBatch:
        """Some rows, as the state has them."""
        columns = ["group", "item", "event_due", "processing_due", *self._own]
        return self.table.select(columns).take(pa.array(rows))


def write_run(folder: str, state: pa.Table, gone: Any, batch: int) -> RunEntry:
    """Write a run of state rows that are sorted by group and item; `gone` marks those that are no more. Synced."""
    columns: dict[str, Any] = {"group": state.column("group"), "item": state.column("item"), "gone": pa.array(gone)}
    for kind in ("event", "processing"):
        times = np.asarray(state.column(f"{kind}_due"))
        order = np.argsort(times, kind="stable").astype(np.int32)
        columns[f"{kind}_due"] = times
        columns[f"{kind}_due_sorted"] = times[order]
        columns[f"{kind}_due_row"] = order
    for name in state.schema.names:
        columns.setdefault(name, state.column(name))
    table = pa.table(columns).replace_schema_metadata({b"mainstem.format": FORMAT}).combine_chunks()
    name = f"{batch:08d}-{uuid.uuid4().hex[:12]}.arrow"
    path = f"{folder}/{name}"
    with open(path, "wb") as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=max(1, table.num_rows))
        file.flush()
        os.fsync(file.fileno())
    return RunEntry(name, table.num_rows, os.path.getsize(path), _crc32c(path), batch)


@lru_cache(maxsize=512)
def open_run(folder: str, entry: RunEntry) -> RunFile:
    """A run that a manifest names. The first one in a process to open it compares it with what the manifest says."""
    path = f"{folder}/{entry.name}"
    try:
        size, checksum = os.path.getsize(path), _crc32c(path)
    except OSError as error:
        raise _damaged(path, f"It cannot be read: {error.strerror}.") from error
    if (size, checksum) != (entry.bytes, entry.crc32c):
        raise _damaged(
            path,
            f"It should have {entry.bytes} bytes with checksum {entry.crc32c:08x}, it has {size} with {checksum:08x}.",
        )
    return RunFile(path, entry.batch)


def _damaged(path: str, detail: str) -> Corrupt:
    return Corrupt(
        "state of a flow is damaged",
        detail=f'The file is "{path}". {detail}',
        hint="The log has everything: rebuild the flow's sink (mainstem view rebuild NAME --program FILE), or delete the "
        "flow's checkpoint together with what it has written and run it again.",
    )


def _crc32c(path: str) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = google_crc32c.extend(checksum, chunk)
    return checksum
