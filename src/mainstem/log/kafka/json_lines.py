"""Many JSON values read at once, by Arrow, where nothing about them is out of the ordinary.

Arrow reads lines several times as fast as they can be taken one by one. It is stricter than `JsonCodec` in some things; so
whatever it does not take, the codec looks at value by value, and says what is wrong with which.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as kinds

from mainstem.log.readable_values import unreadable_value

__all__ = ["lines_read"]


def lines_read(values: Sequence[bytes | None], schema: pa.Schema) -> pa.RecordBatch | None:
    """The columns of some values; None if they must be read one by one."""
    if not values or not all(map(_is_plain, schema.types)):
        return None
    # Each begins an object and holds no line end, so as many rows as values means one of each.
    if not all(value is not None and value[:1] == b"{" and b"\n" not in value for value in values):
        return None
    lines = b"\n".join(values)  # type: ignore[arg-type]
    # A time must say its zone, which Arrow does not ask for while it reads.
    kept = [pa.field(at.name, pa.string() if kinds.is_timestamp(at.type) else at.type) for at in schema]
    asked = pyarrow.json.ParseOptions(explicit_schema=pa.schema(kept), unexpected_field_behavior="ignore")
    try:
        read = pyarrow.json.read_json(
            io.BytesIO(lines), pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1), asked
        )
        if read.num_rows != len(values):
            return None
        columns = [_whole(read.column(at.name)) for at in kept]
        for place, kind in enumerate(schema.types):
            if kinds.is_timestamp(kind):
                if not pc.all(pc.ends_with(columns[place], "Z"), min_count=0).as_py():
                    return None
                columns[place] = columns[place].cast(kind)
            elif kinds.is_floating(kind) and pc.any(pc.is_inf(columns[place])).as_py():
                # Digits beyond all numbers.
                return None
    except pa.ArrowInvalid:
        return None
    found = pa.RecordBatch.from_arrays(columns, schema=schema)
    # Arrow takes bytes that are not UTF-8, and the year 0.
    return found if unreadable_value(found) is None else None


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow reads this type as the codec does: not text that stands for something else, nor what is nested."""
    return bool(
        kinds.is_integer(kind)
        or kinds.is_boolean(kind)
        or kinds.is_float64(kind)
        or kinds.is_string(kind)
        or (kinds.is_timestamp(kind) and kind.tz == "UTC")
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
