"""PackedTopicReader: reads a topic and packs its rows for a stage; see `packed_rows`.

The packing is passed as text in an option of the source: frozen dataclasses of the kinds in `KINDS`, and the values in
them.

    {"kind": "JoinSide", "fields": {...}}
    {"tuple": [...]}    {"schema": text}    {"type": text}    {"rows": text}    and plain JSON

A schema or type is an Arrow message in base64, rows an Arrow stream.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from mainstem.errors import Invalid
from mainstem.operators.aggregates.accumulators import AggregateCall
from mainstem.operators.aggregates.aggregates import Aggregates
from mainstem.operators.comparison import ComparedRows
from mainstem.operators.joins.join_rows import JoinSide
from mainstem.operators.stage.keyed_rows import KeyedRows
from mainstem.operators.stage.packed_rows import Packing
from mainstem.operators.tables.changed_rows import ChangedRows
from mainstem.operators.tables.feed_rows import FeedRows
from mainstem.operators.windows.window_assignment import WindowAssignment
from mainstem.operators.windows.window_kinds import Calendar, Cumulating, Everything, Hopping, Tumbling
from mainstem.operators.windows.window_rows import WindowRows
from mainstem.operators.windows.window_time import RowTime
from mainstem.spark.columnar_rows import ColumnPacking, CountRows, SendRows, StageFile
from mainstem.spark.look_up import LookUp
from mainstem.spark.sources.topic_request import TopicRequest
from mainstem.spark.sources.topic_stream_reader import TopicStreamReader

__all__ = ["PackedTopicReader", "packing_of", "to_option"]

# The dataclasses of a packing: the preparations of operators that take packed rows, the tasks of sinks, and their parts.
KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Packing, JoinSide, RowTime, FeedRows, KeyedRows, ChangedRows, ComparedRows,
        WindowRows, Aggregates, AggregateCall, WindowAssignment, Calendar, Cumulating, Everything, Hopping, Tumbling,
        ColumnPacking, SendRows, StageFile, CountRows, LookUp,
    )
}  # fmt: skip


def to_option(packing: Packing | ColumnPacking) -> str:
    """A packing as text."""
    return json.dumps(_write(packing))


# Cached, since a worker serves many batches.
@lru_cache(maxsize=16)
def packing_of(option: str) -> Packing | ColumnPacking:
    """The packing of a text."""
    found: Packing | ColumnPacking = _read(json.loads(option))
    return found


def _write(value: Any) -> Any:
    kind = KINDS.get(type(value).__name__)
    if kind is not None and type(value) is kind:
        known = {field.name: _write(getattr(value, field.name)) for field in fields(kind)}
        return {"kind": kind.__name__, "fields": known}
    if isinstance(value, tuple):
        return {"tuple": [_write(part) for part in value]}
    if isinstance(value, list):
        return [_write(part) for part in value]
    if isinstance(value, pa.Schema):
        return {"schema": base64.b64encode(value.serialize().to_pybytes()).decode()}
    if isinstance(value, pa.RecordBatch):
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, value.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(value)
        return {"rows": base64.b64encode(target.getvalue()).decode()}
    if isinstance(value, pa.DataType):
        return {"type": _write(pa.schema([("of", value)]))}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise Invalid(f"{type(value).__name__} cannot be passed to a Spark source", detail=f"It is {value!r}.")


def _read(found: Any) -> Any:
    if isinstance(found, list):
        return [_read(part) for part in found]
    if not isinstance(found, dict):
        return found
    if "tuple" in found:
        return tuple(_read(part) for part in found["tuple"])
    if "schema" in found:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"])))
    if "rows" in found:
        return pa.ipc.open_stream(base64.b64decode(found["rows"])).read_next_batch()
    if "type" in found:
        return _read(found["type"]).field(0).type
    return KINDS[found["kind"]](**{name: _read(part) for name, part in found["fields"].items()})


class PackedTopicReader(TopicStreamReader):
    """Reads a topic, batch by batch, as packed rows."""

    def __init__(self, request: TopicRequest, schema: pa.Schema, option: str) -> None:
        super().__init__(request, schema)
        self._option = option

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_option": self._option}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        for look_up in packing_of(self._option).look_ups:
            look_up.check()
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        packing = packing_of(self._option)
        return packing.pack(self.rows(partition, packing.schema))
