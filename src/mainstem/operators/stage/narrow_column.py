"""Narrow columns: whole numbers in as few bytes as their spread needs, read where they lie.

A column of one value takes no bytes; others are kept as steps above the lowest value, in 1, 2 or 4 bytes where that is
enough. What was done to a column stands in its field's metadata:

    mainstem.type       its type
    mainstem.base       the lowest value
    mainstem.step       what all distances from it are multiples of (times of windows: of their size)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Scale", "narrowed", "widened"]

_TYPE, _BASE, _STEP = b"mainstem.type", b"mainstem.base", b"mainstem.step"
_TYPES = {str(one): one for one in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}
_NARROW = (pa.uint8(), pa.uint16(), pa.uint32())
# So many values say whether there may be a step at all.
_SAMPLE = 64


class Scale:
    """What a field's metadata says of its column: value = base + step * kept."""

    def __init__(self, field: pa.Field) -> None:
        marks = field.metadata or {}
        self.base, self.step = int(marks.get(_BASE, b"0")), int(marks.get(_STEP, b"1"))
        # None: the column is as it was.
        self.type = _TYPES[marks[_TYPE].decode()] if _TYPE in marks else None

    @property
    def plain(self) -> bool:
        return self.type is None


def narrowed(name: str, column: pa.Array) -> tuple[pa.Field, pa.Array]:
    """A column in the least of bytes, and its field."""
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


def widened(field: pa.Field, column: pa.Array) -> pa.Array:
    """The column as it was."""
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
    # Too far apart for their distance to be a number of 64 bits: then there is no step to be had either.
    return max(1, int(np.gcd.reduce(distances))) if (distances >= 0).all() else 1
