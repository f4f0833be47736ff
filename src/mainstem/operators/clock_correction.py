"""clock_corrected: corrects the event times of devices whose clocks are wrong, with two other readings.

    occurred    when it happened        by the device's clock
    sent        when it was sent        by the device's clock
    received    when it arrived         by our clock

received - sent is the difference of the two clocks plus the latency of the message; one row alone cannot separate them.
Of many rows of one device the smallest difference is the best estimate: some message was fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from mainstem.durations import Duration, duration_us
from mainstem.errors import Invalid
from mainstem.log.record import EVENT_TIME_MARK
from mainstem.operators.stage.frame_columns import by_names, check_column, columns_of, record_field, transform

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["clock_corrected"]

TIME = pa.timestamp("us", "UTC")
CORRECTED, DRIFT, OUTLIER = "corrected_at", "drift_us", "drift_outlier"


def clock_corrected(
    rows: DataFrame,
    *,
    occurred: str,
    sent: str,
    received: str = "record.appended_at",
    outlier: Duration = "1 day",
    by: str | Sequence[str] | None = None,
) -> DataFrame:
    """Adds `corrected_at`, which becomes the event time of the rows, `drift_us` and `drift_outlier`.

    `corrected_at` is `occurred` plus the drift, `received` less `sent`. `drift_outlier` is true where the drift is larger
    than `outlier`, in either direction, or unknown because a reading is missing; then `corrected_at` is `occurred`. With
    `by`, the smallest drift of all rows of a device is used for each of them: for batch rows only, since in a stream a
    later row would change the result of earlier ones.

    The watermark of a row does not change: it follows the event time of the topic.

    >>> from mainstem.testing import TestStream
    >>> script = TestStream("tapped TIMESTAMP, sent TIMESTAMP, came TIMESTAMP", event_time="tapped")
    >>> script = script.rows([{"tapped": "2026-01-01 09:00", "sent": "2026-01-01 09:10", "came": "2026-01-01 12:10"}])
    >>> row = script.run(lambda rows: clock_corrected(rows, occurred="tapped", sent="sent", received="came")).rows[0]
    >>> str(row["corrected_at"]), row["drift_us"] // 3_600_000_000, row["drift_outlier"]
    ('2026-01-01 12:00:00+00:00', 3, False)
    """
    schema = columns_of(rows)
    limit = duration_us(outlier, setting="outlier")
    for path in (occurred, sent, received):
        _check_time(path, schema)
    if taken := sorted({CORRECTED, DRIFT, OUTLIER} & set(schema.names)):
        raise Invalid(
            f'the rows already have a column "{taken[0]}"',
            detail=f"clock_corrected adds {CORRECTED}, {DRIFT} and {OUTLIER}.",
            hint="Give yours another name, or correct the clock once.",
        )
    names = by_names(by or (), schema, "clock_corrected")
    if names and rows.isStreaming:
        raise Invalid(
            "the smallest drift of a device cannot be computed in a stream",
            detail="A later row may have a smaller drift, which would change the result of earlier rows.",
            hint="Leave `by` out, or use batch rows: topic.read() instead of topic.stream().",
        )
    paths = (occurred, sent, received)
    return transform(
        rows,
        lambda frame: _native(frame, schema, paths, limit, names),
        lambda table: _over_arrow(table, _add_fields(schema), paths, limit),
    )


def _native(
    rows: DataFrame, schema: pa.Schema, paths: tuple[str, str, str], limit: int, by: Sequence[str]
) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    occurred, sent, received = (F.unix_micros(_column(path).cast("timestamp")) for path in paths)
    drift = received - sent
    if by:
        drift = F.min(drift).over(Window.partitionBy(*(_column(name) for name in by)))
    made = {
        CORRECTED: F.timestamp_micros(occurred + F.coalesce(drift, F.lit(0))),
        DRIFT: drift,
        OUTLIER: F.coalesce(F.abs(drift) > limit, F.lit(True)),
    }
    columns: list[Any] = []
    for field in _add_fields(schema):
        mark = {name.decode(): value.decode() for name, value in (field.metadata or {}).items()}
        if field.name in made:
            columns.append(made[field.name].alias(field.name, **({"metadata": mark} if mark else {})))
        elif _marked(schema.field(field.name)):
            # A computed column has no marks, so it is no longer the event time.
            columns.append(F.coalesce(_column(field.name)).alias(field.name))
        else:
            columns.append(_column(field.name))
    return rows.select(*columns)


def _column(path: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(path if path.startswith("record.") else f"`{path.replace('`', '``')}`")


def _add_fields(schema: pa.Schema) -> pa.Schema:
    """The original columns, then the new ones, and `record` last."""
    record = record_field(schema)
    plain = [
        field.remove_metadata() if _marked(field) else field
        for field in schema
        if record is None or field.name != record.name
    ]
    made = [
        pa.field(CORRECTED, TIME, metadata=EVENT_TIME_MARK),
        pa.field(DRIFT, pa.int64()),
        pa.field(OUTLIER, pa.bool_()),
    ]
    return pa.schema([*plain, *made, *([] if record is None else [record])])


def _marked(field: pa.Field) -> bool:
    return any(mark in (field.metadata or {}) for mark in EVENT_TIME_MARK)


def _check_time(path: str, schema: pa.Schema) -> None:
    name, _, within = path.partition(".") if path.startswith("record.") else (path, "", "")
    check_column(name, schema, "clock_corrected")
    found = schema.field(name).type
    if within:
        place = found.get_field_index(within)
        found = pa.null() if place < 0 else found.field(place).type
    if not pa.types.is_timestamp(found):
        raise Invalid(
            f'column "{path}" is not a time',
            detail="occurred, sent and received must be TIMESTAMP columns.",
            hint="Name a column of type TIMESTAMP.",
        )


def _over_arrow(table: pa.Table, schema: pa.Schema, paths: tuple[str, str, str], limit: int) -> pa.Table:
    def microseconds(path: str) -> pa.ChunkedArray:
        name, _, within = path.partition(".") if path.startswith("record.") else (path, "", "")
        column = pc.struct_field(table.column(name), [within]) if within else table.column(name)
        return column.cast(TIME).cast(pa.int64())

    occurred, sent, received = map(microseconds, paths)
    drift = pc.subtract(received, sent)
    made = {
        CORRECTED: pc.add(occurred, pc.fill_null(drift, 0)).cast(TIME),
        DRIFT: drift,
        OUTLIER: pc.fill_null(pc.greater(pc.abs(drift), limit), True),
    }
    columns = [made[name] if name in made else table.column(name) for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)
