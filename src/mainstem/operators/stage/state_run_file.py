"""One run: a part of the state of a stage's bucket, sorted and immutable, in its own file.

A run is an Arrow IPC file of one record batch, memory-mapped; integers except `group` and `item` are narrowed:

    group, item             int64       sorted by both; pairs are unique
    gone                    bool        whether this row is a tombstone, which deletes an older one
    event_due               int64       as in the state
    processing_due          int64
    event_due_sorted        int64       the same times sorted, each with its row number: due rows are found
    event_due_row           int32       by bisection
    processing_due_sorted   int64
    processing_due_row      int32       (null if all times are equal: the order is that of the rows)
    ...                                 the engine's own columns

Its name is unique: a task that runs twice leaves a file that no manifest names. The schema's metadata has
`mainstem.format`: 2; in format 1 no column is narrowed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.errors import Corrupt
from mainstem.operators.stage.engine import NEVER, Int64Array

__all__ = [
    "OWN_COLUMNS",
    "RunEntry",
    "RunFile",
    "Scale",
    "check_run",
    "narrow_column",
    "open_run",
    "widen_column",
    "write_run",
]


# Narrow columns: integers in as few bytes as their range needs, readable in place.
#
# A column of one value takes no bytes; others are stored as steps above the lowest value, in 1, 2 or 4 bytes if that is
# enough. The conversion is in the field's metadata:
#
#     mainstem.type       the original type
#     mainstem.base       the lowest value
#     mainstem.step       the common divisor of the distances from it (for times of windows: their size)


_TYPE, _BASE, _STEP = b"mainstem.type", b"mainstem.base", b"mainstem.step"
_TYPES = {str(one): one for one in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}
_NARROW = (pa.uint8(), pa.uint16(), pa.uint32())
# A sample of this size shows whether there can be a step.
_SAMPLE = 64


class Scale:
    """The scale in a field's metadata: value = base + step * stored."""

    def __init__(self, field: pa.Field) -> None:
        marks = field.metadata or {}
        self.base, self.step = int(marks.get(_BASE, b"0")), int(marks.get(_STEP, b"1"))
        # None: the column is not narrowed.
        self.type = _TYPES[marks[_TYPE].decode()] if _TYPE in marks else None

    @property
    def plain(self) -> bool:
        return self.type is None


def narrow_column(name: str, column: pa.Array) -> tuple[pa.Field, pa.Array]:
    """A column in as few bytes as possible, and its field."""
    plain = pa.field(name, column.type), column
    if str(column.type) not in _TYPES or not len(column):
        return plain
    edges = pc.min_max(column).as_py()
    low, high = edges["min"], edges["max"]
    if low is None:
        return plain
    if low == high and not column.null_count:
        return _field(name, pa.null(), column.type, low, 1), pa.nulls(len(column))
    step = 1 if high - low < 2**8 else _step(column, low)
    spread = (high - low) // step
    narrow = next((one for one in _NARROW if spread < 2**one.bit_width), None)
    if narrow is None or narrow.bit_width >= column.type.bit_width:
        return plain
    kept = pc.subtract(column.cast(pa.int64()), low)
    kept = (pc.divide(kept, step) if step > 1 else kept).cast(narrow)
    return _field(name, narrow, column.type, low, step), kept


def widen_column(field: pa.Field, column: pa.Array) -> pa.Array:
    """The column in its original type."""
    scale = Scale(field)
    if scale.type is None:
        return column
    if pa.types.is_null(column.type):
        return pa.repeat(pa.scalar(scale.base, scale.type), len(column))
    steps = column.cast(pa.int64())
    return pc.add(pc.multiply(steps, scale.step) if scale.step > 1 else steps, scale.base).cast(scale.type)


def _field(name: str, kept: pa.DataType, of: pa.DataType, base: int, step: int) -> pa.Field:
    marks = {_TYPE: str(of), _BASE: str(base), _STEP: str(step)}
    return pa.field(name, kept, metadata=marks)


def _step(column: pa.Array, low: int) -> int:
    known = column.drop_null()
    if (
        len(known) > _SAMPLE
        and _common(known.take(pa.array(np.linspace(0, len(known) - 1, _SAMPLE, dtype=int))), low) == 1
    ):
        return 1
    return _common(known, low)


def _common(column: pa.Array, low: int) -> int:
    distances: Any = np.asarray(column).astype(np.int64) - low
    # A negative distance is an overflow of 64 bits: then there is no step.
    return max(1, int(np.gcd.reduce(distances))) if (distances >= 0).all() else 1


