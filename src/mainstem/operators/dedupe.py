"""dedupe: keeps the first of several rows with the same key within a duration of event time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from mainstem.durations import Duration, duration_us, show_duration, show_span
from mainstem.errors import Invalid
from mainstem.log.record import RECORD_MARK
from mainstem.log.watermark import WATERMARKED_RECORD
from mainstem.operators.dedupe_engine import DedupeEngine
from mainstem.operators.stage.frame_columns import (
    Shown,
    by_names,
    check_column,
    check_lasting,
    check_record,
    columns_of,
    event_time_of,
    record_field,
    select_columns,
)
from mainstem.operators.stage.keyed_rows import KeyedRows
from mainstem.operators.stage.stage import StageSpec, add_stage, remember

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["dedupe"]


def dedupe(
    rows: DataFrame, *, by: str | Sequence[str], within: Duration, on: str | None = None, name: str | None = None
) -> DataFrame:
    """The rows without duplicates: a duplicate has the same `by` as an earlier row, less than `within` apart in event time.

    The first row in the log is kept (with a key in several partitions: the first that is read), and duplicates are counted.
    State is evicted when the watermark is twice `within` past a row. A row whose event time is more than `within` behind
    the watermark is late and goes to `<flow>.late`. `on`: the event time, if it is not the marked column.

    >>> from mainstem.testing import TestStream
    >>> stream = TestStream("order STRING, at TIMESTAMP", event_time="at")
    >>> stream = stream.rows([{"order": "o-1", "at": "2026-01-01 12:00:00"}, {"order": "o-2", "at": "2026-01-01 12:00:01"}])
    >>> stream = stream.rows([{"order": "o-1", "at": "2026-01-01 12:00:02"}])
    >>> results = stream.run(lambda rows: dedupe(rows, by="order", within="1 hour"))
    >>> [row["order"] for row in results.rows], results.counts
    (['o-1', 'o-2'], {'duplicates': 1})
    """
    spec, columns = remember("dedupe", lambda: _plan(rows, by, within, on))
    return select_columns(add_stage(rows, spec, name=name), columns)


def _plan(rows: DataFrame, by: str | Sequence[str], within: Duration, on: str | None) -> tuple[StageSpec, list[Shown]]:
    schema = columns_of(rows)
    span = duration_us(within, setting="within")
    if span <= 0:
        raise Invalid(
            f'within "{within}" is not a positive duration',
            detail="Rows with the same key less than this apart are duplicates.",
            hint='For example: within="1 hour".',
        )
    if on is not None:
        check_column(on, schema, "dedupe")
    names = by_names(by, schema, "dedupe")
    check_record(schema, "dedupe")
    check_lasting(rows, schema, "dedupe")
    time = on or event_time_of(schema, "dedupe")
    keyed = KeyedRows(schema, names, time)
    record = record_field(schema)
    if rows.isStreaming:
        _check_watermark(record)
    engine = DedupeEngine(tuple(keyed.by_fields), keyed.row_type, span, "" if record is None else record.name)
    remembered_for = show_duration(timedelta(microseconds=2 * span))
    spec = StageSpec(
        "dedupe",
        engine,
        keyed.native,
        keyed.arrow,
        bounded_by=f"a row is evicted when the watermark is {remembered_for} past it",
        late_names={f"by_{place}": name for place, name in enumerate(names)},
        definition={"by": list(names)},
        parameters={"by": list(names), "within": show_span(span), "on": time},
        packed=keyed.input_schema if keyed.packable else None,
        lineage={
            "by": list(names),
            "time": [time],
            "within": span,
            "row": list(schema.names),
            "record": None if record is None else record.name,
        },
    )
    columns = [Shown(f"row.{field.name}", field) for field in schema if record is None or field.name != record.name]
    return spec, [*columns, Shown("record", pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK))]


def _check_watermark(record: pa.Field | None) -> None:
    if record is None or record.type.get_field_index("watermark") < 0:
        raise Invalid(
            "dedupe needs a watermark, and the stream has none",
            detail="Without a watermark its state could never be evicted.",
            hint='Read the topic with stream(watermark="10 minutes"), and keep `record` in what you select.',
        )
