"""compare_with: results of windows beside those of an earlier time, for example this hour and the same hour last week."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.durations import Duration, duration_us, show_duration, show_span
from mainstem.errors import Invalid
from mainstem.log.record import RECORD_MARK
from mainstem.log.watermark import NO_TIME, WATERMARKED_RECORD
from mainstem.operators.comparison_engine import WINDOW, ComparisonEngine, comparable
from mainstem.operators.stage.arrow_columns import microseconds, whole
from mainstem.operators.stage.frame_columns import (
    WINDOW_MARK,
    Shown,
    by_names,
    check_column,
    check_record,
    columns_of,
    record_field,
    select_columns,
)
from mainstem.operators.stage.keyed_rows import arrow_hashes, native_hashes, native_tie
from mainstem.operators.stage.spark_hashes import hashable
from mainstem.operators.stage.stage import StageSpec, add_stage, remember

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["compare_with"]

# Set by `windowed`: "final" if each window is emitted once, else its `results`.
RESULTS_MARK = WINDOW_MARK.encode()


def compare_with(
    rows: DataFrame,
    *,
    earlier: Duration,
    by: str | Sequence[str] | None = None,
    lateness: Duration | None = None,
    name: str | None = None,
) -> DataFrame:
    """Each result of a window beside the result of the same key `earlier` before.

    `rows` has a column `window` (start and end), as the result of `windowed` has. The columns before it are the key, unless
    `by` is given; the columns after it are compared: each `total` gives `total`, `total_earlier`, and for a number
    `total_ratio`, null if there is no earlier result. A correction, also of the earlier result, is emitted as
    an update. `lateness`: how long after its end a window may be corrected; the same as for `windowed`.

    >>> from mainstem.testing import TestStream
    >>> schema = "store STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, sales BIGINT"
    >>> def sold(day, sales):
    ...     window = {"start": datetime(2026, 1, day, 12, tzinfo=UTC), "end": datetime(2026, 1, day, 13, tzinfo=UTC)}
    ...     return [{"store": "Berlin", "window": window, "sales": sales}]
    >>> from datetime import UTC, datetime
    >>> results = TestStream(schema).rows(sold(1, 50)).rows(sold(8, 60)).run(lambda rows: compare_with(rows, earlier="7 days"))
    >>> [(row["sales"], row["sales_earlier"], row["sales_ratio"]) for row in results.rows]
    [(50, None, None), (60, 50, 1.2)]
    """
    spec, columns = remember("compare_with", lambda: _plan(columns_of(rows), earlier, by, lateness))
    return select_columns(add_stage(rows, spec, name=name), columns)


def _plan(
    schema: pa.Schema, earlier: Duration, by: str | Sequence[str] | None, lateness: Duration | None
) -> tuple[StageSpec, list[Shown]]:
    span = duration_us(earlier, setting="earlier")
    if span <= 0:
        raise Invalid(f'earlier "{earlier}" is not a positive duration', hint='For example: earlier="7 days".')
    _check_window(schema)
    at = schema.get_field_index("window")
    names = by_names([field.name for field in list(schema)[:at]] if by is None else by, schema, "compare_with")
    check_record(schema, "compare_with")
    record = record_field(schema)
    left_out = {*names, "window", "pane", *([] if record is None else [record.name])}
    values = [field for field in schema if field.name not in left_out]
    _check_names(values, names)
    corrected = _lateness(schema.field("window"), lateness)
    engine = ComparisonEngine(
        tuple(pa.field(f"by_{place}", schema.field(name).type) for place, name in enumerate(names)),
        tuple(pa.field(f"v_{place}", field.type) for place, field in enumerate(values)),
        span,
        corrected,
    )
    plan = ComparedRows(schema, names, tuple(field.name for field in values), None if record is None else record.name)
    kept_for = show_duration(timedelta(microseconds=span + corrected))
    spec = StageSpec(
        "compare_with",
        engine,
        plan.native,
        plan.arrow,
        bounded_by=f"a result is evicted when the watermark is {kept_for} past the end of its window",
        definition={"by": list(names)},
        parameters={"earlier": show_span(span), "by": list(names), "lateness": show_span(corrected)},
        packed=plan.input_schema if plan.packable else None,
    )
    return spec, _plan_columns(schema, names, values)


def _plan_columns(schema: pa.Schema, names: Sequence[str], values: Sequence[pa.Field]) -> list[Shown]:
    columns = [Shown(f"by_{place}", schema.field(name)) for place, name in enumerate(names)]
    columns.append(Shown("window", pa.field("window", WINDOW)))
    for place, field in enumerate(values):
        columns += [Shown(f"v_{place}", field), Shown(f"e_{place}", pa.field(f"{field.name}_earlier", field.type))]
        if comparable(field.type):
            columns.append(Shown(f"r_{place}", pa.field(f"{field.name}_ratio", pa.float64())))
    return [*columns, Shown("record", pa.field("record", WATERMARKED_RECORD, metadata=RECORD_MARK))]


def _check_window(schema: pa.Schema) -> None:
    check_column("window", schema, "compare_with")
    window = schema.field("window")
    if not pa.types.is_struct(window.type) or {field.name for field in window.type} != {"start", "end"}:
        raise Invalid(
            'the column "window" is not a window',
            detail=f"It is {window.type}; a window is a struct of start and end.",
            hint="Compare results of windowed(...).",
        )
    if (window.metadata or {}).get(RESULTS_MARK) == b"discard":
        raise Invalid(
            'windows with results="discard" cannot be compared',
            detail='With results="discard" each row is one part of a window, and no row has its total.',
            hint='Use results="accumulate" or "retract" in windowed(...).',
        )


def _lateness(window: pa.Field, lateness: Duration | None) -> int:
    """How long after its end a window may be corrected."""
    if lateness is not None:
        return duration_us(lateness, setting="lateness")
    if (window.metadata or {}).get(RESULTS_MARK, b"final") != b"final":
        raise Invalid(
            "compare_with needs lateness=",
            detail="The windows have early results or a lateness, and results are kept for as long as they may be corrected.",
            hint='Give the same lateness as windowed has: lateness="1 hour", or "0 seconds".',
        )
    return 0


def _check_names(values: Sequence[pa.Field], by: Sequence[str]) -> None:
    made = [f"{field.name}{end}" for field in values for end in ("_earlier", "_ratio")]
    if taken := sorted({*made} & {*by, *(field.name for field in values)}):
        raise Invalid(
            f'the rows already have a column "{taken[0]}"',
            detail="compare_with adds a column of that name.",
            hint="Give yours another name.",
        )


@dataclass(frozen=True)
class ComparedRows:
    """Converts results to the input of the engine."""

    # How the engine orders rows of one position in the log; see `packed_rows`.
    same_position: ClassVar[str] = "tie"

    schema: pa.Schema
    by: tuple[str, ...]
    values: tuple[str, ...]
    record: str | None

    @property
    def input_schema(self) -> pa.Schema:
        """The columns of the converted rows."""
        int32, int64 = pa.int32(), pa.int64()
        keys = [(f"by_{place}", self.schema.field(name).type) for place, name in enumerate(self.by)]
        places = [("change", pa.string()), ("partition", int32), ("offset", int64), ("tie", int64)]
        values = [(f"v_{place}", self.schema.field(name).type) for place, name in enumerate(self.values)]
        times = [("start", int64), ("end", int64)]
        return pa.schema([("group", int64), ("check", int64), *keys, *times, *places, *values])

    @property
    def packable(self) -> bool:
        """Whether `arrow` gives rows the groups that `native` does."""
        return self.record is not None and all(hashable(self.schema.field(name).type) for name in self.by)

    def native(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        def column(name: str):  # type: ignore[no-untyped-def]
            return F.col(f"`{name.replace('`', '``')}`")

        keys = [column(name) for name in self.by]
        record = None if self.record is None else column(self.record)
        places = (
            [F.lit(0), F.monotonically_increasing_id()] if record is None else [record["partition"], record["offset"]]
        )
        change = F.lit("insert") if record is None else F.coalesce(record["change"], F.lit("insert"))
        return frame.select(
            *native_hashes(self.schema, self.by),
            *(key.alias(f"by_{place}") for place, key in enumerate(keys)),
            *(F.coalesce(F.unix_micros(column("window")[at]), F.lit(NO_TIME)).alias(at) for at in ("start", "end")),
            change.alias("change"),
            places[0].alias("partition"),
            places[1].alias("offset"),
            native_tie(self.schema).alias("tie"),
            *(column(name).alias(f"v_{place}") for place, name in enumerate(self.values)),
        )

    def arrow(self, table: pa.Table) -> pa.Table:
        count = table.num_rows
        keys = [table.column(name) for name in self.by]
        columns = dict(zip(("group", "check"), map(pa.array, arrow_hashes(keys, count)), strict=True))
        columns |= {f"by_{place}": key for place, key in enumerate(keys)}
        window = whole(table.column("window"))
        columns |= {name: microseconds(pc.struct_field(window, [name])) for name in ("start", "end")}
        if self.record is None:
            places = {"partition": pa.array(np.zeros(count, np.int32)), "offset": pa.array(np.arange(count))}
            columns |= {"change": pa.array(["insert"] * count, pa.string()), **places}
        else:
            record = whole(table.column(self.record))
            columns |= {name: record.field(name) for name in ("partition", "offset")}
            columns["change"] = pc.fill_null(record.field("change"), "insert")
        columns["tie"] = pa.array(np.zeros(count, np.int64))
        return pa.table(columns | {f"v_{place}": table.column(name) for place, name in enumerate(self.values)})
