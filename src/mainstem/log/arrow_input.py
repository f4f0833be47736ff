"""One Arrow batch from whatever is a table, or can hand itself over as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from mainstem.errors import InvalidRows
from mainstem.log.row_errors import APPEND_BYTES_MAX, NOTHING_WRITTEN, shown, too_large

__all__ = ["batch_of"]

# What pandas calls an index without a name when it becomes Arrow: it is no column of the user's.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def batch_of(rows: Any) -> pa.RecordBatch | None:
    """One batch of what is Arrow or says it can be; None for what must be dicts."""
    if isinstance(rows, pa.RecordBatch):
        batch = rows
    elif isinstance(rows, pa.Table):
        batch = _one_batch(rows)
    elif hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        try:
            batch = _one_batch(pa.table(rows))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidRows(
                f"rows given as {type(rows).__name__} cannot be read as a table",
                detail=f"{str(error).splitlines()[0] if str(error) else type(error).__name__}. {NOTHING_WRITTEN}",
                hint="Give a table with a column for each column of the topic, or a list of dicts.",
            ) from error
    else:
        _refuse_single(rows)
        return None
    if batch.nbytes > APPEND_BYTES_MAX:
        raise too_large(batch.nbytes)
    if batch.schema.metadata and b"pandas" in batch.schema.metadata:
        keep = [name for name in batch.schema.names if not _UNNAMED_INDEX.fullmatch(name)]
        return batch.select(keep) if len(keep) < batch.num_columns else batch
    return batch


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    if table.nbytes > APPEND_BYTES_MAX:
        raise too_large(table.nbytes)
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _refuse_single(rows: Any) -> None:
    if isinstance(rows, Mapping):
        hint = "Write [row] for one row; a dict of columns becomes rows by pyarrow.table(columns)."
    elif isinstance(rows, str | bytes | bytearray) or not isinstance(rows, Iterable):
        hint = "Give a list of dicts, a pyarrow Table, or a polars or pandas frame."
    else:
        return
    raise InvalidRows(
        f"rows are {type(rows).__name__}, not a list of rows",
        detail=f"Got {shown(rows)}. {NOTHING_WRITTEN}",
        hint=hint,
    )