FORMAT = b"2"
_KNOWN_FORMATS = (b"1", FORMAT)
OWN_COLUMNS = (
    "group", "item", "gone", "event_due", "processing_due",
    "event_due_sorted", "event_due_row", "processing_due_sorted", "processing_due_row",
)  # fmt: skip
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RunEntry:
    """The entry of a run in a manifest."""

    name: str
    rows: int
    bytes: int
    crc32c: int
    # The batch that wrote it.
    batch: int

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class RunFile:
    """A memory-mapped run."""

    def __init__(self, path: str, batch: int) -> None:
        with pa.memory_map(path) as file:
            self.table: pa.RecordBatch = pa.ipc.open_file(file).get_batch(0)
        found = (self.table.schema.metadata or {}).get(b"mainstem.format", b"none")
        if found not in _KNOWN_FORMATS:
            raise Corrupt(
                f"the state of a flow has format {found.decode()}, which this version cannot read",
                detail=f'The file is "{path}". This version reads formats 1 to {FORMAT.decode()}.',
                hint="Run the program with the version of mainstem that wrote it, or a later one.",
            )
        self.batch = batch
        self.group = self._read_column("group")
        self.item = self._read_column("item")
        self.gone = np.asarray(self.table.column("gone").cast(pa.int8())).view(np.bool_)
        self._own = [name for name in self.table.schema.names if name not in OWN_COLUMNS]

    def _read_column(self, name: str) -> Any:
        return self.table.column(name).to_numpy(zero_copy_only=False)

    def _is_one(self, name: str) -> bool:
        return bool(pa.types.is_null(self.table.schema.field(name).type))

    def _count_due(self, kind: str, at: int) -> int:
        """The number of times of this kind at or before `at`."""
        name = f"{kind}_due_sorted"
        scale = Scale(self.table.schema.field(name))
        if at < scale.base and not scale.plain:
            return 0
        if self._is_one(name):
            return int(self.table.num_rows)
        times, wanted = self._read_column(name), (at - scale.base) // scale.step
        if wanted > np.iinfo(times.dtype).max:
            return int(self.table.num_rows)
        return int(np.searchsorted(times, times.dtype.type(wanted), side="right"))

    def rows_due(self, kind: str, after: int, up_to: int) -> Any:
        """The numbers of the rows whose time of this kind ("event", "processing") is after `after`, up to `up_to`."""
        first, end = self._count_due(kind, after), self._count_due(kind, up_to)
        name = f"{kind}_due_row"
        if self._is_one(f"{kind}_due_sorted"):
            return np.arange(first, end)
        scale = Scale(self.table.schema.field(name))
        return self._read_column(name)[first:end].astype(np.int64) * scale.step + scale.base

    def first_due(self, kind: str, after: int) -> int:
        """The first time of this kind after `after`; NEVER if there is none."""
        place = self._count_due(kind, after)
        name = f"{kind}_due_sorted"
        if place >= self.table.num_rows:
            return NEVER
        return int(widen_column(self.table.schema.field(name), self.table.column(name).slice(place, 1))[0].as_py())

    def take(self, rows: Int64Array) -> pa.RecordBatch:
        """Some rows, with the columns of the state."""
        which = pa.array(rows)
        return self._widen(lambda column: column.take(which))

    def everything(self) -> pa.RecordBatch:
        """All rows, with the columns of the state."""
        return self._widen(lambda column: column)

    def _widen(self, part: Callable[[pa.Array], pa.Array]) -> pa.RecordBatch:
        names = ["group", "item", "event_due", "processing_due", *self._own]
        columns = [widen_column(self.table.schema.field(name), part(self.table.column(name))) for name in names]
        return pa.RecordBatch.from_arrays(columns, names=names)


def write_run(folder: str, state: pa.Table, gone: Any, batch: int) -> RunEntry:
    """Write a run of state rows that are sorted by group and item; `gone` marks tombstones. Synced."""
    count = state.num_rows
    columns: dict[str, pa.Array] = {"gone": pa.array(gone)}
    for kind in ("event", "processing"):
        times = np.asarray(state.column(f"{kind}_due"))
        order = np.argsort(times, kind="stable").astype(np.int32)
        columns[f"{kind}_due"] = pa.array(times)
        columns[f"{kind}_due_sorted"] = pa.array(times[order])
        alike = count > 0 and times[order[0]] == times[order[-1]]
        columns[f"{kind}_due_row"] = pa.nulls(count) if alike else pa.array(order)
    for name in state.schema.names:
        columns.setdefault(name, _whole(state.column(name)))
    # Hashes cannot be narrowed, and are searched in place.
    kept = dict(narrow_column(name, column) for name, column in columns.items() if name not in ("group", "item"))
    hashes = {pa.field(name, pa.int64()): _whole(state.column(name)) for name in ("group", "item")}
    fields, arrays = zip(*(hashes | kept).items(), strict=True)
    schema = pa.schema(fields, metadata={b"mainstem.format": FORMAT})
    name = f"{batch:08d}-{uuid.uuid4().hex[:12]}.arrow"
    path = f"{folder}/{name}"
    with open(path, "wb") as file:
        with pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
        file.flush()
        os.fsync(file.fileno())
    return RunEntry(name, count, os.path.getsize(path), _crc32c(path), batch)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


@lru_cache(maxsize=512)
def open_run(folder: str, entry: RunEntry) -> RunFile:
    """A run that a manifest names; it is verified against the manifest once per process."""
    check_run(folder, entry)
    return RunFile(f"{folder}/{entry.name}", entry.batch)


def check_run(folder: str, entry: RunEntry) -> None:
    """Read every byte of a run, and raise `Corrupt` if its size or checksum differs from the manifest's."""
    path = f"{folder}/{entry.name}"
    try:
        size, checksum = os.path.getsize(path), _crc32c(path)
    except OSError as error:
        raise _corrupt_state(path, f"It cannot be read: {error.strerror}.") from error
    if (size, checksum) != (entry.bytes, entry.crc32c):
        raise _corrupt_state(
            path,
            f"It should have {entry.bytes} bytes with checksum {entry.crc32c:08x}; it has {size} with {checksum:08x}.",
        )


def _corrupt_state(path: str, detail: str) -> Corrupt:
    return Corrupt(
        "the state of a flow is damaged",
        detail=f'The file is "{path}". {detail}',
        hint="The log has all rows: rebuild the flow's sink (mainstem view rebuild NAME --program FILE), or delete the "
        "flow's checkpoint together with what it has written and run it again.",
        path=path,
    )


def _crc32c(path: str) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = google_crc32c.extend(checksum, chunk)
    return checksum
