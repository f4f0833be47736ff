"""How many bytes each row takes, to hold the limit of a record; an estimate of its Arrow form, not exact to the byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

__all__ = ["row_bytes"]

Int64Array = npt.NDArray[np.int64]

# What an offset of a string, a list or a map takes.
_OFFSET_BYTES = 4


def row_bytes(columns: list[pa.Array]) -> Int64Array:
    """The bytes of each row over all columns.

    >>> row_bytes([pa.array(["abc", None]), pa.array([1, 2], pa.int64())]).tolist()
    [15, 12]
    """
    total: Int64Array = np.sum([_bytes_of(column) for column in columns], axis=0, dtype=np.int64)
    return total


def _bytes_of(array: pa.Array) -> Int64Array:
    data_type = array.type
    if kinds.is_struct(data_type):
        return row_bytes(array.flatten())
    if kinds.is_string(data_type) or kinds.is_binary(data_type):
        return np.diff(_offsets(array)) + _OFFSET_BYTES
    if kinds.is_list(data_type) or kinds.is_map(data_type):
        elements = [array.values] if kinds.is_list(data_type) else [array.keys, array.items]
        return np.diff(_sums(elements)[_offsets(array)]) + _OFFSET_BYTES
    return np.full(len(array), max(data_type.bit_width // 8, 1), np.int64)


def _offsets(array: pa.Array) -> Int64Array:
    if len(array) == 0:
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _sums(columns: list[pa.Array]) -> Int64Array:
    """The bytes of all elements before each one."""
    return np.concatenate(([0], np.cumsum(row_bytes(columns))))
