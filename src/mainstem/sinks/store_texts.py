"""Keys and rows as JSON texts, for stores that hold texts: each value comes back exactly."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.rows.merged_rows import normal_key
from mainstem.log.rows.nested_json import from_json, to_json

__all__ = ["key_texts", "row_texts", "rows_from_texts"]


def key_texts(rows: pa.Table, key: Sequence[str]) -> list[str]:
    """A JSON array of the key columns of each row; equal keys have equal texts.

    >>> key_texts(pa.table({"id": [7], "at": ["a"], "title": ["x"]}), ["id", "at"])
    ['[7,"a"]']
    """
    columns = (rows.column(name) for name in key)
    arrays = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in columns]
    joined = pc.binary_join_element_wise(*(to_json(normal_key(array)) for array in arrays), ",")
    texts: list[str] = pc.binary_join_element_wise("[", joined, "]", "").to_pylist()
    return texts


def row_texts(rows: pa.Table) -> list[str]:
    """A JSON object for each row.

    >>> row_texts(pa.table({"id": [7], "title": [None]}))
    ['{"id":7,"title":null}']
    """
    return [text for batch in rows.to_batches() for text in to_json(batch.to_struct_array()).to_pylist()]


def rows_from_texts(texts: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of texts; a column that they lack is null."""
    return pa.record_batch(from_json(list(texts), pa.struct(list(schema))).flatten(), schema=schema)
